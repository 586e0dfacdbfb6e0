"""What noise in training does to robustness: the Llama fixture trained further in eight ways; to results.json here.

    python benchmarks/training/run.py                         8 arms x 8 seeds x 300 steps, half an hour on two cores
    python benchmarks/training/run.py --steps 20 --seeds 1    to see that it runs
    python benchmarks/training/plot.py                        the robustness curves

clean            no noise
forward          relative noise of 0.1 in what every linear of the blocks computes
backward         the same in the gradients that it makes
both             both
adaptive         forward, 0.5, 1 or 2 times as much by the layer's degradation in a report; a third of the layers
                 each, as the documented thresholds would put all layers of this model into one group
equalize         forward, so that every block contributes the same KL, the sum as with one scale
aqn              noise in norm weights, the documented ten stages from 1e-2 to 1e-4
aqn x10          the same from 1e-1 to 1e-3

All arms of a seed begin with the same weights and see the same batches of the same text (`pydoc_data.topics` but for
its last tenth). Each is evaluated on the last tenth: clean, with relative noise in every linear (the head too; two
draws, the same for all arms), and with its weights in mxfp4. Differences are to the clean arm of the same seed, with t
intervals over seeds; `could_see` is the difference that a paired test at 5% finds with a probability of 80%, from the
spread that was seen.
"""

import argparse
import json
import math
import multiprocessing
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))
import train as fixtures  # noqa: E402 - the script that made the fixtures has their text

Row = dict[str, Any]

SCALE = 0.1
"""of the noise in operators: the size that it is evaluated at, too"""
LENGTH, BATCH, PEAK_LR, WEIGHT_DECAY = 128, 8, 2e-3, 0.1
NOISES = (0.02, 0.05, 0.1, 0.15, 0.2)
DRAWS = 2


def start() -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_pretrained(FIXTURES / "llama")
    return model


@cache
def texts() -> tuple[Tensor, Tensor]:
    """Tokens to train on, and windows of tokens that were held out."""
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "llama")
    train, held_out = (fixtures.encode(part, tokenizer) for part in fixtures.split_topics())
    return train, held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)


def diagnosed() -> ns.Report:
    """The report of the starting point, at the scale of the training and on text that is trained on."""
    train, _ = texts()
    rows = train[: 200 * 32].view(-1, 32)
    return ns.diagnose(
        start().eval(), [{"input_ids": rows}], spec=ns.DiagnosisSpec(noise_scale=SCALE), n_samples=len(rows)
    )


def by_thirds(report: ns.Report) -> ns.AdaptiveNoise:
    """The blocks by their degradation: a third protected, a third as it is, a third with more."""
    lost = ns.AdaptiveNoise.from_report(report).minded
    blocks = {layer: loss for layer, loss in lost.items() if isinstance(layer, int)}
    third = len(blocks) // 3
    ascending = sorted(blocks.values())
    below, above = ascending[third], ascending[-third - 1]
    return ns.AdaptiveNoise.from_report(report, protect_above=above, aggressive_below=below, layers=list(blocks))


def arms(report: ns.Report, seed: int) -> dict[str, ns.OperatorNoise | ns.NormWeightNoise | None]:
    blocks = range(start().config.num_hidden_layers)

    def noise(**options: Any) -> ns.OperatorNoise:
        return ns.OperatorNoise(SCALE, layers=blocks, operators="linear", seed=seed, **options)

    return {
        "clean": None,
        "forward": noise(),
        "backward": noise(phases="backward"),
        "both": noise(phases="both"),
        "adaptive": noise(adaptive=by_thirds(report)),
        "equalize": noise(adaptive=ns.AdaptiveNoise.equalize(report, operators="linear")),
        "aqn": ns.NormWeightNoise(ns.ExponentialStages(1e-2, 1e-4), seed=seed),
        "aqn x10": ns.NormWeightNoise(ns.ExponentialStages(1e-1, 1e-3), seed=seed),
    }


def trained(noise: ns.OperatorNoise | ns.NormWeightNoise | None, *, steps: int, seed: int) -> tuple[nn.Module, Row]:
    """The model after so many steps, and what was applied."""
    tokens, _ = texts()
    model = start().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
    batches = torch.Generator().manual_seed(seed)
    training = None if noise is None else ns.NoisyTraining(model, noise, total=steps)
    losses, started = [], time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LR * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        starts = torch.randint(len(tokens) - LENGTH, (BATCH, 1), generator=batches)
        batch = tokens[starts + torch.arange(LENGTH)]
        with training.step(step) if training is not None else nullcontext():
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    doses = [] if training is None else [(line.scale, line.dose) for line in training.history]
    return model.eval(), {
        "last_losses": fmean(losses[-50:]),
        "wall_s": round(time.perf_counter() - started, 1),
        "scale_and_dose": [[round(scale, 6), round(dose, 6)] for scale, dose in doses],
    }


def conditions(model: nn.Module) -> Iterator[tuple[str, list[AbstractContextManager[Any]]]]:
    """Name -> what the model is put into, once for each draw."""
    yield "clean", [nullcontext()]
    for scale in NOISES:
        noise = ns.RelativeGaussian(scale)
        yield f"noise {scale:g}", [ns.inject(model, noise, operators="linear", seed=seed) for seed in range(DRAWS)]
    yield "mxfp4", [ns.quantised(model, "mxfp4")]


@torch.no_grad()
def evaluated(model: nn.Module, windows: Tensor) -> Row:
    """Negative log-likelihood and accuracy of the next token, in every condition."""
    found: Row = {}
    for name, contexts in conditions(model):
        nll, right = [], []
        for context in contexts:
            with context:
                for batch in windows.split(32):
                    logits = model(input_ids=batch, use_cache=False).logits[:, :-1].double()
                    labels = batch[:, 1:].unsqueeze(-1)
                    nll.append(-logits.log_softmax(-1).gather(-1, labels))
                    right.append(logits.argmax(-1, keepdim=True) == labels)
        found[name] = {"nll_nats": float(torch.cat(nll).mean()), "accuracy": float(torch.cat(right).double().mean())}
    return found


def run(asked: tuple[str, int, int, int, str]) -> Row:
    """One arm with one seed, in a process of one thread."""
    arm, seed, steps, most, report = asked
    torch.set_num_threads(1)
    noise = arms(ns.Report(json.loads(report)), seed)[arm]
    model, facts = trained(noise, steps=steps, seed=seed)
    return {"arm": arm, "seed": seed, **facts, "evaluated": evaluated(model, texts()[1][:most])}


# --- what the runs say ------------------------------------------------------------------------------------------------


def summarised(runs: list[Row]) -> Row:
    """Arm -> condition -> mean, and differences to the clean arm of the same seed."""
    by = {(row["arm"], row["seed"]): row["evaluated"] for row in runs}
    seeds = sorted({seed for _, seed in by})
    found: Row = {}
    for arm in dict.fromkeys(row["arm"] for row in runs):
        found[arm] = {}
        for name in by[arm, seeds[0]]:
            own, clean = ([by[one, seed][name] for seed in seeds] for one in (arm, "clean"))
            cost = [[by[one, seed][name]["nll_nats"] - by[one, seed]["clean"]["nll_nats"] for seed in seeds]
                    for one in (arm, "clean")]  # fmt: skip
            found[arm][name] = {
                "nll_nats": fmean(row["nll_nats"] for row in own),
                "accuracy": fmean(row["accuracy"] for row in own),
                "nll_against_clean": paired(*([row["nll_nats"] for row in rows] for rows in (own, clean))),
                "accuracy_against_clean": paired(*([row["accuracy"] for row in rows] for rows in (own, clean))),
                "cost_against_clean": paired(*cost),
            }
    return found


def paired(own: list[float], others: list[float]) -> Row | None:
    """The mean difference over seeds with its interval, and what could have been seen; None with a single seed."""
    differences = [a - b for a, b in zip(own, others, strict=True)]
    if len(differences) < 2:
        return None
    count, value = len(differences), fmean(differences)
    error = stdev(differences) / math.sqrt(count)
    half, power = (float(stats.t.ppf(share, count - 1)) for share in (0.975, 0.8))
    ends = {"low": value - half * error, "high": value + half * error}
    return {"value": value, **ends, "could_see": (half + power) * error, "seeds": count}


def experiment(report: ns.Report, *, steps: int, seeds: int, workers: int = 2, windows: int = 10_000) -> Iterator[Row]:
    """The runs, one after the other."""
    asked = [(arm, seed, steps, windows, report.to_json()) for seed in range(seeds) for arm in arms(report, 0)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap(run, asked)


def factors(report: ns.Report) -> Row:
    """What adaptive arms give each layer."""
    return {
        name: {str(layer): round(factor, 3) for layer, factor in noise.adaptive.factors.items()}
        for name, noise in arms(report, 0).items()
        if isinstance(noise, ns.OperatorNoise) and noise.adaptive is not None
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    given = parser.parse_args()
    report = diagnosed()
    results: Row = {
        "asked": {"steps": given.steps, "seeds": given.seeds, "scale": SCALE, "held_out_tokens": texts()[1].numel()},
        "start": evaluated(start().eval(), texts()[1]),
        "factors": factors(report),
        "machine": {
            "processor": platform.machine(),
            "threads": 1,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "runs": [],
    }
    for row in experiment(report, steps=given.steps, seeds=given.seeds, workers=given.workers):
        results["runs"].append(row)
        given.output.write_text(json.dumps(results, indent=1) + "\n")
        shown = {name: round(figures["nll_nats"], 4) for name, figures in row["evaluated"].items()}
        print(row["seed"], row["arm"], f"{row['wall_s']} s", shown, flush=True)
    results["summary"] = summarised(results["runs"])
    given.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
