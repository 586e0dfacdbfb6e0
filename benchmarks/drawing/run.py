"""Ways to draw float32 normals on a CPU: nanoseconds per number, the shortest of many turns each.

    python benchmarks/drawing/run.py [--output benchmarks/drawing/results.json]

Why the engine draws as it does: docs/decisions/0003.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from math import pi
from pathlib import Path

import numpy as np
import torch

from noisescope.keys import Key
from noisescope.noise.drawing import PART, Draw

ROUNDS = 40


def ways() -> dict[str, Callable[[], object]]:
    """Name -> draws `PART` numbers."""
    out, array = torch.empty(PART), np.empty(PART, dtype=np.float32)
    generator, bits = torch.Generator().manual_seed(0), np.random.SFC64(0)
    ziggurat, draw = np.random.Generator(np.random.SFC64(0)), Draw(Key(0, "benchmark"), out.device)

    def box_muller() -> torch.Tensor:
        first, second = torch.from_numpy(bits.random_raw(PART // 2).view(np.int32)).view(2, -1)
        radius = first.to(torch.float32).mul_(2.0**-32).add_(0.5 + 2.0**-26).log_().mul_(-2).sqrt_()
        angle = second.to(torch.float32).mul_(pi * 2.0**-31)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])

    return {
        "Tensor.normal_": lambda: out.normal_(generator=generator),
        "numpy standard_normal": lambda: ziggurat.standard_normal(out=array, dtype=np.float32),
        "raw bits, Box and Muller": box_muller,
        "raw bits, erfinv (ours)": lambda: draw.normal(out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results.json")
    output = parser.parse_args().output
    seconds: dict[str, list[float]] = {name: [] for name in ways()}
    for _ in range(ROUNDS):
        for name, way in ways().items():
            way()
            started = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - started)
    result = {
        "numbers": PART,
        "rounds": ROUNDS,
        "processor": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "ns_per_number": {name: round(min(times) / PART * 1e9, 2) for name, times in seconds.items()},
    }
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
