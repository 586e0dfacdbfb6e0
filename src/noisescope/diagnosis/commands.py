"""Commands to paste: the same model again, looking closer at what was found.

They name the model and the data as the report does, without paths; where a model was handed over in Python and has no
name that a command could take, there are none.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..models import DEFAULT
from ..specs import OUTSIDE

__all__ = ["Commands"]


@dataclass(frozen=True)
class Commands:
    """How to ask again. `model` is None if no command can name it, `data` is None for the built-in text."""

    model: str | None
    data: str | None = None

    @classmethod
    def naming(cls, model: str | None, data: str | None) -> "Commands":
        """None at all for names that cannot be pasted, such as one with a new line in it."""
        pasted = all(name is None or name.isprintable() for name in (model, data))
        return cls(model, data) if pasted else cls(None)

    def closer_to_operator(self, name: str) -> str:
        """Which layers an operator is fragile in; for a place outside the blocks, the same with more data."""
        if name in OUTSIDE:
            return self._again("--layers", name, "--level", "operator", "--preset", "report", output=name)
        return self._again("--operators", name, "--level", "layer", "--sampled", "all", output=name)

    def closer_to_layers(self, layer_range: str) -> str:
        """Every operator of a window, injected."""
        layers = layer_range.removeprefix("L")
        return self._again("--layers", layers, "--sampled", "all", "--preset", "report", output=f"layers-{layers}")

    def closer_to_channels(self) -> str:
        """Outlier channels over more data."""
        return self._again("--level", "channel", "--preset", "report", output="channels")

    def next_steps(self, critical: Sequence[str], avalanches: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        """What to run after this report, the most useful first."""
        if self.model is None:
            return []
        steps = [
            {"command": self.closer_to_layers(str(point["layer_range"])), "why": "what is fragile in these layers"}
            for point in avalanches[:1]
        ]
        steps += [
            {"command": self.closer_to_operator(name), "why": "in which layers it is fragile"}
            for name in critical
            if name not in OUTSIDE
        ][:1]
        return [
            *steps,
            {
                "command": self._again("--preset", "report", output="thorough"),
                "why": "narrower intervals: four times the data, three draws",
            },
            {
                "command": f"noisescope report noisescope-out {_directory('thorough')}",
                "why": "what differs, and what of it is more than chance",
            },
        ]

    def _again(self, *flags: str, output: str) -> str:
        if self.model is None:
            return ""
        words = ["noisescope", "diagnose"]
        words += [] if self.model == DEFAULT.name else [self.model]
        words += [] if self.data is None else ["--data", self.data]
        return shlex.join([*words, *flags, "--output", _directory(output)])


def _directory(name: str) -> str:
    return f"noisescope-{name}"
