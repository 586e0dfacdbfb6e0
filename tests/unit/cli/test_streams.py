"""Where output goes: a reader that left, a full device, a closed stream, names that would act on a terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import noisescope
from noisescope.cli import main
from noisescope.cli.screen import said

REPORT = Path(__file__).parents[2] / "golden" / "report-v1.json"
COMMAND = [sys.executable, "-m", "noisescope", "report", str(REPORT)]
WORLD = {**os.environ, "PYTHONPATH": str(Path(noisescope.__file__).parents[1])}


def run(command: list[str] | str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=WORLD, stderr=subprocess.PIPE, text=True, check=False, **more)


@pytest.mark.parametrize("words", [COMMAND[3:], ["--help"]], ids=["report", "help"])
def test_a_reader_that_left_is_no_error(words: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    found = run([*COMMAND[:3], *words], stdout=theirs)
    os.close(theirs)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_device_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        found = run(COMMAND, stdout=full)
    assert found.returncode == 5
    assert found.stderr == "noisescope: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_nobodys_loss(closed: str) -> None:
    found = run(f'"{sys.executable}" -m noisescope report "{REPORT}" {closed}', shell=True, stdout=subprocess.DEVNULL)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("words", [["report", "\x1b[31mno"], ["diagnose", "\x1b[2Jfoo"], ["sites", "\x1b[2Jfoo"]])
def test_nothing_in_a_message_acts_on_the_terminal(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) in (2, 4)
    shown = capsys.readouterr().err
    assert "\\x1b[" in shown
    assert shown.rstrip("\n").isprintable()


def test_nor_in_what_is_said_on_the_side(capsys: pytest.CaptureFixture[str]) -> None:
    said("reading \x1b[2Jfoo\nbar")
    assert capsys.readouterr().err == "reading \\x1b[2Jfoo\\nbar\n"
