"""How much of the noise each layer gets, from a report: less where the model is fragile, or so that all cost the same.

    layer       accuracy lost   group        factor
    L0                 21.3 %   protect         0.5
    L1                  7.0 %   normal            1
    L2                  0.4 %   aggressive        2

Two rules. `from_report` is the documented one: a layer whose degradation is above 15% gets half of the base scale, one
below 5% twice of it. `equalize` takes the KL of each layer at equal noise, c, and gives it

    factor = sqrt(mean(c) / c),

so that, as KL grows with the square of the scale, every layer contributes the same and their sum is what it was: as far
as c is known, of which a table tells with its intervals, and a warning where they are wide.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan, sqrt
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from torch import nn

from ..errors import InputError, quoted
from ..measure.intervals import Estimate
from ..operators import expand
from ..planning.degradation import degradation_of
from ..planning.sensitivity import layer_sensitivity
from ..report import Report
from ..report.figures import Interval
from ..report.layers import in_model_order, label, runs_of
from ..specs import OUTSIDE, Layer, check_scale, parse_layers
from .subject import Subject

__all__ = ["AdaptiveNoise"]

_Value = TypeVar("_Value")
Group: TypeAlias = Literal["protect", "normal", "aggressive", "equal"]

FACTORS = (0.5, 1.0, 2.0)
"""of layers to protect, normal ones, and ones to be aggressive with"""
_WIDE = 24
"""of a figure with its interval"""
UNSURE = 1.5
"""how many times as large or as small a KL may be, by its interval, before it is too badly known to be made equal"""

log = logging.getLogger("noisescope.training")


@dataclass(frozen=True)
class AdaptiveNoise:
    """Layer -> factor of the base scale. Make one with `from_report` or `equalize`; print it for a table.

    Noise that adapts goes to the layers that have a factor, and to no others.
    """

    factors: Mapping[Layer, float]
    minded: Mapping[Layer, float] = field(default_factory=dict)
    """layer -> what noise costs there: a share of accuracy, or a KL in nats per token where contributions are equal"""
    intervals: Mapping[Layer, tuple[float, float]] = field(default_factory=dict)
    """layer -> the 95% interval of that, where it is known"""
    groups: Mapping[Layer, Group] = field(default_factory=dict)
    operators: tuple[str, ...] | None = None
    """the operators that contributions are equal for; None: all"""
    error_type: str | None = None
    """the noise that contributions are equal for, if it is known"""
    subject: Subject | None = None
    """the model that it is for, if it comes from a report"""

    def __post_init__(self) -> None:
        if not self.factors:
            raise InputError("factors: got none, expected layers with their factors")
        for name in ("factors", "minded", "intervals", "groups"):
            object.__setattr__(self, name, _by_layer(getattr(self, name), what=name))
        for layer, factor in self.factors.items():
            check_scale(factor, what=f"factors[{layer!r}]")

    @classmethod
    def from_report(
        cls,
        report: Report | str | Path,
        *,
        protect_above: float = 0.15,
        aggressive_below: float = 0.05,
        factors: tuple[float, float, float] = FACTORS,
        layers: int | str | Iterable[int | str] | None = None,
    ) -> "AdaptiveNoise":
        """Factors by what noise in a layer cost in accuracy: the documented rule.

        A block's degradation is the mean over the windows that contain it; `embed`, `final_norm` and `head` have rows
        of their own in a report. For a model that is no better than chance a report knows no degradation: use
        `equalize`, which goes by the KL.

        Args:
            report: of `diagnose`, or where it is.
            protect_above: degradation above which a layer is protected.
            aggressive_below: degradation below which it gets more.
            factors: of layers to protect, normal ones, and the others.
            layers: those that get noise; None: all that the report tells of.
        """
        found = _opened(report)
        lost = degradation_of(found)
        if lost is None:
            raise InputError(
                "report: has no degradation of every layer (no windows, or a model no better than chance); diagnose "
                "with --level full on data that the model knows, or use AdaptiveNoise.equalize"
            )
        lost |= _outside(found)
        return cls.from_profile(
            _only(lost, layers),
            protect_above=protect_above,
            aggressive_below=aggressive_below,
            factors=factors,
            subject=Subject.of_report(found),
        )

    @classmethod
    def from_profile(
        cls,
        degradation: Mapping[Layer, float],
        *,
        protect_above: float = 0.15,
        aggressive_below: float = 0.05,
        factors: tuple[float, float, float] = FACTORS,
        subject: Subject | None = None,
    ) -> "AdaptiveNoise":
        """The same from layer -> degradation, however it was measured."""
        for name, given in (("protect_above", protect_above), ("aggressive_below", aggressive_below)):
            if not _is_number(given):
                raise InputError(f"{name}: got {quoted(given)}, expected a share of accuracy lost")
        if not aggressive_below <= protect_above:
            raise InputError(
                f"protect_above: got {protect_above}, expected at least aggressive_below, {aggressive_below}"
            )
        names: tuple[Group, ...] = ("protect", "normal", "aggressive")
        if not isinstance(factors, Sequence) or len(factors) != len(names):
            raise InputError(f"factors: got {quoted(factors)}, expected three: of protect, normal and aggressive")
        of = dict(zip(names, factors, strict=True))
        degradation = _by_layer(degradation, what="degradation")
        for layer, loss in degradation.items():
            if not _is_number(loss):
                raise InputError(f"degradation: {quoted(layer)}: got {quoted(loss)}, expected a share of accuracy lost")
        groups = {
            layer: names[0] if loss > protect_above else names[2] if loss < aggressive_below else names[1]
            for layer, loss in degradation.items()
        }
        return cls(
            {layer: of[group] for layer, group in groups.items()}, dict(degradation), groups=groups, subject=subject
        )

    @classmethod
    def equalize(
        cls,
        report: Report | str | Path,
        *,
        layers: int | str | Iterable[int | str] | None = None,
        operators: str | Iterable[str] | None = None,
    ) -> "AdaptiveNoise":
        """Factors with which every layer contributes the same KL, and all together what they did with one scale.

        The report foretells it, from few samples and to second order: the table shows how well it knows each layer.
        Where that is badly, as where a few tokens have massive activations, a warning says so;
        `equalize_contributions` measures, and corrects.

        Args:
            report: of `diagnose`, or where it is.
            layers: those that get noise; None: the decoder blocks.
            operators: those that get noise, whose cells of the report's map are added up; None: all that the report is
                about.
        """
        found = _opened(report)
        chosen = expand(operators)
        kl = layer_sensitivity(found, operators=chosen)
        blocks = [layer for layer in kl if isinstance(layer, int)]
        made = cls.equalized(
            _only(kl, blocks if layers is None else layers),
            operators=expand(found.sections["config"].get("operators")) if chosen is None else chosen,
            error_type=str(found.sections["config"]["error_type"]),
            subject=Subject.of_report(found),
        )
        if unsure := made.unsure:
            log.warning(
                "contributions are not known to be equal: the report knows the KL of %s to a factor of %.2g; "
                "equalize_contributions measures",
                ", ".join(runs_of(unsure)),
                max(unsure.values()),
            )
        return made

    @classmethod
    def equalized(
        cls,
        kl_nats: Mapping[Layer, float | Estimate | Interval],
        *,
        operators: tuple[str, ...] | None = None,
        error_type: str | None = None,
        subject: Subject | None = None,
    ) -> "AdaptiveNoise":
        """The same from layer -> KL at one scale, however it was measured."""
        values = {layer: kl.value if isinstance(kl, (Estimate, Interval)) else kl for layer, kl in kl_nats.items()}
        for layer, kl in values.items():
            if not 0 < kl < inf:
                raise InputError(
                    f"{label(layer)}: got a KL of {kl:.3g}, expected a number > 0: it cannot be made equal"
                )
        mean = sum(values.values()) / max(1, len(values))
        return cls(
            {layer: sqrt(mean / kl) for layer, kl in values.items()},
            values,
            {layer: (kl.low, kl.high) for layer, kl in kl_nats.items() if isinstance(kl, (Estimate, Interval))},
            dict.fromkeys(values, "equal"),
            operators,
            error_type,
            subject,
        )

    @property
    def unsure(self) -> dict[Layer, float]:
        """Layer -> the factor that its KL is known to, of the layers that are too badly known to be made equal."""
        known = {layer: sqrt(high / low) if low > 0 else inf for layer, (low, high) in self.intervals.items()}
        return {layer: within for layer, within in known.items() if within > UNSURE}

    @property
    def is_equal(self) -> bool:
        """True if the layers contribute equally, by what is known of them."""
        return "equal" in self.groups.values()

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that get noise."""
        return tuple(in_model_order(self.factors))

    def scales(self, base: float) -> dict[Layer, float]:
        """Layer -> scale."""
        return {layer: base * self.factors[layer] for layer in self.layers}

    def check(self, model: nn.Module, *, layers: int) -> None:
        """Raises if the report is of another model, or a layer of this one does not exist."""
        if self.subject is not None:
            self.subject.check(model, layers=layers)
        for layer in self.factors:
            if layer not in OUTSIDE and not (isinstance(layer, int) and layer < layers):
                raise InputError(f"factors: layer {layer} is out of range, the model has 0 to {layers - 1}")

    def __str__(self) -> str:
        head = "KL, nats/token" if self.is_equal else "accuracy lost"
        lines = [f"{'layer':<12}{head:>{_WIDE}}   {'group':<12}{'factor':>8}"]
        for layer in self.layers:
            group = self.groups.get(layer, "")
            lines.append(f"{label(layer):<12}{self._cost(layer):>{_WIDE}}   {group:<12}{self.factors[layer]:>8.3g}")
        return "\n".join(lines)

    def _cost(self, layer: Layer) -> str:
        """What noise costs there, as a table shows it."""
        cost = self.minded.get(layer)
        if cost is None:
            return ""
        if not self.is_equal:
            return f"{100 * cost:.1f} %"
        low, high = self.intervals.get(layer, (nan, nan))
        return str(Interval(cost, low, high)) if low < high else f"{cost:.3g}"


def _by_layer(given: Mapping[Any, _Value], *, what: str) -> dict[Layer, _Value]:
    """The same by layers as everywhere: keys may be names and ranges, as they are in a file."""
    found: dict[Layer, _Value] = {}
    for key, value in given.items():
        for layer in parse_layers(int(key) if isinstance(key, Integral) and not isinstance(key, bool) else key) or ():
            if layer in found:
                raise InputError(f"{what}: {label(layer)} is there twice")
            found[layer] = value
    return found


def _is_number(given: object) -> bool:
    return isinstance(given, Real) and not isinstance(given, bool) and isfinite(given)


def _opened(report: Report | str | Path) -> Report:
    if isinstance(report, (str, Path)):
        return Report.load(report)
    if not isinstance(report, Report):
        raise InputError(f"report: got {type(report).__name__}, expected a report of `diagnose` or its directory")
    return report


def _outside(report: Report) -> dict[Layer, float]:
    """What noise in the embedding, the final norm and the head costs."""
    rows = {name: row for name, row in report.sections["operator_analysis"].items() if name in OUTSIDE}
    broken = {name: 1.0 for name, row in rows.items() if "failed" in row and row.get("non_finite", True)}
    return {name: row["degradation"] for name, row in rows.items() if "failed" not in row} | broken


def _only(known: Mapping[Layer, _Value], layers: int | str | Iterable[int | str] | None) -> dict[Layer, _Value]:
    wanted = parse_layers(layers)
    if wanted is None:
        return dict(known)
    if missing := [layer for layer in wanted if layer not in known]:
        raise InputError(f"layers: the report tells nothing of {_listed(missing)}; it has {_listed(known)}")
    return {layer: known[layer] for layer in in_model_order(wanted)}


def _listed(layers: Iterable[Layer]) -> str:
    return " ".join(label(layer) for layer in in_model_order(layers)) or "nothing"
