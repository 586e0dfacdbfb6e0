"""The files for pipelines: they are YAML, and their shell steps do what they say, without the service around them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from noisescope.cli import main

ROOT = Path(__file__).parents[2]
CI = ROOT / "examples" / "ci"
LLAMA = ROOT / "tests" / "fixtures" / "llama"
SMALL = ("--n-samples", "70", "--max-length", "16", "--operators", "linear", "--noise-scale", "0.1")


def read(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text())


def bash(script: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a step as the services do: `bash -e`, with their variables."""
    world = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{home / 'bin'}:{os.environ['PATH']}", **variables}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=home, env=world, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a checkpoint and its baseline, and the commands that the steps call."""
    place = tmp_path_factory.mktemp("repository")
    (place / "checkpoint").symlink_to(LLAMA)
    (place / "bin").mkdir()
    program = f'#!/bin/sh\nPYTHONPATH="{ROOT / "src"}" exec "{sys.executable}" -m noisescope "$@"\n'
    recorded = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done >> called.txt\n'
    for name, text in {"noisescope": program, "gh": recorded, "curl": recorded}.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    assert main(["check", str(place / "checkpoint"), "--save-baseline", str(place / "baseline.json"), *SMALL]) == 0
    return place


def variables(found: Any) -> dict[str, str]:
    return {name: str(value) for name, value in found.items()}


def test_github(home: Path) -> None:
    workflow = read("github-actions.yml")
    steps = {step["name"]: step for step in workflow["jobs"]["check"]["steps"] if "name" in step}
    assert steps["Install"]["run"] == "pip install noisescope"
    world = variables(workflow["env"]) | {"GITHUB_SHA": "0123456789abcdef", "GITHUB_STEP_SUMMARY": "summary.md"}
    done = bash(steps["Check"]["run"], home, **world)
    assert done.returncode == 0, done.stderr
    assert bash(steps["Summary"]["run"], home, **world).returncode == 0
    assert (home / "summary.md").read_text().startswith("## noisescope check: PASSED")
    assert "`01234567`" in (home / "summary.md").read_text()  # the history is in it
    commented = bash(steps["Comment on the pull request"]["run"], home, PULL_REQUEST="7")
    assert commented.returncode == 0, commented.stderr
    assert (home / "called.txt").read_text().splitlines()[:5] == [
        "pr",
        "comment",
        "7",
        "--body-file",
        "robustness/check.md",
    ]
    upload = next(step for step in workflow["jobs"]["check"]["steps"] if "upload-artifact" in step.get("uses", ""))
    kept = home / upload["with"]["path"]
    assert {"junit.xml", "check.md", "check.html", "trend.png"} <= {path.name for path in kept.iterdir()}


def test_a_new_baseline_begins_a_new_history() -> None:
    """The figures of two baselines cannot be drawn in one line: the file that is kept depends on the baseline's."""
    steps = read("github-actions.yml")["jobs"]["check"]["steps"]
    (kept,) = (step["with"] for step in steps if step.get("uses", "").startswith("actions/cache@"))
    assert all("${{ hashFiles(env.BASELINE) }}" in kept[name] for name in ("key", "restore-keys"))
    job = read("gitlab-ci.yml")["robustness"]
    assert job["cache"]["key"]["files"] == [job["variables"]["BASELINE"]]


def test_gitlab(home: Path) -> None:
    """With a limit that no model holds: the job is red, and its files are there all the same."""
    job = read("gitlab-ci.yml")["robustness"]
    bash("rm -rf robustness robustness-history called.txt", home)
    world = variables(job["variables"]) | {"CI_COMMIT_SHORT_SHA": "01234567", "MAX_DEGRADATION": "1e-9"}
    done = bash("\n".join(job["script"]), home, **world)
    assert done.returncode in (1, 11), done.stderr
    suite = ElementTree.parse(home / job["artifacts"]["reports"]["junit"]).find("testsuite")
    assert suite is not None
    assert (suite.get("name"), suite.get("tests")) == ("check", "3")
    assert suite.findall("testcase/failure") + suite.findall("testcase/error")
    after = "\n".join(job["after_script"])
    assert bash(after, home, CI_MERGE_REQUEST_IID="", ROBUSTNESS_TOKEN="").returncode == 0
    assert not (home / "called.txt").exists()
    where = {"CI_API_V4_URL": "https://gitlab.example/api/v4", "CI_PROJECT_ID": "3"}
    posted = bash(after, home, CI_MERGE_REQUEST_IID="9", ROBUSTNESS_TOKEN="secret", **where)
    assert posted.returncode == 0, posted.stderr
    called = (home / "called.txt").read_text().splitlines()
    assert "body@robustness/check.md" in called
    assert called[-1] == "https://gitlab.example/api/v4/projects/3/merge_requests/9/notes"
