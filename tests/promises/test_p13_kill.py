"""P13: a run that was killed with -9 at any moment goes on, to the same bytes, and computes nothing twice."""

import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from asking import Asking, Warm, files_of

from noisescope.engines import Journalled
from noisescope.store import Journal, files

MOST_KILLS = 3
"""of one run"""


def check_killed(asking: Asking, warm: Warm, output: Path, delays_s: list[float]) -> int:
    """A run that is killed after each of these times, and goes on after each; how often it was alive to be killed."""
    kills, said = 0, output.with_suffix(".said")
    for number, delay_s in enumerate(delays_s):
        before = whole_lines(output)
        pid = warm.start(asking.arguments(output, *["--resume"] * bool(number)), said)
        time.sleep(delay_s)
        with suppress(ProcessLookupError):  # it may have finished
            os.kill(pid, signal.SIGKILL)
        code = warm.wait()
        assert code in (0, -signal.SIGKILL), said.read_text()
        kills += code != 0
        check_sane(asking, output, before)
    check_goes_on(asking, output)
    return kills


def check_killed_at(asking: Asking, warm: Warm, output: Path, number: int, *, torn: bool = False) -> bool:
    """A run that dies at its number-th file operation, then goes on; False if it had fewer."""
    said = output.with_suffix(".said")
    warm.start(asking.arguments(output), said, at=[number], torn=torn)
    if (code := warm.wait()) == 0:
        return False
    assert code == -signal.SIGKILL, said.read_text()
    check_sane(asking, output, [])
    check_goes_on(asking, output)
    return True


def check_sane(asking: Asking, output: Path, before: list[bytes]) -> None:
    """Whatever is there is whole, and what was finished before still is."""
    for name, data in files_of(output).items():
        assert data == asking.expected[name], f"{name} is not whole"
    assert whole_lines(output)[: len(before)] == before


def whole_lines(output: Path) -> list[bytes]:
    """The lines of the journal that were finished."""
    path = output / "journal"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def check_goes_on(asking: Asking, output: Path) -> None:
    before = whole_lines(output)
    asking.resume(output)
    assert whole_lines(output)[: len(before)] == before
    asking.check_finished(output)


@pytest.fixture(scope="session")
def lasts_s(asking: Asking, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the run takes here and now."""
    home = tmp_path_factory.mktemp("lasts")
    warm.start(asking.arguments(home / "out"), home / "said")  # which is when it is warm
    started = time.monotonic()
    assert warm.wait() == 0, (home / "said").read_text()
    took = time.monotonic() - started
    asking.check_finished(home / "out")
    return took


def kill_at_random(asking: Asking, warm: Warm, home: Path, lasts_s: float, *, kills: int, seed: int) -> int:
    """Runs that are killed at random moments, some of them several times, until there were that many kills."""
    chance, done, runs = random.Random(seed), 0, 0
    while done < kills:
        delays = [chance.uniform(0, lasts_s) for _ in range(chance.randint(1, MOST_KILLS))]
        done += check_killed(asking, warm, home / str(runs), delays[: kills - done])
        shutil.rmtree(home / str(runs))
        runs += 1
    return runs


def test_killed_at_random(asking, warm, tmp_path, lasts_s):
    kill_at_random(asking, warm, tmp_path, lasts_s, kills=5, seed=0)


@pytest.mark.slow
def test_killed_at_random_a_hundred_times(asking, warm, tmp_path, lasts_s, record_property):
    record_property("runs", kill_at_random(asking, warm, tmp_path, lasts_s, kills=100, seed=1))


@pytest.mark.parametrize("number", [2, 5, 9, 18, 25, 33, 41, 47])
def test_killed_at_a_file_operation(asking, warm, tmp_path, number):
    assert check_killed_at(asking, warm, tmp_path / "out", number, torn=True)


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_every_file_operation(asking, warm, tmp_path, torn, record_property):
    number = 1
    while check_killed_at(asking, warm, tmp_path / str(number), number, torn=torn):
        shutil.rmtree(tmp_path / str(number))
        number += 1
    record_property("operations", number - 1)
    assert number > 40


# --- able to fail -----------------------------------------------------------------------------------------------


def half_of(asking: Asking, output: Path, *, torn: bool = False) -> Path:
    """The directory of a run that was killed half way."""
    output.mkdir()
    whole = (asking.undisturbed / "journal").read_bytes().splitlines(keepends=True)
    (output / "journal").write_bytes(b"".join(whole[:5]) + (whole[5][:40] if torn else b""))
    return output


def nothing_is_recalled(monkeypatch):
    monkeypatch.setattr(Journalled, "_known", lambda self, point: None)


def costs_are_those_of_the_last_run(monkeypatch):
    real = Journal.recall

    def mutant(self, kind, key):
        found = real(self, kind, key)
        if found is not None and hasattr(found, "blocks"):
            object.__setattr__(found, "blocks", 0)
        return found

    monkeypatch.setattr(Journal, "recall", mutant)


def what_a_killed_run_left_is_not_swept(monkeypatch):
    monkeypatch.setattr("noisescope.store.sweep", lambda path: None)


@pytest.mark.parametrize(
    "mutant", [nothing_is_recalled, costs_are_those_of_the_last_run, what_a_killed_run_left_is_not_swept]
)
def test_the_mutants_are_caught(asking, tmp_path, monkeypatch, mutant):
    half = half_of(asking, tmp_path / "out")
    (half / f"{files._prefix(half / 'report.json')}0123.tmp").write_text("half a rep")
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_goes_on(asking, half)


def test_without_a_mutant_it_goes_on(asking, tmp_path):
    half = half_of(asking, tmp_path / "out", torn=True)
    (half / f"{files._prefix(half / 'report.json')}0123.tmp").write_text("half a rep")
    check_goes_on(asking, half)


def test_a_report_written_in_place_is_caught(asking, tmp_path):
    (tmp_path / "report.json").write_bytes(asking.expected["report.json"][:1000])
    with pytest.raises(AssertionError, match="not whole"):
        check_sane(asking, tmp_path, [])


def test_a_journal_that_loses_a_line_is_caught(asking, tmp_path):
    half = half_of(asking, tmp_path / "out")
    with pytest.raises(AssertionError):
        check_sane(asking, half, [*whole_lines(half), b"another"])
