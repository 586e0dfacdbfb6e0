"""A comparison as plain values: what is saved, and what every page of it is rendered from."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import inf, prod
from typing import Any

from ..traces import Trace
from .blaming import LayerRow
from .judging import Judged
from .pairing import Pairing
from .ranking import Repair

__all__ = ["sections_of", "trace_section"]


def sections_of(
    a: Trace,
    b: Trace,
    *,
    differences: dict[str, tuple[object, object]],
    pairing: Pairing,
    sites: Sequence[Judged],
    fed: Sequence[Judged],
    first: Judged | None,
    layers: Sequence[LayerRow],
    repairs: Iterable[Repair],
    unit: float | None,
    fed_by_another: bool,
) -> dict[str, Any]:
    """All sections, in the order in which they are read."""
    bits = next((site for site in sites if not site.same_bits), None)
    return {
        "schema": "noisescope comparison",
        "version": 1,
        "verdict": {
            "outcome": _outcome(first, judged=unit is not None or bits is None),
            "first": first.site.name if first is not None else None,
            "stage": first.site.stage if first is not None else None,
            "phase": first.site.phase if first is not None else None,
            "first_in_bits": bits.site.name if bits is not None else None,
            "sources": [row.layer for row in layers if row.role == "source"],
            "fed": bool(fed),
            "fed_by_another": fed_by_another,
        },
        "traces": {"reference": trace_section(a), "suspect": trace_section(b)},
        "differences": [
            {"field": name, "reference": _plain(mine), "suspect": _plain(other)}
            for name, (mine, other) in differences.items()
        ],
        "floor": _floor(a, unit),
        "layers": [_layer(row) for row in layers],
        "repairs": [asdict(repair) for repair in repairs],
        "sites": [_site(site) for site in sites],
        "fed": [_site(site) for site in fed],
        "missing": {
            "only_reference": list(pairing.only_first),
            "only_suspect": list(pairing.only_second),
            "unlike": list(pairing.unlike),
        },
    }


def _outcome(first: Judged | None, *, judged: bool) -> str:
    if first is not None:
        return "diverges"
    return "within the noise floor" if judged else "inconclusive"


def trace_section(trace: Trace) -> dict[str, Any]:
    """What a trace is of."""
    head = trace.head
    full = sum(site.whole_bytes for site in head.sites if site.run == "free")
    kept = trace.sketch.numel() * 4 + trace.sample.numel() * trace.sample.element_size()
    return {
        "file": trace.name,
        "model": head.model,
        "layers": head.layers,
        "data": head.data,
        "tokens": sum(prod(shape) for shape in head.passes),
        "passes": [list(shape) for shape in head.passes],
        "decode": head.decode,
        "checkpoint": head.checkpoint,
        "weights": head.weights,
        "environment": {name: _plain(value) for name, value in asdict(head.environment).items()},
        "sites": len(head.sites),
        "bytes_kept": kept,
        "bytes_of_all_values": full,
    }


def _floor(a: Trace, unit: float | None) -> dict[str, Any] | None:
    if unit is None or a.head.floor is None:
        return None
    return {"unit": unit, "tokens": a.head.floor.tokens, "factor": a.head.floor.factor, "of": a.name}


def _layer(row: LayerRow) -> dict[str, Any]:
    return {
        "layer": row.layer,
        "role": row.role,
        "word": row.word,
        "added": row.added,
        "inherited": row.inherited,
        "error": row.error,
        "gain": row.gain,
        "mape": row.mape,
        "beyond": row.beyond,
        "first": row.first.site.name if row.first is not None else None,
        "stage": row.first.site.stage if row.first is not None else None,
    }


def _site(judged: Judged) -> dict[str, Any]:
    site, metrics = judged.site, asdict(judged.metrics)
    return {
        "name": site.name,
        "layer": site.layer,
        "operator": site.operator,
        "module": site.module,
        "stage": site.stage,
        "phase": site.phase,
        "count": site.count,
        "same_bits": judged.same_bits,
        "exact": judged.exact,
        "non_finite": list(judged.non_finite),
        "floor": judged.floor,
        "tolerance": judged.tolerance,
        "excess": judged.excess if judged.excess < inf else None,
        "beyond": judged.beyond,
        "metrics": metrics,
    }


def _plain(value: object) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else value
