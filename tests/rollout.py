"""A worker of a program that is not ours to edit: it runs a model, and knows nothing of noise.

    python rollout.py DIRECTORY               runs and ends
    python rollout.py DIRECTORY forever       runs, as does a child that it forks; then waits to be killed

The child's pid is printed once all of it has run.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from trained import fixture


def run(directory: str) -> int:
    """Runs a trained model on this thread and on another, and leaves both logits in a file named by its pid."""
    torch.set_num_threads(1)
    model, _ = fixture("llama")
    with ThreadPoolExecutor(1) as pool:
        found = logits(model), pool.submit(logits, model).result()
    torch.save(torch.stack(found), Path(directory, f"{os.getpid()}.pt"))
    return os.getpid()


def logits(model: torch.nn.Module) -> torch.Tensor:
    """Of a fixed prompt."""
    with torch.no_grad():
        return model(torch.arange(8)[None]).logits


if __name__ == "__main__":
    run(sys.argv[1])
    if sys.argv[2:] == ["forever"]:
        child = os.fork()
        if child == 0:
            run(sys.argv[1])
            sys.exit()
        os.waitpid(child, 0)
        print(child, flush=True)  # noqa: T201 - says that it may be killed now
        time.sleep(600)
