"""Sources that work: what comes out of them, token by token."""

import json
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_models import bos_tokenizer, chat_tokenizer, tokenizer
from torch.utils.data import DataLoader

from noisescope.measure.batches import EvaluationSet
from noisescope.measure.opening import open_data
from noisescope.measure.tasks import ExactMatch, MultipleChoice
from noisescope.measure.texts import built_in_text

TOKENIZER = tokenizer()
TEXTS = ["The assignment statement binds names.", "A class is a type.", "An import statement", "Loops end."]


def lines(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def ids(data: EvaluationSet) -> list[list[int]]:
    """The tokens of every row, padding dropped."""
    return [row[mask.bool()].tolist() for b in data for row, mask in zip(b.input_ids, b.attention_mask, strict=True)]


def predicted(data: EvaluationSet) -> list[str]:
    """What is predicted in every row, as text."""
    return [
        TOKENIZER.decode(row[1:][p].tolist()) for b in data for row, p in zip(b.input_ids, b.predicted, strict=True)
    ]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


# --- plain text -------------------------------------------------------------------------------------------------


@lru_cache
def built_in() -> EvaluationSet:
    return open_data(None, TOKENIZER)


def test_nothing_means_the_built_in_text() -> None:
    data = built_in()
    assert (data.name, data.rows, data.task) == ("python docs", 50, None)
    assert [tuple(batch.input_ids.shape) for batch in data] == [(16, 32)] * 3 + [(2, 32)]
    assert data.predicted_tokens == 50 * 31
    assert repr(data) == "EvaluationSet('python docs', rows=50, tokens=1600, batches=4)"
    assert not any(batch.padded for batch in data)
    assert [sample for batch in data for sample in batch.samples] == list(range(50))
    assert "".join(built_in_text().split()).find("".join(TOKENIZER.decode(ids(data)[0]).split())) > 0


def test_windows_lie_side_by_side_in_reading_order_and_are_decided_by_the_seed(tmp_path: Path) -> None:
    text = built_in_text()[:60_000]
    source = tmp_path / "a.txt"
    source.write_text(text)
    whole = encode(text)
    grid = [whole[at : at + 32] for at in range(0, len(whole) - 31, 32)]
    data = open_data(source, TOKENIZER)
    places = [grid.index(window) for window in ids(data)]
    assert places == sorted(places)
    assert len(set(places)) == 50
    assert max(places) - min(places) > len(grid) / 2
    assert open_data(source, TOKENIZER).fingerprint == data.fingerprint
    assert open_data(source, TOKENIZER, seed=1).fingerprint != data.fingerprint


def test_chance_of_plain_text_is_that_of_the_most_frequent_token() -> None:
    targets = [token for row in ids(built_in()) for token in row[1:]]
    assert built_in().chance == max(map(targets.count, set(targets))) / len(targets)


def test_a_text_file_with_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone two three\r\nfour five six\r\n" * 20)
    data = open_data(path, TOKENIZER, max_length=16, n_samples=1000)
    text = path.read_bytes().decode().replace("\r\n", "\n").removeprefix("\N{BOM}")
    whole = encode(text)
    assert ids(data) == [whole[at : at + 16] for at in range(0, len(whole) - 15, 16)]
    assert data.name == "a.txt"


def test_what_begins_every_text_begins_every_window_and_row_and_is_not_predicted(tmp_path: Path) -> None:
    with_bos = bos_tokenizer()
    source = tmp_path / "a.txt"
    source.write_text(" ".join(TEXTS * 10))
    windows = open_data(source, with_bos, max_length=8)
    assert ids(windows)[1] == [1, *encode(" ".join(TEXTS * 10))[7:14]]
    assert windows.predicted_tokens == 7 * windows.rows
    rows = open_data(TEXTS, with_bos)
    assert ids(rows) == [[1, *encode(text)] for text in TEXTS]
    assert predicted(rows) == TEXTS


def test_a_long_text_is_encoded_in_pieces_that_end_with_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(f"line {n} of the text" for n in range(500)) + "x" * 3000
    whole = open_data_text(text, monkeypatch, piece=1 << 20)
    assert open_data_text(text, monkeypatch, piece=1000)[:2000] == whole[:2000]


def open_data_text(text: str, monkeypatch: pytest.MonkeyPatch, *, piece: int) -> list[int]:
    from noisescope.measure import texts

    monkeypatch.setattr(texts, "_PIECE", piece)
    return texts.Encoder(TOKENIZER).encode_long(text)


# --- rows -------------------------------------------------------------------------------------------------------


def test_texts_are_rows_of_their_own_padded_at_the_end() -> None:
    data = open_data(TEXTS, TOKENIZER, batch_size=3)
    assert ids(data) == [encode(text) for text in TEXTS]
    assert [batch.rows for batch in data] == [3, 1]
    for batch in data:
        lengths = batch.attention_mask.sum(1).tolist()
        assert max(lengths) == batch.input_ids.shape[1]
        for at, length in enumerate(lengths):
            assert batch.attention_mask[at].tolist() == [1] * length + [0] * (batch.input_ids.shape[1] - length)
            assert batch.predicted[at].tolist() == [t + 1 < length for t in range(batch.input_ids.shape[1] - 1)]


def test_rows_are_cut_and_rows_of_one_token_left_out() -> None:
    data = open_data([*TEXTS, "a", ""], TOKENIZER, max_length=3)
    assert ids(data) == [encode(text)[:3] for text in TEXTS]
    long = "the " * 2000
    assert open_data([long, long], TOKENIZER).batches[0].input_ids.shape == (2, 512)
    assert open_data([long, long], TOKENIZER, model_window=256).batches[0].input_ids.shape == (2, 256)


def test_samples_are_chosen_among_rows_that_predict_something(tmp_path: Path) -> None:
    rows = [{"text": f"sentence number {n}" if n % 3 else ""} for n in range(90)]
    data = open_data(lines(tmp_path / "a.jsonl", *rows), TOKENIZER, n_samples=40)
    numbers = [int(TOKENIZER.decode(row).split()[-1]) for row in ids(data)]
    assert len(set(numbers)) == 40
    assert numbers == sorted(numbers)
    assert all(number % 3 for number in numbers)


def test_jsonl_json_and_parquet_hold_the_same(tmp_path: Path) -> None:
    rows = [{"text": text, "id": n} for n, text in enumerate(TEXTS)]
    sources = [lines(tmp_path / "a.jsonl", *rows), lines(tmp_path / "lines.json", *rows)]
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1))
    sources.append(str(tmp_path / "list.json"))
    sources.append(parquet(tmp_path / "a.parquet", rows))
    sets = [open_data(source, TOKENIZER) for source in sources]
    assert [data.name for data in sets] == ["a.jsonl", "lines.json", "list.json", "a.parquet"]
    assert all(ids(data) == [encode(text) for text in TEXTS] for data in sets)


def parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    pyarrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def test_a_field_may_be_named(tmp_path: Path) -> None:
    source = lines(tmp_path / "a.jsonl", *({"text": "no", "body": text} for text in TEXTS))
    assert ids(open_data(f"{source}:body", TOKENIZER)) == [encode(text) for text in TEXTS]
    odd = tmp_path / "a.jsonl:body"
    odd.write_text(json.dumps({"text": "one two"}) + "\n" + json.dumps({"text": "three four"}))
    with pytest.raises(ValueError, match="cannot read"):  # a file of that very name comes first
        open_data(str(odd), TOKENIZER)


def test_a_continuation_is_all_that_is_predicted(tmp_path: Path) -> None:
    rows = [
        {"context": "He does not care about", "continuation": "signs"},
        {"context": "with a space ", "continuation": "here"},
        {"context": "a comma", "continuation": " , then"},
    ]
    data = open_data(lines(tmp_path / "a.jsonl", *rows), TOKENIZER)
    assert predicted(data) == [" signs", " here", " , then"]
    assert [TOKENIZER.decode(row) for row in ids(data)] == [
        "He does not care about signs",
        "with a space here",
        "a comma , then",
    ]
    assert data.task is None


# --- labelled rows ----------------------------------------------------------------------------------------------


def test_sets_that_differ_in_their_labels_alone_are_told_apart() -> None:
    row = {"query": "The sky is", "choices": ["blue", "green"], "gold": 0}
    one, other = open_data([row, row], TOKENIZER), open_data([row, row | {"gold": 1}], TOKENIZER)
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == open_data([row, row], TOKENIZER).fingerprint


def test_multiple_choice_has_a_row_for_each_choice(tmp_path: Path) -> None:
    rows = [
        {"query": "The sky is", "choices": ["blue", "green cheese"], "gold": 0},
        {"query": "Names are bound by", "choices": ["loops", "assignment", "the moon"], "gold": 1},
    ]
    data = open_data(lines(tmp_path / "a.jsonl", *rows), TOKENIZER, batch_size=2)
    assert data.task == MultipleChoice(gold=(0, 1), characters=((4, 12), (5, 10, 8)))
    assert predicted(data) == [" blue", " green cheese", " loops", " assignment", " the moon"]
    assert [sample for batch in data for sample in batch.samples] == [0, 0, 1, 1, 1]
    assert TOKENIZER.decode(ids(data)[4]) == "Names are bound by the moon"
    assert data.chance == pytest.approx((1 / 2 + 1 / 3) / 2)


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"question": "Why?", "choices": ["a b", "c d", "e f"], "answer": 2}, 2),
        ({"question": "Why?", "choices": ["a b", "c d", "e f"], "answer": "B"}, 1),
        ({"question": "Why?", "choices": ["a b", "c d", "e f"], "answer": "0"}, 0),
        ({"question": "Why?", "choices": {"text": ["a b", "c d"], "label": ["A", "B"]}, "answerKey": "B"}, 1),
        ({"question": "Why?", "choices": {"text": ["a b", "c d"], "label": ["1", "2"]}, "answerKey": "2"}, 1),
        ({"query": "Why?", "choices": ["a b", "c d"], "gold": "b"}, 1),
        ({"query": "Why?", "choices": ["a b", "c d"], "gold": 1.0}, 1),
    ],
)
def test_the_gold_choice_by_index_letter_or_label(row: dict[str, Any], gold: int) -> None:
    data = open_data([row, row], TOKENIZER)
    assert data.task.gold == (gold, gold)
    if "question" in row:
        assert TOKENIZER.decode(ids(data)[0]) == "Question: Why?\nAnswer: a b"


def test_a_long_context_is_cut_on_its_left(tmp_path: Path) -> None:
    row = {"query": "far " * 300 + "near", "choices": ["one", "two"], "gold": 0}
    data = open_data(lines(tmp_path / "a.jsonl", row, row), bos_tokenizer(), model_window=20)
    first = ids(data)[0]
    assert len(first) == 20
    assert first[0] == 1
    assert TOKENIZER.decode(first).endswith("far near one")
    assert predicted(data)[:2] == [" one", " two"]


GSM8K = [
    {"question": "What is 3 * 6?", "answer": "It is 3*6=<<3*6=18>>18.\n#### 18"},
    {"question": "What is 4 * 300?", "answer": "#### 1,200"},
]


def test_questions_with_a_number_for_an_answer(tmp_path: Path) -> None:
    data = open_data(lines(tmp_path / "a.jsonl", *GSM8K), TOKENIZER)
    assert isinstance(data.task, ExactMatch)
    assert [*map(str, data.task.answers)] == ["18", "1200"]
    assert predicted(data) == [" " + row["answer"] for row in GSM8K]
    assert TOKENIZER.decode(data.task.prompts[0]) == "Question: What is 3 * 6?\nAnswer:"
    assert data.chance == 0.0


def test_questions_are_asked_by_the_chat_template(tmp_path: Path) -> None:
    chat = chat_tokenizer()
    data = open_data(lines(tmp_path / "a.jsonl", *GSM8K), chat)
    prompt = "<bos>user\nWhat is 3 * 6?<eos>\n<bos>assistant\n"
    assert chat.decode(data.task.prompts[0]) == prompt
    assert chat.decode(ids(data)[0]) == prompt + GSM8K[0]["answer"]
    assert predicted(data)[0] == GSM8K[0]["answer"]


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 3 * 6?"}]


@pytest.mark.parametrize("as_text", [False, True])
def test_prompts_with_a_ground_truth(tmp_path: Path, as_text: bool) -> None:
    truth: Any = {"style": "rule", "ground_truth": "18"}
    row = {"prompt": MESSAGES, "reward_model": json.dumps(truth) if as_text else truth}
    source = parquet(tmp_path / "a.parquet", [row, row])
    plain = open_data(source, TOKENIZER)
    assert TOKENIZER.decode(ids(plain)[0]) == "Be brief.\nWhat is 3 * 6?\n18"
    assert predicted(plain)[0].strip() == "18"
    chat = open_data(source, chat_tokenizer())
    asked = "<bos>system\nBe brief.<eos>\n<bos>user\nWhat is 3 * 6?<eos>\n<bos>assistant\n"
    assert TOKENIZER.decode(chat.task.prompts[0]) == asked
    assert [*map(str, chat.task.answers)] == ["18", "18"]
    as_words = open_data(f"{source}:prompt", chat_tokenizer())
    assert as_words.task is None
    assert TOKENIZER.decode(ids(as_words)[0]) == asked.removesuffix("<bos>assistant\n")


def test_prompts_without_a_ground_truth_are_texts(tmp_path: Path) -> None:
    data = open_data(lines(tmp_path / "a.jsonl", {"prompt": MESSAGES}, {"prompt": "Just words."}), TOKENIZER)
    assert [TOKENIZER.decode(row) for row in ids(data)] == ["Be brief.\nWhat is 3 * 6?", "Just words."]
    assert data.task is None


# --- Python objects ---------------------------------------------------------------------------------------------


def test_token_batches_need_no_tokenizer_and_lose_their_padding() -> None:
    left = TOKENIZER(TEXTS, return_tensors="pt", padding=True)
    assert left["attention_mask"][1, 0] == 0  # padded on the left
    for source in (left, dict(left), [left], [{"input_ids": encode(text)} for text in TEXTS]):
        assert ids(open_data(source)) == [encode(text) for text in TEXTS]
    assert ids(open_data([left["input_ids"]], max_length=4)) == [row[:4].tolist() for row in left["input_ids"]]
    assert open_data(left).name == "tokens"


def test_a_loader_gives_its_first_rows_even_if_it_never_ends() -> None:
    rows = torch.arange(48).reshape(12, 4)
    before = torch.get_rng_state()
    loader = DataLoader([{"input_ids": row} for row in rows], batch_size=5)
    assert ids(open_data(loader, n_samples=7)) == rows[:7].tolist()
    assert torch.equal(torch.get_rng_state(), before), "a loader draws a seed when it starts"
    assert ids(open_data(cycle(loader), n_samples=30))[:12] == rows.tolist()
    assert len(ids(open_data((text for text in cycle(TEXTS)), TOKENIZER, n_samples=9))) == 9


def test_a_list_of_batches_has_its_rows_chosen() -> None:
    rows = torch.arange(400).reshape(100, 4)
    chosen = ids(open_data([{"input_ids": part} for part in rows.split(10)], n_samples=20))
    assert chosen == sorted(chosen)
    assert chosen != rows[:20].tolist()


def test_a_data_frame_is_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "n": range(4)})
    assert ids(open_data(frame, TOKENIZER)) == [encode(text) for text in TEXTS]
    scored = {"prompt": MESSAGES, "reward_model": {"ground_truth": "18"}}
    choice = {"question": "Why?", "choices": {"text": ["a b", "c d"], "label": ["A", "B"]}, "answerKey": "B"}
    for row, nested in ((scored, "prompt"), (choice, "choices")):
        read = pandas.read_parquet(parquet(tmp_path / "a.parquet", [row, row]))
        assert "array(" in repr(read[nested][0])
        assert open_data(read, TOKENIZER).fingerprint == open_data(tmp_path / "a.parquet", TOKENIZER).fingerprint
    assert ids(open_data(frame["text"], TOKENIZER)) == [encode(text) for text in TEXTS]


def test_a_dataset_is_rows_of_text_or_tokens() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": TEXTS})
    assert ids(open_data(dataset, TOKENIZER)) == [encode(text) for text in TEXTS]
    tokenised = datasets.Dataset.from_dict({"input_ids": [encode(text) for text in TEXTS]})
    assert ids(open_data(tokenised)) == [encode(text) for text in TEXTS]
    assert ids(open_data(tokenised.with_format("torch"))) == [encode(text) for text in TEXTS]
    assert len(ids(open_data(dataset.to_iterable_dataset(), TOKENIZER, n_samples=3))) == 3


def test_an_evaluation_set_stays_as_it_is() -> None:
    data = open_data(TEXTS, TOKENIZER)
    assert open_data(data) is data
