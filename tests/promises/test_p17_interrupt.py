"""P17: Ctrl-C and SIGTERM end a run with exit 130 and say the command that goes on; a second one is immediate."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any

import pytest
from asking import FIXTURES, SMALL, SOURCE, Asking, Warm

import noisescope.models
from noisescope.cli import interrupts, main, run_directory
from noisescope.engines import LocalEngine
from noisescope.points import Bench, Finding, Result

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAID = re.compile(r"noisescope: interrupted; (\d+) finished steps? (?:is|are) kept in (\S+); go on with: (.+)\n")
BOTH = pytest.mark.parametrize("number", SIGNALS, ids=["SIGINT", "SIGTERM"])


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a person would type, whoever runs the tests."""
    monkeypatch.setenv(run_directory.PROGRAM, "noisescope")


def check_said(said: str, output: Path) -> list[str]:
    """The words of the command that it says to go on with."""
    found = SAID.fullmatch(said)
    assert found, said
    steps, place, command = found.groups()
    lines = (output / "journal").read_bytes().count(b"\n") - 1
    assert lines - int(steps) in (0, 1)  # one may be there that nobody has waited for to reach the disk
    assert place == str(output)
    program, *words = shlex.split(command)
    assert program == "noisescope"
    return words


def check_interrupted(asking: Asking, warm: Warm, output: Path, at: int, number: int) -> bool:
    """Interrupted at a file operation: exit 130, and on with the command as printed. False: it was over before."""
    said = output.with_suffix(".said")
    warm.start(asking.arguments(output), said, at=[at], signal=number)
    if (code := warm.wait()) == 0:
        return False
    assert code == 130, said.read_text()
    text = said.read_text()
    if text == "noisescope: interrupted\n":
        assert not output.exists(), "nothing was finished, and yet something is left"
        return True
    words = check_said(text, output)
    assert main(words) == 0
    asking.check_finished(output)
    return True


@pytest.mark.parametrize("at", [3, 14, 24, 39])
@BOTH
def test_interrupted_at_a_file_operation(asking, warm, tmp_path, at, number):
    assert check_interrupted(asking, warm, tmp_path / "out", at, number)


@pytest.mark.slow
@BOTH
def test_interrupted_at_every_file_operation(asking, warm, tmp_path, number, record_property):
    at = 1
    while check_interrupted(asking, warm, tmp_path / "out", at, number):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        at += 1
    record_property("operations", at - 1)
    assert at > 40


@BOTH
def test_the_second_one_is_immediate(asking, warm, tmp_path, number):
    """It comes while the first is seen to: nothing more is said or written, and the run can go on all the same."""
    output, said = tmp_path / "out", tmp_path / "said"
    warm.start(asking.arguments(output), said, at=[20, 22], signal=number)
    assert (warm.wait(), said.read_text()) == (130, "")
    assert not (output / "run.json").exists()
    assert asking.run(output, "--resume").code == 0
    asking.check_finished(output)


# --- in this process --------------------------------------------------------------------------------------------


class Escaped(BaseException):
    """A signal that the run did not take."""


@contextmanager
def watched() -> Iterator[None]:
    """Signals that are not taken inside raise Escaped; who takes them puts back what was there."""

    def escape(_number: int, _frame: Any) -> None:
        raise Escaped

    before = {number: signal.signal(number, escape) for number in SIGNALS}
    try:
        yield
        assert all(signal.getsignal(number) is escape for number in SIGNALS), "the handlers are not put back"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_at(monkeypatch: pytest.MonkeyPatch, number: int, forward: int) -> None:
    """This process gets a signal in a forward pass."""
    real, count = Bench._forward, iter(range(1, 10**6))

    def mutant(self: Bench, *args: Any) -> Any:
        if next(count) == forward:
            os.kill(os.getpid(), number)
        return real(self, *args)

    monkeypatch.setattr(Bench, "_forward", mutant)


def check_interrupted_here(asking: Asking, output: Path, number: int, *, forward: int) -> None:
    with pytest.MonkeyPatch.context() as patch, watched():
        signal_at(patch, number, forward)
        ran = asking.run(output)
    assert (ran.code, ran.out) == (130, "")
    words = check_said(ran.err, output)
    assert main(words) == 0
    asking.check_finished(output)


@BOTH
def test_interrupted_in_a_point(asking, tmp_path, number):
    check_interrupted_here(asking, tmp_path / "out", number, forward=5)


@BOTH
def test_interrupted_before_anything_is_finished(asking, tmp_path, monkeypatch, number):
    signal_at(monkeypatch, number, 1)
    with watched():
        assert asking.run(tmp_path / "deep" / "out") == (130, "", "noisescope: interrupted\n")
    assert not list(tmp_path.iterdir())


@BOTH
def test_interrupted_while_the_model_is_loaded(asking, tmp_path, monkeypatch, number):
    monkeypatch.setattr(noisescope.models, "load", lambda *_args, **_more: os.kill(os.getpid(), number))
    with watched():
        assert asking.run(tmp_path / "out") == (130, "", "noisescope: interrupted\n")
    assert not list(tmp_path.iterdir())


@BOTH
def test_interrupted_when_a_run_that_was_there_goes_on(asking, tmp_path, monkeypatch, number):
    """What an earlier run has finished stays."""
    output = Path(shutil.copytree(asking.undisturbed, tmp_path / "out"))
    monkeypatch.setattr(noisescope.models, "load", lambda *_args, **_more: os.kill(os.getpid(), number))
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    with watched():
        assert asking.run(output, "--resume").code == 130
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        (["diagnose", "a b", "--overwrite"], "noisescope diagnose --resume 'a b'"),
        (["diagnose", "--resume", "--output", "x;y"], "noisescope diagnose --resume --output 'x;y'"),
        (["diagnose", "--config", "run.yaml"], "noisescope diagnose --resume --config run.yaml"),
        (["diagnose", "--output", "x", "--", "./model"], "noisescope diagnose --resume --output x -- ./model"),
        (["diagnose", "--overwrite", "--", "--overwrite"], "noisescope diagnose --resume -- --overwrite"),
    ],
)
def test_the_command_can_be_pasted(given, printed):
    assert run_directory.resuming(given) == printed


def test_the_command_goes_on_also_where_a_file_says_overwrite(asking, tmp_path):
    """The flag, which a person has just typed, beats the key."""
    output = Path(shutil.copytree(asking.undisturbed, tmp_path / "out"))
    (tmp_path / "run.yaml").write_text("overwrite: true\n")
    with pytest.MonkeyPatch.context() as patch:
        signal_at(patch, signal.SIGINT, 5)
        ran = asking.run(output, "--config", tmp_path / "run.yaml")
    assert ran.code == 130
    assert main(check_said(ran.err, output)) == 0
    asking.check_finished(output)


def test_run_json_says_so_before_another_may_begin(asking, tmp_path, monkeypatch):
    """The entry is written while the lock is held."""
    real, held = run_directory.RunDirectory._record, []

    def record(self: Any, status: str) -> None:
        held.append((status, self.journal._lock is not None))
        real(self, status)

    monkeypatch.setattr(run_directory.RunDirectory, "_record", record)
    signal_at(monkeypatch, signal.SIGINT, 5)
    assert asking.run(tmp_path / "out").code == 130
    assert held == [("interrupted", True)]


def test_a_signal_that_is_ignored_stays_so():
    """As that of a job in the background, or under nohup."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_second_one_shows_the_cursor_again(tmp_path):
    """The bars hide it, and nothing runs after the second one that would show it."""
    script = "import os, signal; from noisescope.cli.interrupts import interruptible\n"
    script += "with interruptible():\n    try:\n        os.kill(os.getpid(), 2)\n"
    script += "    finally:\n        os.kill(os.getpid(), 2)"
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    world = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run([sys.executable, "-c", script], stderr=theirs, env=world, check=False).returncode == 130
    assert os.read(ours, 100) == b"\x1b[?25h"
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
@BOTH
def test_as_a_person_would(asking, tmp_path, number):
    """The real command, stopped from outside; what it prints is given to a shell."""
    world = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    world["PATH"] = f"{Path(sys.executable).parent}:{world['PATH']}"
    del world[run_directory.PROGRAM]
    arguments = ["diagnose", FIXTURES / "llama", "--data", asking.text, *SMALL, "--output", "my out"]
    command = [sys.executable, "-m", "noisescope", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=tmp_path, env=world, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "my out" / "journal"
    while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    printed = said.partition("go on with: ")[2].strip()
    assert printed.startswith("python -m noisescope diagnose ")
    subprocess.run(printed, shell=True, cwd=tmp_path, env=world, check=True, stdout=subprocess.DEVNULL)
    asking.check_finished(tmp_path / "my out")


# --- able to fail -----------------------------------------------------------------------------------------------


def only_ctrl_c_is_taken(monkeypatch):
    monkeypatch.setattr(interrupts.signal, "SIGTERM", signal.SIGUSR1)


def an_interrupt_is_a_failed_point(monkeypatch):
    def mutant(self: LocalEngine, point: Any) -> Result:
        try:
            return self.bench.run(point)
        except BaseException as error:  # noqa: BLE001 - that is the mistake
            return Result(point, self.bench.clean, Finding(None, 0, 0, nan, nan, 0, 0.0, repr(error), final=False))

    monkeypatch.setattr(LocalEngine, "_attempt", mutant)


def the_command_lacks_resume(monkeypatch):
    monkeypatch.setattr(run_directory, "resuming", lambda command: "noisescope " + shlex.join(command))


@pytest.mark.parametrize("mutant", [only_ctrl_c_is_taken, an_interrupt_is_a_failed_point, the_command_lacks_resume])
def test_the_mutants_are_caught(asking, tmp_path, monkeypatch, mutant: Callable[[Any], None]):
    number = signal.SIGTERM
    mutant(monkeypatch)
    with pytest.raises((AssertionError, Escaped)):
        check_interrupted_here(asking, tmp_path / "out", number, forward=5)
