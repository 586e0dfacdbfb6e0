"""The directory of a run: what cannot be used is refused at once, and nothing in it makes a command hang."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import noisescope
from noisescope.cli import main
from noisescope.cli.run_directory import RunDirectory, peak_bytes
from noisescope.errors import StoreError
from trained import FIXTURES

WORLD = {**os.environ, "PYTHONPATH": str(Path(noisescope.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
ASKED = ("--n-samples", "4", "--max-length", "12", "--level", "layer", "--layers", "6-7", "--operators", "softmax")


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str | Path) -> str:
    """What is said before a model is looked for."""
    assert main(["diagnose", "./no/such/model", *map(str, words)]) == code
    out, err = capsys.readouterr()
    assert not out
    return err.removeprefix("noisescope: ").rstrip("\n")


def run(*words: str | Path) -> tuple[int, str]:
    """A command that would wait forever ends with an error here."""
    command = [sys.executable, "-m", "noisescope", *map(str, words)]
    found = subprocess.run(command, env=WORLD, capture_output=True, text=True, check=False, timeout=120)
    assert not found.stdout
    return found.returncode, found.stderr


def test_pipes_in_the_place_of_files_are_not_waited_for(tmp_path: Path) -> None:
    for name in ("report.json", "journal", "run.json"):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / name)
        code, said = run("diagnose", "./no/such/model", "--output", tmp_path / name)
        assert (code, "--overwrite" in said) == (2, True)
    given = (FIXTURES / "llama", *ASKED, "--output", tmp_path / "journal", "--resume")
    pipe = tmp_path / "journal" / "journal"
    expected = f"noisescope: cannot read {pipe}: is a pipe or a device, expected a file\n"
    assert run("diagnose", *given) == (5, expected)
    for place in (tmp_path / "report.json", Path("/dev/zero")):
        code, said = run("report", place)
        assert (code, said.count("\n"), "is a pipe or a device, expected a file" in said) == (2, 1, True)


def test_a_name_that_is_too_long(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, 5, "--output", tmp_path / ("a" * 300))
    assert said.startswith("cannot write ")
    assert said.endswith(": File name too long")


def test_an_empty_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, 2, "--output", "") == '--output: got "", expected text'


def test_all_that_is_wrong_is_said_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = {"--error-type": "relativ", "--window-size": "0", "--dtype": "float17", "--level": "x", "--n-samples": "1"}
    flags = [word for pair in wrong.items() for word in pair]
    found = refused(capsys, 2, *flags, "--output", tmp_path / "out").splitlines()
    assert {line.removeprefix("noisescope: ").split(":")[0] for line in found} == set(wrong)
    assert not (tmp_path / "out").exists()


def test_bad_flags_are_found_without_torch() -> None:
    code = "import sys, noisescope.cli as c; c.main(['diagnose', '--error-type', 'x', '--operators', 'y']); "
    code += "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=WORLD, stderr=subprocess.DEVNULL)


def test_nothing_to_go_on_with_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = refused(capsys, 4, "--output", tmp_path / "out", "--resume").splitlines()
    assert said[0] == f"--resume: there is nothing to go on with in {tmp_path / 'out'}; it begins from the start"
    assert len(said) == 2, "and then that there is no such model"


@pytest.mark.parametrize("key", ["overwrite", "resume"])
def test_a_flag_beats_the_opposite_key(
    key: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = RunDirectory.__init__

    def init(self: RunDirectory, path: Path, **given: object) -> None:
        seen.append((given["overwrite"], given["resume"]))
        real(self, path, **given)

    monkeypatch.setattr(RunDirectory, "__init__", init)
    (tmp_path / "a.yaml").write_text(f"{key}: true\n")
    where = ("--config", tmp_path / "a.yaml", "--output", tmp_path / "out")
    refused(capsys, 4, *where)
    refused(capsys, 4, *where, "--overwrite")
    refused(capsys, 4, *where, "--resume")
    assert seen == [(key == "overwrite", key == "resume"), (True, False), (False, True)]
    assert "choose one" in refused(capsys, 2, *where, "--resume", "--overwrite")


def test_the_clock_starts_with_the_directory_and_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((100.0, 107.25))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    home = RunDirectory(tmp_path / "out", writes=(), overwrite=False, resume=False, command=["diagnose"])
    with home.running():
        home.journal.begin({})
        home.journal.keep("a", 1)
    assert home.wall_s == 7.25
    assert '"wall_s": 7.25' in (tmp_path / "out" / "run.json").read_text()


def test_what_another_process_left_meanwhile_is_looked_at(tmp_path: Path) -> None:
    home = RunDirectory(tmp_path, writes=("report.pdf",), overwrite=False, resume=False, command=["diagnose"])
    (tmp_path / "report.pdf").write_text("my own")
    with pytest.raises(Exception, match=r"report\.pdf: is there already"), home.running():
        home.journal.begin({})
    assert [path.name for path in tmp_path.iterdir()] == ["report.pdf"]


def test_a_full_disk_is_told_of_without_hiding_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        home.journal.begin({})
        home.journal.keep("a", 1)
        raise StoreError("cannot write x: No space left on device")

    home = RunDirectory(tmp_path / "o", writes=(), overwrite=False, resume=False, command=["diagnose", "m"])
    with pytest.raises(StoreError), home.running():
        fail()
    assert "1 finished step is kept in" in capsys.readouterr().err
    assert '"status": "failed"' in (tmp_path / "o" / "run.json").read_text()


def test_the_peak_is_that_of_this_process_and_not_of_the_one_that_started_it() -> None:
    ours = bytearray(2**28)
    program = "from noisescope.cli.run_directory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", program], env=WORLD, check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout) < len(ours) < peak_bytes()
