"""`plan_fix`: the fewest weights to raise in precision so that the KL of a format meets a target, each step run.

fix = noisescope.plan_fix(model, tokenizer=tokenizer, format="mxfp4", raised="mxfp8", max_kl=0.02)
print(fix)

Effects of groups of weights add up, so the fewest that must be raised are those whose effect is largest, in their
order. How many of them is found by running: the prediction says where to begin, and the search ends where one fewer is
seen to miss the target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..diagnosis.accepting import accept
from ..diagnosis.progress import Progress, silent
from ..errors import InputError, quoted
from ..keys import fingerprint_model
from ..measure.intervals import Estimate
from ..points import Bench
from ..quantising.checking import measure
from ..quantising.format_map import FormatMap
from ..quantising.schemes import Scheme, parse_scheme
from ..report.fix import render_fix, save_fix, screen_lines
from ..sites import Layout
from ..specs.checks import number
from .precision.knowing import mapped
from .precision.texts import Texts

__all__ = ["FixPlan", "plan_fix"]

SCHEMA, VERSION = "noisescope fix plan", 1


@dataclass(frozen=True, eq=False)
class FixPlan:
    """Which weights to raise, and what each step of the search measured."""

    sections: Mapping[str, Any] = field(repr=False)
    """everything, as plain values"""

    @property
    def raised(self) -> list[str]:
        """Module paths of the weights to raise, the most effective first."""
        return [path for row in self.sections["raised"] for path in row["paths"]]

    @property
    def formats(self) -> dict[str, str]:
        """Module path -> format, for `quantised(model, fix.formats)`; what is not there stays as it is."""
        return {row["path"]: row["format"] for row in self.sections["weights"] if row["format"] is not None}

    @property
    def met(self) -> bool:
        """Whether the target can be met by raising weights."""
        return bool(self.sections["met"])

    def to_json(self) -> str:
        """Strict JSON; the same plan gives the same text."""
        return render_fix(self.sections, "json")

    def to_markdown(self) -> str:
        """Markdown for a pull request; the same plan gives the same text."""
        return render_fix(self.sections, "md")

    def to_html(self) -> str:
        """One page that holds everything it shows; the same plan gives the same text."""
        return render_fix(self.sections, "html")

    def save(self, directory: str | Path) -> Path:
        """Writes `fix.md`, `fix.html` and, last, `fix.json` into a directory; the page to open."""
        return save_fix(self.sections, directory)

    def __str__(self) -> str:
        return "\n".join(screen_lines(self.sections))


@torch.inference_mode(False)
def plan_fix(
    model: nn.Module,
    data: object = None,
    *,
    format: str = "mxfp4",
    raised: str = "bf16",
    max_kl: float,
    tokenizer: Any = None,
    n_samples: int = 192,
    n_verified: int = 96,
    batch_size: int = 16,
    max_length: int | None = None,
    seed: int = 0,
    blocks: str | None = None,
    name: str | None = None,
    map_file: str | Path | None = None,
    progress: Progress = silent,
) -> FixPlan:
    """The fewest groups of weights to raise from one format to another, so that the KL is at most `max_kl`.

    Args:
        model: a causal language model in 16 or 32 bit, in eval mode. It is left bit-identical.
        data: what to plan and measure on; None is a built-in English text.
        format: what all weights of the blocks are in, such as `mxfp4`, or with activations `int8/int8`.
        raised: what those that mind it get instead; `bf16` leaves a 16-bit model as it is.
        max_kl: nats per token, at most, on text that the map was not made on.
        tokenizer: needed where data is text.
        n_samples: rows for the map, which orders the weights.
        n_verified: rows that every step is run on.
        batch_size: rows that run together.
        max_length: tokens of a row.
        seed: of rows and labels.
        blocks: where the blocks are, for a model whose structure is not recognised.
        name: what the plan calls the model.
        map_file: where the map is kept for the next plan, and looked for.
        progress: told how far the run is.
    """
    accept(model)
    target = _target(max_kl)
    low, high = _schemes(format, raised)
    layout = Layout.of(model, blocks=blocks)
    texts = Texts.of(
        model,
        data,
        tokenizer,
        n_samples=n_samples,
        n_verified=n_verified,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
    )
    known = mapped(model, texts, [low, high], seed=seed, layout=layout, file=map_file, progress=progress)
    search = _Search(known, Bench(model, texts.held_out, layout=layout), low, high, target, progress)
    count = search.fewest()
    subject = {"model": name or type(model).__name__, "fingerprint": fingerprint_model(model)}
    return FixPlan(search.sections(count, subject, texts))


def _target(max_kl: float) -> float:
    try:
        found: float = number(above=0)(max_kl)
    except InputError as error:
        raise InputError(f"max_kl: {error}") from None
    return found


def _schemes(format: str, raised: str) -> tuple[str, str]:
    """Both by their names, of which the second is above the first."""
    low, high = _scheme("format", format), _scheme("raised", raised)
    if low == high:
        raise InputError(f"raised: got {high}, the format itself; expected one of more bits")
    if all(bits <= before for bits, before in zip(_bits(high), _bits(low), strict=True)) and _bits(high) != _bits(low):
        raise InputError(f"raised: got {high}, which has fewer bits than {low}; expected one of more")
    return str(low), str(high)


def _scheme(name: str, text: str) -> Scheme:
    try:
        found = parse_scheme(text)
    except InputError as error:
        raise InputError(f"{name}: {str(error).removeprefix('format: ')}") from None
    if found == Scheme():
        raise InputError(f"{name}: got {quoted(text)}, expected a format such as mxfp4, bf16 or int8/int8")
    return found


def _bits(scheme: Scheme) -> tuple[float, float]:
    """Of the elements of weights and activations; what stays as it is has most."""
    weights, activations = (inf if form is None else form.grid.bits for form in (scheme.weights, scheme.activations))
    return weights, activations


class _Search:
    """How many of the groups, the most effective first, have to be raised."""

    def __init__(self, known: FormatMap, bench: Bench, low: str, high: str, target: float, progress: Progress) -> None:
        self.known, self.bench, self.low, self.high, self.target = known, bench, low, high, target
        self.effects = {group: self._effects(paths) for group, paths in known.groups.items()}
        self.order: Sequence[str] = sorted(known.groups, key=lambda group: -self._gain(group))
        self.steps: dict[int, Estimate] = {}
        self._tick = progress("steps", max(2, len(self.order).bit_length()))

    def fewest(self) -> int | None:
        """The smallest number whose measured KL is within the target; None if even all of them do not do."""
        found = self._around(self._predicted())
        if found is None:
            return None
        too_few, enough = found
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if self._within(middle) else (middle, enough)
        return enough

    def _around(self, start: int) -> tuple[int, int] | None:
        """Two numbers, of which one is too few and the other enough, by doubling steps from where to begin."""
        step, most = 1, len(self.order)
        if self._within(start):
            enough = start
            while enough and self._within(fewer := max(0, start - step)):
                enough, step = fewer, 2 * step
            return (max(0, start - step) if enough else -1), enough
        too_few = start
        while not self._within(more := min(most, start + step)):
            if more == most:
                return None
            too_few, step = more, 2 * step
        return too_few, more

    def choice(self, count: int) -> dict[str, str]:
        """Path -> format where so many groups are raised."""
        above = {path for group in self.order[:count] for path in self.known.groups[group]}
        return {place.path: self.high if place.path in above else self.low for place in self.known.places}

    def _within(self, count: int) -> bool:
        if count not in self.steps:
            self.steps[count] = measure(self.bench, self.choice(count))
            self._tick()
        return self.steps[count].value <= self.target

    def _effects(self, paths: Sequence[str]) -> tuple[float, float]:
        """The KL of a group in the format, and raised; infinite where it overflows."""
        low, high = (self.known.together(dict.fromkeys(paths, name)).value for name in (self.low, self.high))
        return low, high

    def _gain(self, group: str) -> float:
        low, high = self.effects[group]
        return 0.0 if low == high else low - high  # nothing is gained where both are infinite

    def _predicted(self) -> int:
        """How many it should take, by the map."""
        lows, highs = ([self.effects[group][raised] for group in self.order] for raised in (0, 1))
        left = (sum(highs[:count]) + sum(lows[count:]) for count in range(len(self.order)))
        return next((count for count, kl in enumerate(left) if kl <= self.target), len(self.order))

    def sections(self, count: int | None, subject: Mapping[str, Any], texts: Texts) -> dict[str, Any]:
        """Everything, as plain values."""
        taken = len(self.order) if count is None else count
        choice = self.choice(taken)
        return {
            "schema": SCHEMA,
            "version": VERSION,
            **subject,
            "format": self.low,
            "raised_format": self.high,
            "max_kl": self.target,
            "met": count is not None,
            "data": {
                "name": texts.mapped.name,
                "rows": texts.mapped.rows,
                "held_out_rows": texts.held_out.rows,
                "held_out_fingerprint": texts.held_out.fingerprint,
            },
            "groups": len(self.order),
            "left_out": list(self.known.left_out),
            "raised": [
                {
                    "paths": list(self.known.groups[group]),
                    "layer": self._layer(group),
                    "gain": self._gain(group),
                }
                for group in self.order[:taken]
            ],
            "steps": [
                {"raised": number, "kl": found.as_json(), "within": found.value <= self.target}
                for number, found in sorted(self.steps.items())
            ],
            "weights": [
                {
                    "path": place.path,
                    "layer": place.layer,
                    "group": place.group,
                    "size": place.size,
                    "axis": place.axis,
                    "format": choice[place.path],
                }
                for place in self.known.places
            ],
            "cost": self.known.cost + self.bench.cost * texts.held_out.tokens / texts.mapped.tokens,
        }

    def _layer(self, group: str) -> int | str:
        return next(place.layer for place in self.known.places if place.path == group)
