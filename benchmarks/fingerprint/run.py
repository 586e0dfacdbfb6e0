"""How often a deviation of logits leads to the layer that made it; results go to results.json beside this.

python benchmarks/fingerprint/run.py                        both trained fixture models and the default model
python benchmarks/fingerprint/run.py llama                  one of them
python benchmarks/fingerprint/run.py llama gpt2 --design    the faults that the constants were chosen on, in design.json
python benchmarks/fingerprint/run.py llama gpt2 --inside    faults of each operator inside the blocks, in inside.json
python benchmarks/fingerprint/run.py llama gpt2 --passes    the design with fewer passes, in passes.json

Every fault goes on the output of a block (products and softmax: on the block's last) and gives logits and nothing else.
The constants of `noisescope.comparing` were chosen on the design: six kinds on the fixture models, with prompts and
draws of their own. The evaluation has other prompts and draws, five kinds that the design had not, and the default
model, which it had not either. Layers are struck equally often, so that a guess is right in 1 of as many as there are.
Beside it the cosine method: layers ranked by the cosine between the deviation and what one draw of noise at that layer
makes of the same logits, drawn independently of the fault.
"""

import argparse
import itertools
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from noisescope.locating.prompts import open_prompts
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from noisescope.comparing import responses
from noisescope.comparing.fingerprint import Fingerprint, Fingerprints
from noisescope.faults import Fault, FaultSimulator, Survey
from noisescope.injection import Injection
from noisescope.locating.srdd import CORE
from noisescope.models import load
from noisescope.noise import RelativeGaussian
from noisescope.sites import Layout
from noisescope.specs import Selection

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
DESIGN = ("noise", "gain", "bias", "saturation", "spike", "stuck_at")
NEW = ("dead_zone", "bit_flip", "wrong_rounding", "low_precision_accumulate", "lut_exp")
INSIDE = {"low_precision_accumulate": "linear", "lut_exp": "softmax"}
DOCUMENTED = {
    "noise": 0.1,
    "gain": 0.05,
    "bias": 0.3,
    "saturation": 0.2,
    "spike": 0.1,
    "stuck_at": 0.01,
    "dead_zone": 0.3,
    "bit_flip": 1e-4,
    "lut_exp": 2**-4,
}
BITS = {"wrong_rounding": (12, 8, 4), "low_precision_accumulate": (7, 10, 13)}
"""no tenth of a number of bits: the documented one is 4 dropped and 7 kept"""
SIZES = ("whole", "tenth", "hundredth")
BINS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class Trial:
    kind: str
    size: str
    layer: int
    prompts: int
    seed: int
    operator: str = ""
    """of the block's; the last that is there, or the block's output"""

    @property
    def fault(self) -> Fault:
        step = SIZES.index(self.size)
        magnitude = BITS[self.kind][step] if self.kind in BITS else DOCUMENTED[self.kind] / 10**step
        return Fault(self.kind, magnitude, ".".join(filter(None, (str(self.layer), self.operator))), seed=self.seed)


def sample(layers: int, prompts: Sequence[int], kinds: Sequence[str], *, first: int, every: int = 1) -> list[Trial]:
    """All kinds and sizes on every layer, or on every few, another few for the next; no seed is used twice."""
    found = []
    for prompt in prompts:
        for number, (kind, size) in enumerate((kind, size) for kind in kinds for size in SIZES):
            found += [
                Trial(kind, size, layer, prompt, first + len(found) + at, INSIDE.get(kind, ""))
                for at, layer in enumerate(range((number + prompt) % every, layers, every))
            ]
    return found


def sample_inside(here: "Suspects", prompts: int, *, first: int) -> list[Trial]:
    """Noise and gain of a tenth of the documented size on every operator of every block."""
    operators = sorted({site.operator for site in here.survey.sites if site.layer == 0})
    cases = [(kind, operator) for kind in ("noise", "gain") for operator in operators]
    layers = len(here.layout.blocks)
    return [
        Trial(kind, "tenth", layer, prompts, first + number * layers + layer, operator)
        for number, (kind, operator) in enumerate(cases)
        for layer in range(layers)
    ]


class Suspects:
    """A model and some prompts: fingerprints, and what broken devices make of the logits."""

    def __init__(self, model: nn.Module, tokenizer: Any, prompts: int) -> None:
        self.model, self.layout = model, Layout.of(model)
        self.inputs = open_prompts(None, model, tokenizer, seed=prompts)
        self.survey = Survey.of(model, self.layout, self.inputs)
        start = time.perf_counter()
        self.prints = Fingerprints(model, self.inputs, layout=self.layout, seed=prompts)
        self.wall_s = time.perf_counter() - start

    def run(self, *around: Any) -> Tensor:
        with torch.no_grad():
            if not around:
                return self.model(**self.inputs).logits
            with around[0]:
                return self.model(**self.inputs).logits

    def with_fault(self, fault: Fault) -> tuple[Tensor, bool]:
        simulator = FaultSimulator(self.model, fault, layout=self.layout, survey=self.survey)
        return self.run(simulator), simulator.inert

    def noise(self, layer: int, seed: int) -> Tensor:
        """What one draw of relative noise of 1% on the core operators of a layer makes of the logits."""
        selection = Selection((layer,), CORE)
        return (
            self.run(Injection(RelativeGaussian(0.01), selection, layout=self.layout, seed=seed)) - self.prints.logits
        )


def rows(here: Suspects, trials: Sequence[Trial], *, draws: int) -> list[dict[str, Any]]:
    """What the method and the cosine say in every trial; the cosine's noise is drawn anew every few trials."""
    found: list[dict[str, Any]] = []
    probes: list[Tensor] = []
    for at, trial in enumerate(trials):
        if at % draws == 0:
            probes = [here.noise(layer, seed=10**6 + trial.seed) for layer in range(len(here.layout.blocks))]
        logits, inert = here.with_fault(trial.fault)
        row: dict[str, Any] = {"kind": trial.kind, "operator": trial.operator, "size": trial.size}
        row |= {"layer": trial.layer, "seed": trial.seed, "inert": inert}
        row["finite"] = bool(logits.isfinite().all())
        if not inert and row["finite"]:
            row |= said(here.prints.rank(logits), trial.layer)
            deviation = (logits - here.prints.logits).flatten()
            cosines = [float(torch.cosine_similarity(deviation, probe.flatten(), dim=0)) for probe in probes]
            row["cosine_rank"] = 1 + sum(one > cosines[trial.layer] for one in cosines)
        found.append(row)
    return found


def said(answer: Fingerprint, layer: int) -> dict[str, Any]:
    first = answer.ranking[0]
    return {
        "rank": answer.ranking.index(layer) + 1 if answer.leftover is not None else None,
        "first": first,
        "posterior": round(answer.posterior[first], 4),
        "family": answer.family[first],
        "leftover": answer.leftover,
        "deviation": round(answer.deviation, 2),
        "cannot_tell": answer.cannot_tell,
    }


def controls(here: Suspects, *, count: int) -> dict[str, Any]:
    """Devices on which no single block is broken: rounding, another dtype, a broken head or embedding, two blocks."""
    everywhere = Selection()
    noises = {"rounding": torch.finfo(torch.float32).eps, "noise of 1e-4 at every operator": 1e-4}
    found: dict[str, Any] = {"nothing": [answer_of(here.prints.rank(here.run()))]}
    for name, scale in noises.items():
        runs = (
            Injection(RelativeGaussian(scale), everywhere, layout=here.layout, seed=7000 + at) for at in range(count)
        )
        found[name] = [answer_of(here.prints.rank(here.run(run))) for run in runs]
    narrow = deepcopy(here.model).bfloat16()
    with torch.no_grad():
        logits = narrow(**here.inputs).logits
    found["bfloat16, said"] = [answer_of(here.prints.rank(logits.float(), dtype=torch.bfloat16))]
    found["bfloat16, not said"] = [answer_of(here.prints.rank(logits.float()))]
    for place in ("head", "embed"):
        faults = [Fault("noise", 0.01, place, seed=8000 + at) for at in range(count)]
        found[place] = [answer_of(here.prints.rank(here.with_fault(fault)[0])) for fault in faults]
    two = [tuple(np.random.default_rng(at).choice(len(here.layout.blocks), 2, replace=False)) for at in range(count)]
    found["two layers"] = [
        answer_of(here.prints.rank(logits), broken=[int(one) for one in pair]) for pair, logits in _pairs(here, two)
    ]
    return found


def _pairs(here: Suspects, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], Tensor]]:
    for number, pair in enumerate(pairs):
        one, other = (Fault("noise", 0.01, str(layer), seed=9000 + 2 * number + at) for at, layer in enumerate(pair))
        with FaultSimulator(here.model, one, layout=here.layout, survey=here.survey):
            yield pair, here.with_fault(other)[0]


def answer_of(answer: Fingerprint, *, broken: Sequence[int] = ()) -> dict[str, Any]:
    found = said(answer, 0)
    del found["rank"]
    return found | ({"broken": list(broken)} if broken else {})


# --- figures ----------------------------------------------------------------------------------------------------


def summary(found: Sequence[dict[str, Any]], layers: int) -> dict[str, Any]:
    struck = [row for row in found if "rank" in row]
    kinds = dict.fromkeys(row["kind"] for row in found)
    return {
        "layers": layers,
        "chance": {"top_1": 1 / layers, "top_3": 3 / layers, "beside": (3 * layers - 2) / layers**2},
        "inert": sum(row["inert"] for row in found),
        "not_finite": sum(not row["finite"] for row in found),
        "all": figures(struck),
        "outputs_of_blocks": figures([row for row in struck if not row["operator"]]),
        "kinds_of_the_design": figures([row for row in struck if row["kind"] in DESIGN]),
        "new_kinds": figures([row for row in struck if row["kind"] in NEW]),
        "by_size": {size: figures([row for row in struck if row["size"] == size]) for size in SIZES},
        "by_kind": {kind: figures([row for row in struck if row["kind"] == kind]) for kind in kinds},
        "by_kind_and_size": {
            f"{kind} {size}": figures([row for row in struck if (row["kind"], row["size"]) == (kind, size)])
            for kind in kinds
            for size in SIZES
        },
        "by_layer": {str(layer): figures([row for row in struck if row["layer"] == layer]) for layer in range(layers)},
        "calibration": {
            "all": calibration(struck),
            "outputs_of_blocks": calibration([row for row in struck if not row["operator"]]),
        },
    }


def figures(struck: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Hits among what is above rounding, among what the method is sure of, and those of the cosine."""
    seen = [row for row in struck if row["rank"] is not None]
    told = [row for row in struck if not row["cannot_tell"]]
    return {
        "faults": len(struck),
        "within_rounding": len(struck) - len(seen),
        "cannot_tell": share([row["cannot_tell"] for row in struck]),
        "top_1": share([row["rank"] == 1 for row in seen]),
        "top_3": share([row["rank"] <= 3 for row in seen]),
        "first_is_the_layer_or_beside_it": share([abs(row["first"] - row["layer"]) <= 1 for row in seen]),
        "first_is_the_layer_before": share([row["first"] == row["layer"] - 1 for row in seen]),
        "right_where_it_tells": share([row["rank"] == 1 for row in told]),
        "cosine_top_1": share([row["cosine_rank"] == 1 for row in seen]),
        "cosine_top_3": share([row["cosine_rank"] <= 3 for row in seen]),
    }


def calibration(struck: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The share of right first layers by the posterior that they were given; all that is above rounding."""
    seen = [row for row in struck if row["rank"] is not None]
    found = []
    for low, high in itertools.pairwise(BINS):
        here = [row for row in seen if low < row["posterior"] <= high]
        if here:
            mean = float(np.mean([row["posterior"] for row in here]))
            found.append({"from": low, "to": high, "posterior": mean, "right": share([r["rank"] == 1 for r in here])})
    return found


def share(hits: Sequence[bool]) -> dict[str, float] | None:
    """The share of hits with its 95% interval (Wilson)."""
    if not hits:
        return None
    n, p, z = len(hits), sum(hits) / len(hits), 1.96
    centre, reach = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((centre + sign * reach) / (1 + z * z / n) for sign in (-1, 1))
    return {"value": p, "low": min(p, max(0.0, low)), "high": max(p, min(1.0, high)), "n": n}


# --- running ----------------------------------------------------------------------------------------------------


def measure(name: str, *, part: str) -> dict[str, Any]:
    if name == "default":
        loaded = load(None)
        model, tokenizer = loaded.model, loaded.tokenizer
    else:
        model = AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval()
        tokenizer = AutoTokenizer.from_pretrained(FIXTURES / name)
    layers = len(Layout.of(model).blocks)
    if part == "inside":
        return measure_inside(Suspects(model, tokenizer, 40))
    if part == "passes":
        return measure_passes(model, tokenizer, sample(layers, (0, 1), DESIGN, first=5000))
    if part == "design":
        trials, draws, count = sample(layers, (0, 1), DESIGN, first=5000), 1, 5
    elif name == "default":
        trials, draws, count = sample(layers, (30,), DESIGN + NEW, first=50_000, every=10), 50, 3
    else:
        trials, draws, count = sample(layers, (10, 11, 12), DESIGN + NEW, first=20_000), 1, 20
    found: list[dict[str, Any]] = []
    measured: dict[str, Any] = {}
    for prompts in dict.fromkeys(trial.prompts for trial in trials):
        here = Suspects(model, tokenizer, prompts)
        measured["cost"] = {"wall_s": here.wall_s, "forward_passes": here.prints.forward_passes + 2}
        if "controls" not in measured:
            measured["controls"] = controls(here, count=count)
        found += rows(here, [trial for trial in trials if trial.prompts == prompts], draws=draws)
    return {"summary": summary(found, layers), **measured, "rows": found}


def measure_passes(model: nn.Module, tokenizer: Any, trials: Sequence[Trial]) -> dict[str, Any]:
    """The design by the passes that are spent on each layer; the cosine is that of one draw for all."""
    found: dict[str, Any] = {}
    usual = responses.PASSES_PER_LAYER
    for passes in (usual, 8, 4, 2):
        responses.PASSES_PER_LAYER = passes
        here = [Suspects(model, tokenizer, prompts) for prompts in dict.fromkeys(trial.prompts for trial in trials)]
        each = [rows(one, [t for t in trials if t.prompts == at], draws=10**6) for at, one in enumerate(here)]
        struck = [row for part in each for row in part if "rank" in row]
        found[str(passes)] = {"forward_passes": here[0].prints.forward_passes + 2, **figures(struck)}
    responses.PASSES_PER_LAYER = usual
    return {"summary": {"all": found}}


def measure_inside(here: Suspects) -> dict[str, Any]:
    found = rows(here, sample_inside(here, 40, first=70_000), draws=10**6)
    struck = [row for row in found if "rank" in row]
    operators = dict.fromkeys(row["operator"] for row in struck)
    by_operator = {
        f"{kind} {operator}": figures([row for row in struck if (row["kind"], row["operator"]) == (kind, operator)])
        for kind in ("noise", "gain")
        for operator in operators
    }
    return {"summary": {"all": figures(struck), "by_operator": by_operator}, "rows": found}


def _one_line_each(text: str) -> str:
    """JSON with the innermost objects on a line each."""
    return re.sub(r"\{[^{}\[\]]*\}", lambda found: " ".join(found[0].split()), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["llama", "gpt2", "default"], help="fixtures, or `default`")
    parts = parser.add_mutually_exclusive_group()
    others = {
        "design": "the faults that the constants were chosen on",
        "inside": "faults of operators inside blocks",
        "passes": "the design with fewer passes",
    }
    for part, what in others.items():
        parts.add_argument(f"--{part}", dest="part", action="store_const", const=part, default="results", help=what)
    given = parser.parse_args()
    target = HERE / f"{given.part}.json"
    for name in given.models:
        measured = measure(name, part=given.part)
        results = json.loads(target.read_text()) if target.exists() else {}
        results[name] = measured
        results["machine"] = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        target.write_text(_one_line_each(json.dumps(results, indent=1)) + "\n")
        print(name, json.dumps(measured["summary"]["all"], indent=1))


if __name__ == "__main__":
    main()
