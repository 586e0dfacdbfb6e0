"""P16: one writer at a time; the second is told who the first is, and a dead one is in nobody's way."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from asking import Asking, Warm

from noisescope.errors import StoreError
from noisescope.store import Journal, journal

MIDDLE = 20
"""a file operation in the middle of the run"""


@contextmanager
def running(asking: Asking, warm: Warm, output: Path) -> Iterator[int]:
    """Another process in the middle of a run there, standing still; killed at the end if it is there still."""
    pid = warm.start(asking.arguments(output), output.with_suffix(".said"), at=[MIDDLE], signal=signal.SIGSTOP)
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def check_second_is_refused(asking: Asking, output: Path, pid: int) -> None:
    """Exit 5 and one line with the pid, whatever is asked; nothing is touched."""
    before = {path: path.read_bytes() for path in output.iterdir()}
    for more in ((), ("--resume",), ("--overwrite",)):
        ran = asking.run(output, *more)
        expected = f"noisescope: {output / '.journal.lock'}: in use by process {pid}; wait for it to end\n"
        assert ran == (5, "", expected)
    with pytest.raises(StoreError, match=f"in use by process {pid};"), Journal(output / "journal") as second:
        second.begin({"what": "else"})
    assert {path: path.read_bytes() for path in output.iterdir()} == before


def test_the_second_is_refused_and_the_first_finishes(asking, warm, tmp_path):
    output = tmp_path / "out"
    with running(asking, warm, output) as pid:
        check_second_is_refused(asking, output, pid)
        os.kill(pid, signal.SIGCONT)
        assert warm.wait() == 0
    asking.check_finished(output)


def test_a_dead_one_is_taken_over_at_once(asking, warm, tmp_path):
    output = tmp_path / "out"
    with running(asking, warm, output) as pid:
        os.kill(pid, signal.SIGKILL)
        assert warm.wait() == -signal.SIGKILL
    assert (output / ".journal.lock.owner").read_text() == str(pid)
    ran = asking.run(output, "--resume")
    assert (ran.code, ran.err) == (0, "")
    asking.check_finished(output)


def check_one_journal(path: Path) -> None:
    """Two in one process exclude each other too; the first is not disturbed."""
    with Journal(path) as first:
        first.begin({})
        first.keep("a", 1)
        with pytest.raises(StoreError, match=f"in use by process {os.getpid()};"), Journal(path) as second:
            second.begin({})
        first.keep("b", 2)
    with Journal(path) as third:
        third.begin({})
        assert third._records == {"a": 1, "b": 2}


def test_one_journal_at_a_time(tmp_path):
    check_one_journal(tmp_path / "journal")


def test_a_journal_that_was_refused_can_be_closed_and_used_later(tmp_path):
    late = Journal(tmp_path / "journal")
    with Journal(tmp_path / "journal") as first:
        first.begin({})
        first.keep("a", 1)
        with pytest.raises(StoreError):
            late.begin({})
        late.close()
    with late:
        late.begin({})
        assert late.kept == 1


# --- able to fail -----------------------------------------------------------------------------------------------


def nothing_is_locked(monkeypatch):
    monkeypatch.setattr(journal, "lock", lambda path, wait: nullcontext())


def the_pid_is_not_told(monkeypatch):
    monkeypatch.setattr("noisescope.store.files._pid", lambda owner: None)


@pytest.mark.parametrize("mutant", [nothing_is_locked, the_pid_is_not_told])
def test_the_mutants_are_caught(asking, warm, tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_one_journal(tmp_path / "journal")
    with running(asking, warm, tmp_path / "out") as pid:
        with pytest.raises(AssertionError):
            check_second_is_refused(asking, tmp_path / "out", pid)
        os.kill(pid, signal.SIGKILL)
        assert warm.wait() == -signal.SIGKILL
