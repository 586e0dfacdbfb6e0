"""P14: a journal cut off or changed anywhere is recovered from, or said to be damaged; never a wrong report."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from asking import Asking

from noisescope.errors import StoreError
from noisescope.store import Journal, journal
from noisescope.store.encoding import decode

SOME, EVERY = 97, 1
"""every how manieth place in CI, and in the full run"""


def question_of(data: bytes) -> dict[str, Any]:
    return decode(data.split(b"\n")[0][17:].decode())["question"]


def records_in(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    """What a journal has, after another record was appended and it was opened anew."""
    with Journal(path) as first:
        first.begin(question)
        found = dict(first._records)
        first.keep("appended", 1)
    with Journal(path) as second:
        second.begin(question)
        assert second._records == {**found, "appended": 1}, "what is appended to a damaged journal is lost"
    return found


def check_damaged(path: Path, whole: bytes, damaged: bytes, written: dict[str, Any]) -> int:
    """What is recovered is some of what was written, to the bit; or the first line is said to be damaged.

    Gives how many records were recovered.
    """
    path.write_bytes(damaged)
    try:
        found = records_in(path, question_of(whole))
    except StoreError as error:
        reason = str(error)
    else:
        check_written(found, written)
        return len(found)
    assert reason.startswith(f"{path}:1: ")
    assert damaged.split(b"\n")[0] != whole.split(b"\n")[0], "the first line is well"
    assert path.read_bytes() == damaged, "a journal that is of no use was changed"
    return 0


def check_written(found: dict[str, Any], written: dict[str, Any]) -> None:
    for key, value in found.items():
        assert key in written, "a record that nobody wrote"
        assert repr(value) == repr(written[key]), "a record that is not as it was written"


def cut(whole: bytes, every: int) -> Iterable[bytes]:
    """Cut off at every how manieth byte, and just before and after each newline."""
    ends = [at + by for at, byte in enumerate(whole) if byte == 10 for by in (0, 1)]
    for at in sorted({*range(0, len(whole), every), *ends}):
        yield whole[:at]


def flip(whole: bytes, every: int) -> Iterable[bytes]:
    """With one bit flipped: every third one, or fewer; and every bit of the newlines."""
    newlines = [8 * at + bit for at, byte in enumerate(whole) if byte == 10 for bit in range(8)]
    for at in sorted({*range(0, 8 * len(whole), 3 * every), *newlines}):
        changed = bytearray(whole)
        changed[at // 8] ^= 1 << at % 8
        yield bytes(changed)


def check_all(whole: bytes, damages: Iterable[bytes], path: Path) -> int:
    """How many damaged journals there were."""
    path.write_bytes(whole)
    written = records_in(path, question_of(whole))
    assert len(written) > 5
    lines = whole.count(b"\n") - 1
    count = 0
    for count, damaged in enumerate(damages, 1):  # noqa: B007 - the last count is the answer
        found = check_damaged(path, whole, damaged, written)
        if len(damaged) == len(whole) and damaged.startswith(whole.split(b"\n")[0] + b"\n"):
            assert found >= lines - 2, "one bit cost more than two records"
    return count


@pytest.fixture
def whole(asking: Asking) -> bytes:
    """A journal that nothing happened to."""
    return (asking.undisturbed / "journal").read_bytes()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of journals that nobody cuts the power of."""
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_here_and_there(whole, tmp_path, damage):
    assert check_all(whole, damage(whole, SOME), tmp_path / "journal") > 100


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("damage", [cut, flip])
def test_damaged_everywhere(whole, tmp_path, damage, record_property):
    record_property("journals", check_all(whole, damage(whole, EVERY), tmp_path / "journal"))


def check_resumed(asking: Asking, output: Path, damaged: bytes, *, same: bool) -> None:
    """A real run goes on from it to the same bytes, or says that the first line is damaged."""
    output.mkdir()
    (output / "journal").write_bytes(damaged)
    ran = asking.run(output, "--resume")
    if same:
        assert (ran.code, ran.err) == (0, "")
        asking.check_finished(output)
    else:
        assert ran.code == 5
        assert ran.err.startswith(f"noisescope: {output / 'journal'}:1: the first line is damaged")
        assert [path.name for path in output.iterdir() if not path.name.startswith(".")] == ["journal"]
        assert asking.run(output, "--overwrite").code == 0
        asking.check_finished(output)


def check_some_resumes(asking: Asking, home: Path, damages: list[bytes]) -> None:
    head = (asking.undisturbed / "journal").read_bytes().split(b"\n")[0]
    for number, damaged in enumerate(damages):
        check_resumed(asking, home / str(number), damaged, same=damaged.split(b"\n")[0] == head)
        shutil.rmtree(home / str(number))


def test_runs_go_on_from_damaged_journals(asking, whole, tmp_path):
    cuts, flips = (list(damage(whole, SOME)) for damage in (cut, flip))
    check_some_resumes(asking, tmp_path, [cuts[1], *cuts[30::60], *flips[70::130]])


@pytest.mark.slow
def test_many_runs_go_on_from_damaged_journals(asking, whole, tmp_path, record_property):
    damages = [*list(cut(whole, SOME))[::3], *list(flip(whole, SOME))[::5]]
    record_property("runs", len(damages))
    check_some_resumes(asking, tmp_path, damages)


# --- able to fail -----------------------------------------------------------------------------------------------


def the_checksum_is_not_compared(monkeypatch):
    monkeypatch.setattr(journal, "_record", lambda line: _parsed(line[17:]))


def _parsed(text: bytes) -> Any:
    with suppress(ValueError):
        found = decode(text.decode("ascii"))
        return found if isinstance(found, dict) else None
    return None


def a_torn_line_is_mended(monkeypatch):
    """What ends too early is closed as well as can be."""
    real = journal._record

    def mutant(line):
        found = real(line)
        if found is None and (at := line.find(b',"value"')) > 0:
            return _parsed(line[17:at] + b',"value":null}')
        return found

    monkeypatch.setattr(journal, "_record", mutant)


def a_torn_line_is_appended_to(monkeypatch):
    monkeypatch.setattr(journal, "_ends_with_newline", lambda file: True)


def the_first_line_is_taken_as_it_is(monkeypatch):
    real = journal._record
    monkeypatch.setattr(journal, "_record", lambda line: _parsed(line[17:]) if b"question" in line else real(line))


def reading_ends_at_the_first_damage(monkeypatch):
    def mutant(lines):
        for line in filter(None, lines):
            found = journal._record(line)
            yield found
            if found is None:
                return

    monkeypatch.setattr(journal, "_records", mutant)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "mutant",
    [
        the_checksum_is_not_compared,
        a_torn_line_is_mended,
        a_torn_line_is_appended_to,
        the_first_line_is_taken_as_it_is,
        reading_ends_at_the_first_damage,
    ],
)
def test_the_mutants_are_caught(whole, tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    damages = [*cut(whole, SOME), *flip(whole, SOME)]
    with pytest.raises((AssertionError, ValueError)):
        check_all(whole, damages, tmp_path / "journal")
