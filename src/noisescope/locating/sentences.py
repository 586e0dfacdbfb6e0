"""What each method found, in a sentence; and what speaks against one operator."""

from collections.abc import Iterator, Mapping, Sequence

from .tracing import Plan, Row
from .verdict import Evidence
from .weights import WeightCheck

__all__ = ["against", "evidence_of"]


def evidence_of(
    rows: Sequence[Row], plan: Plan, weights: WeightCheck | None, spent: Mapping[str, float]
) -> Iterator[Evidence]:
    """A line for each method that was used; `spent` are forward passes by stage."""
    if plan.runs > 1:
        yield Evidence("repeat", _repeat(rows, plan), spent.get("repeat", 0.0))
    if plan.host:
        yield Evidence("host", _host(rows), spent.get("host", 0.0))
    if plan.identities:
        yield Evidence("identities", _identities(rows), spent.get("identities", 0.0))
    if weights is not None:
        yield Evidence("weights", _weights(weights), 0.0)


def against(row: Row) -> Iterator[str]:
    """What speaks against the operator of one call."""
    if not row.finite:
        yield "gives values that are not finite"
    if row.host is not None and row.convicted and row.host.rule == "bits":
        yield f"host: {row.host.bad} of {row.host.elements} elements are not the host's, where nothing is rounded"
    elif row.host is not None and row.convicted:
        yield (
            f"host: {row.host.bad} of {row.host.elements} elements are off, "
            f"by up to {_figure(row.host.ratio)} times the rounding bound"
        )
    if row.differing:
        yield f"repeat: {row.differing} of {row.elements} elements come out otherwise when it is asked again"
    for failure in row.failures:
        yield f"identities: {failure.identity}: fails in {failure.bad} of {failure.elements} elements"


def _figure(ratio: float | None) -> str:
    """Three digits, or as a whole number with thousands apart."""
    assert ratio is not None
    return f"{ratio:,.0f}" if 1000 <= ratio < 1e9 else f"{ratio:.3g}"


def _weights(weights: WeightCheck) -> str:
    if weights.changed:
        return f"{len(weights.changed)} of {weights.checked} tensors are not those of the file"
    return f"all {weights.checked} tensors are those of the file"


def _repeat(rows: Sequence[Row], plan: Plan) -> str:
    differ = [row for row in rows if row.differing]
    if not differ:
        return f"clean ({plan.runs} runs of {len(rows)} calls)"
    beyond = [row for row in differ if row.beyond]
    if beyond:
        return f"first difference  {beyond[0].site.name}   {beyond[0].differing} of {beyond[0].elements} elements"
    return f"{len(differ)} calls come out otherwise every time, within rounding; first {differ[0].site.name}"


def _host(rows: Sequence[Row]) -> str:
    off = [row for row in rows if row.convicted and row.faulty]
    if off:
        first = off[0]
        assert first.host is not None
        return (
            f"first deviation  {first.site.name}   {first.host.bad} of {first.host.elements} elements, "
            f"{_figure(first.host.ratio)} x the rounding bound"
        )
    excused = sum(row.excused for row in rows)
    judged = sum(row.host is not None and row.host.judged for row in rows)
    more = f", {excused} by the precision mode" if excused else ""
    return f"{judged} calls within their rounding bounds{more}"


def _identities(rows: Sequence[Row]) -> str:
    off = [row for row in rows if row.failures and row.faulty]
    asked = sum(len(row.identities) for row in rows)
    if not off:
        return f"{asked} hold at {sum(bool(row.identities) for row in rows)} calls"
    names = ", ".join(failure.identity for failure in off[0].failures)
    more = f"; and at {len(off) - 1} more calls" if len(off) > 1 else "; nowhere else"
    return f"{names}: fails at {off[0].site.name}{more}"
