"""Whether layers contribute equally once they are made to: measured, on other text than the report's; to equalize.json.

    python benchmarks/training/equalize.py [--models llama gpt2 default] [--operators all linear] [--ways ...]

Minutes on the fixtures; the default model takes two hours on two cores. For each model the KL of each block by itself
with its share of the noise: with one scale for all blocks; with the factors that a report of 50 rows foretells
(`AdaptiveNoise.equalize`); with factors that were measured (`equalize_contributions`), on the rows that they were
measured on with other draws, and on as many other rows. `spread` is the largest contribution over the smallest,
`of_mean` their range, `layers` each with its interval, of which `half_width` is the widest. Figures are saved as they
are made, so that ways can be run apart.
"""

import argparse
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from noisescope.models import load

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
FILE = HERE / "equalize.json"
Row = dict[str, Any]

SCALES: dict[str, tuple[float, ...]] = {"llama": (0.02, 0.1), "gpt2": (0.02, 0.1), "default": (0.05,)}
WAYS = ("one scale", "foretold", "measured")


@dataclass(frozen=True)
class Effort:
    """Rows, and draws until they agree within the tolerance: so many that chance is small beside what is looked for."""

    rows: int
    trials: int
    tolerance: float

    @property
    def chance(self) -> dict[str, Any]:
        return {"trials": self.trials, "tolerance": self.tolerance}


EFFORT = {"llama": Effort(100, 16, 0.03), "gpt2": Effort(100, 16, 0.03), "default": Effort(200, 40, 0.04)}
"""early layers of the default model need many draws: their noise in a massive activation is one value a row"""


def opened(name: str) -> tuple[torch.nn.Module, Any]:
    if name == "default":
        loaded = load()
        return loaded.model, loaded.tokenizer
    return AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval(), AutoTokenizer.from_pretrained(FIXTURES / name)


class Subject:
    """A model and the text that contributions are measured on."""

    def __init__(self, name: str) -> None:
        self.name, self.effort = name, EFFORT[name]
        self.model, self.tokenizer = opened(name)
        self.text, self.other_text = (
            ns.open_data(None, self.tokenizer, n_samples=self.effort.rows, seed=seed) for seed in (5, 6)
        )
        self._report: ns.Report | None = None

    @property
    def report(self) -> ns.Report:
        if self._report is None:
            self._report = ns.diagnose(self.model, tokenizer=self.tokenizer, n_samples=50)
        return self._report

    def figures(self, way: str, plain: ns.OperatorNoise) -> Iterator[tuple[str, Row]]:
        """What the blocks contribute, with noise that is shared out in this way."""
        if way == "one scale":
            yield way, self._contributions(plain, self.text)
        elif way == "foretold":
            factors = ns.AdaptiveNoise.equalize(self.report, operators=plain.operators)
            yield way, self._contributions(replace(plain, layers=None, adaptive=factors), self.text)
        else:
            equal = ns.equalize_contributions(self.model, self.text, plain, **self.effort.chance)
            assert equal.adaptive is not None
            yield (
                way,
                row({layer: (kl, *equal.adaptive.intervals[layer]) for layer, kl in equal.adaptive.minded.items()}),
            )
            yield "measured on others", self._contributions(replace(equal, seed=13), self.other_text)

    def _contributions(self, noise: ns.OperatorNoise, text: Any) -> Row:
        found = ns.measure_contributions(self.model, text, noise, **self.effort.chance)
        return row({layer: (kl.value, kl.low, kl.high) for layer, kl in found.items()})


def row(found: dict[Any, tuple[float, float, float]]) -> Row:
    values = [value for value, *_ in found.values()]
    mean = sum(values) / len(values)
    return {
        "spread": max(values) / min(values),
        "of_mean": [min(values) / mean, max(values) / mean],
        "half_width": max((high - low) / 2 / value for value, low, high in found.values()),
        "sum_nats": sum(values),
        "layers": {layer: [float(f"{figure:.4g}") for figure in known] for layer, known in found.items()},
    }


def save(name: str, part: str, way: str, figures: Row) -> None:
    results = json.loads(FILE.read_text()) if FILE.exists() else {}
    results.setdefault(name, {}).setdefault(part, {})[way] = figures
    results["machine"] = {
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    FILE.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SCALES), choices=SCALES)
    parser.add_argument("--operators", nargs="+", default=["all", "linear"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    asked = parser.parse_args()
    for name in asked.models:
        subject = Subject(name)
        blocks = list(range(subject.model.config.num_hidden_layers))
        for operators in asked.operators:
            for scale in SCALES[name]:
                chosen = None if operators == "all" else [operators]
                plain = ns.OperatorNoise(scale, operators=chosen, layers=blocks, seed=11)
                part = f"{'all operators' if operators == 'all' else operators}, {scale:g}"
                for asked_way in asked.ways:
                    for way, figures in subject.figures(asked_way, plain):
                        save(name, part, way, figures)
                        print(name, part, way, round(figures["spread"], 3), flush=True)


if __name__ == "__main__":
    main()
