"""A process that is warm: for each line on stdin it forks one that runs a command, says its pid, then its exit code.

The first run of a process takes seconds, for what it imports, and a small run after it does not: with this, a hundred
runs can be killed in minutes. What to warm up with are its own arguments. One thread, so that a fork is safe.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from interposing import interpose

from noisescope.cli import main


def serve(warming: list[str]) -> None:
    """Answers until stdin ends."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(warming) == 0
    for line in sys.stdin:
        asked = json.loads(line)
        if not (pid := os.fork()):
            os._exit(_run(asked))
        _say(pid)
        _say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run(asked: dict[str, Any]) -> int:
    said = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    arguments = asked["arguments"]
    home = Path(arguments[arguments.index("--output") + 1])
    interpose(setattr, home, asked["at"], lambda: os.kill(os.getpid(), asked["signal"]), torn=asked["torn"])
    try:
        return main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    serve(sys.argv[1:])
