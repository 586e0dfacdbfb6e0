"""How often `check` fails a checkpoint that is as good, how often it sees one that is not, and whether it knows.

    python benchmarks/check/run.py                     all of it, from what the cache has
    python benchmarks/check/run.py --family llama      only the runs of one family, into the cache

Equivalent checkpoints: trainings of a fixture model that went on from the same weights with another order of the data.
What noise costs them is measured on a third of the windows of the built-in text, so that their true differences are
known. A check is then a sample of those windows, with the noise that these had: two windows never share a draw.

Regressions are planted by more noise on one operator of the checkpoint, so that it truly costs so much more on all
windows; the other operators stay as they are.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import permutations
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, norm

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "tests" / "fixtures")]

import train  # noqa: E402 - beside the fixtures
from transformers import AutoModelForCausalLM  # noqa: E402

import trained  # noqa: E402
from noisescope.diagnosis import Diagnosis  # noqa: E402
from noisescope.diagnosis.accepting import data_for  # noqa: E402
from noisescope.diagnosis.progress import silent  # noqa: E402
from noisescope.gate.evaluating import Evaluation, evaluate  # noqa: E402
from noisescope.gate.judging import POINT, WORSE, Allowed, OperatorRow, judge  # noqa: E402
from noisescope.gate.significance import Critical, Difference, Loss  # noqa: E402
from noisescope.specs import DiagnosisSpec  # noqa: E402

CACHE = Path(tempfile.gettempdir()) / "noisescope-benchmark-check"
FAMILIES = ("llama", "gpt2")
ORDERS = range(5)
STEPS, LEARNING_RATE = 20, 3e-4
SCALE = 0.05
STRESS = 0.15
"""the noise under which regressions are planted: at 0.05 the fixtures lose too little for 30% of it to be a point"""
WINDOWS = 2200
"""of 6,789: what is true is true of these"""
TEXTS = 10
"""samples of windows that share none, of 220 each"""
PLANTED = {"llama": "residual", "gpt2": "head"}
"""the most fragile operator of each"""
GRID = (1.1, 1.2, 1.35, 1.55)
"""more noise, to find how much more noise costs so much more accuracy"""
SIZES = (100, 200, 400)
DRAWS = 300
LIMIT = Allowed(max_degradation=0.5)


# --- runs -------------------------------------------------------------------------------------------------------


@cache
def checkpoint(family: str, order: int) -> Any:
    """The fixture, trained on for a while in that order of the data."""
    place = CACHE / f"{family}-{order}"
    if not place.exists():
        model, tokenizer = trained.fixture(family)
        tokens = train.encode(train.split_topics()[0], tokenizer)
        generator = torch.Generator().manual_seed(1000 + order)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95))
        model.train()
        for _ in range(STEPS):
            starts = torch.randint(len(tokens) - train.CONTEXT, (train.BATCH, 1), generator=generator)
            batch = tokens[starts + torch.arange(train.CONTEXT)]
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.save_pretrained(place)
    return AutoModelForCausalLM.from_pretrained(place).eval()


def measured(family: str, order: int, scale: float, *, operators: tuple[str, ...] | None = None) -> Evaluation:
    """What noise costs a checkpoint on all windows, or some; from the cache if it is there."""
    place = CACHE / f"{family}-{order}-{scale:.4f}-{'-'.join(operators or ('all',))}.npz"
    if not place.exists():
        model = checkpoint(family, order)
        data = data_for(model, None, trained.tokenizer(family), n_samples=WINDOWS, batch_size=100)
        layers = ("head",) if operators == ("head",) else tuple(range(8)) if operators else None
        asked = None if operators in (None, ("head",)) else operators
        spec = DiagnosisSpec("operator", scale, layers=layers, operators=asked)
        found = evaluate(Diagnosis(model, data, spec), progress=silent)
        np.savez(
            place,
            asked=found.asked,
            clean=found.clean,
            chance=found.chance,
            **{f"n:{k}": v for k, v in found.noisy.items()},
        )
        print(place.name, flush=True)
    with np.load(place) as kept:
        noisy = {name[2:]: kept[name] for name in kept.files if name.startswith("n:")}
        return Evaluation(kept["asked"], kept["clean"], noisy, float(kept["chance"]), 9.0)


def run_family(family: str) -> None:
    """Everything of one family that takes long."""
    for order in ORDERS:
        measured(family, order, SCALE)
    planted_scales(family, PLANTED[family])
    for order in (0, 1):
        measured(family, order, STRESS)


def planted_scales(family: str, operator: str) -> dict[float, Evaluation]:
    """Noise scale -> what it costs checkpoint 1 on that operator; one of them 30% more than checkpoint 0 at STRESS."""
    scales = [STRESS * factor for factor in (1.0, *GRID)]
    found = {scale: measured(family, 1, scale, operators=(operator,)) for scale in scales}
    base = loss_of(measured(family, 0, STRESS, operators=(operator,)), operator)
    wanted = float(np.interp(1.3 * base, [loss_of(one, operator) for one in found.values()], scales))
    return found | {wanted: measured(family, 1, wanted, operators=(operator,))}


def loss_of(found: Evaluation, operator: str) -> float:
    """What noise on an operator costs."""
    return Loss.of(found.clean, found.noisy[operator]).value


# --- checks -----------------------------------------------------------------------------------------------------


def part(found: Evaluation, chosen: np.ndarray) -> Evaluation:
    """The same for some windows."""
    noisy = {name: counts[chosen] for name, counts in found.noisy.items()}
    return Evaluation(found.asked[chosen], found.clean[chosen], noisy, found.chance, found.cost)


def interval(count: int, of: int) -> list[float]:
    """Clopper and Pearson's 95% interval."""
    low = beta.ppf(0.025, count, of - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, of - count) if count < of else 1.0
    return [float(low), float(high)]


def share(count: int, of: int) -> dict[str, Any]:
    """A rate with its interval; none of n is below 3/n."""
    told = {"count": count, "of": of, "rate": count / of, "interval": interval(count, of)}
    return told | ({"below": 3 / of} if not count else {})


def equivalents(family: str) -> dict[str, Any]:
    """True differences between the checkpoints, and 100 checks of one against another on other text and noise."""
    found = {order: measured(family, order, SCALE) for order in ORDERS}
    names = list(found[0].noisy)
    losses = {order: {name: loss_of(one, name) for name in names} for order, one in found.items()}
    true = {name: max(losses[a][name] - losses[b][name] for a, b in permutations(ORDERS, 2)) for name in names}
    windows = np.random.default_rng(0).permutation(len(found[0].asked))
    pairs, outcomes, false_by_literal = list(permutations(ORDERS, 2)), [], 0
    texts = np.array_split(windows, TEXTS)
    for number in range(100):
        before, after = pairs[number % len(pairs)]
        chosen = texts[(number % len(pairs) + 2 * (number // len(pairs))) % TEXTS]  # each pair on five texts
        rows = judge(part(found[before], chosen), part(found[after], chosen), Allowed(0.15))
        outcomes.append(_outcome(rows))
        false_by_literal += any(_literal(row) for row in rows)
    return {
        "checkpoints": len(ORDERS),
        "windows": len(windows),
        "clean_accuracy": {str(order): one.accuracy for order, one in found.items()},
        "degradation": {str(order): loss for order, loss in losses.items()},
        "largest_true_difference": true,
        "all_within_a_point": max(true.values()) < POINT,
        "samples_of_a_check": len(texts[0]),
        "failed": share(outcomes.count("failed"), len(outcomes)),
        "inconclusive": share(outcomes.count("inconclusive"), len(outcomes)),
        "failed_by_estimates_and_any_difference": share(false_by_literal, len(outcomes)),
    }


def _outcome(rows: list[OperatorRow]) -> str:
    found = {row.outcome for row in rows}
    return "failed" if "failed" in found else "inconclusive" if "inconclusive" in found else "passed"


def _literal(row: OperatorRow) -> bool:
    """The rule without a margin in its test: worse by the estimates, and different from zero at 5%, uncorrected."""
    return row.is_worse and row.change_interval is not None and row.change_interval[0] > 0


def planted(family: str, operator: str) -> Iterator[dict[str, Any]]:
    """How often changes of several true sizes are seen, beside what the check says of itself."""
    before, after = (measured(family, order, STRESS) for order in (0, 1))
    base = loss_of(before, operator)
    curve = planted_scales(family, operator)
    scales = sorted(curve)
    changes = [loss_of(curve[scale], operator) - base for scale in scales]
    rng = np.random.default_rng(1)
    for size in SIZES:
        draws = [rng.choice(WINDOWS, size, replace=False) for _ in range(DRAWS)]

        def seen(found: Evaluation, draws: list[np.ndarray] = draws) -> dict[str, Any]:
            changed = replace(after, noisy={**after.noisy, operator: found.noisy[operator]})
            change = loss_of(changed, operator) - base
            count = sum(_row(before, changed, operator, chosen).outcome == "failed" for chosen in draws)
            powers = [_power(part(before, one), part(changed, one), operator, change, base) for one in draws[:50]]
            return {
                "true_change": change,
                "true_change_share": change / base,
                "seen": share(count, len(draws)),
                "power_foretold": float(np.mean(powers)),
            }

        told = float(np.mean([_row(before, after, operator, chosen).detectable for chosen in draws]))
        at_told = measured(family, 1, float(np.interp(told, changes, scales)), operators=(operator,))
        points = sorted((seen(found) for found in (*curve.values(), at_told)), key=lambda point: point["true_change"])
        reached = _reached(points)
        yield {
            "operator": operator,
            "samples": size,
            "base": base,
            "told_detectable": told,
            "planted_what_is_told": seen(at_told),
            "true_detectable": reached,
            "told_over_true": told / reached,
            "planted_30_percent": min(points, key=lambda point: abs(point["true_change_share"] - 0.3)),
            "curve": points,
        }


def _reached(points: list[dict[str, Any]]) -> float:
    """The change that is seen in 4 of 5 cases: between two that were planted, as straight lines of normal quantiles."""
    least = 0.5 / DRAWS
    quantiles = norm.ppf([min(max(point["seen"]["rate"], least), 1 - least) for point in points])
    at = next(at for at in range(1, len(points)) if quantiles[at] >= norm.ppf(0.8))
    around = points[at - 1 : at + 1]
    return float(np.interp(norm.ppf(0.8), quantiles[at - 1 : at + 1], [point["true_change"] for point in around]))


def _row(before: Evaluation, after: Evaluation, operator: str, chosen: np.ndarray) -> OperatorRow:
    rows = judge(part(before, chosen), part(after, chosen), LIMIT)
    return next(row for row in rows if row.operator == operator)


def _power(before: Evaluation, after: Evaluation, operator: str, change: float, base: float) -> float:
    """The chance that a true change of that size is seen, from the errors of one sample."""
    one, other = (Loss.of(found.clean, found.noisy[operator]) for found in (before, after))
    critical = Critical.of(2 * len(before.noisy), len(before.asked))
    beyond = (change - POINT) / Difference.between(other, one).stderr - critical.significant
    fifth = (change - WORSE * base) / Difference.between(other, one, 1 + WORSE).stderr
    return float(min(norm.cdf(beyond), norm.cdf(fifth)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, help="only its runs, into the cache")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    CACHE.mkdir(exist_ok=True)
    if arguments.family:
        run_family(arguments.family)
        return
    families = {family: equivalents(family) for family in FAMILIES}
    regressions = {family: [*planted(family, PLANTED[family])] for family in FAMILIES}
    ratios = [row["told_over_true"] for rows in regressions.values() for row in rows]
    failed = sum(found["failed"]["count"] for found in families.values())
    checks = sum(found["failed"]["of"] for found in families.values())
    results: Mapping[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "equivalent_checkpoints_failed": share(failed, checks),
        "told_over_true_detectable": {"least": min(ratios), "most": max(ratios), "rms_off": _rms(ratios)},
        "equivalents": families,
        "planted": regressions,
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({name: results[name] for name in ("equivalent_checkpoints_failed", "told_over_true_detectable")}))


def _rms(ratios: list[float]) -> float:
    return sqrt(sum((ratio - 1) ** 2 for ratio in ratios) / len(ratios))


if __name__ == "__main__":
    main()
