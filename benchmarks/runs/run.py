"""What surviving costs: the journal's share of a diagnosis, and how soon a resumed one computes again.

python benchmarks/runs/run.py          about four minutes on two cores; writes results.json beside this file

A diagnosis of the default model on 16 samples, fewer than the default, so that the journal's share is if anything too
large. A fingerprint of the weights is taken once; `begin` writes the first line, `keep` one for each step, and syncs.
"""

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import noisescope as ns
from noisescope.keys import fingerprint_model
from noisescope.models import load
from noisescope.points import Bench
from noisescope.store import Journal

HERE = Path(__file__).parent
SAMPLES = 16


def timing(owner: type, name: str, spent: list[float]) -> Callable[[], None]:
    """Notes how long each call of a method takes; what to call to stop that."""
    real = getattr(owner, name)

    def timed(*args: Any, **more: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*args, **more)
        finally:
            spent.append(time.perf_counter() - started)

    setattr(owner, name, timed)
    return lambda: setattr(owner, name, real)


def diagnose(loaded: Any, path: Path) -> float:
    """Seconds of a diagnosis with that journal."""
    started = time.perf_counter()
    with Journal(path) as journal:
        ns.diagnose(loaded.model, tokenizer=loaded.tokenizer, n_samples=SAMPLES, name=loaded.name, journal=journal)
    return time.perf_counter() - started


def first_forward(loaded: Any, path: Path) -> float:
    """Seconds from the call of a resumed diagnosis to its first forward pass over the data."""
    real, found = Bench._forward, list[float]()

    def stop(*_: Any, **__: Any) -> Any:
        found.append(time.perf_counter())
        raise KeyboardInterrupt

    Bench._forward = stop  # type: ignore[method-assign]
    started = time.perf_counter()
    try:
        diagnose(loaded, path)
    except KeyboardInterrupt:
        pass
    finally:
        Bench._forward = real  # type: ignore[method-assign]
    return found[0] - started


def main() -> None:
    loaded = load(None)
    keeping, beginning = list[float](), list[float]()
    started = time.perf_counter()
    fingerprint_model(loaded.model)
    fingerprint_s = time.perf_counter() - started
    undo = [timing(Journal, "keep", keeping), timing(Journal, "begin", beginning)]
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "journal")
        wall_s = diagnose(loaded, path)
        lines = path.read_bytes().splitlines(keepends=True)
        for stop in undo:
            stop()
        path.write_bytes(b"".join(lines[: len(lines) // 2]))
        resumed_s = [first_forward(loaded, path) for _ in range(5)]
        whole, half = path.with_name("whole"), diagnose(loaded, path)
        whole.write_bytes(path.read_bytes())
        again_s = diagnose(loaded, whole)
    results = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "samples": SAMPLES,
        "steps": len(keeping),
        "diagnosis_s": wall_s,
        "journal_share": (sum(keeping) + sum(beginning) + fingerprint_s) / wall_s,
        "of_that_fingerprint": fingerprint_s / wall_s,
        "longest_keep_s": max(keeping),
        "journal_bytes": sum(map(len, lines)),
        "resumed_half_over_whole": half / wall_s,
        "resumed_finished_over_whole": again_s / wall_s,
        "resume_to_first_forward_s": {"median": statistics.median(resumed_s), "longest": max(resumed_s)},
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
