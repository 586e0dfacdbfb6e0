"""What number formats cost, foretold and run; and whether the plan made of it is the best of many at equal bits.

    python benchmarks/precision/run.py [llama|gpt2|default|all] [--rows N] [--threads N]
                                       [--only mixtures formats plans]

Three disjoint parts of the built-in text: `rows` for the map, its checks and the steps of plans, some for single layers
and mixtures, others for plans.

mixtures thirty random mixtures of formats over all layers, and thirty that choose for each group of weights by itself,
         foretold as a plan is (the map, with the cells of it that were run), by the map alone, and by the diagonal
         estimate that other tools use.
formats  every layer in each of eight formats by itself, run; Spearman over layers and the median of predicted/measured,
         for the map and for the diagonal estimate.
plans    at 4.5, 5 and 6 bits, scales counted: the plan, the programme's choice before it was refined, the best single
         format within the bits, the threshold rule, the plan that the diagonal estimate makes, ten random plans. All
         choose from the same formats (round to nearest, the same blocks), groups that are stored together have one
         format. `more` is by how much each of them is above the plan, as a share, row by row of the text. Where the
         diagonal estimate makes the very same plan, `neighbours`: the plans next to it, which change a group or two and
         are foretold to cost least, are run too.

Results go to results.json, one entry a model. `--rows` is for the map, and for refining plans.
"""

import argparse
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from noisescope.diagnosis.accepting import data_for
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.comparing import Comparison
from noisescope.measure.intervals import ratio
from noisescope.planning.degradation import degradation_of
from noisescope.planning.precision.choosing import Candidates, Chosen
from noisescope.planning.precision.refining import refine
from noisescope.planning.precision.rule import by_threshold
from noisescope.planning.precision.texts import Texts, part
from noisescope.points import Bench
from noisescope.quantising.checking import CheckedFormats, check_formats, measure
from noisescope.quantising.mapping import map_formats

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
FORMATS = ("int8", "fp8_e4m3", "mxfp8", "mxfp6", "int4", "int4:group=32", "mxfp4", "nvfp4")
PLANNED = ("mxfp4", "nvfp4", "mxfp6", "mxfp8", "int8", "bf16")
EVERY = tuple(dict.fromkeys((*FORMATS, *PLANNED)))
TARGETS = (4.5, 5.0, 6.0)
MIXTURES, RANDOM, NEIGHBOURS = 30, 10, 150
PARTS = ("mixtures", "plans", "formats")


def load(name: str) -> tuple[Any, Any]:
    if name == "default":
        from noisescope.models import load as load_model

        found = load_model(None)
        return found.model, found.tokenizer
    path = FIXTURES / name
    return AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)


def texts(model: Any, tokenizer: Any, rows: int, *, layers: int, plans: int) -> tuple[Texts, EvaluationSet]:
    """What a plan has, and the rows that single layers and mixtures are run on."""
    data = data_for(model, None, tokenizer, n_samples=rows + layers + plans, batch_size=16, max_length=32, seed=11)
    order = np.random.default_rng(0).permutation(data.rows)
    parts = []
    for chosen in np.split(order, [rows, rows + layers]):
        taken = np.zeros(data.rows, dtype=bool)
        taken[chosen] = True
        parts.append(part(data, taken, 16))
    mapped, apart, held_out = parts
    return Texts(mapped, held_out), apart


class Diagonal(CheckedFormats):
    """Costs as the estimate without cross terms has them."""

    def cost(self, paths: Any, layer: Any, name: str) -> float:
        return self.map.without_cross_terms(dict.fromkeys(paths, name)).value


def in_layers(known: Any, bench: Bench) -> Iterator[dict[str, Any]]:
    """Every layer in each format by itself, a format more each time."""
    found = {}
    for name in FORMATS:
        choices = {layer: known.uniform(name, paths) for layer, paths in known.layers.items()}
        rows = [
            (known.together(choice).value, known.without_cross_terms(choice).value, measure(bench, choice, start=layer))
            for layer, choice in choices.items()
        ]
        predicted, diagonal, measured = np.array([(p, d, m.value) for p, d, m in rows]).T
        found[name] = {
            "spearman": float(spearmanr(predicted, measured)[0]),
            "median_ratio": float(np.median(predicted / measured)),
            "ratio_quartiles": np.quantile(predicted / measured, [0.25, 0.75]).tolist(),
            "diagonal_spearman": float(spearmanr(diagonal, measured)[0]),
            "diagonal_median_ratio": float(np.median(diagonal / measured)),
            "kl_of_layers": measured.tolist(),
        }
        row = found[name]
        told = f"Spearman {row['spearman']:.3f} ratio {row['median_ratio']:.2f}"
        beside = f"diagonal {row['diagonal_spearman']:.3f} {row['diagonal_median_ratio']:.2f}"
        print(f"  {name:14s} {told}   {beside}", flush=True)
        yield found


def mixtures(checked: CheckedFormats, bench: Bench, units: Mapping[Any, Sequence[str]]) -> dict[str, Any]:
    """Random formats over the whole model, one a unit."""
    draw, known = np.random.default_rng(1), checked.map
    layer = {place.path: place.layer for place in known.places}
    rows = []
    for _ in range(MIXTURES):
        chosen = {unit: str(draw.choice(FORMATS)) for unit in units}
        choice = {path: chosen[unit] for unit, paths in units.items() for path in paths}
        planned = sum(checked.cost(paths, layer[paths[0]], chosen[unit]) for unit, paths in units.items())
        foretold = (planned, known.kl(choice).value, known.without_cross_terms(choice).value)
        rows.append((measure(bench, choice).value, *foretold))
    measured, planned, mapped, diagonal = np.array(rows).T
    found = {
        "count": MIXTURES,
        "spearman": float(spearmanr(planned, measured)[0]),
        "median_ratio": float(np.median(planned / measured)),
        "map_spearman": float(spearmanr(mapped, measured)[0]),
        "diagonal_spearman": float(spearmanr(diagonal, measured)[0]),
        "measured": measured.tolist(),
        "planned": planned.tolist(),
    }
    told = f"Spearman {found['spearman']:.3f} ratio {found['median_ratio']:.2f}"
    print(
        f"  mixtures       {told}   map {found['map_spearman']:.3f}   diagonal {found['diagonal_spearman']:.3f}",
        flush=True,
    )
    return found


def random_plan(candidates: Candidates, target: float, draw: np.random.Generator) -> Chosen:
    """A format at random for each group, then moved at random until the bits are just within."""
    groups = list(candidates.groups)
    choice = {group: str(draw.choice(PLANNED)) for group in groups}

    def made() -> Chosen:
        return candidates.given({path: choice[group] for group in groups for path in candidates.groups[group]})

    bits = {group: {option.format: option.bits for option in candidates.options[group]} for group in groups}
    for _ in range(100 * len(groups)):
        group, now = str(draw.choice(groups)), made().bits
        if now <= target and now > target - 0.02:
            break
        wanted = [n for n in PLANNED if (bits[group][n] < bits[group][choice[group]]) == (now > target)]
        before = choice[group]
        choice[group] = str(draw.choice(wanted)) if wanted else before
        if now <= target < made().bits:
            choice[group] = before
    assert made().bits <= target
    return made()


def neighbours(candidates: Candidates, plan: Chosen, target: float) -> list[Chosen]:
    """The plans within the bits that differ in a group or two, those that are foretold to cost least."""
    moves = [
        (paths, option.format)
        for group, paths in candidates.groups.items()
        for option in candidates.options[group]
        if option.format != plan.formats[paths[0]]
    ]
    found = []
    for moved in (*combinations(moves, 1), *combinations(moves, 2)):
        if len({paths for paths, _ in moved}) == len(moved):
            found.append(candidates.given(plan.formats | {path: name for paths, name in moved for path in paths}))
    return sorted((one for one in found if one.bits <= target), key=lambda one: one.kl)[:NEIGHBOURS]


@dataclass
class Row:
    """A plan that was run on the text for plans."""

    chosen: Chosen
    ran: Comparison

    def as_json(self, plan: "Row") -> dict[str, Any]:
        found = {"bits": self.chosen.bits, "predicted_kl": self.chosen.kl, "kl": self.ran.kl.as_json()}
        if self is plan:
            return found
        mine, best = self.ran.noisy.kl_nats, plan.ran.noisy.kl_nats
        same = self.chosen.formats == plan.chosen.formats
        return {**found, "same_as_plan": same, "more": ratio(mine - best, best).as_json()}


def plans(
    checked: CheckedFormats, bench: Bench, sloped: Bench, stepped: Bench, degradation: Any
) -> Iterator[dict[str, Any]]:
    """The plan beside the others, a target more each time."""
    candidates, draw = Candidates(checked, PLANNED), np.random.default_rng(2)
    of_diagonal = Candidates(Diagonal(checked.map, ()), PLANNED)

    def ran(chosen: Chosen) -> Row:
        return Row(chosen, bench.compare(ns.quantised(bench.model, chosen.formats, layout=bench.layout)))

    singles = {f"all {name}": candidates.uniform(name) for name in PLANNED}
    run = {name: ran(one) for name, one in singles.items() if one.bits <= max(TARGETS)}
    found = {}
    for target in TARGETS:
        start = time.process_time()
        alone = candidates.best(target)
        took = time.process_time() - start
        steps = refine(candidates, alone, target, sloped=sloped, stepped=stepped)
        single = min((n for n in run if singles[n].bits <= target), key=lambda name: run[name].ran.kl.value)
        rows = {"plan": ran(steps.chosen), "by the map alone": ran(alone), single: run[single]}
        if degradation is not None:
            rows["threshold rule"] = ran(by_threshold(candidates, degradation, target))
        rows["diagonal plan"] = ran(candidates.given(of_diagonal.best(target).formats))
        rows |= {f"random {number}": ran(random_plan(candidates, target, draw)) for number in range(RANDOM)}
        found[f"{target:g}"] = {
            "solve_cpu_s": took,
            "gap": alone.gap,
            "steps": [
                [step.changed, step.predicted, step.measured and step.measured.value, step.taken]
                for step in steps.steps
            ],
            "refining_passes": steps.cost,
            "rows": {name: row.as_json(rows["plan"]) for name, row in rows.items()},
            "least": min(rows, key=lambda name: rows[name].ran.kl.value),
        }
        if rows["diagonal plan"].chosen.formats == steps.chosen.formats:
            beside = [ran(one).as_json(rows["plan"])["more"] for one in neighbours(candidates, steps.chosen, target)]
            found[f"{target:g}"]["neighbours"] = {
                "count": len(beside),
                "lower": sum(more["value"] < 0 for more in beside),
                "least_more": min(beside, key=lambda more: more["value"]),
            }
        told = ", ".join(f"{n} {row.ran.kl.value:.4g}" for n, row in rows.items() if not n.startswith("random"))
        others = min(row.ran.kl.value for n, row in rows.items() if n.startswith("random"))
        print(f"  {target:g} bits: {told}, best random {others:.4g}", flush=True)
        yield found


def run(name: str, rows: int, only: Collection[str]) -> Iterator[dict[str, Any]]:
    """What was found, part by part."""
    model, tokenizer = load(name)
    real = name == "default"
    parts, apart = texts(model, tokenizer, rows, layers=128 if real else 256, plans=96 if real else 256)
    start = time.process_time()
    known = map_formats(model, parts.mapped, EVERY, diagonal=True)
    print(f"{name}: map of {len(known.places)} x {len(EVERY)}, {time.process_time() - start:.0f} s of CPU", flush=True)
    yield {"weights": len(known.places), "layers": len(known.layers)}
    bench = Bench(model, apart)
    if "mixtures" in only:
        checked = check_formats(known, Bench(model, parts.checked), FORMATS)
        units = {"a format a layer": known.layers, "a format a group": known.groups}
        yield {
            "mixtures": {"mapped_rows": rows}
            | {title: mixtures(checked, bench, chosen) for title, chosen in units.items()}
        }
    if "plans" in only:
        checked = check_formats(known, Bench(model, parts.checked), PLANNED)
        report = ns.diagnose(model, tokenizer=tokenizer, n_samples=50, spec=ns.DiagnosisSpec(level="layer"))
        benches = (Bench(model, text) for text in (parts.held_out, parts.sloped, parts.stepped))
        for found in plans(checked, *benches, degradation_of(report)):
            yield {"plans": {"mapped_rows": rows, "second_order_failed": list(checked.failed)} | found}
    if "formats" in only:
        for found in in_layers(known, bench):
            yield {"formats": {"mapped_rows": rows} | found}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("model", nargs="?", default="all", choices=["llama", "gpt2", "default", "all"])
    asked.add_argument("--rows", type=int)
    asked.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    asked.add_argument("--threads", type=int, default=1)
    given = asked.parse_args()
    torch.set_num_threads(given.threads)
    file = HERE / "results.json"
    for name in ("llama", "gpt2", "default") if given.model == "all" else (given.model,):
        rows = given.rows or (1024 if name == "default" else 3072)
        for found in run(name, rows, given.only):
            results = json.loads(file.read_text()) if file.exists() else {}
            results[name] = {**results.get(name, {}), **found}
            file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
