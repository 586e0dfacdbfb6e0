"""What the `srdd` method finds by itself, and what it says of healthy devices; results go to srdd.json beside this.

python benchmarks/locate/srdd.py               both trained fixture models, about twenty minutes on one core
python benchmarks/locate/srdd.py llama         one of them

The sample, stated before it was run: five kinds of fault at their documented magnitudes on the output of every block,
twice each (other prompts, noise and fault draws), and 60 healthy runs. Every run has five windows of the built-in text
of its own. Layers are struck equally often, so that a guess is right in 1 of 8 and among three in 3 of 8.
"""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from noisescope.diagnosis.prompts import open_prompts
from noisescope.faults import Fault
from noisescope.locating import locate
from noisescope.locating.srdd import PROMPTS

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
KINDS = {"dead_zone": 0.3, "saturation": 0.2, "bias": 0.3, "noise": 0.1, "spike": 0.1}
REPEATS = 2
HEALTHY = 60


@dataclass(frozen=True)
class Trial:
    """One run: a fault on a block's output, or none; `seed` is that of the noise, the fault and the prompts."""

    seed: int
    kind: str | None = None
    layer: int | None = None

    @property
    def faults(self) -> list[Fault]:
        return [] if self.kind is None else [Fault(self.kind, KINDS[self.kind], str(self.layer), seed=self.seed)]


def sample(layers: Sequence[int], *, repeats: int = REPEATS, healthy: int = HEALTHY) -> list[Trial]:
    """Healthy controls, and every kind on each of the layers."""
    struck = [(kind, layer) for _ in range(repeats) for kind in KINDS for layer in layers]
    return [Trial(seed) for seed in range(healthy)] + [
        Trial(seed, kind, layer) for seed, (kind, layer) in enumerate(struck, healthy)
    ]


def rows(model: nn.Module, inputs: Mapping[int, dict[str, Any]], trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """What srdd says in every trial, with the prompts of `inputs[trial.seed]`; no rank where nothing was struck."""
    found = []
    for trial in trials:
        verdict = locate(model, inputs[trial.seed], method="srdd", simulate=trial.faults, seed=trial.seed)
        ranking, truth = verdict.sections["srdd"], verdict.sections["truth"]
        inert = bool(truth and truth[0]["inert"])
        found.append(
            {
                "kind": trial.kind,
                "layer": trial.layer,
                "seed": trial.seed,
                "inert": inert,
                "rank": truth[0]["srdd_rank"] if truth and not inert else None,
                "first": ranking[0]["layer"],
                "largest_score": ranking[0]["score"],
                "forwards": verdict.sections["cost"]["forward_pass_equivalents"],
            }
        )
    return found


def summary(found: Sequence[dict[str, Any]], layers: int) -> dict[str, Any]:
    """Hits among the faults that changed something, and alarms among healthy runs, by three readings of a ranking.

    `believed`: the first layer is taken for faulty whatever its score. `in_sample`: only above the score that 95% of
    healthy runs stay below. `held_out`: the same from every other healthy run, with alarms counted in the rest.
    """
    healthy = [row["largest_score"] for row in found if row["kind"] is None]
    struck = [row for row in found if row["rank"] is not None]
    limit, half = (float(np.quantile(scores, 0.95)) for scores in (healthy, healthy[::2]))
    return {
        "layers": layers,
        "forwards": found[0]["forwards"],
        "healthy": len(healthy),
        "faults": len(struck),
        "inert": sum(row["inert"] for row in found),
        "top_1": share([row["rank"] == 1 for row in struck]),
        "top_3": share([row["rank"] <= 3 for row in struck]),
        "first_is_the_layer_or_beside_it": share([abs(row["first"] - row["layer"]) <= 1 for row in struck]),
        "chance": {"top_1": 1 / layers, "top_3": 3 / layers, "beside": (3 * layers - 2) / layers**2},
        "by_kind": {kind: _hits([row for row in struck if row["kind"] == kind]) for kind in KINDS},
        "by_layer": {str(layer): _hits([row for row in struck if row["layer"] == layer]) for layer in range(layers)},
        "healthy_first_layer": {
            str(layer): sum(row["first"] == layer for row in found if row["kind"] is None) for layer in range(layers)
        },
        "largest_score": {
            "healthy": np.quantile(healthy, [0.05, 0.5, 0.95]).tolist(),
            "faulty": np.quantile([row["largest_score"] for row in struck], [0.05, 0.5, 0.95]).tolist(),
            "faulty_above_healthy": float(
                np.mean([row["largest_score"] > score for row in struck for score in healthy])
            ),
        },
        "believed": {"false_alarms": share([True] * len(healthy)), **_found(struck, -1.0)},
        "in_sample": {"score": limit, "false_alarms": share([s > limit for s in healthy]), **_found(struck, limit)},
        "held_out": {"score": half, "false_alarms": share([s > half for s in healthy[1::2]]), **_found(struck, half)},
    }


def _hits(struck: Sequence[dict[str, Any]]) -> dict[str, int]:
    ranks = [row["rank"] for row in struck]
    return {"faults": len(ranks), "top_1": ranks.count(1), "top_3": sum(rank <= 3 for rank in ranks)}


def _found(struck: Sequence[dict[str, Any]], limit: float) -> dict[str, Any]:
    above = [row["largest_score"] > limit for row in struck]
    right = [row["rank"] == 1 and over for row, over in zip(struck, above, strict=True)]
    return {"alarms_on_faulty": share(above), "right_layer_and_alarm": share(right)}


def share(hits: Sequence[bool]) -> dict[str, float]:
    """The share of hits with its 95% interval (Wilson)."""
    n, p, z = len(hits), sum(hits) / len(hits), 1.96
    centre, reach = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low, high = (float(np.clip(end / scale, 0, 1)) for end in (centre - reach, centre + reach))
    return {"value": p, "low": min(p, low), "high": max(p, high), "n": n}  # rounding may leave an end beside 0 or 1


def measure(name: str) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval()
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / name)
    layers = model.config.num_hidden_layers
    trials = sample(range(layers))
    inputs = {trial.seed: open_prompts(None, model, tokenizer, seed=trial.seed, rows=PROMPTS) for trial in trials}
    found = rows(model, inputs, trials)
    return {"summary": summary(found, layers), "rows": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["llama", "gpt2"], help="fixtures")
    target = HERE / "srdd.json"
    for name in parser.parse_args().models:
        measured = measure(name)
        results = json.loads(target.read_text()) if target.exists() else {}
        results[name] = measured
        results["machine"] = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        target.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(measured["summary"], indent=1))


if __name__ == "__main__":
    main()
