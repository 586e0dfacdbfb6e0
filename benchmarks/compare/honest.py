"""How often two honest devices are said to diverge: settings over models, dtypes, prompts, attention, makes of device.

    python benchmarks/compare/honest.py [--seed 0] [--count 1000] [--output benchmarks/compare/honest.json]

The reference runs in float32 with the model's own attention on this machine's arithmetic; the suspect is the same model
as the setting says. Every row has the largest error in units of what is tolerated; 0 of n is stated as below 3/n.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import noisescope as ns

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "benchmarks" / "locate")]

from healthy import settings  # noqa: E402

from foreign import foreign_device  # noqa: E402 - the tests' own emulations
from healthy_settings import Setting, inputs, make  # noqa: E402


def measure(chosen: Iterable[Setting]) -> Iterator[dict[str, Any]]:
    """One row a setting."""
    for setting in chosen:
        plain = replace(setting, dtype="float32", attention=None, threads=1, arithmetic=())
        torch.set_num_threads(1)
        reference = ns.trace(make(plain), inputs(plain), checkpoint="same")
        model = make(setting)
        device = foreign_device(*setting.arithmetic, model=model) if setting.arithmetic else nullcontext()
        torch.set_num_threads(setting.threads)
        with device:
            suspect = ns.trace(model, inputs(setting), checkpoint="same", floor=False)
        found = ns.compare(reference, suspect)
        worst = max(found.sites, key=lambda site: site.excess)
        yield {
            "setting": str(setting),
            "arithmetic": " + ".join(setting.arithmetic) or "own",
            "dtype": setting.dtype,
            "outcome": found.outcome,
            "first": found.first.site.name if found.first is not None else None,
            "worst": worst.excess if worst.excess < 1e300 else None,
            "worst_site": worst.site.name,
            "same_bits": all(site.same_bits for site in found.sites),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**6)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--output", type=Path, default=HERE / "honest.json")
    given = parser.parse_args()
    rows = []
    for row in measure(settings(given.seed)[:: given.every][: given.count]):
        rows.append(row)
        if row["outcome"] != "within the noise floor":
            print(row, flush=True)
    alarms = [row["setting"] for row in rows if row["outcome"] == "diverges"]
    differing = [row for row in rows if not row["same_bits"]]
    worst = sorted((row for row in differing if row["worst"] is not None), key=lambda row: -row["worst"])[:10]
    summary = {
        "comparisons": len(rows),
        "with_other_bits": len(differing),
        "false_alarms": alarms,
        "rate": f"{len(alarms)} of {len(rows)}" + ("" if alarms else f", below {3 / max(1, len(rows)):.2%} (95%)"),
        "worst": [{name: row[name] for name in ("setting", "worst", "worst_site")} for row in worst],
    }
    machine = {"processor": platform.machine(), "torch": torch.__version__, "python": platform.python_version()}
    found = {"seed": given.seed, "summary": summary, "machine": machine, "rows": rows}
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
