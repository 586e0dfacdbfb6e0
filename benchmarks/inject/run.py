"""What injection and capture cost: forward passes of the default model, 8 x 128 tokens, as ratios to the bare forward.

    python benchmarks/inject/run.py [--rounds 12] [--output benchmarks/inject/results.json]

The obvious way to inject (a hook on every nn.Linear with one `randn`) is measured beside ours. So are the start-up
times of `import noisescope` and `noisescope --help`.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from math import comb
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

import noisescope as ns
from noisescope.models import load

ROWS, LENGTH, SCALE = 8, 128, 0.05


def cases(model: nn.Module, ids: Tensor) -> dict[str, Callable[[], object]]:
    """Name -> one forward pass, prepared in the way the name says."""

    def bare() -> None:
        model(ids)

    def obvious() -> None:
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        handles = [linear.register_forward_hook(hook) for linear in linears]
        model(ids)
        for handle in handles:
            handle.remove()

    def hook(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
        return out + SCALE * out.abs() * torch.randn_like(out)

    def injected(operators: list[str] | None) -> Callable[[], None]:
        def run() -> None:
            with ns.inject(model, ns.RelativeGaussian(SCALE), operators=operators):
                model(ids)

        return run

    def captured() -> None:
        with ns.capture(model):
            model(ids)

    return {
        "bare": bare,
        "engine active, nothing selected": injected([]),
        "channel statistics, default sites": captured,
        "obvious hook on every linear": obvious,
        "relative_gaussian, every linear": injected(["linear"]),
        "relative_gaussian, all operators": injected(None),
    }


def ratios(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, object]]:
    """Each case's time over the mean of the bare forwards just before and just after it: the median over rounds."""
    bare = runs.pop("bare")
    for run in (bare, *runs.values()):
        run()
    alone = [_seconds(bare)]
    found: dict[str, list[float]] = {name: [] for name in runs}
    nothing, captured, *others = runs
    turns = [turn for other in others for turn in (nothing, other)] + [captured, nothing, captured]
    for number in range(rounds):
        for name in turns:  # small differences need more rounds
            seconds = _seconds(runs[name])
            alone.append(_seconds(bare))
            found[name].append(seconds / statistics.mean(alone[-2:]))
        print(f"round {number + 1}/{rounds}: bare {alone[-1]:.2f} s", file=sys.stderr)
    summary: dict[str, dict[str, object]] = {"bare": {"median_s": round(statistics.median(alone), 3)}}
    for name, measured in found.items():
        interval = [round(bound, 3) for bound in _interval(measured)]
        summary[name] = {"ratio": round(statistics.median(measured), 3), "interval": interval, "rounds": len(measured)}
    return summary


def _interval(measured: list[float]) -> tuple[float, float]:
    """Where the median lies with 95% at least, by order statistics: values are below it as coins show heads."""
    count = len(measured)
    outside = 0
    while sum(comb(count, heads) for heads in range(outside + 1)) / 2**count <= 0.025:
        outside += 1
    ranked = sorted(measured)
    return ranked[max(outside - 1, 0)], ranked[min(count - outside, count - 1)]


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def start_up(rounds: int) -> dict[str, float]:
    """Median wall seconds of a whole Python process."""
    commands = {
        "python -c pass": ["-c", "pass"],
        "import noisescope": ["-c", "import noisescope"],
        "noisescope --help": ["-m", "noisescope", "--help"],
    }
    found = {}
    for name, command in commands.items():
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - started)
        found[name] = round(statistics.median(times), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.json")
    arguments = parser.parse_args()
    model = load().model
    ids = torch.randint(model.config.vocab_size, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        forward = ratios(cases(model, ids), arguments.rounds)
    result = {
        "model": "SmolLM2-135M-Instruct, float32",
        "tokens": f"{ROWS} x {LENGTH}",
        "rounds": arguments.rounds,
        "processor": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "noisescope": ns.__version__,
        },
        "forward": forward,
        "start_up_s": start_up(arguments.rounds),
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
