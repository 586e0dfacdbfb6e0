"""YAML files as keys with lines: what is read, and what is said of everything that is not."""

import os
from pathlib import Path

import pytest

from noisescope.errors import InputError
from noisescope.specs.document import LARGEST, Document, Entry, read_document


def read(tmp_path: Path, text: str | bytes) -> Document:
    file = tmp_path / "a.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_document(file)


def problems(tmp_path: Path, text: str | bytes) -> list[str]:
    """What is wrong with a file, without the directory."""
    try:
        found = [problem for _, problem in read(tmp_path, text).problems]
    except InputError as error:
        found = [*error.problems]
    return [problem.removeprefix(f"{tmp_path}{os.sep}") for problem in found]


def test_keys_values_and_lines(tmp_path: Path) -> None:
    text = """\
    # a comment
    model: ~/models/llama
    noise-scale: 1e-3
    data:
    layers: [9, "10", head]
    layer: {window-size: 4}
    channel:
      outlier_threshold: '7'   # quoted
    operators:
      - softmax
      - norm
    seed: 0777
    attn: 'null'
    """
    found = read(tmp_path, text)
    assert not found.problems
    assert found.entries == [
        Entry("model", "~/models/llama", 2),
        Entry("noise_scale", "1e-3", 3),
        Entry("data", None, 4),
        Entry("layers", ("9", "10", "head"), 5),
        Entry("layer.window_size", "4", 6),
        Entry("channel.outlier_threshold", "7", 8),
        Entry("operators", ("softmax", "norm"), 9),
        Entry("seed", "0777", 12),
        Entry("attn", "null", 13),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# no\n", "---\n", "null", "~", "{}", "\ufeff", "a: {}", "--- {}\n..."])
def test_a_file_may_say_nothing(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert (found.entries, found.problems) == ([], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:\n\tb: 1", "a.yaml:2:1: not valid YAML (found character '\\t' that cannot start any token; indent with"),
        (
            "a: 1\nb: [1, 2\n",
            "a.yaml:3:1: not valid YAML (expected ',' or ']', but got '<stream end>'; while parsing a flow",
        ),
        (
            'a: "x\n\n',
            "a.yaml:3:1: not valid YAML (found unexpected end of stream; while scanning a quoted scalar from",
        ),
        ("a: b: c", "a.yaml:1:5: not valid YAML (mapping values are not allowed here)"),
        ("a: 1\n b: 2", "a.yaml:2:3: not valid YAML (mapping values are not allowed here)"),
        ("a: `b`", "a.yaml:1:4: not valid YAML (found character '`'"),
        ("a: %b", "a.yaml:1:4: not valid YAML (found character '%'"),
        ('a: "\\UFFFFFFFF"', "a.yaml:1: not valid YAML ("),
        ('a: "\\U00110000"', "a.yaml:1: not valid YAML ("),
        ('a: "\\q"', "a.yaml:1:6: not valid YAML (found unknown escape character 'q')"),
        (f"%YAML {'1' * 5000}.1\n---\na: 1", "a.yaml:1: not valid YAML ("),
        ("%YAML 2.0\n---\na: 1", "a.yaml:1:1: not valid YAML (found incompatible YAML document"),
        ("a: !e!x 1", "a.yaml:1:4: not valid YAML (found undefined tag handle '!e!')"),
        ("a: 1\na: 2", "a.yaml:2 a: set twice, first in line 1"),
        ("x-y: 1\n\nx_y: 2", "a.yaml:3 x_y: set twice, first in line 1"),
        ("a: {b: 1, b: 2}", "a.yaml:1 a.b: set twice, first in line 1"),
        ("a: {b: 1}\na: {c: 1}", "a.yaml:2 a: set twice, first in line 1"),
        ("a: &x 1", "a.yaml:1 a: anchors and aliases are not used here; write the value out"),
        ("a: *x", "a.yaml:1 a: anchors and aliases are not used here"),
        ("a:\n  <<: *x", "a.yaml:2 a.<<: anchors and aliases are not used here"),
        ("*x : 1", "a.yaml:1: anchors and aliases are not used here"),
        ("a: [1, *x]", "a.yaml:1 a: anchors and aliases are not used here"),
        ("&x\na: 1", "a.yaml:1: anchors and aliases are not used here"),
        (
            "a: !!python/object/apply:os.system [x]",
            'a.yaml:1 a: got the tag "!!python/object/apply:os.system", tags are',
        ),
        ("!!python/object:os.x {}", 'a.yaml:1: got the tag "!!python/object:os.x", tags are not used here'),
        ("a: !!int 3", 'a.yaml:1 a: got the tag "!!int", tags are not used here'),
        ("a: ! 3", 'a.yaml:1 a: got the tag "!", tags are not used here'),
        ("!!str a: 3", 'a.yaml:1: got the tag "!!str", tags are not used here'),
        ("a: 1\n---\nb: 1", "a.yaml:2: a second document, expected one in a file"),
        ("- a\n- b", "a.yaml:1: got a list, expected keys with values, such as noise_scale: 0.05"),
        ("\n42", 'a.yaml:2: got "42", expected keys with values'),
        ("? [a, b]\n: c", "a.yaml:1: got a list, expected the name of a key"),
        ("a: [1, [2]]", "a.yaml:1 a: got a list in a list, expected single values"),
        ("a:\n - b: 1", "a.yaml:2 a: got a table in a list, expected single values"),
        ("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}", "a.yaml:1: nested too deeply"),
        ("a: " + "[" * 30_000, "a.yaml:1 a: got a list in a list, expected single values"),
        ("{" * 60_000, "a.yaml:1: got a table, expected the name of a key"),
        ("? " * 30_000, "a.yaml:1: got a table, expected the name of a key"),
        ("a: 1\nb: \0", "a.yaml:2: not text (character 0x00)"),
        ("a: \x1b[2J", "a.yaml:1: not text (character 0x1b)"),
        (b"a: 1\nb: \xff\xfe", "a.yaml:2: not UTF-8 text (byte 0xff)"),
        ("a: 1".encode("utf-16"), "a.yaml:1: not UTF-8 text (byte 0xff)"),
        (b"#" * (LARGEST + 1), "a.yaml: cannot be read (is larger than 64 kB)"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert problems(tmp_path, text)[0].startswith(expected)


def test_all_problems_are_said_and_the_rest_is_read(tmp_path: Path) -> None:
    text = "a: &x 1\nb: *x\nc: !!str 3\nd: 4\nd: 5\ne: [[1]]\nf: 6\ng: [\n"
    assert [problem.split(":")[1].split()[0] for problem in problems(tmp_path, text)] == ["1", "2", "3", "5", "6", "9"]
    assert [entry.key for entry in read(tmp_path, text).entries] == ["d", "d", "f"]


@pytest.mark.parametrize("bomb", [9, 60])
def test_a_bomb_of_anchors_is_not_lit(tmp_path: Path, bomb: int) -> None:
    lines = ["a0: &a0 [lol, lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, bomb))]
    found = read(tmp_path, "\n".join(lines))
    assert not found.entries
    assert all("anchors and aliases are not used here" in problem for _, problem in found.problems)


def test_what_a_terminal_would_obey_is_spelled_out(tmp_path: Path) -> None:
    document = read(tmp_path, r'"\e[2J\n": 1')
    document.refuse(1, "wrong", key=document.entries[0].key)
    assert document.problems[0][1].endswith(r"a.yaml:1 \x1b[2J\n: wrong")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing.yaml", "missing.yaml: no such file"),
        ("folder", "folder: cannot be read (is a directory, expected a file)"),
        ("pipe", "pipe: cannot be read (is a pipe or a device, expected a file)"),
        ("loop", "loop: cannot be read (Too many levels of symbolic links)"),
        ("a\0b", "a\\x00b: cannot be read (embedded null byte)"),
        ("file/below", "file/below: cannot be read (Not a directory)"),
    ],
)
def test_what_is_no_file(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError) as caught:
        read_document(tmp_path / name)
    assert str(caught.value) == f"{tmp_path}{os.sep}{expected}"
