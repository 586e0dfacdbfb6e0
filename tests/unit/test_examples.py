"""The examples run on a fixture and show what they say they show: one as a person runs it, the others as scripts here.

A process of one's own takes longer to import than most examples take to run.
"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from noisescope.noise import NOISES

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FIXTURE = ROOT / "tests" / "fixtures" / "llama"
SHOWN = {
    "compare_two_devices": ("first divergence   model.layers.2.self_attn.q_proj", "sources: (2, 5)", "limits exceeded"),
    "diagnose_your_model": ("Risk: ", "The map (59 cells)", "The five most fragile cells of 59", "read back with risk"),
    "locate_a_fault": ("Verdict: HEALTHY", "Verdict: FAULTY   layer 3, softmax (self_attn)", "rank 1"),
    "train_with_noise": ("equal ", "steps 15 to 19: asked 0.010", "before: noise in linears loses", "after: noise"),
    "your_own_noise": ("channel_gain keeps the rules", "2      linear    forward", "Risk: "),
    "your_own_task": ("multiple choice: clean accuracy", "chance 33%", "Risk: "),
}


def run(example: Path, directory: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """As the main program of this process; what an example registers is forgotten after it."""
    registered = dict(NOISES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(sys, "argv", [str(example), *arguments])
        patch.setattr(sys, "path", [str(example.parent), *sys.path])
        try:
            runpy.run_path(str(example), run_name="__main__")
        finally:
            NOISES.clear()
            NOISES.update(registered)
    return capsys.readouterr().out


def run_alone(example: Path, directory: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(example), *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_checked() -> None:
    assert {example.stem for example in EXAMPLES} == set(SHOWN)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_run(example: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(example, tmp_path, capsys)
    for words in SHOWN[example.stem]:
        assert words in shown


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, marks=[] if example.stem == "locate_a_fault" else [pytest.mark.slow])
        for example in EXAMPLES
    ],
    ids=lambda example: example.stem,
)
def test_examples_run_as_a_person_runs_them(example: Path, tmp_path: Path) -> None:
    shown = run_alone(example, tmp_path)
    for words in SHOWN[example.stem]:
        assert words in shown


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_fit_on_a_screen(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60


def test_a_task_can_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As its docstring offers. Answers that are written take minutes, so these are chosen."""
    rows = [{"question": f"{n} plus 1?", "choices": [str(n), str(n + 1)], "answer": "B"} for n in range(4)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shown = run(ROOT / "examples" / "your_own_task.py", tmp_path, capsys, str(FIXTURE), "sums.jsonl")
    assert "multiple choice: clean accuracy" in shown
    assert "chance 50%" in shown
