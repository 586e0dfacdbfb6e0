"""The history: nothing that was appended is lost, and other measurements are not mixed in."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from noisescope.errors import InputError, StoreError
from noisescope.gate.history import Entry, append, refuse_other
from noisescope.store import Journal

QUESTION = {"noise_scale": 0.05, "data": "0123"}


def entry(label: str) -> Entry:
    return Entry(label, "passed", 0.4, {"linear": (0.1, 0.08, 0.12)}, "w", "b", 9.0)


def test_entries_come_back_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "new" / "history"
    for label in ("one", "two", "one"):
        found = append(file, QUESTION, entry(label))
    assert found == [entry("one"), entry("two"), entry("one")]


def test_another_measurement_is_refused_by_name(tmp_path: Path) -> None:
    append(tmp_path / "h", QUESTION, entry("one"))
    before = (tmp_path / "h").read_bytes()
    with pytest.raises(
        InputError, match=r"begun with another noise_scale \(0.05, now 0.1\): .* use another history file"
    ):
        append(tmp_path / "h", {**QUESTION, "noise_scale": 0.1}, entry("two"))
    assert (tmp_path / "h").read_bytes() == before


def test_it_can_be_asked_before_anything_is_measured(tmp_path: Path) -> None:
    refuse_other(tmp_path / "none yet", QUESTION)
    assert not list(tmp_path.iterdir())
    append(tmp_path / "h", QUESTION, entry("one"))
    before = (tmp_path / "h").read_bytes()
    refuse_other(tmp_path / "h", QUESTION)
    with pytest.raises(InputError, match="begun with another data"):
        refuse_other(tmp_path / "h", {**QUESTION, "data": "4567"})
    with pytest.raises(StoreError, match=r"is a directory, expected a file; use another history file \(--history\)$"):
        refuse_other(tmp_path, QUESTION)
    assert (tmp_path / "h").read_bytes() == before


def test_a_torn_line_takes_nothing_with_it(tmp_path: Path) -> None:
    """Whatever end is torn off, what stands before it stays, and what comes after is added."""
    file = tmp_path / "h"
    for label in ("one", "two", "three"):
        append(file, QUESTION, entry(label))
    whole = file.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in (*range(last, len(whole) - 1, 37), len(whole) - 1):
        file.write_bytes(whole[:end])
        labels = [found.label for found in append(file, QUESTION, entry("four"))]
        assert labels in (["one", "two", "four"], ["one", "two", "three", "four"])
        assert [found.label for found in append(file, QUESTION, entry("five"))] == [*labels, "five"]


def test_a_damaged_line_in_the_middle_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "h"
    for label in ("one", "two", "three"):
        append(file, QUESTION, entry(label))
    lines = file.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"passed", b"failed")
    file.write_bytes(b"\n".join(lines))
    assert [found.label for found in append(file, QUESTION, entry("four"))] == ["one", "three", "four"]
    assert [found.label for found in append(file, QUESTION, entry("five"))] == ["one", "three", "four", "five"]
    assert len(file.read_bytes().split(b"\n")) == 7  # the damaged line is still there


def test_killed_after_it_returned_nothing_is_lost(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2]); from test_history import *; "
        "append(sys.argv[1], QUESTION, entry('one')); os.kill(os.getpid(), signal.SIGKILL)"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "h"), here], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [found.label for found in append(tmp_path / "h", QUESTION, entry("two"))] == ["one", "two"]


def test_one_writer(tmp_path: Path) -> None:
    with Journal(tmp_path / "h") as journal:
        journal.begin(QUESTION)
        with pytest.raises(StoreError, match="in use by process"):
            append(tmp_path / "h", QUESTION, entry("one"))


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("something else\n")
    with pytest.raises(StoreError, match=r"h:1: the first line is damaged.*; use another history file \(--history\)$"):
        append(tmp_path / "h", QUESTION, entry("one"))
    assert (tmp_path / "h").read_text() == "something else\n"
