"""How much of the noise each layer gets, from a report: less where the model is fragile, or so that all cost the same.

    layer       accuracy lost   group        factor
    L0                 21.3 %   protect         0.5
    L1                  7.0 %   normal            1
    L2                  0.4 %   aggressive        2

Two rules. `from_report` is the documented one: a layer whose degradation is above 15% gets half of the base scale, one
below 5% twice of it. `equalize` takes the KL of each layer at equal noise, c, and gives it

    factor = sqrt(mean(c) / c),

so that, as KL grows with the square of the scale, every layer contributes the same and their sum is what it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from torch import nn

from ..errors import InputError, quoted
from ..operators import expand
from ..planning.degradation import degradation_of
from ..planning.sensitivity import layer_sensitivity
from ..report import Report
from ..report.layers import in_model_order, label
from ..specs import OUTSIDE, Layer, check_scale, parse_layers
from .subject import Subject

__all__ = ["AdaptiveNoise"]

_Value = TypeVar("_Value")
Group: TypeAlias = Literal["protect", "normal", "aggressive", "equal"]

FACTORS = (0.5, 1.0, 2.0)
"""of layers to protect, normal ones, and ones to be aggressive with"""


@dataclass(frozen=True)
class AdaptiveNoise:
    """Layer -> factor of the base scale. Make one with `from_report` or `equalize`; print it for a table.

    Noise that adapts goes to the layers that have a factor, and to no others.
    """

    factors: Mapping[Layer, float]
    minded: Mapping[Layer, float] = field(default_factory=dict)
    """layer -> what noise costs there: a share of accuracy, or a KL in nats per token where contributions are equal"""
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
        for name in ("factors", "minded", "groups"):
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
        return cls({layer: of[group] for layer, group in groups.items()}, dict(degradation), groups, subject=subject)

    @classmethod
    def equalize(
        cls,
        report: Report | str | Path,
        *,
        layers: int | str | Iterable[int | str] | None = None,
        operators: str | Iterable[str] | None = None,
    ) -> "AdaptiveNoise":
        """Factors with which every layer contributes the same KL, and all together what they did with one scale.

        The report foretells it. `equalize_contributions` measures, and corrects; worth it for single operators, which a
        report of few samples knows less well than whole layers.

        Args:
            report: of `diagnose`, or where it is.
            layers: those that get noise; None: the decoder blocks.
            operators: those that get noise, whose cells of the report's map are added up; None: all that the report is
                about.
        """
        found = _opened(report)
        chosen = expand(operators)
        if chosen is not None:
            kl = _of_operators(found, chosen)
        else:
            kl = {layer: known.value for layer, known in layer_sensitivity(found).items()}
            chosen = expand(found.sections["config"].get("operators"))
        blocks = [layer for layer in kl if isinstance(layer, int)]
        return cls.equalized(
            _only(kl, blocks if layers is None else layers),
            operators=chosen,
            error_type=str(found.sections["config"]["error_type"]),
            subject=Subject.of_report(found),
        )

    @classmethod
    def equalized(
        cls,
        kl_nats: Mapping[Layer, float],
        *,
        operators: tuple[str, ...] | None = None,
        error_type: str | None = None,
        subject: Subject | None = None,
    ) -> "AdaptiveNoise":
        """The same from layer -> KL at one scale, however it was measured."""
        for layer, kl in kl_nats.items():
            if not 0 < kl < inf:
                raise InputError(
                    f"{label(layer)}: got a KL of {kl:.3g}, expected a number > 0: it cannot be made equal"
                )
        mean = sum(kl_nats.values()) / max(1, len(kl_nats))
        return cls(
            {layer: sqrt(mean / kl) for layer, kl in kl_nats.items()},
            dict(kl_nats),
            dict.fromkeys(kl_nats, "equal"),
            operators,
            error_type,
            subject,
        )

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
        equal = self.is_equal
        lines = [f"{'layer':<12}{'KL, nats/token' if equal else 'accuracy lost':>14}   {'group':<12}{'factor':>8}"]
        for layer in self.layers:
            cost = self.minded.get(layer)
            shown = "" if cost is None else f"{cost:.4g}" if equal else f"{100 * cost:.1f} %"
            lines.append(f"{label(layer):<12}{shown:>14}   {self.groups.get(layer, ''):<12}{self.factors[layer]:>8.3g}")
        return "\n".join(lines)


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


def _of_operators(report: Report, operators: Iterable[str]) -> dict[Layer, float]:
    wanted, found = set(operators), dict[Layer, float]()
    cells: Iterable[Mapping[str, Any]] = report.sections["map"].get("cells", ())
    for cell in cells:
        if cell["operator"] in wanted:
            found[cell["layer"]] = found.get(cell["layer"], 0.0) + cell["kl"]["value"]
    if not found:
        raise InputError(f"operators: the map of the report has no cell of {' '.join(sorted(wanted))}")
    return {layer: found[layer] for layer in in_model_order(found)}


def _only(known: Mapping[Layer, float], layers: int | str | Iterable[int | str] | None) -> dict[Layer, float]:
    wanted = parse_layers(layers)
    if wanted is None:
        return dict(known)
    if missing := [layer for layer in wanted if layer not in known]:
        raise InputError(f"layers: the report tells nothing of {_listed(missing)}; it has {_listed(known)}")
    return {layer: known[layer] for layer in in_model_order(wanted)}


def _listed(layers: Iterable[Layer]) -> str:
    return " ".join(label(layer) for layer in in_model_order(layers)) or "nothing"
