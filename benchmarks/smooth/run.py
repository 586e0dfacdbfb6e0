"""What smoothing is worth in W8A8, and what it does to the function; results go to results.json beside this file.

    python benchmarks/smooth/run.py                  all parts, about a quarter of an hour on two cores
    python benchmarks/smooth/run.py planted          some of them

default    the default model: KL of emulated W8A8 from float32, per predicted token, without smoothing and with; with
           one alpha for all, with powers of two, for activations with a scale a token and one for all tokens
planted    the trained fixtures with channels of two norms a block planted 60 times as large, the function unchanged
dtypes     the default model in float32 and bfloat16: how far the logits move

Smoothing is calibrated on 32 rows of the built-in text, the KL measured on 32 others; intervals are over rows, and
`saved` is paired: the share of the KL that is gone.
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.intervals import ratio
from noisescope.measure.scoring import RowScores, score, select
from noisescope.models import load
from noisescope.quantising import quantised

HERE = Path(__file__).parent
FIXTURES = HERE.parents[1] / "tests" / "fixtures"
Row = dict[str, Any]


def texts(tokenizer: Any) -> tuple[EvaluationSet, EvaluationSet]:
    """Rows to calibrate on, and others to measure on."""
    calibration = ns.open_data(None, tokenizer, n_samples=32, seed=0)
    seen = {tuple(row) for batch in calibration for row in batch.input_ids.tolist()}
    others = [
        row
        for batch in ns.open_data(None, tokenizer, n_samples=40, seed=1)
        for row in batch.input_ids.tolist()
        if tuple(row) not in seen
    ]
    return calibration, ns.open_data([{"input_ids": torch.tensor(others[:32])}], n_samples=32)


def logits(model: torch.nn.Module, data: EvaluationSet) -> list[torch.Tensor]:
    with torch.no_grad():
        return [select(model(**batch.inputs()).logits, batch) for batch in data]


def rounded(model: torch.nn.Module, data: EvaluationSet, clean: list[torch.Tensor], scheme: str) -> RowScores:
    with quantised(model, scheme), torch.no_grad():
        return RowScores.concatenate(
            score(model(**batch.inputs()).logits, batch, own) for batch, own in zip(data, clean, strict=True)
        )


def judged(found: RowScores, plain: RowScores) -> Row:
    return {
        "kl_nats": ratio(found.kl_nats, found.tokens, positive=True).as_json(),
        "flip_rate": ratio(found.flips, found.tokens).as_json(),
        "saved": ratio(plain.kl_nats - found.kl_nats, plain.kl_nats).as_json(),
    }


def compared(model: torch.nn.Module, tokenizer: Any, activations: str, asked: dict[str, dict[str, Any]]) -> Row:
    """One format, without smoothing and with each way of it."""
    calibration, data = texts(tokenizer)
    clean, scheme = logits(model, data), f"int8/{activations}"
    plain = rounded(model, data, clean, scheme)
    rows: Row = {"none": judged(plain, plain)}
    for name, options in asked.items():
        started = time.perf_counter()
        found = ns.smooth(model, calibration, activations=activations, **options)
        took = time.perf_counter() - started
        rows[name] = judged(rounded(found.model, data, clean, scheme), plain) | {
            "groups": len(found.groups),
            "folded": len(found.folded),
            "largest_ratio": [
                max(row.ratio_before for row in found.groups),
                max(row.ratio_after for row in found.groups),
            ],
            "logits_moved": found.logits.largest,
            "logits_spread": found.logits.spread,
            "logits_bound": found.logits.bound,
            "wall_s": round(took, 1),
        }
        print(activations, name, rows[name]["kl_nats"]["value"], "from", rows["none"]["kl_nats"]["value"], flush=True)
    return rows


def default() -> Row:
    loaded = load()
    more = {"alpha 0.5": {"alpha": 0.5}, "powers of two": {"powers_of_two": True}}
    ways = {"int8": {"chosen": {}} | more, "int8:tensor": {"chosen": {}}}
    return {
        activations: compared(loaded.model, loaded.tokenizer, activations, asked) for activations, asked in ways.items()
    }


def planted() -> Row:
    sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "tests" / "unit" / "smoothing")]
    from planting import plant

    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "llama").eval()
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "llama")
    rows = {"as it is": compared(model, tokenizer, "int8", {"chosen": {}})}
    plant(model, layers=range(8), channels=(3, 17), factor=60.0)
    return rows | {"planted": compared(model, tokenizer, "int8", {"chosen": {}})}


def dtypes() -> Row:
    rows: Row = {}
    for dtype in ("float32", "bfloat16"):
        loaded = load(dtype=dtype)
        for powers in (False, True):
            found = ns.smooth(
                loaded.model, tokenizer=loaded.tokenizer, calibration_samples=16, alpha=0.5, powers_of_two=powers
            )
            moved = found.logits
            rows[f"{dtype}, {'powers of two' if powers else 'any scales'}"] = {
                "logits_moved": moved.largest,
                "logits_spread": moved.spread,
                "logits_bound": moved.bound,
            }
    return rows


PARTS = {"default": default, "planted": planted, "dtypes": dtypes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=" ".join(PARTS))
    file = HERE / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in parser.parse_args().parts or PARTS:
        results[name] = PARTS[name]()
        results["machine"] = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
