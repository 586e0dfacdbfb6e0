"""Whether layers contribute equally once they are made to: measured, on other text than the report's; to equalize.json.

    python benchmarks/training/equalize.py [llama gpt2 default]     a quarter of an hour on two cores

For each model a report of 50 rows, as `diagnose` makes it, factors of `AdaptiveNoise.equalize`, and the KL of each
block by itself with its share of the noise: with one scale for all blocks, with these factors, and with factors that
were measured on these rows (`equalize_contributions`), or on as many others. `spread` is the largest contribution
over the smallest, `of_mean` their range; each contribution is known to its own interval, of which `half_width` is the
widest.
"""

import argparse
import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from noisescope.models import load

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
Row = dict[str, Any]

SCALES: dict[str, tuple[float, ...]] = {"llama": (0.02, 0.1), "gpt2": (0.02, 0.1), "default": (0.05,)}


def opened(name: str) -> tuple[torch.nn.Module, Any]:
    if name == "default":
        loaded = load()
        return loaded.model, loaded.tokenizer
    return AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval(), AutoTokenizer.from_pretrained(FIXTURES / name)


def measured(model: torch.nn.Module, data: Any, noise: ns.OperatorNoise, trials: int) -> Row:
    found = ns.measure_contributions(model, data, noise, trials=trials)
    values = [kl.value for kl in found.values()]
    mean = sum(values) / len(values)
    return {
        "spread": max(values) / min(values),
        "of_mean": [min(values) / mean, max(values) / mean],
        "half_width": max((kl.high - kl.low) / 2 / kl.value for kl in found.values()),
        "sum_nats": sum(values),
    }


def part(name: str) -> Row:
    model, tokenizer = opened(name)
    report = ns.diagnose(model, tokenizer=tokenizer, n_samples=50)
    rows, trials = (50, 2) if name == "default" else (100, 4)
    data, others = (ns.open_data(None, tokenizer, n_samples=rows, seed=seed) for seed in (5, 6))
    found: Row = {}
    for operators in (None, ["linear"]):
        factors = ns.AdaptiveNoise.equalize(report, operators=operators)
        for scale in SCALES[name]:
            foretold = ns.OperatorNoise(scale, operators=operators, adaptive=factors, seed=11)
            plain = ns.OperatorNoise(scale, operators=operators, layers=list(factors.layers), seed=11)
            row = {
                "one scale": measured(model, data, plain, trials),
                "foretold": measured(model, data, foretold, trials),
            }
            if name != "default":
                for way, text in (("measured", data), ("measured on others", others)):
                    equal = ns.equalize_contributions(model, text, plain, trials=trials)
                    row[way] = measured(model, data, replace(equal, seed=12), trials)
            found[f"{'linear' if operators else 'all operators'}, {scale:g}"] = row
            print(
                name, operators, scale, {way: round(figures["spread"], 3) for way, figures in row.items()}, flush=True
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(SCALES))
    file = HERE / "equalize.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in parser.parse_args().models:
        results[name] = part(name)
        results["machine"] = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
