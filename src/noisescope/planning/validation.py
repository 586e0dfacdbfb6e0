"""The commands that validate a migration: a trace on each device, then a gate for each priority.

They work as they are printed, but for a word in capitals where no name would do: that of a local model is known to the
person alone, and an absolute path is nothing for a file that is passed on. The reference is recorded where the report
was made, the suspect on the new device, in the precisions of the plan; both on the same built-in text.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..models import DEFAULT
from ..report import Report
from ..specs import Layer

__all__ = ["Naming", "validation_commands"]

REFERENCE, SUSPECT = "reference.trace", "suspect.trace"
MODEL, REPORT = "MODEL", "REPORT"
"""what stands for a path that cannot be named"""


@dataclass(frozen=True)
class Naming:
    """How commands call things. `model` is None if no command can name it, and empty where none needs to."""

    model: str | None
    dtype: str | None = None
    """of the report's run; None where it is what a command takes by itself"""
    report: str = "noisescope-out"
    program: str = "noisescope"

    @classmethod
    def of(
        cls,
        report: Report,
        *,
        model: str | None = None,
        path: str = "noisescope-out",
        program: str = "noisescope",
        shared: bool = False,
    ) -> "Naming":
        """As the report names its model, unless another name is given; with `shared`, without absolute paths.

        A report calls a local model by the last part of its path, which no command can open: only what has a slash in
        it is the name of one on the hub.
        """
        sections = report.sections
        name = sections["config"]["model"] if model is None else model
        is_default = name in ("", DEFAULT.name)
        if (model is None and "/" not in name and not is_default) or (shared and os.path.isabs(name)):
            name = MODEL
        if shared and os.path.isabs(path):
            path = REPORT
        dtype = sections["environment"].get("dtype")
        return cls(
            None if not name.isprintable() or not path.isprintable() else "" if is_default else name,
            None if is_default and dtype == "float32" else dtype,
            path,
            program,
        )


def validation_commands(
    priorities: Mapping[int, tuple[Sequence[Layer], float | None]], naming: Naming
) -> list[dict[str, str]]:
    """What to run, each with why; nothing where no command can name the model.

    `priorities` has the layers of each and the MAPE that they may have; None for those that need no gate of their own.
    """
    if naming.model is None:
        return []
    model = [naming.model] if naming.model else []
    dtype = ["--dtype", naming.dtype] if naming.dtype else []
    steps = [
        (["trace", *model, *dtype, "-o", REFERENCE], "on the device that is trusted"),
        (["trace", *model, "-o", SUSPECT], "on the new device, in the precisions of this plan"),
    ]
    for number, (layers, most) in priorities.items():
        if layers and most is not None:
            gate = ["validate-migration", REFERENCE, SUSPECT, "--layers", _listed(layers), "--max-mape", f"{most:g}"]
            steps.append((gate, f"priority {number}: exit code 0 if they hold, 1 if not"))
    compare = ["compare", REFERENCE, SUSPECT, "--report", naming.report, "--output", "noisescope-migration"]
    steps.append((compare, "the rest: what diverges, and what to fix first"))
    return [
        {"command": f"{naming.program} {shlex.join(words)}", "why": why + _to_fill_in(words)} for words, why in steps
    ]


def _to_fill_in(words: Sequence[str]) -> str:
    """What has to be put for the words in capitals."""
    asked = {MODEL: "what you call the model", REPORT: "the directory of its report"}
    return "".join(f"; put {what} for {word}" for word, what in asked.items() if word in words)


def _listed(layers: Sequence[Layer]) -> str:
    blocks = sorted(layer for layer in layers if isinstance(layer, int))
    return ",".join(map(str, (*blocks, *(layer for layer in layers if not isinstance(layer, int)))))
