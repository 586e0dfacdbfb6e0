"""How often a healthy device is accused: settings over models, dtypes, prompts, shapes and makes of device.

    python benchmarks/locate/healthy.py [--seed 0] [--first 0] [--count 1000] [--output benchmarks/locate/healthy.json]

Every row has the setting, the outcome, the largest error in units of its bound, and the suspects; a summary has the
false-alarm rate (0 of n is stated as below 3/n) and the largest ratio of each rule on each make of device.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from foreign import FOREIGN  # noqa: E402 - the tests' own emulations
from healthy_settings import PROMPTS, SHAPES, Setting, run  # noqa: E402

FAMILIES = (
    "qwen2",
    "qwen3",
    "gemma3",
    "mixtral",
    "olmo",
    "cohere",
    "gpt2",
    "gptj",
    "gpt_neox",
    "bloom",
    "falcon",
    "opt",
)
NO_SDPA = ("gptj", "bloom", "plain")
NO_PADDING = ("plain",)


def settings(seed: int = 0) -> list[Setting]:
    """At least two hundred, all different, always the same; another seed has other prompts and other weights."""
    found = dict.fromkeys((*_own(), *_abroad(), *_stressed(), *_mixed()))
    return [replace(setting, seed=setting.seed + seed) for setting in found]


def _own() -> Iterator[Setting]:
    """This machine's own arithmetic."""
    for name, dtype, prompt, shape in product(("llama", "gpt2"), ("float32", "bfloat16"), PROMPTS, SHAPES):
        attention = ("eager", "sdpa")[(len(prompt) + shape[0]) % 2]
        yield Setting(f"trained {name}", dtype, prompt, shape, attention)
    for at, (family, dtype) in enumerate(product(FAMILIES, ("float32", "bfloat16"))):
        attention = None if family in NO_SDPA else ("eager", "sdpa")[at % 2]
        yield Setting(family, dtype, PROMPTS[at % 4], SHAPES[(at // 2) % 4], attention, seed=at)
    for name, dtype, stress in product(("llama", "gpt2"), ("float32", "bfloat16"), ("int8", "int4")):
        yield Setting(f"trained {name}", dtype, "text", (1, 17), stress=stress)
    yield from (Setting("plain", dtype, shape=(2, 9), threads=2) for dtype in ("float32", "bfloat16", "float16"))
    yield from (Setting("dropout", dtype, "padded", (2, 9), "sdpa") for dtype in ("float32", "bfloat16"))
    for at, (dtype, prompt) in enumerate(product(("float32", "bfloat16"), PROMPTS)):
        shape = SHAPES[(at + at // 4) % 4]
        yield Setting("default", dtype, prompt, shape, ("eager", "sdpa")[at % 2], threads=1 + (at // 2) % 2)


def _abroad() -> Iterator[Setting]:
    """Every make of device, on models that have what it computes otherwise."""
    for at, (name, dtype) in enumerate(product(FOREIGN, ("float32", "bfloat16"))):
        if dtype == "float32" and ("truncated" in name or "cast" in name):
            continue
        for model in _models_for(name):
            prompt = "random" if model in NO_PADDING else PROMPTS[at % 4]
            yield Setting(model, dtype, prompt, ((2, 6), (1, 9), (4, 3))[at % 3], arithmetic=(name,), seed=at % 5)


def _models_for(name: str) -> Iterable[str]:
    having = {
        "softmax": ("gptj", "mixtral", "bloom"),
        "silu": ("trained llama", "cohere"),
        "gelu": ("trained gpt2", "gpt_neox", "gemma3"),
        "layer_norm": ("trained gpt2", "cohere", "qwen2", "gemma3"),
        "attention": ("trained gpt2", "trained llama", "falcon"),
        "sin": ("trained llama",),
        "cos": ("trained llama",),
        "bias": ("trained gpt2", "gpt_neox", "qwen2", "bloom"),
    }
    operators = FOREIGN[name].operators
    if not operators:
        return "trained llama", "trained gpt2", "mixtral", "bloom"
    return next((having[operator] for operator in operators if operator in having), ("plain",))


def _stressed() -> Iterator[Setting]:
    """Hidden states with outliers, a large mean, large values; attention that is sharp; numbers that underflow."""
    makes = ("", "norm by moments", "norm multiplied out", "attention online", "sequential sums", "denormals flushed")
    for at, (stress, make) in enumerate(product(("outliers", "offset", "sharp", "small", "large"), makes)):
        for model in ("trained gpt2", "cohere"):
            dtype = ("float32", "bfloat16")[at % 2]
            yield Setting(model, dtype, "random", (2, 5), "sdpa", arithmetic=(make,) * bool(make), stress=stress)


def _mixed() -> Iterator[Setting]:
    """Devices that do everything otherwise."""
    everything = (
        (
            "sequential sums",
            "softmax by exp2",
            "silu by tanh",
            "gelu written out",
            "norm by Welford",
            "attention online",
        ),
        ("split K", "softmax by fused exp2", "silu by exp2", "gelu by erfc and sigmoid", "norm by moments"),
        ("strided sums", "softmax, exp two ulps off", "two ulps off", "norm multiplied out", "attention at once"),
    )
    for seed, (make, family) in enumerate(product(everything, FAMILIES)):
        dtype = ("float32", "bfloat16")[seed % 2]
        yield Setting(family, dtype, "padded", (2, 6), arithmetic=make, seed=seed)
    for make, dtype in product(everything, ("float32", "bfloat16")):
        yield Setting("default", dtype, "text", (1, 9), arithmetic=make)


def measure(chosen: Iterable[Setting]) -> Iterator[dict[str, Any]]:
    """One row a setting."""
    for setting in chosen:
        start = time.perf_counter()
        verdict = run(setting)
        largest: dict[str, float] = {}
        for site in verdict.sections["sites"]:
            if site["ratio"] is not None and site["rule"] is not None:
                largest[site["rule"]] = max(largest.get(site["rule"], 0.0), site["ratio"])
        yield {
            "setting": str(setting),
            "arithmetic": " + ".join(setting.arithmetic) or "own",
            "dtype": setting.dtype,
            "outcome": verdict.outcome,
            "worst_ratio": verdict.sections["verdict"]["worst_ratio"],
            "suspects": [f"{suspect.name}: {'; '.join(suspect.evidence)}" for suspect in verdict.sites],
            "missing": list(verdict.missing),
            "modes": list(verdict.precision_modes),
            "sites": len(verdict.sections["sites"]),
            "elements": sum(site["elements"] for site in verdict.sections["sites"]),
            "largest": {rule: round(ratio, 4) for rule, ratio in largest.items() if ratio},
            "seconds": round(time.perf_counter() - start, 2),
        }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rate of false alarms, and how near each make of device comes to each bound."""
    alarms = [row["setting"] for row in rows if row["outcome"] == "faulty"]
    largest: dict[str, dict[str, float]] = {}
    for row in rows:
        there = largest.setdefault(f"{row['arithmetic']}, {row['dtype']}", {})
        for rule, ratio in row["largest"].items():
            there[rule] = max(there.get(rule, 0.0), ratio)
    return {
        "runs": len(rows),
        "healthy": sum(row["outcome"] == "healthy" for row in rows),
        "inconclusive": [row["setting"] for row in rows if row["outcome"] == "inconclusive"],
        "false_alarms": alarms,
        "rate": f"{len(alarms)} of {len(rows)}" + ("" if alarms else f", below {3 / max(1, len(rows)):.2%} (95%)"),
        "sites": sum(row["sites"] for row in rows),
        "elements": sum(row["elements"] for row in rows),
        "largest_ratio": largest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10**6)
    parser.add_argument("--output", type=Path, default=HERE / "healthy.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for row in measure(settings(given.seed)[given.first :][: given.count]):
        rows.append(row)
        if row["outcome"] != "healthy":
            print(row["outcome"], row["setting"], *row["suspects"], *row["missing"], sep="\n    ", flush=True)
    machine = {"processor": platform.machine(), "torch": torch.__version__, "python": platform.python_version()}
    found = {"seed": given.seed, "summary": summary(rows), "machine": machine, "rows": rows}
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: part for name, part in found["summary"].items() if name != "largest_ratio"}, indent=1))


if __name__ == "__main__":
    main()
