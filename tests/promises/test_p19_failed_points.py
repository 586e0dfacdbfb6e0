"""P19: a point that fails is recorded as failed, and the rest go on: exit 1, and every format says so."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import Asking, Ran

from noisescope.cli import main
from noisescope.engines import Journalled, LocalEngine
from noisescope.points import Bench, Point
from noisescope.report import Report
from noisescope.store import Journal

ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("shapes do not fit\n  here\n"),
    MemoryError(),
    KeyError("past_key_values"),
]
BROKEN = ("--error-type", "bit_flip", "--noise-scale", "0.05", "--operators", "linear")
"""noise that makes the output non-finite"""
Which = Callable[[Point], bool]


def the_window(point: Point) -> bool:
    return point.selection.layers == (6, 7) and point.scale is None


def a_check(point: Point) -> bool:
    return point.selection.layers == (6,) and point.scale is None


def a_threshold(point: Point) -> bool:
    return point.selection.layers == (6,) and point.scale is not None


def fail(patch: pytest.MonkeyPatch, error: Exception, which: Which) -> None:
    """The model's own code raises in some points, in the middle of a trial."""
    real = Bench._disturbed

    def disturbed(self: Bench, point: Point, *args: Any) -> Any:
        if which(point):
            raise error
        return real(self, point, *args)

    patch.setattr(Bench, "_disturbed", disturbed)


def check_shown(ran: Ran, output: Path, failures: set[str], reason: str) -> None:
    """Exit 1 and one line; every format says what failed, and why."""
    report = Report.load(output)
    assert report.failures.keys() == failures
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert f"{len(failures)} points failed, first {next(iter(report.failures))}: " in ran.err
    for text in (ran.out, report.to_markdown(), report.to_html(), report.to_json()):
        assert reason in text
    assert main(["report", str(output), "--format", "png,pdf"]) == 0
    for name in ("report.png", "report.pdf"):
        assert (output / name).stat().st_size > 10_000
        (output / name).unlink()


def check_failed_once(asking: Asking, output: Path, error: Exception, which: Which, failures: set[str]) -> None:
    """The others are measured as ever; the next run tries again, and ends as if nothing had happened."""
    with pytest.MonkeyPatch.context() as patch:
        fail(patch, error, which)
        ran = asking.run(output)
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ").replace("KeyError: '", "")
    check_shown(ran, output, failures, reason.rstrip("'"))
    found, usual = Report.load(output).sections, Report.load(asking.undisturbed).sections
    for part in (lambda it: it["layer_analysis"], lambda it: it["metrics"]["groups"]):
        same = {name: row for name, row in part(found).items() if "failed" not in row and name not in failures}
        assert all(row["kl"] == part(usual)[name]["kl"] for name, row in same.items())
    assert found["executive_summary"] == usual["executive_summary"], "what failed says nothing of the model"
    ran = asking.run(output, "--resume")
    assert (ran.code, ran.err) == (0, "")
    asking.check_finished(output)


@pytest.mark.parametrize("error", ERRORS, ids=[type(error).__name__ for error in ERRORS])
def test_an_error_in_a_window(asking, tmp_path, error):
    check_failed_once(asking, tmp_path / "out", error, the_window, {"L6-7"})


@pytest.mark.parametrize(
    ("which", "failures"),
    [
        (a_check, {"groups early", "check of 6 softmax"}),
        (a_threshold, {"critical threshold of L6"}),
    ],
)
def test_an_error_elsewhere(asking, tmp_path, which, failures):
    check_failed_once(asking, tmp_path / "out", ERRORS[0], which, failures)


def test_a_failed_search_gives_no_threshold(asking, tmp_path, monkeypatch):
    fail(monkeypatch, ERRORS[0], a_threshold)
    asking.run(tmp_path / "out")
    found, usual = (
        Report.load(place).sections["metrics"]["critical_thresholds"]
        for place in (tmp_path / "out", asking.undisturbed)
    )
    assert found["L6"]["how"] in ("predicted", "unknown")
    assert usual["L6"]["how"] == "measured"
    assert found["L7"] == usual["L7"]


def check_broken(asking: Asking, output: Path) -> None:
    """Noise that makes the output non-finite fails every time: a resumed run does not try again, and says the same."""
    ran = asking.run(output, *BROKEN)
    failures = Report.load(output).failures
    assert failures
    check_shown(ran, output, set(failures), "under this noise the model gives non-finite logits")
    before = (output / "report.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        tried = []
        patch.setattr(Bench, "run", lambda self, point: tried.append(point))
        ran = asking.run(output, *BROKEN, "--resume")
    assert (ran.code, tried) == (1, [])
    assert (output / "report.json").read_bytes() == before


def test_noise_that_makes_the_output_non_finite(asking, tmp_path):
    check_broken(asking, tmp_path / "out")


# --- where everything depends on it -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ERRORS[0], MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_a_clean_run_out_of_memory(asking, tmp_path, monkeypatch, error):
    fail(monkeypatch, error, lambda _point: True)
    ran = asking.run(tmp_path / "out")
    assert (ran.code, ran.out, ran.err.count("\n")) == (4, "", 1)
    assert ran.err.startswith("noisescope: out of memory (")
    assert ran.err.endswith("; batch_size is 16: try fewer rows, or a smaller max_length\n")
    assert not list(tmp_path.iterdir())


def test_a_map_out_of_memory(asking, tmp_path, monkeypatch):
    def out_of_memory(*_args: Any, **_more: Any) -> None:
        raise ERRORS[0]

    with monkeypatch.context() as patch:
        patch.setattr("noisescope.diagnosis.stages.map_sensitivity", out_of_memory)
        ran = asking.run(tmp_path / "out")
    assert ran.code == 4
    assert [line.partition(" (")[0].partition(" is")[0] for line in ran.err.splitlines()] == [
        "noisescope: 1 finished step",
        "noisescope: out of memory",
    ]
    assert asking.run(tmp_path / "out", "--resume").code == 0
    asking.check_finished(tmp_path / "out")


# --- able to fail -----------------------------------------------------------------------------------------------


def the_error_escapes(monkeypatch):
    monkeypatch.setattr(LocalEngine, "_attempt", lambda self, point: self.bench.run(point))


def the_failure_is_swallowed(monkeypatch):
    monkeypatch.setattr(Report, "failures", {})


def the_failure_is_kept_for_good(monkeypatch):
    real = Journalled._kept
    monkeypatch.setattr(Journalled, "_kept", lambda self, result: _kept_as_final(real, self, result))


def _kept_as_final(real: Any, engine: Journalled, result: Any) -> Any:
    object.__setattr__(result.finding, "final", True)
    return real(engine, result)


@pytest.mark.parametrize("mutant", [the_error_escapes, the_failure_is_swallowed, the_failure_is_kept_for_good])
def test_the_mutants_are_caught(asking, tmp_path, monkeypatch, mutant):
    _ = asking.expected
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        check_failed_once(asking, tmp_path / "out", ERRORS[1], the_window, {"L6-7"})


def test_what_is_tried_again_in_vain_is_caught(asking, tmp_path, monkeypatch):
    real = Journal.keep

    def keep(self: Journal, key: str, value: Any) -> None:
        if not getattr(value, "failure", ""):
            real(self, key, value)

    monkeypatch.setattr(Journal, "keep", keep)
    with pytest.raises((AssertionError, AttributeError)):
        check_broken(asking, tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
