"""Data that cannot be meant: one line each, with file and line, and nothing written."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_models import chat_tokenizer, tokenizer

from noisescope.errors import InputError, MissingExtra, quoted
from noisescope.measure.opening import open_data

TOKENIZER = tokenizer()
WORDS = "the quick brown fox"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(source: object, **options: Any) -> str:
    """The one line that the source is refused with; nothing is written meanwhile."""
    before = sorted(os.listdir())
    with pytest.raises(InputError) as caught:
        open_data(source, options.pop("tokenizer", TOKENIZER), **options)
    assert sorted(os.listdir()) == before
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def file(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def rows(*rows: object, name: str = "test.jsonl") -> str:
    return file(name, "".join(json.dumps(row) + "\n" for row in rows))


TEXT = {"text": WORDS}


# --- fields -----------------------------------------------------------------------------------------------------


def test_a_row_of_no_known_layout_is_named_with_the_way_out() -> None:
    source = rows(*[TEXT] * 16, {"question": "Why?", "answer": "Because."})
    expected = (
        'test.jsonl:17: no field "text" or "prompt" (has: question, answer); name it with --data test.jsonl:question'
    )
    assert refusal(source) == expected
    assert refusal(source, n_samples=2) == expected  # also where that row is not among the chosen
    assert refusal(rows({"question": "Why?", "answer": "Because."})) == expected.replace(":17:", ":1:")


def test_blank_lines_count() -> None:
    assert refusal(file("test.jsonl", '{"text": "a b"}\n\n\n{"body": 3}\n')) == (
        'test.jsonl:4: no field "text" or "prompt" (has: body); name it with --data test.jsonl:FIELD'
    )
    assert refusal(rows({}, {})).startswith('test.jsonl:1: no field "text" or "prompt" (has: none)')


def test_a_row_that_lacks_what_the_others_have() -> None:
    source = rows(TEXT, TEXT, {"prompt": WORDS})
    assert refusal(source) == 'test.jsonl:3: no field "text", which the rows before it have (has: prompt)'


def test_a_named_field_that_is_not_there() -> None:
    assert refusal(rows(TEXT, TEXT) + ":body") == 'test.jsonl:1: no field "body" (has: text)'
    assert refusal(rows({"body": 3}, TEXT) + ":body").startswith("test.jsonl:1: body: got int 3, expected text")
    assert refusal(file("a.txt", WORDS) + ":body") == 'a.txt: plain text has no field "body"'


def test_rows_of_python_objects_are_numbered() -> None:
    assert refusal([TEXT, {"body": WORDS}]) == (
        'data[1]: no field "text" or "prompt" (has: body); rename one of them to "text"'
    )
    assert refusal([TEXT, "text"]) == "data[1]: got str, expected a row with named fields, as the first"
    assert refusal([WORDS, 3]) == "data[1]: text: got int 3, expected text or a list of chat messages"


def test_a_parquet_row_is_named_by_its_number() -> None:
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(pyarrow.table({"body": [WORDS, WORDS]}), "a.parquet")
    assert refusal("a.parquet") == (
        'a.parquet:1: no field "text" or "prompt" (has: body); name it with --data a.parquet:body'
    )
    writer.write_table(pyarrow.table({"text": [WORDS] * 100 + [None]}), "a.parquet")
    assert refusal("a.parquet") == "a.parquet:101: text: got nothing, expected text"


CHOICE = {"query": "Why?", "choices": ["one", "two", "three"], "gold": 0}
CHAT = {"prompt": [{"role": "user", "content": "Why?"}], "reward_model": {"ground_truth": "3"}}


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (CHOICE | {"gold": 3}, "gold: got int 3, expected 0 to 2 or A to C (3 choices)"),
        (CHOICE | {"gold": -1}, "gold: got int -1, expected 0 to 2 or A to C (3 choices)"),
        (CHOICE | {"gold": "D"}, "gold: got str 'D', expected 0 to 2 or A to C (3 choices)"),
        (CHOICE | {"gold": "\N{LATIN SMALL LETTER SHARP S}"}, "gold: got str 'ß', expected 0 to 2"),
        (CHOICE | {"choices": ["a"] * 30, "gold": 30}, "gold: got int 30, expected 0 to 29 (30 choices)"),
        (CHOICE | {"gold": True}, "gold: got bool True, expected 0 to 2 or A to C (3 choices)"),
        (CHOICE | {"gold": None}, "gold: got nothing, expected 0 to 2 or A to C (3 choices)"),
        (CHOICE | {"gold": [0]}, "gold: got list [0], expected 0 to 2 or A to C (3 choices)"),
        (CHOICE | {"gold": 1e400}, "gold: got float inf, expected 0 to 2 or A to C (3 choices)"),
        (
            CHOICE | {"choices": {"text": ["a", "b"], "label": ["X", "Y"]}, "gold": "Z"},
            "gold: got str 'Z', expected X Y (2 choices)",
        ),
        (CHOICE | {"choices": ["one"]}, "choices: got list ['one'], expected a list of two or more"),
        (CHOICE | {"choices": {"label": ["A"]}}, "choices: got nothing, expected a list of two or more"),
        (CHOICE | {"choices": ["one", ""]}, "choices[1]: empty, expected text"),
        (CHOICE | {"choices": ["one", 2]}, "choices[1]: got int 2, expected text"),
        (CHOICE | {"query": " "}, "query: empty, expected text"),
        (CHAT | {"reward_model": {"style": "rule"}}, 'reward_model: no field "ground_truth" (has: style)'),
        (CHAT | {"reward_model": "{"}, "reward_model: not valid JSON (Expecting property name"),
        (CHAT | {"reward_model": 3}, 'reward_model: no field "ground_truth" (has: int 3)'),
        (
            CHAT | {"reward_model": {"ground_truth": "\\frac{1}{2}"}},
            "reward_model.ground_truth: got str '\\\\frac{1}{2}', expected a number or text that ends in",
        ),
        (CHAT | {"prompt": []}, "prompt: got an empty one, expected text or a list of chat messages"),
        (CHAT | {"prompt": ["Why?"]}, "prompt[0]: got str 'Why?', expected role and content"),
        (CHAT | {"prompt": [{"role": "user", "content": 3}]}, "prompt[0].content: got int 3, expected text"),
        ({"question": "Why?", "answer": "eighteen"}, "answer: got str 'eighteen', expected a number or text that ends"),
        ({"context": "", "continuation": "b"}, "context: empty, expected text"),
        ({"text": "half \ud800"}, "text: half of a surrogate pair at character 5"),
        ({"text": ["a"]}, "text[0]: got str 'a', expected role and content"),
    ],
)
def test_a_field_that_cannot_be_meant(row: dict[str, Any], complaint: str) -> None:
    good = {key: "#### 3" if key == "answer" else WORDS for key in row}
    good |= CHOICE if "query" in row else CHAT if "reward_model" in row else {}
    assert refusal(rows(good, good, row)).startswith(f"test.jsonl:3: {complaint}")


def test_a_conversation_that_the_chat_template_refuses() -> None:
    strict = chat_tokenizer("{{ raise_exception('roles must alternate') }}")
    assert refusal(rows(CHAT, CHAT), tokenizer=strict) == (
        "test.jsonl:1: refused by the chat template (roles must alternate)"
    )


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl", "a.json"])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file(name: str, content: str) -> None:
    assert refusal(file(name, content)).startswith(f"{name}: empty, expected ")


def test_an_empty_list() -> None:
    assert refusal(file("a.json", "[]")) == "a.json: empty, expected at least one row"
    assert refusal([]).startswith("data: empty, expected texts, rows")


def test_json_with_an_error_names_line_and_column() -> None:
    assert refusal(file("a.jsonl", '{"text": "a b"}\n{"text": "a" "b"}\n')) == (
        "a.jsonl:2:14: not valid JSON (Expecting ',' delimiter)"
    )
    assert (
        refusal(file("a.json", '[\n{"text": "a b"},\n{"text": }]')) == "a.json:3:10: not valid JSON (Expecting value)"
    )
    assert refusal(file("a.jsonl", "[" * 100_000)).startswith("a.jsonl:1: not valid JSON (")
    assert refusal(file("a.jsonl", '{"n": ' + "1" * 5000 + "}")).startswith("a.jsonl:1: not valid JSON (")


def test_json_that_is_no_object() -> None:
    assert refusal(file("a.jsonl", '{"text": "a b"}\n["a"]\n')) == (
        "a.jsonl:2: got list, expected an object with named fields"
    )
    assert refusal(file("a.json", '"text"')) == "a.json:1: got str, expected an object with named fields"


def test_text_that_is_not_utf8_names_its_line() -> None:
    assert refusal(file("a.txt", b"one\ntwo \xff\n")) == "a.txt:2: not UTF-8 text (byte 0xff)"
    assert refusal(file("a.jsonl", b'{"text": "a b"}\n\n{"text": "\xe9"}')) == "a.jsonl:3: not UTF-8 text (byte 0xe9)"


def test_binary_data_as_text() -> None:
    assert refusal(file("a.txt", b"one\ntwo\0three")) == "a.txt:2: binary data, expected text"


def test_another_file_as_parquet() -> None:
    pytest.importorskip("pyarrow")
    for content in (b"", b"text", b"PAR1" + bytes(100) + b"PAR1"):
        assert refusal(file("a.parquet", content)).startswith("a.parquet: not a readable Parquet file (")


def test_a_damaged_parquet_file() -> None:
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(
        pyarrow.table({"text": [f"{WORDS} {n}" for n in range(500)]}), "good.parquet", compression="gzip"
    )
    whole = bytearray(Path("good.parquet").read_bytes())
    whole[40:80] = bytes(40)
    assert refusal(file("a.parquet", bytes(whole))).startswith("a.parquet: not a readable Parquet file (")


@pytest.mark.parametrize("name", ["a.csv", "a.pkl", "a.jsonl.gz"])
def test_a_file_of_another_format(name: str) -> None:
    suffix = Path(name).suffix
    expected = f'{name}: cannot read "{suffix}" files, expected one of .txt .md .jsonl .json .parquet'
    assert refusal(file(name, "text\na b c\n")) == expected
    assert refusal(file("a", "text")) == "a: a file without a suffix, expected one of .txt .md .jsonl .json .parquet"


@pytest.mark.parametrize("source", ["missing.jsonl", "missing.csv", "./missing", Path("missing"), "missing.txt:field"])
def test_a_missing_file(source: object) -> None:
    assert refusal(source) == f"{str(source).removesuffix(':field')}: no such file"


def test_a_directory_or_a_device() -> None:
    Path("folder.txt").mkdir()
    assert refusal("folder.txt") == "folder.txt: is a directory, expected a data file"
    assert refusal("/dev/null") == "/dev/null: is neither a file nor a directory, expected a data file"


def test_a_file_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source, text = rows(TEXT, TEXT), file("a.txt", WORDS)

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert refusal(source) == "test.jsonl: cannot be read: Permission denied"
    assert refusal(text) == "a.txt: cannot be read: Permission denied"


def test_a_name_that_is_nothing() -> None:
    assert refusal("") == "data: an empty name; omit it for the built-in text"
    assert refusal("what is this?") == (
        'data "what is this?": neither a file here nor the name of a hub dataset (org/name)'
    )


def test_a_huge_line_and_a_huge_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisescope.measure.reading._LONGEST_LINE", 1 << 20)
    monkeypatch.setattr("noisescope.measure.reading._LARGEST", 1 << 20)
    source = rows(TEXT, {"text": "a" * (1 << 20)})
    assert refusal(source) == "test.jsonl:2: a line of more than 1 MB"
    assert refusal(file("a.txt", "a" * (2 << 20))) == "a.txt: 2 MB, expected at most 1; pass a part of it"
    assert refusal(file("a.json", "[" + " " * (2 << 20) + "]")) == (
        "a.json: 2 MB, expected at most 1; convert it to .jsonl, which is read line by line"
    )


def test_parquet_needs_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        MissingExtra, match=r"^a\.parquet: reading Parquet needs pyarrow: pip install pyarrow$"
    ) as caught:
        open_data(file("a.parquet", "x"), TOKENIZER)
    assert caught.value.exit_code == 6


# --- numbers ----------------------------------------------------------------------------------------------------


def test_one_sample_gives_no_interval() -> None:
    assert refusal([WORDS]) == "data: one sample, but intervals need at least two samples"
    assert refusal(rows(TEXT)) == "test.jsonl: one sample, but intervals need at least two samples"
    assert refusal([WORDS, WORDS], n_samples=1) == "n_samples: got 1, but intervals need at least two samples"
    assert refusal(file("a.txt", WORDS), max_length=len(TOKENIZER.encode(WORDS))).startswith("a.txt: one sample")


def test_a_text_shorter_than_a_window() -> None:
    tokens = len(TOKENIZER.encode(WORDS))
    assert refusal(file("a.txt", WORDS)) == (
        f"a.txt: {tokens} tokens, fewer than one window of 32; pass a longer text or a smaller max_length"
    )


def test_a_window_larger_than_the_models() -> None:
    assert refusal(None, max_length=300, model_window=256) == (
        "max_length: got 300, but the model's window is 256 tokens"
    )


def test_rows_that_predict_nothing() -> None:
    assert refusal(["a", "b", ""]) == "data: nothing to predict, expected rows of at least two tokens"


def test_a_choice_that_does_not_fit() -> None:
    row = CHOICE | {"choices": ["one", "very " * 50]}
    assert refusal(rows(row, row), model_window=20).startswith("test.jsonl:1: a continuation of ")


@pytest.mark.parametrize("name", ["n_samples", "batch_size", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True])
def test_numbers_that_cannot_be_meant(name: str, value: object) -> None:
    least = 1 if name == "batch_size" else 2
    assert (
        refusal([WORDS, WORDS], **{name: value})
        == f"{name}: got {quoted(value)}, expected a whole number of at least {least}"
    )


# --- Python objects ---------------------------------------------------------------------------------------------


def test_text_without_a_tokenizer() -> None:
    for source, label in ((None, "python docs"), ([WORDS, WORDS], "data"), (rows(TEXT, TEXT), "test.jsonl")):
        assert refusal(source, tokenizer=None) == f"{label}: text needs a tokenizer; pass the model's"


IDS = torch.arange(8).reshape(2, 4)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ([{"ids": IDS}], 'data[0]: no "input_ids" (has: ids)'),
        ({"ids": IDS}, 'data: no "input_ids" (has: ids)'),
        ([{"input_ids": IDS[:1]}, {"ids": IDS}], 'data[1]: no "input_ids" (has: ids)'),
        ([{"input_ids": IDS[:1]}, WORDS], "data[1]: got str, expected a dictionary of tensors with input_ids"),
        ([{"input_ids": IDS.float()}], "data[0]: input_ids: got float32, expected whole numbers"),
        ([{"input_ids": IDS[None]}], "data[0]: input_ids: got shape [1, 2, 4], expected rows x tokens"),
        ([{"input_ids": [[1], [2, 3]]}], "data[0]: input_ids: not a tensor ("),
        ([{"input_ids": "abc"}], "data[0]: input_ids: not a tensor ("),
        (
            [{"input_ids": IDS, "attention_mask": torch.ones(2, 3)}],
            "data[0]: attention_mask: got float32, expected whole numbers",
        ),
        (
            [{"input_ids": IDS, "attention_mask": torch.ones(2, 3, dtype=int)}],
            "data[0]: attention_mask: got shape [2, 3], expected [2, 4] as of input_ids",
        ),
        (
            [{"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1]])}],
            "data[0]: attention_mask: row 1: padding between tokens, expected it at one end",
        ),
        ([{"input_ids": IDS - 1}], "data[0]: token id -1, expected 0 to 6, the model's vocabulary"),
        ([{"input_ids": IDS}], "data[0]: token id 7, expected 0 to 6, the model's vocabulary; is this the model's"),
        ([[IDS]], "data[0]: got list, expected texts, rows with named fields, or token batches with input_ids"),
        (5, "data: got int, expected texts, rows with named fields, or token batches with input_ids"),
        ([5], "data[0]: got int, expected texts, rows with named fields, or token batches with input_ids"),
    ],
)
def test_tokens_that_cannot_be_meant(source: object, complaint: str) -> None:
    assert refusal(source, vocab_size=7).startswith(complaint)


def test_tokens_of_another_vocabulary_in_text() -> None:
    for source in (file("a.txt", WORDS * 20), [WORDS, WORDS], rows(CHOICE, CHOICE)):
        assert "expected 0 to 9, the model's vocabulary" in refusal(source, vocab_size=10)


def test_a_row_of_tokens_beyond_the_models_window() -> None:
    assert refusal({"input_ids": IDS}, model_window=3) == (
        "data: a row of 4 tokens, but the model's window is 3; pass max_length to cut it"
    )
