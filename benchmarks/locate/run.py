"""How often `locate` names the right operator, and how small a fault may be; results go to results.json beside this.

python benchmarks/locate/run.py                       all parts, about an hour and a half on two cores
python benchmarks/locate/run.py outputs operators     some of them

outputs      the default model, 2 x 32 tokens: faults of a block's output, a stratified sample of kinds, magnitudes,
             shares of channels, layers and dtypes, each in a pass of its own
operators    the same for faults at the operators inside blocks, at embed, final_norm and head
families     models of ten families with random weights: kinds, magnitudes and sites drawn at random
limits       the Llama fixture: the smallest magnitude of each kind that is found in 95% of 60 trials
intermittent the Llama fixture: faults that strike a call now and then, looked for with several runs
identities   the Llama fixture: which identity sees which kind of fault, by itself
cost         the default model: time against a bare pass
memory       the default model: memory beyond a bare pass, forward passes
"""

import argparse
import ctypes
import json
import os
import platform
import random
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noisescope.diagnosis.prompts import open_prompts
from noisescope.errors import InputError, NothingMatched
from noisescope.faults import FAULTS, Fault, Survey
from noisescope.locating import locate
from noisescope.models import load
from noisescope.sites import Layout

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "unit" / "locating")]

from grid import DOCUMENTED as KINDS  # noqa: E402 - the tests' own list
from grid import NAMES as NAMED  # noqa: E402

SHARES = (1.0, 0.1, 0.01)
"""of the documented magnitude"""
CHANNELS = (1.0, 0.1, 0.01, 1e-9)
"""of the channels; the last is a single one"""
Row = dict[str, Any]


def trial(model: nn.Module, inputs: dict[str, Any], fault: Fault, **options: Any) -> Row:
    """One pass with one fault: whether it did anything, whether it was named, and who else was blamed."""
    verdict = locate(model, inputs, simulate=[fault], **options)
    truth = verdict.sections["truth"][0]
    first = verdict.sites[0] if verdict.sites else None
    hit = truth["rank"] == 1
    return {
        "fault": str(fault),
        "site": truth["site"],
        "operator": truth["operator"],
        "inert": truth["inert"],
        "rank": truth["rank"],
        "layer_rank": truth["layer_rank"],
        "others": [s.name for s in verdict.sites if s.module != truth["site"].rsplit(f".{truth['operator']}", 1)[0]],
        "kind": fault.kind,
        "named": first.kind if first is not None and hit else None,
        "magnitude": fault.size,
        "sparsity": fault.sparsity,
        "forwards": round(verdict.sections["cost"]["forward_pass_equivalents"], 2),
    }


def share(hits: int, of: int) -> dict[str, Any]:
    """A share with its 95% interval by Wilson; the rule of three where nothing, or everything, was hit."""
    if not of:
        return {"hits": 0, "of": 0}
    z, p = 1.96, hits / of
    middle, half = (
        (p + z * z / (2 * of)) / (1 + z * z / of),
        z * sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of),
    )
    return {"hits": hits, "of": of, "share": p, "low": max(0.0, middle - half), "high": min(1.0, middle + half)}


def summary(rows: Sequence[Row]) -> Row:
    """Hits over placements that changed a bit; the inert beside them."""
    effective = [row for row in rows if not row["inert"]]
    hits = [row for row in effective if row["rank"] == 1]
    return {
        "trials": len(rows),
        "inert": share(len(rows) - len(effective), len(rows)),
        "top1": share(len(hits), len(effective)),
        "top3": share(sum((row["rank"] or 9) <= 3 for row in effective), len(effective)),
        "layer_top1": share(sum(row["layer_rank"] == 1 for row in effective), len(effective)),
        "others_blamed": share(sum(bool(row["others"]) for row in effective), len(effective)),
        "kind": share(sum(row["named"] == NAMED[row["kind"]] for row in hits), len(hits)),
        "misses": [row["fault"] for row in effective if row["rank"] != 1],
    }


def by(rows: Sequence[Row], key: Callable[[Row], Any]) -> Row:
    """The summary of each group."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(key(row)), []).append(row)
    return {name: summary(group) for name, group in groups.items()}


def with_default_model(dtype: str) -> tuple[nn.Module, dict[str, Any]]:
    loaded = load(dtype=dtype)
    return loaded.model, open_prompts(None, loaded.model, loaded.tokenizer)


def outputs(trials: int) -> Row:
    """Stratified: every layer, kind, magnitude and share of channels equally often, in both dtypes."""
    rows = []
    for dtype in ("float32", "bfloat16"):
        model, inputs = with_default_model(dtype)
        layers = len(Layout.of(model).blocks)
        cells = [(kind, part, 1.0) for kind in KINDS for part in SHARES]
        cells += [(kind, 1.0, channels) for kind in KINDS for channels in CHANNELS[1:]]
        for number in range(trials // 2):
            kind, part, channels = cells[number % len(cells)]
            layer = (number * 7 + number // layers) % layers
            fault = Fault(kind, part * KINDS[kind], str(layer), channels, seed=number)
            rows.append({**trial(model, inputs, fault, budget=6), "dtype": dtype, "part": part})
            tell(rows)
    return {
        "all": summary(rows),
        "by_kind": by(rows, lambda row: row["kind"]),
        "by_part": by(rows, lambda row: (row["part"], row["sparsity"])),
        "by_dtype": by(rows, lambda row: row["dtype"]),
    }


OPERATORS = ("linear", "matmul", "softmax", "silu", "rms_norm", "residual", "mul", "add", "attention")
OUTSIDE = ("embed", "final_norm", "head")


def operators(trials: int) -> Row:
    """Every operator and kind in turn, layers drawn at random, documented magnitudes."""
    rows, dice = [], random.Random(0)
    for dtype in ("float32", "bfloat16"):
        model, inputs = with_default_model(dtype)
        layers = len(Layout.of(model).blocks)
        cells = [(site, kind) for site in (*OPERATORS, *OUTSIDE) for kind in kinds_at(site)]
        dice.shuffle(cells)
        for number in range(trials // 2):
            site, kind = cells[number % len(cells)]
            place = site if site in OUTSIDE else f"{dice.randrange(layers)}.{site}"
            rows.append({**trial(model, inputs, Fault(kind, None, place, seed=number)), "dtype": dtype})
            tell(rows)
    apart = [row for row in rows if is_apart(row)]
    rest = [row for row in rows if not is_apart(row)]
    return {
        "all": summary(rest),
        "fine_rounding_in_products": summary(apart),
        "by_operator": by(rest, lambda row: row["operator"]),
        "by_kind": by(rest, lambda row: row["kind"]),
        "by_dtype": by(rest, lambda row: row["dtype"]),
        "forwards": max(row["forwards"] for row in rows),
    }


def is_apart(row: Row) -> bool:
    """Rounding beyond 12 kept bits in float32 products, which is reported apart."""
    products = ("linear", "matmul", "bmm", "attention")
    return row["kind"] == "wrong_rounding" and row.get("dtype") == "float32" and row["operator"] in products


def kinds_at(site: str) -> list[str]:
    operator = {"embed": "embedding", "final_norm": "rms_norm", "head": "linear"}.get(site, site)
    return [name for name, row in FAULTS.items() if row.operators is None or operator in row.operators]


MAGNITUDES = {
    "dead_zone": (0.5, 0.1, 0.02),
    "saturation": (0.5, 0.1, 0.03),
    "bias": (1.0, 0.1, 0.02),
    "noise": (0.5, 0.05, 0.005),
    "spike": (1.0, 3.0),
    "gain": (-0.3, 0.1, 0.01),
    "bit_flip": (0.01, 0.002),
    "stuck_at": (0.02, 0.1),
    "wrong_rounding": (4, 5, 6),
    "low_precision_accumulate": (3, 5, 7),
    "lut_exp": (0.5, 0.1, 0.02),
}


def families(trials: int) -> Row:
    """Sites, kinds, magnitudes and shares that nothing here was written on."""
    from families import build, tokens

    dice, rows = random.Random(1), []
    names = ("llama", "qwen2", "qwen3", "gemma3", "mixtral", "olmo", "cohere", "gpt2", "gptj", "gpt_neox", "bloom")
    while len(rows) < trials:
        family, dtype = dice.choice(names), dice.choice(("float32", "bfloat16"))
        attn = dice.choice((None, "eager"))
        model = build(family, attn=attn, seed=dice.randrange(1000)).to(getattr(torch, dtype))
        inputs = tokens(family, seed=dice.randrange(1000))
        sites = [site for site in Survey.of(model, Layout.of(model), inputs).sites if site.operator in FAULTY]
        for _ in range(6):
            site, kind = dice.choice(sites), dice.choice(list(FAULTS))
            place = dice.choice((f"{site.module}.{site.operator}", str(dice.randrange(3))))
            fault = Fault(kind, dice.choice(MAGNITUDES[kind]), place, dice.choice((1.0, 1.0, 0.1)), seed=len(rows))
            try:
                rows.append({**trial(model, inputs, fault), "family": family, "dtype": dtype})
            except (InputError, NothingMatched):  # a kind that does not exist there
                continue
            tell(rows)
    rest = [row for row in rows if not is_apart(row)]
    confused = Counter((row["kind"], row["named"]) for row in rest if row["named"])
    return {
        "all": summary(rest),
        "fine_rounding_in_products": summary([row for row in rows if is_apart(row)]),
        "by_family": by(rest, lambda row: row["family"]),
        "by_kind": by(rest, lambda row: row["kind"]),
        "named_as": [{"kind": kind, "named": named, "times": times} for (kind, named), times in confused.items()],
    }


FAULTY = ("linear", "matmul", "bmm", "softmax", "silu", "gelu", "layer_norm", "rms_norm", "residual", "mul", "add")
SWEEPS = {
    "dead_zone": [10.0**-e for e in range(1, 9)],
    "saturation": [10.0**-e for e in range(1, 8)],
    "bias": [10.0**-e for e in range(1, 10)],
    "noise": [10.0**-e for e in range(1, 10)],
    "gain": [10.0**-e for e in range(1, 8)],
    "wrong_rounding": [10, 8, 6, 5, 4, 3, 2, 1],
    "lut_exp": [2.0**-e for e in range(2, 22, 2)],
}
BITS = {"float32": 23, "bfloat16": 7}
PLACES = {"block output": "", "linear": ".mlp.up_proj.linear", "rms_norm": ".rms_norm", "softmax": ".softmax"}


def limits(trials: int) -> Row:
    """Downwards from large: the last magnitude that is found in 95% of the effective trials.

    A pass has the fault at the same place of every layer, which are as many trials; every pass has other tokens.
    """
    from trained import fixture

    found: Row = {}
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = fixture("llama")
        model = model.to(getattr(torch, dtype))
        layers = len(Layout.of(model).blocks)
        passes = -(-trials // layers)
        batches = [open_prompts(None, model, tokenizer, seed=seed, tokens=16) for seed in range(passes)]
        for kind, magnitudes in SWEEPS.items():
            for place, site in PLACES.items():
                if kind == "lut_exp" and place != "softmax":
                    continue
                some = [size for size in magnitudes if kind != "wrong_rounding" or size <= BITS[dtype]]
                one = sweep(model, batches, kind, some, [f"{layer}{site}" for layer in range(layers)])
                found.setdefault(dtype, {}).setdefault(kind, {})[place] = one
                print(dtype, kind, place, one["limit"], one["ends_inert"], flush=True)
    return found


def sweep(model: nn.Module, batches: list[dict[str, Any]], kind: str, magnitudes: list[float], sites: list[str]) -> Row:
    rows = []
    for magnitude in magnitudes:
        truths = [
            truth
            for at, batch in enumerate(batches)
            for truth in locate(
                model, batch, simulate=[Fault(kind, magnitude, site, seed=at) for site in sites]
            ).sections["truth"]
        ]
        effective = [truth for truth in truths if not truth["inert"]]
        hits = sum(truth["rank"] is not None for truth in effective)
        rows.append({"magnitude": magnitude, "trials": len(truths), "effective": len(effective), "found": hits})
        if hits < 0.5 * len(effective) or not effective:
            break
    good = [row["magnitude"] for row in rows if row["effective"] and row["found"] >= 0.95 * row["effective"]]
    return {"limit": good[-1] if good else None, "ends_inert": not rows[-1]["effective"], "sweep": rows}


def intermittent(trials: int) -> Row:
    """A fault that strikes a call with probability p, looked for with n runs: the share found beside 1 - (1 - p)^n."""
    from trained import fixture

    model, tokenizer = fixture("llama")
    inputs = open_prompts(None, model, tokenizer, tokens=16)
    layers = len(Layout.of(model).blocks)
    found: Row = {}
    for p in (0.5, 0.1, 0.02):
        for runs in (2, 8, 32):
            hits = 0
            for number in range(-(-trials // layers)):
                faults = [
                    Fault("gain", 0.05, f"{layer}.mlp.up_proj.linear", p=p, seed=number * layers + layer)
                    for layer in range(layers)
                ]
                truths = locate(model, inputs, simulate=faults, method="host", runs=runs).sections["truth"]
                hits += sum(truth["rank"] is not None for truth in truths)
            tried = -(-trials // layers) * layers
            found[f"p {p}, {runs} runs"] = {"p": p, "runs": runs, "due": 1 - (1 - p) ** runs, **share(hits, tried)}
            print(p, runs, found[f"p {p}, {runs} runs"], flush=True)
    return found


def identities(trials: int) -> Row:
    """Documented magnitudes at every layer at once: the share of struck calls at which each identity fails."""
    from trained import fixture

    model, tokenizer = fixture("llama")
    inputs = open_prompts(None, model, tokenizer)
    layers = len(Layout.of(model).blocks)
    table: Row = {}
    for operator in OPERATORS:
        for kind in kinds_at(operator):
            if FAULTS[kind].stochastic:
                continue
            faults = [Fault(kind, None, f"{layer}.{operator}", seed=layer + trials) for layer in range(layers)]
            verdict = locate(model, inputs, simulate=faults, method="identities")
            places = {truth["site"] for truth in verdict.sections["truth"] if not truth["inert"]}
            struck = [row for row in verdict.sections["sites"] if f"{row['module']}.{row['operator']}" in places]
            asked, failed = Counter[str](), Counter[str]()
            for row in struck:
                asked.update(row["identities"])
                failed.update(row["failed"])
            for name in asked:
                table.setdefault(operator, {}).setdefault(name, {})[kind] = share(failed[name], asked[name])
    return table


WAYS: Row = {
    "host": {"method": "host", "runs": 1},
    "auto, budget 6": {"budget": 6},
    "auto": {},
    "auto, faulty": {"simulate": "saturation:0.2@15.mlp.up_proj.linear"},
}


def cost(_trials: int) -> Row:
    """Time in units of a bare forward pass beside it."""
    return all_ways(time_taken)


def memory(_trials: int) -> Row:
    """Memory beyond a bare pass, in a process of its own, and forward passes by multiplications."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(all_ways, memory_taken).result()


def all_ways(measure: Callable[[nn.Module, dict[str, Any], dict[str, Any]], Row]) -> Row:
    found: Row = {}
    for dtype in ("float32", "bfloat16"):
        loaded = load(dtype=dtype)
        for length in (32, 256):
            inputs = open_prompts(None, loaded.model, loaded.tokenizer, tokens=length)
            for name in WAYS if length == 32 else ("host",):
                found[f"{dtype}, 2 x {length}, {name}"] = one = measure(loaded.model, inputs, WAYS[name])
                print(dtype, length, name, one, flush=True)
    return found


def time_taken(model: nn.Module, inputs: dict[str, Any], options: dict[str, Any]) -> Row:
    ratios = []
    spent(lambda: model(**inputs))
    for _ in range(3):
        before, took, after = (
            spent(work)[0]
            for work in (lambda: model(**inputs), lambda: locate(model, inputs, **options), lambda: model(**inputs))
        )
        ratios.append(2 * took / (before + after))
    return {"time_in_bare_passes": [round(ratio, 1) for ratio in sorted(ratios)]}


def memory_taken(model: nn.Module, inputs: dict[str, Any], options: dict[str, Any]) -> Row:
    give_memory_back()
    bare = min(spent(lambda: model(**inputs))[1] for _ in range(3))
    verdicts: list[Any] = []
    peak = spent(lambda: verdicts.append(locate(model, inputs, **options)))[1]
    verdict = verdicts[0]
    sites = [site for site in verdict.sections["sites"] if site["layer"] == len(Layout.of(model).blocks) // 2]
    return {
        "forward_pass_equivalents": verdict.sections["cost"]["forward_pass_equivalents"],
        "peak_mb_beyond_a_bare_pass": round(peak - bare, 1),
        "one_layer_in_float64_mb": round(sum(site["elements"] for site in sites) * 8 / 2**20, 1),
        "outcome": verdict.outcome,
        "rank": [truth["rank"] for truth in verdict.sections["truth"]],
        "shape": verdict.sections["config"]["shape"],
    }


def give_memory_back() -> None:
    """Tells the allocator to keep nothing that was freed, so that memory in use can be read off the process."""
    library = ctypes.CDLL(None)
    for option in (-3, -1):  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
        library.mallopt(option, 65536)


def spent(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and the most memory in use during it beyond what was in use before, in MB, looked at every ms."""
    done, seen = threading.Event(), [resident()]

    def look() -> None:
        while not done.wait(0.001):
            seen.append(resident())

    looking = threading.Thread(target=look)
    looking.start()
    started = time.perf_counter()
    with torch.no_grad():
        work()
    took = time.perf_counter() - started
    done.set()
    looking.join()
    return took, max(seen) - seen[0]


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def tell(rows: Sequence[Row]) -> None:
    if len(rows) % 10 == 0:
        print(len(rows), rows[-1]["fault"], rows[-1]["rank"], flush=True)


PARTS: dict[str, tuple[Callable[[int], Row], int]] = {
    "outputs": (outputs, 300),
    "operators": (operators, 300),
    "families": (families, 600),
    "limits": (limits, 60),
    "intermittent": (intermittent, 200),
    "identities": (identities, 0),
    "cost": (cost, 0),
    "memory": (memory, 0),
}


def _parts(asked: Sequence[str]) -> Iterator[str]:
    yield from (name for name in PARTS if name in asked or not asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="none: all")
    parser.add_argument("--trials", type=int, help="fewer, for a trial of the script itself")
    asked = parser.parse_args()
    file = HERE / "results.json"
    for name in _parts(asked.parts):
        part, trials = PARTS[name]
        started = time.perf_counter()
        found = {**part(asked.trials or trials), "wall_s": round(time.perf_counter() - started)}
        results = {**(json.loads(file.read_text()) if file.exists() else {}), name: found}
        results["machine"] = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        file.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
