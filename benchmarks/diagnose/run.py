"""What a diagnosis costs and how true its map is; results go to results.json beside this file, part by part.

python benchmarks/diagnose/run.py                all parts, about forty minutes on two cores
python benchmarks/diagnose/run.py map layers     some of them

map        the map of the default model against three sampled sweeps at scale 0.05, one forward pass a cell
small      the map at scale 0.01 against one sweep: predicted over measured
resume     a sampled sweep over layers with resuming against the same without
full       `diagnose` with its defaults: forward-pass equivalents, time, memory against one backward pass
layers     time of the map for 6, 12, 24 and 48 layers
fixtures   the trained fixture models: map against sweeps, before and after correction
families   models of five families with random weights: predicted over measured at scale 0.01
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from noisescope import RelativeGaussian, map_sensitivity, open_data
from noisescope.diagnosis.checking import cell_point, choose_checks, correct
from noisescope.measure.batches import Batch, EvaluationSet
from noisescope.measure.rank_correlation import spearman
from noisescope.models import load
from noisescope.points import Bench, Point
from noisescope.specs import Selection

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SWEEPS = 3


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def sweep(bench: Bench, cells: list, scale: float, seed: int) -> np.ndarray:
    noise = RelativeGaussian(scale)
    return np.array([bench.run(cell_point(cell, noise, seed=seed, trials=1)).comparison.kl.value for cell in cells])


def against_sweeps(model: Any, data: EvaluationSet, scale: float, *, inside_only: bool = True) -> dict[str, Any]:
    """The map against the mean of three sweeps; rank correlations, ratio, cost and time."""
    bench = Bench(model, data)
    _ = bench.clean, bench.resumes
    found, map_s = timed(lambda: map_sensitivity(model, data))
    noise = RelativeGaussian(scale)
    everything = found.predict(noise)
    cells = [cell for cell in everything if isinstance(cell[0], int) or not inside_only]
    predicted = np.array([everything[cell].value for cell in cells])
    before = bench.cost
    sampled, sweeps_s = timed(lambda: np.array([sweep(bench, cells, scale, seed) for seed in range(SWEEPS)]))
    mean = sampled.mean(0)
    checks = choose_checks(everything, max(8, bench.layers), seed=0)
    results = {cell: bench.run(cell_point(cell, noise, seed=100, trials=1)) for cell in checks}
    after = correct(everything, results)
    corrected = np.array([after.cells[cell].value.value for cell in cells])
    ratios = predicted / mean
    pairs = [(0, 1), (0, 2), (1, 2)]
    return {
        "cells": len(cells),
        "tokens": data.predicted_tokens,
        "scale": scale,
        "map_forward_equivalents": found.cost,
        "map_s": map_s,
        "sweep_forwards_one_a_cell": len(cells),
        "sweep_forward_equivalents_resumed": (bench.cost - before) / SWEEPS,
        "sweep_s_resumed": sweeps_s / SWEEPS,
        "wall_ratio_resumed": sweeps_s / SWEEPS / map_s,
        "spearman": spearman(predicted, mean),
        "spearman_corrected": spearman(corrected, mean),
        "checked": len(checks),
        "corrections": dict(after.corrections),
        "single_sweeps_agree": [spearman(sampled[a], sampled[b]) for a, b in pairs],
        "ratio_median": float(np.median(ratios)),
        "ratio_quartiles": np.quantile(ratios, [0.25, 0.75]).tolist(),
        "ratio_worst": [
            {"cell": list(cells[at]), "ratio": float(ratios[at])} for at in np.argsort(-np.abs(np.log(ratios)))[:5]
        ],
    }


def part_map() -> dict[str, Any]:
    loaded = load()
    data = open_data(None, loaded.tokenizer, n_samples=16, batch_size=16)
    return against_sweeps(loaded.model, data, 0.05)


def part_small() -> dict[str, Any]:
    """The same at scale 0.01, where the second order should hold, against one sweep."""
    loaded = load()
    data = open_data(None, loaded.tokenizer, n_samples=16, batch_size=16)
    predicted = map_sensitivity(loaded.model, data).predict(RelativeGaussian(0.01))
    cells = [cell for cell in predicted if isinstance(cell[0], int)]
    measured = sweep(Bench(loaded.model, data), cells, 0.01, seed=0)
    foretold = np.array([predicted[cell].value for cell in cells])
    return {
        "cells": len(cells),
        "scale": 0.01,
        "spearman": spearman(foretold, measured),
        "ratio_median": float(np.median(foretold / measured)),
        "ratio_quartiles": np.quantile(foretold / measured, [0.25, 0.75]).tolist(),
    }


def part_resume() -> dict[str, Any]:
    """The default model, a fifth of which is its head; and a deep one with a small vocabulary, where blocks are all."""
    loaded = load()
    data = open_data(None, loaded.tokenizer, n_samples=16, batch_size=16)
    return {"default model": resumed_sweep(loaded.model, data), "48 layers": resumed_sweep(*random_llama(48))}


def resumed_sweep(model: Any, data: EvaluationSet) -> dict[str, Any]:
    """Noise on each layer in turn, over the whole model or from that layer on: each point both ways, one by one."""
    noise = RelativeGaussian(0.05)
    benches = {resume: Bench(model, data, resume=resume) for resume in (True, False)}
    before, wall_s = {}, dict.fromkeys(benches, 0.0)
    for resume, bench in benches.items():
        _ = bench.clean, bench.resumes
        before[resume] = bench.cost
    same = True
    for layer in range(benches[True].layers):
        point, found = Point(Selection((layer,)), noise), []
        for resume, bench in benches.items():
            result, taken_s = timed(lambda bench=bench, point=point: bench.run(point))
            found.append(result.comparison.noisy.kl_nats)
            wall_s[resume] += taken_s
        same &= np.array_equal(*found)
    cost = {resume: bench.cost - before[resume] for resume, bench in benches.items()}
    tail = Point(Selection(("final_norm",)), noise)
    tail_s = min(timed(lambda: benches[True].run(tail))[1] for _ in range(3))
    layers = benches[True].layers
    return {
        "layers": layers,
        "bit_identical": same,
        "forward_equivalents": {"resumed": cost[True], "whole": cost[False]},
        "ratio_of_forward_equivalents": cost[True] / cost[False],
        "wall_s": {"resumed": wall_s[True], "whole": wall_s[False]},
        "ratio_of_wall_time": wall_s[True] / wall_s[False],
        "share_of_head_and_scoring": tail_s * layers / wall_s[False],
    }


def random_llama(layers: int) -> tuple[Any, EvaluationSet]:
    """A Llama of width 256 with random weights, and 16 rows of 64 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=704, num_hidden_layers=layers, num_attention_heads=4
    )
    ids = torch.randint(3, 512, (16, 64))
    batch = Batch(ids, torch.ones_like(ids), torch.ones(16, 63, dtype=torch.bool), tuple(range(16)))
    return LlamaForCausalLM(config).eval(), EvaluationSet("made up", (batch,))


_MEMORY = """
import gc, json, sys, time, torch
from pathlib import Path
from noisescope.models import load
from noisescope import diagnose, open_data

def kilobytes(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])

loaded = load()
data = open_data(None, loaded.tokenizer, n_samples=50)
batch = data.batches[0]
with torch.no_grad():
    for parameter in loaded.model.parameters():
        parameter.sum()
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # the peak of loading does not count
bare, started, sections = kilobytes("VmRSS"), time.perf_counter(), {}
if sys.argv[1] == "backward":
    loaded.model(**batch.inputs(), labels=batch.input_ids).loss.backward()
elif sys.argv[1] == "frozen":
    loaded.model.requires_grad_(False)
    embedded = loaded.model.get_input_embeddings()(batch.input_ids).requires_grad_()
    loaded.model(inputs_embeds=embedded, labels=batch.input_ids, use_cache=False).loss.backward()
elif sys.argv[1] == "diagnose":
    sections = diagnose(loaded.model, data).sections
found = {"peak_bytes": 1024 * (kilobytes("VmHWM") - bare), "wall_s": time.perf_counter() - started}
print(json.dumps(found | {name: sections[name] for name in ("cost", "map", "coverage") if name in sections}))
"""


def alone(what: str) -> dict[str, Any]:
    """What a process of its own finds: time, and the largest memory over that of the loaded model; Linux only."""
    done = subprocess.run([sys.executable, "-c", _MEMORY, what], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def part_full() -> dict[str, Any]:
    found = {what: alone(what) for what in ("backward", "frozen", "diagnose")}
    peaks = {what: one["peak_bytes"] for what, one in found.items()}
    whole = found["diagnose"]
    layers = whole["coverage"]["layers"]
    return {
        "layers": layers,
        "forward_equivalents": whole["cost"]["forward_pass_equivalents"],
        "limit": 2 * layers + 20,
        "by_stage": whole["cost"]["by_stage"],
        "wall_s": whole["wall_s"],
        "agreement": whole["map"]["agreement"],
        "peak_bytes_over_model": peaks,
        "peak_over_one_backward": peaks["diagnose"] / peaks["backward"],
        "peak_over_one_backward_without_parameter_gradients": peaks["diagnose"] / peaks["frozen"],
    }


def part_layers() -> dict[str, Any]:
    """The smallest of three times."""
    found = {}
    for layers in (6, 12, 24, 48):
        model, data = random_llama(layers)
        found[layers] = min(timed(lambda model=model, data=data: map_sensitivity(model, data))[1] for _ in range(3))
    return {
        "map_s": {str(layers): wall_s for layers, wall_s in found.items()},
        "s_per_layer": {str(layers): wall_s / layers for layers, wall_s in found.items()},
    }


def part_fixtures() -> dict[str, Any]:
    found = {}
    for name in ("llama", "gpt2"):
        home = ROOT / "tests/fixtures" / name
        model, tokenizer = AutoModelForCausalLM.from_pretrained(home).eval(), AutoTokenizer.from_pretrained(home)
        data = open_data(None, tokenizer, n_samples=50, batch_size=25)
        found[name] = {str(scale): against_sweeps(model, data, scale, inside_only=False) for scale in (0.01, 0.05)}
    return found


def part_families() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "tests"))
    from families import build, tokens  # the tests' own tiny models

    found = {}
    for family in ("qwen3", "gemma3", "phi3", "gpt_neox", "bloom", "falcon"):
        batches = [tokens(family, rows=16, length=32, seed=seed)["input_ids"] for seed in range(4)]
        data = EvaluationSet(
            "made up",
            tuple(
                Batch(
                    ids, torch.ones_like(ids), torch.ones(16, 31, dtype=torch.bool), tuple(range(16 * n, 16 * n + 16))
                )
                for n, ids in enumerate(batches)
            ),
        )
        found[family] = against_sweeps(build(family), data, 0.01, inside_only=False)
    return found


PARTS = {
    "map": part_map,
    "small": part_small,
    "resume": part_resume,
    "layers": part_layers,
    "fixtures": part_fixtures,
    "families": part_families,
    "full": part_full,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    target = HERE / "results.json"
    for part in parser.parse_args().parts or list(PARTS):
        results = json.loads(target.read_text()) if target.exists() else {}
        results[part] = PARTS[part]()
        results["machine"] = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        target.write_text(json.dumps(results, indent=1) + "\n")
        print(part, json.dumps(results[part], indent=1))
    print("most memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "MiB")


if __name__ == "__main__":
    main()
