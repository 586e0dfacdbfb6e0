"""Which site of one trace is which of the other, and whether the two may be compared at all.

They must be of the same tokens, layers and weights. Where they were made is what is being compared.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ..errors import InputError
from ..traces import SiteHead, Trace

__all__ = ["Pair", "Pairing", "differences", "pair_up", "refuse"]

_ADVICE = {
    "tokens": "run both on the same data, --n-samples, --max-length, --decode and --seed",
    "seed": "make both with the same --seed",
    "structure": "these are two models; where only names differ, give --map",
    "layers": "these are two models",
    "checkpoint": "these were loaded from different weights",
    "weights": "these hold different weights",
}


@dataclass(frozen=True)
class Pair:
    """One site in both traces, by its place in each."""

    site: SiteHead
    """as the first trace names it"""
    other: SiteHead
    first: int
    second: int

    @property
    def comparable(self) -> bool:
        """True if both have as many elements in every call."""
        return self.site.sizes == self.other.sizes


@dataclass(frozen=True)
class Pairing:
    """What was found on both sides, in the order of the first trace, and what on one side only."""

    pairs: tuple[Pair, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    unlike: tuple[str, ...]
    """sites with other numbers of elements, or that are not the same values"""


def refuse(a: Trace, b: Trace, *, renamed: bool = False) -> None:
    """Raises for two traces of different models or data, naming the field.

    Where modules are called otherwise, so are parameters and files: neither tells whether the weights are the same.
    """
    for field in ("tokens", "layers", "seed") if renamed else ("tokens", "layers", "structure", "checkpoint", "seed"):
        mine, other = getattr(a.head, field), getattr(b.head, field)
        if mine is not None and other is not None and mine != other:
            raise InputError(_refusal(a, b, field, mine, other))
    if not renamed:
        _refuse_weights(a, b)


def _refuse_weights(a: Trace, b: Trace) -> None:
    """Without both files' digests, weights can be told apart in the same dtype only."""
    mine, other = a.head.weights, b.head.weights
    same_dtype = a.head.environment.dtype == b.head.environment.dtype
    known = a.head.checkpoint is not None and b.head.checkpoint is not None
    if not known and mine is not None and other is not None and same_dtype and mine != other:
        raise InputError(_refusal(a, b, "weights", mine, other))


def _refusal(a: Trace, b: Trace, field: str, mine: object, other: object) -> str:
    names = f"{a.name or 'the first trace'} and {b.name or 'the second'}"
    shown = [str(value)[:16] for value in (mine, other)]
    if field == "tokens" and a.head.passes != b.head.passes:
        shown = [", ".join("x".join(map(str, shape)) for shape in trace.head.passes[:3]) for trace in (a, b)]
    return f"{names}: different {field} ({shown[0]}, {shown[1]}); {_ADVICE[field]}"


def differences(a: Trace, b: Trace) -> dict[str, tuple[object, object]]:
    """Field of the environment -> what it is in each; only those that differ.

    Numbers that the model was given, other than tokens, are among them: two devices may round them otherwise.
    """
    mine, other = (asdict(trace.head.environment) | _given(trace) for trace in (a, b))
    return {name: (mine[name], other[name]) for name in mine if mine[name] != other[name]}


def _given(trace: Trace) -> dict[str, object]:
    return {"inputs": " ".join(f"{given.dtype}:{given.bits}" for given in trace.head.inputs)}


def pair_up(a: Trace, b: Trace, *, run: str = "free") -> Pairing:
    """The free sites of the first with those of a run of the second.

    Gradients at attention are of queries, keys and values where it is one kernel, and of probabilities and values where
    it runs in steps: with other attention they are not the same, whatever they are called.
    """
    alike = a.head.environment.attention == b.head.environment.attention
    others = {key: at for at, key in _keys(b, run)}
    pairs, missing, unlike, taken = [], [], [], set()
    for at, key in _keys(a, "free"):
        found = others.get(key)
        if found is None:
            missing.append(a.sites[at].name)
            continue
        taken.add(found)
        pair = Pair(a.sites[at], b.sites[found], at, found)
        if pair.comparable and (alike or (pair.site.operator, pair.site.phase) != ("attention", "backward")):
            pairs.append(pair)
        else:
            unlike.append(pair.site.name)
    left = [b.sites[at].name for at in others.values() if at not in taken]
    return Pairing(tuple(pairs), tuple(missing), tuple(left), tuple(unlike))


def _keys(trace: Trace, run: str) -> Iterator[tuple[int, tuple[object, ...]]]:
    for at, site in enumerate(trace.sites):
        if site.run == run:
            yield at, (site.stage, site.phase, site.module, site.operator, site.call, site.part)
