"""Rendering a report: seconds of each format and of all together, from the command to its end, and sizes of the files.

`seconds_in_process` is the rendering alone, all formats, in a process that has the report in memory: at first, when
what draws has to be imported, and once more.

    noisescope diagnose
    python benchmarks/report/run.py [--report noisescope-out] [--output benchmarks/report/results.json]

Each turn is a process of its own, so that imports count; formats take turns, and medians over rounds are reported.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROUNDS = 5
FORMATS = ("json", "md", "html", "png", "pdf")
CASES = {"none (--version)": "", **{name: name for name in FORMATS}, "all": ",".join(FORMATS)}


def turn(report: Path, formats: str) -> tuple[float, dict[str, int]]:
    """Wall seconds of one command, and the bytes of each file it wrote."""
    with tempfile.TemporaryDirectory() as home:
        asked = ["report", str(report), "--format", formats, "--output", home] if formats else ["--version"]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "noisescope", *asked], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started, {file.suffix[1:]: file.stat().st_size for file in Path(home).iterdir()}


INSIDE = """import sys, time
from noisescope.report import Report
from noisescope.report.formats import FORMATS, render
sections = Report.load(sys.argv[1]).sections
for _ in range(2):
    started = time.perf_counter()
    for name in FORMATS:
        render(sections, name)
    print(time.perf_counter() - started)"""


def inside(report: Path) -> list[float]:
    """Seconds to render all formats, at first and once more."""
    done = subprocess.run([sys.executable, "-c", INSIDE, str(report)], check=True, capture_output=True, text=True)
    return [float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=Path("noisescope-out"))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.json")
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    sizes: dict[str, int] = {}
    alone: list[list[float]] = []
    for _ in range(given.rounds):
        for name, formats in CASES.items():
            took, written = turn(given.report, formats)
            seconds[name].append(took)
            sizes |= written
        alone.append(inside(given.report))
    file = given.report / "report.json" if given.report.is_dir() else given.report
    sections = json.loads(file.read_text())
    result = {
        "model": sections["config"]["model"],
        "layers": sections["coverage"]["layers"],
        "cells": len(sections["map"].get("cells", ())),
        "rounds": given.rounds,
        "processor": f"{platform.machine()}, {os.cpu_count()} processors",
        "versions": {name: version(name) for name in ("matplotlib", "jinja2", "plotly", "numpy")},
        "seconds": {name: round(median(times), 3) for name, times in seconds.items()},
        "seconds_in_process": {
            name: round(median(times), 3)
            for name, times in zip(("first", "again"), zip(*alone, strict=True), strict=True)
        },
        "bytes": {name: sizes[name] for name in FORMATS},
    }
    given.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
