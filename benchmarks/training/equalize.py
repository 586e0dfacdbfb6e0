"""Whether layers contribute equally once they are made to: measured, on other text than the report's; to equalize.json.

    python benchmarks/training/equalize.py [--models llama gpt2 default] [--operators all linear] [--ways ...]

Minutes on the fixtures; the default model takes hours on two cores. For each model the KL of each block by itself
with its share of the noise: with one scale for all blocks; with the factors that a report of 50 rows foretells
(`AdaptiveNoise.equalize`); with factors that were measured (`equalize_contributions`), on the rows that they were
measured on with other draws, and on as many other rows. Of many layers some seem far from the rest by chance alone: so
`measured again` draws on for those that are more than 4% from the mean, and takes all of their draws together. `spread`
is the largest contribution over the smallest, `of_mean` their range, `layers` each with its interval, of which
`half_width` is the widest. Figures are saved as they are made, so that ways can be run apart: later ones read the
factors of `measured`, and whether contributions are equal is what `measured again` says.

`corrected by growth` is an earlier way of `equalize_contributions`, kept to be compared with: its last factors came
from how the KL of a single draw grows with the scale.
"""

import argparse
import json
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from noisescope.models import load

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
FILE = HERE / "equalize.json"
Row = dict[str, Any]
Known = dict[Any, tuple[float, ...]]
"""layer -> KL in nats, and its interval"""

SCALES: dict[str, tuple[float, ...]] = {"llama": (0.02, 0.1), "gpt2": (0.02, 0.1), "default": (0.05,)}
WAYS = ("one scale", "foretold", "measured", "measured again", "measured on others")
FAR = 0.04
"""from the mean of all: layers to look at again"""


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

    def figures(self, way: str, plain: ns.OperatorNoise, so_far: dict[str, Row]) -> Row:
        """What the blocks contribute, with noise that is shared out in this way."""
        if way == "one scale":
            return row(self._contributions(plain, self.text))
        if way == "foretold":
            foretold = ns.AdaptiveNoise.equalize(self.report, operators=plain.operators)
            return row(self._contributions(replace(plain, layers=None, adaptive=foretold), self.text))
        if way == "measured":
            made = ns.equalize_contributions(self.model, self.text, plain, **self.effort.chance).adaptive
            assert made is not None
            return row({layer: (kl, *made.intervals[layer]) for layer, kl in made.minded.items()}) | {
                "factors": dict(made.factors)
            }
        factors = {int(layer): factor for layer, factor in so_far["measured"]["factors"].items()}
        noise = replace(plain, layers=None, adaptive=ns.AdaptiveNoise(factors), seed=13)
        if way == "measured on others":
            return row(self._contributions(noise, self.other_text))
        return row(self._again(noise, {int(layer): known for layer, known in so_far["measured"]["layers"].items()}))

    def _again(self, noise: ns.OperatorNoise, known: Known) -> Known:
        """The same contributions, those far from the mean by more draws too.

        The draws that chose them count as well, so that looking again does not flatter. Ends of intervals are averaged:
        most of their width are the rows, which are the same.
        """
        assert noise.adaptive is not None
        mean = fmean(kl for kl, *_ in known.values())
        far = {layer: noise.adaptive.factors[layer] for layer, (kl, *_) in known.items() if abs(kl / mean - 1) > FAR}
        more = self._contributions(replace(noise, adaptive=ns.AdaptiveNoise(far)), self.text) if far else {}
        return known | {
            layer: tuple(map(fmean, zip(known[layer], found, strict=True))) for layer, found in more.items()
        }

    def _contributions(self, noise: ns.OperatorNoise, text: Any) -> Known:
        found = ns.measure_contributions(self.model, text, noise, **self.effort.chance)
        return {layer: (kl.value, kl.low, kl.high) for layer, kl in found.items()}


def row(found: Known) -> Row:
    values = [value for value, *_ in found.values()]
    mean = sum(values) / len(values)
    return {
        "spread": max(values) / min(values),
        "of_mean": [min(values) / mean, max(values) / mean],
        "half_width": max((high - low) / 2 / value for value, low, high in found.values()),
        "sum_nats": sum(values),
        "layers": {layer: [float(f"{figure:.4g}") for figure in known] for layer, known in found.items()},
    }


def saved() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def save(name: str, part: str, way: str, figures: Row) -> None:
    results = saved()
    results.setdefault(name, {}).setdefault(part, {})[way] = figures
    results[name]["machine"] = {
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
                for way in asked.ways:
                    figures = subject.figures(way, plain, saved().get(name, {}).get(part, {}))
                    save(name, part, way, figures)
                    print(name, part, way, round(figures["spread"], 3), flush=True)


if __name__ == "__main__":
    main()
