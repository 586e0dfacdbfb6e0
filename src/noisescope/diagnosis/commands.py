"""Commands to paste: the same question again, looking closer at what was found.

They repeat what was asked other than by default. Those of a report name the model and the data as the report does,
without paths; where a model was handed over in Python and has no name that a command could take, there are none.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..models import DEFAULT
from ..specs import OUTSIDE, PRESETS, UNUSED, DiagnosisSpec, Layer, parse_layers

__all__ = ["Commands"]

_DEFAULT = DiagnosisSpec()
_QUICK, _REPORT = PRESETS["quick"], PRESETS["report"]
_LEFT: Mapping[str, object] = {
    **vars(_DEFAULT),
    "n_samples": _QUICK.n_samples,
    "batch_size": 16,
    "max_new_tokens": 512,
    "dtype": "auto",
    "device": "cpu",
}
"""what no flag is needed for; nor is one for None, or a switch that is off"""
_NO_FLAG = ("target_degradation",)
_OF_SMOOTH = ("dtype", "device", "attn", "tokenizer", "blocks", "trust_remote_code", "max_length", "batch_size")
"""flags that smoothing has too"""


@dataclass(frozen=True)
class Commands:
    """How to ask again. `model` is None if no command can name it, and empty where none needs to."""

    model: str | None
    data: str | None = None
    """None for the built-in text"""
    spec: DiagnosisSpec = _DEFAULT
    n_samples: int = _QUICK.n_samples
    options: Mapping[str, object] = field(default_factory=dict)
    """the other flags: name -> value, True for a switch"""
    output: str = "noisescope-out"
    """where the report of this run is"""
    program: str = "noisescope"

    @classmethod
    def naming(cls, model: str | None, data: str | None, **asked: Any) -> "Commands":
        """As a report names them; none at all for names that cannot be pasted, such as one with a new line in it."""
        names = (model, data, *asked.get("options", {}).values())
        pasted = all(name.isprintable() for name in names if isinstance(name, str))
        return cls("" if model == DEFAULT.name else model, data, **asked) if pasted else cls(None)

    def closer_to_operator(self, name: str) -> str:
        """Which layers an operator is fragile in; for a place outside the blocks, the same with more data."""
        if name in OUTSIDE:
            return self._again(name, thorough=True, layers=(name,), level="operator")
        return self._again(name, operators=(name,), level="layer", sampled="all")

    def closer_to_layers(self, layer_range: str) -> str:
        """Every operator of a window, injected."""
        layers = layer_range.removeprefix("L")
        level = "operator" if self.spec.level == "layer" else self.spec.level
        return self._again(f"layers-{layers}", thorough=True, layers=parse_layers(layers), level=level, sampled="all")

    def closer_to_channels(self) -> str:
        """Outlier channels over more data."""
        return self._again("channels", thorough=True, level="channel")

    def smoothing(self) -> str:
        """The same model with smaller outlier channels."""
        if self.model is None:
            return ""
        given = {name: self.options.get(name) for name in _OF_SMOOTH}
        words = [word for name, value in given.items() if _is_said(name, value) for word in _words(name, value)]
        return f"{self.program} {shlex.join(['smooth', *self._named, *words, '--output', _directory('smoothed')])}"

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
        return [*steps, *self._more_thoroughly(), *self._plans()]

    def _more_thoroughly(self) -> list[dict[str, str]]:
        """The same with the preset for reports, and how to compare; nothing if this was as thorough."""
        more = []
        if self.n_samples < _REPORT.n_samples:
            more.append(f"up to {_REPORT.n_samples / self.n_samples:.2g} times the data")
        if self.spec.trials < _REPORT.trials and "trials" not in UNUSED[self.spec.level]:
            more.append(f"{_REPORT.trials} draws")
        if not more:
            return []
        compare = shlex.join(["report", self.output, _directory("thorough")])
        return [
            {"command": self._again("thorough", thorough=True), "why": f"narrower intervals: {', '.join(more)}"},
            {"command": f"{self.program} {compare}", "why": "what differs, and what of it is more than chance"},
        ]

    def _plans(self) -> list[dict[str, str]]:
        """What to do about it; channels alone are nothing to plan with."""
        plans = {
            "migration": "which layers to move to other hardware how, and what to check first",
            "fault-tests": "tests of the faults that it should bear, for pytest",
        }
        return [
            {"command": f"{self.program} {shlex.join(['plan', name, self.output])}", "why": why}
            for name, why in plans.items()
            if self.spec.level != "channel"
        ]

    def _again(self, output: str, *, thorough: bool = False, **changes: Any) -> str:
        """The command for the same question but for these changes of the spec."""
        if self.model is None:
            return ""
        spec = replace(self.spec, **changes)
        asked = {name: getattr(spec, name) for name in _fields_with_a_flag()} | {"n_samples": self.n_samples}
        if thorough:  # the preset says how much, unless more was asked for
            enough = [name for name, amount in vars(_REPORT).items() if asked[name] <= amount]
            asked = {name: value for name, value in asked.items() if name not in enough} | {"preset": "report"}
        words = [
            word
            for name, value in {**asked, **self.options}.items()
            if name not in UNUSED[spec.level] and _is_said(name, value)
            for word in _words(name, value)
        ]
        return f"{self.program} {shlex.join(['diagnose', *self._named, *words, '--output', _directory(output)])}"

    @property
    def _named(self) -> list[str]:
        return [*([self.model] if self.model else []), *([] if self.data is None else ["--data", self.data])]


def _fields_with_a_flag() -> Iterable[str]:
    return (part.name for part in fields(DiagnosisSpec) if part.name not in _NO_FLAG)


def _is_said(name: str, value: object) -> bool:
    """Whether a flag is needed for it."""
    return value not in (None, _LEFT.get(name, False))


def _words(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, _text(value)]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return _listed(value)
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def _listed(names: Iterable[Layer]) -> str:
    """Layers or operators with commas, layers in a row as a range."""
    found: list[list[Layer]] = []
    for name in names:
        if found and isinstance(name, int) and found[-1][-1] == name - 1:
            found[-1].append(name)
        else:
            found.append([name])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


def _directory(name: str) -> str:
    return f"noisescope-{name}"
