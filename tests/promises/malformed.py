"""Malformed inputs for P20: what a kind of input is, how it is asked about, and seeded mutations of valid files.

The kinds themselves are in `malformed_kinds`.
"""

import contextlib
import io
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

DIRECTORY = "a directory in place of the file"
REFUSED = (2, 3, 4, 5)
POSITION = re.compile(r":\d+(:\d+)?[: ]|line \d+|position \d+")


class WentOn(Exception):
    """The input was accepted: here a real run would begin."""


@dataclass(frozen=True)
class Kind:
    """A kind of input: valid files, what to run over one of them, and inputs that everybody meets one day."""

    name: str
    files: Callable[[], Mapping[str, bytes]]
    ask: Callable[[Path, str], int]
    """exit code of the command over a file of that directory; raises WentOn for a valid one"""
    classics: Mapping[str, tuple[str, bytes | str | None]]
    """what is wrong -> the file, and what it holds: bytes, nothing at all (None) or DIRECTORY"""
    whole: bool = False
    """all files belong together, as those of a model; a message may name their directory"""


@dataclass(frozen=True)
class Case:
    """One malformed input. A mutation may stay valid by luck; a classic may not."""

    kind: Kind
    name: str
    file: str
    content: bytes | str | None
    classic: bool

    def write(self, home: Path) -> None:
        files: dict[str, Any] = dict(self.kind.files()) if self.kind.whole else {}
        for name, content in {**files, self.file: self.content}.items():
            place = home / name
            if content == DIRECTORY:
                place.mkdir()
            elif content is not None:
                place.write_bytes(content)


# --- asking -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What became of a case."""

    code: int
    """0 for one that went on"""
    said: str
    changed: list[str]
    """files that were made, changed or removed"""


def answer(case: Case, home: Path) -> Answer:
    """Writes the case into an empty directory and asks about it from there; an exception is a bug and escapes."""
    case.write(home)
    before, cwd = snapshot(home), Path.cwd()
    os.chdir(home)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
            try:
                code = case.kind.ask(home, case.file)
            except WentOn:
                code = 0
    finally:
        os.chdir(cwd)
    after = snapshot(home)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return Answer(code, err.getvalue(), changed)


def snapshot(home: Path) -> dict[str, object]:
    """Every file below a directory with its content and the time of its last change."""
    found: dict[str, object] = {}
    for path in home.rglob("*"):
        content = path.read_bytes() if path.is_file() else "directory"
        found[str(path.relative_to(home))] = (content, path.stat().st_mtime_ns if path.is_file() else 0)
    return found


def check(case: Case, found: Answer) -> None:
    """Refused with one line for each problem, which names file and place, and nothing touched; or valid by luck."""
    assert not found.changed, f"{case.name}: touched {found.changed}"
    if found.code == 0:
        assert not case.classic, f"{case.name}: was accepted"
        return
    assert found.code in REFUSED, f"{case.name}: exit {found.code}"
    lines = found.said.splitlines()
    assert lines, f"{case.name}: nothing was said"
    for line in lines:
        assert line.startswith("noisescope: "), f"{case.name}: said {line}"
        assert case.file in line or (case.kind.whole and "model" in line), f"{case.name}: names no file: {line}"
        assert len(line) < 1000, f"{case.name}: a line of {len(line)}"
        if (
            re.search(r"not valid (JSON|YAML)|not UTF-8|not text|binary data|Expecting|codec", line)
            and "recursion" not in line
        ):
            assert POSITION.search(line), f"{case.name}: no position: {line}"


# --- cases ------------------------------------------------------------------------------------------------------


def classics(kind: Kind) -> Iterator[Case]:
    """What everybody meets one day."""
    for name, (file, content) in kind.classics.items():
        yield Case(kind, f"{kind.name}: {name}", file, content, classic=True)


def mutations(kind: Kind, seed: int = 0) -> Iterator[Case]:
    """Valid files with something wrong, without end; the same for the same seed."""
    dice = random.Random(f"{kind.name} {seed}")
    for number, file in enumerate(cycle(sorted(kind.files()))):
        way = dice.choice(WAYS)
        content = kind.files()[file]
        for _ in range(dice.choice((1, 1, 1, 2, 5))):
            content = way(content, dice)
        yield Case(kind, f"{kind.name}: {file} {way.__name__} #{number}", file, content, classic=False)


def _place(content: bytes, dice: random.Random) -> int:
    """Anywhere, but half of the time near the beginning, where headers are."""
    return dice.randrange(min(len(content), 400) + 1) if dice.random() < 0.5 else dice.randrange(len(content) + 1)


def truncate(content: bytes, dice: random.Random) -> bytes:
    return content[: _place(content, dice)]


def flip(content: bytes, dice: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    changed[min(_place(content, dice), len(changed) - 1)] ^= 1 << dice.randrange(8)
    return bytes(changed)


def insert(content: bytes, dice: random.Random) -> bytes:
    at = _place(content, dice)
    return content[:at] + dice.choice(NASTY) + content[at:]


def remove(content: bytes, dice: random.Random) -> bytes:
    at = _place(content, dice)
    return content[:at] + content[at + dice.randrange(1, 30) :]


def duplicate_line(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    at = dice.randrange(len(lines))
    return b"".join([*lines[: at + 1], *lines[at:]])


def swap_lines(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def swap_type(content: bytes, dice: random.Random) -> bytes:
    """A word, number or text becomes something else."""
    found = list(re.finditer(rb'"[^"\n]{0,60}"|-?\d+(?:\.\d+)?|\b[a-z_]{2,}\b', content[:200_000]))
    if not found:
        return content
    one = dice.choice(found)
    return content[: one.start()] + dice.choice(VALUES) + content[one.end() :]


def repeat(content: bytes, dice: random.Random) -> bytes:
    at = _place(content, dice)
    return content[:at] + content[at : at + dice.randrange(1, 40)] * dice.choice((2, 10, 500)) + content[at:]


WAYS = (truncate, flip, insert, remove, duplicate_line, swap_lines, swap_type, repeat)
VALUES = (b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b'"text"', b"[]", b"{}", b"[[1]]", b"99999999999999999999")
NASTY = (
    *(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\t", b"\r", b"\n", b"\x1b[2J", b'"', b"'", b"\\", b"{", b"}", b"[", b"]"),
    *(b": ", b"- ", b"&a ", b"*a ", b"!!python/object:os.system ", b"---\n", b"#", b"%", b"../../x", b"\\u0000", b","),
)
