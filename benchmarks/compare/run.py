"""How often `compare` names the right site, source and amplifiers, how true its estimates are, and what it costs.

    python benchmarks/compare/run.py                 all parts, about an hour on two cores
    python benchmarks/compare/run.py faults cost     some of them

faults       the default model, 2 x 32 tokens, float32 and bfloat16: a stratified sample of faults and emulated devices
             over layers, operators, kinds, magnitudes and shares of channels; some two at once
coverage     the default model: how often the interval of each metric covers the exact value, over seeds of the sketch
cost         the default model, 8 x 128 tokens: time of recording as a ratio to the bare forward, bytes, time to compare

Honest devices are in `honest.py`.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import torch

import noisescope as ns
from noisescope.comparing.estimating import METRICS, Side, estimate, exact
from noisescope.devices import DEVICES
from noisescope.errors import NoisescopeError
from noisescope.faults import FAULTS
from noisescope.models import load
from noisescope.sites import Layout
from noisescope.traces import Trace
from noisescope.traces.passes import open_passes
from noisescope.traces.running import _Job, wanted_sites
from noisescope.traces.sketch import Sketcher
from noisescope.traces.tally import SiteTally

HERE = Path(__file__).parent
DTYPES = ("float32", "bfloat16")
Row = dict[str, Any]


# --- faults -----------------------------------------------------------------------------------------------------


def faults(count: int = 480, pairs: int = 80) -> Row:
    """Single faults and devices, then two at once."""
    rows: list[Row] = []
    for dtype in DTYPES:
        loaded = load(dtype=dtype)
        reference = ns.trace(loaded.model, tokenizer=loaded.tokenizer, n_samples=2, max_length=32, inputs=True)
        draw = random.Random(len(rows))
        singles = list(_drawn(reference, draw, count // len(DTYPES)))
        both = [(*one, *other) for one, other in zip(singles, reversed(singles), strict=True)]
        apart = [pair for pair in both if _layer(pair[0]) != _layer(pair[1])][: pairs // len(DTYPES)]
        for what in [*singles, *apart]:
            row = _trial(loaded.model, reference, what)
            rows.append({"dtype": dtype, "what": list(what), **row})
            print(dtype, what, {name: row[name] for name in ("outcome", "first_is_right", "wrong_roles")}, flush=True)
    return {"summary": _summary(rows), "rows": rows}


def _drawn(reference: Trace, draw: random.Random, count: int) -> Iterator[tuple[str]]:
    """Layers in turn, so that each is tried as often; operators, kinds and magnitudes at random."""
    layers = [*range(reference.head.layers), "embed", "final_norm", "head"]
    deviant = [name for name, row in DEVICES.items() if not row.honest]
    for at in range(count):
        layer = layers[at % len(layers)]
        if at % 8 == 7 and isinstance(layer, int):
            yield (f"{draw.choice(deviant)}@{layer}",)
            continue
        site = draw.choice([site for site in reference.sites if site.layer == layer])
        kinds = [kind for kind, row in FAULTS.items() if site.operator in (row.operators or (site.operator,))]
        kind = draw.choice(kinds)
        size = FAULTS[kind].documented * (1 if FAULTS[kind].whole else draw.choice((1, 0.1, 0.01)))
        yield (f"{kind}:{size:g}@{site.name},sparsity={draw.choice((1, 0.1, 0.01)):g},seed={at}",)


def _layer(what: str) -> str:
    place = what.split("@")[1].split(",", maxsplit=1)[0]
    return place if place.isdecimal() else ".".join(place.split(".")[:3])


def _trial(model: torch.nn.Module, reference: Trace, what: tuple[str, ...]) -> Row:
    try:
        with ns.emulate(model, what, inputs=dict(reference.ids[0])) as device:
            suspect = ns.trace(model, inputs_from=reference, floor=False)
    except NoisescopeError as error:
        return {"outcome": "not possible", "why": str(error), "first_is_right": None, "wrong_roles": []}
    found = ns.compare(reference, suspect)
    changed = device.first_changed
    names = {site.name for site in reference.sites}
    truth = None if changed is None else changed.name
    if changed is not None and truth not in names:
        truth = f"{changed.module}.attention.0.forward"
    if all(site.same_bits for site in found.sites) or any(member.inert for member in device.members):
        return {"outcome": "inert", "truth": truth, "first_is_right": None, "wrong_roles": []}
    layers = {member.first_changed.layer for member in device.members}
    order = [row.layer for row in found.layers]
    start = min(order.index(layer) for layer in layers)
    expected = {
        layer: "source" if layer in layers else "clean" if at < start else "amplifier" for at, layer in enumerate(order)
    }
    first = found.first.site.name if found.first is not None else None
    return {
        "outcome": found.outcome,
        "truth": truth,
        "first": first,
        "first_in_bits": found.sections["verdict"]["first_in_bits"],
        "first_is_right": first == truth if first is not None else None,
        "sources": list(found.sources),
        "layers": [str(layer) for layer in layers],
        "wrong_roles": [(str(row.layer), row.role) for row in found.layers if row.role != expected[row.layer]]
        if first is not None
        else [],
        "downstream": sum(role == "amplifier" for role in expected.values()),
        "excess": min(max(site.excess for site in found.sites), 1e300),
    }


def _summary(rows: list[Row]) -> Row:
    out = [row for row in rows if row["outcome"] == "diverges"]
    below = [row for row in rows if row["outcome"] == "within the noise floor"]
    named = [role for row in out for role in row["wrong_roles"]]
    sources = sum(
        not any(role == "source" or layer in row["layers"] for layer, role in row["wrong_roles"]) for row in out
    )
    down = sum(row["downstream"] for row in out)
    wrong_down = sum(role in ("clean", "source", "unknown") for _, role in named)
    return {
        "trials": len(rows),
        "not_possible": sum(row["outcome"] == "not possible" for row in rows),
        "inert": sum(row["outcome"] == "inert" for row in rows),
        "below_the_floor": len(below),
        "below_the_floor_first_in_bits_right": sum(row["first_in_bits"] == row["truth"] for row in below),
        "diverging": len(out),
        "first_is_right": _rate(sum(bool(row["first_is_right"]) for row in out), len(out)),
        "sources_right": _rate(sources, len(out)),
        "downstream_layers_named_amplifiers": _rate(down - wrong_down, down),
        "two_at_once": sum(len(row["what"]) == 2 for row in out),
    }


def _rate(hits: int, of: int) -> Row:
    if not of:
        return {"hits": 0, "of": 0}
    share, z = hits / of, 1.96
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    reach = z / (1 + z * z / of) * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return {
        "hits": hits,
        "of": of,
        "share": round(share, 4),
        "interval": [round(centre - reach, 4), round(centre + reach, 4)],
    }


# --- estimates --------------------------------------------------------------------------------------------------


def coverage(seeds: int = 60) -> Row:
    """Sites and suspects of several kinds, each sketched and sampled under many seeds."""
    loaded = load()
    given: Row = {"tokenizer": loaded.tokenizer, "n_samples": 2, "max_length": 32, "full": True, "floor": False}
    a = ns.trace(loaded.model, **given)
    hits: dict[str, list[bool]] = {metric: [] for metric in METRICS}
    for what in ("noise:0.01@3.linear", "tf32", "saturation:0.2@15.linear", "bf16_accumulation@9"):
        b = ns.trace(loaded.model, **given, emulate=what)
        for number in range(60, len(a.sites), 37):
            sides = [Side(trace.sites[number], trace.sketch[number], trace.sample[number]) for trace in (a, b)]
            if sides[0].head.bits == sides[1].head.bits:
                continue
            truth = exact(*sides, a.full[number](), b.full[number]())
            for seed in range(seeds):
                guess = estimate(*(_again(trace, number, seed) for trace in (a, b)))
                for metric in METRICS:
                    value, interval = getattr(truth, metric).value, getattr(guess, metric)
                    slack = 1e-9 * max(abs(value), 1.0)
                    hits[metric].append(interval.low - slack <= value <= interval.high + slack)
    return {"stated": 0.95, "rates": {metric: _rate(sum(found), len(found)) for metric, found in hits.items()}}


def _again(trace: Trace, number: int, seed: int) -> Side:
    tally = SiteTally(seed)
    for value in trace.full[number]():
        tally.fold(value, Sketcher(seed, torch.device("cpu")))
    record = tally.read()
    return Side(replace(trace.sites[number], bits=record.bits), record.sketch, record.sample)


# --- cost -------------------------------------------------------------------------------------------------------


def cost(rounds: int = 31) -> Row:
    """Recording takes turns with the bare forward; the noise floor and the rest of a trace are apart."""
    found: Row = {dtype: _cost(dtype, rounds) for dtype in DTYPES}
    loaded = load()
    found["compare_500_sites_s"] = _compare_500(ns.trace(loaded.model, tokenizer=loaded.tokenizer, checkpoint="x"))
    return found


def _cost(dtype: str, rounds: int) -> Row:
    loaded = load(dtype=dtype)
    model = loaded.model
    passes = open_passes(None, model, loaded.tokenizer)
    job = _Job(model, Layout.of(model), passes, None, wanted_sites(None, backward=False), 0, False, False)
    with torch.no_grad():
        recording = _ratio(lambda: model(**passes.batches[0]), job.record, rounds)
    start = time.perf_counter()
    whole = ns.trace(model, tokenizer=loaded.tokenizer, checkpoint="x")
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as home:
        size = whole.save(Path(home) / "a.trace").stat().st_size
    values = sum(site.count * (4 if dtype == "float32" else 2) for site in whole.sites)
    return {
        "tokens": passes.tokens,
        "sites": len(whole.sites),
        "recording": recording,
        "trace_with_floor_in_bare_forwards": round(seconds / recording["bare_median_s"], 2),
        "file_bytes": size,
        "bytes_of_all_values": values,
        "smaller_by": round(values / size),
    }


def _ratio(bare: Callable[[], object], run: Callable[[], object], rounds: int) -> Row:
    """Each time over the mean of the bare forwards just before and after it: the median over rounds.

    Beside it the ratio of the times that a quarter of the runs stay below: others on the machine matter least there.
    """
    for _ in range(2):
        bare(), run()
    alone, taken, found = [_seconds(bare)], [], []
    for _ in range(rounds):
        taken.append(_seconds(run))
        alone.append(_seconds(bare))
        found.append(taken[-1] / statistics.mean(alone[-2:]))
    ranked = sorted(found)
    return {
        "ratio": round(statistics.median(found), 3),
        "interval": [round(ranked[rounds // 5], 3), round(ranked[-1 - rounds // 5], 3)],
        "ratio_of_fastest_quarters": round(statistics.quantiles(taken)[0] / statistics.quantiles(alone)[0], 3),
        "rounds": rounds,
        "bare_median_s": round(statistics.median(alone), 3),
    }


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _compare_500(trace: Trace) -> float:
    """Two traces of 500 sites each, that differ everywhere."""
    head = trace.head
    sites = tuple(
        replace(site, name=f"{site.name} {n}", module=f"{site.module}.{n}", bits="0")
        for n, site in ((n, head.sites[n % len(head.sites)]) for n in range(500))
    )
    rows = torch.arange(500) % len(head.sites)
    a = replace(trace, head=replace(head, sites=sites), sketch=trace.sketch[rows], sample=trace.sample[rows])
    b = replace(a, sketch=a.sketch * 1.001, sample=a.sample * 1.001)
    b = replace(b, head=replace(b.head, sites=tuple(replace(site, bits="1") for site in sites)))
    return round(statistics.median(_seconds(lambda: ns.compare(a, b)) for _ in range(5)), 3)


PARTS = {"faults": faults, "coverage": coverage, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    given = parser.parse_args()
    found = json.loads(given.output.read_text()) if given.output.exists() else {}
    for part in given.parts:
        found[part] = PARTS[part]()
        found["machine"] = {
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        }
        given.output.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(found[part].get("summary", found[part]), indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
