"""The file of a trace: safetensors, with everything that is not a tensor as JSON in its metadata.

    sketch          sites x 2039, float32
    sample          sites x 1024, float32 or float64
    positions/K     1024 x 2, int64: call and element of each slot
    ids/B/NAME      token ids, masks and other whole numbers that batch B was run on
    full/N/C        value of site N at its call C, in its own dtype, if kept
    hidden/P/L.K    what layer L was given in pass P, if kept: blocks, then final norms, then heads; K counts arguments

Nothing in a file is executed, and nothing is believed before it was checked: kinds, shapes, and a digest of all but the
whole values, whose bits are compared with those of their site when they are read.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import store
from ..errors import InputError, quoted
from ..store.encoding import decode, encode_line
from ..store.packing import unpack
from .bits import bits_of
from .heads import FORMAT, WIDTHS, SiteHead, TraceHead
from .recorded import Trace
from .sampling import SLOTS
from .sketch import BUCKETS

__all__ = ["digest_of", "load_trace", "save_trace"]

KEY = "noisescope.trace"
_HUGE = 1e140
"""whose square is still a number"""
_LARGEST = 32 << 20
"""characters of JSON: 40,000 sites"""
_STORED = ("F64", "F32", "F16", "BF16")
"""numbers that are not whole, as safetensors calls them"""


def save_trace(trace: Trace, path: str | Path) -> Path:
    """Writes a trace; the file is there whole, or not at all."""
    home = Path(path)
    tensors = {"sketch": trace.sketch, "sample": trace.sample, **_named(trace)}
    for number, given in enumerate(trace.ids):
        tensors |= {f"ids/{number}/{name}": tensor.contiguous() for name, tensor in given.items()}
    for number, values in trace.full.items():
        tensors |= {f"full/{number}/{at}": tensor.contiguous() for at, tensor in enumerate(values())}
    for number, states in trace.hidden.items():
        tensors |= {f"hidden/{number}/{layer}": tensor.contiguous() for layer, tensor in states().items()}
    text = encode_line({"digest": digest_of(trace), **asdict(trace.head)})
    store.make_directory(home.parent)
    store.atomic_write(home, save(tensors, metadata={KEY: text}))
    return home


def digest_of(trace: Trace) -> str:
    """Of everything but whole values."""
    digest = blake2b(encode_line(asdict(trace.head)).encode(), digest_size=8)
    for tensor in (trace.sketch, trace.sample, *_named(trace).values()):
        digest.update(_bytes(tensor))
    for given in (*trace.ids, *(states() for states in trace.hidden.values())):
        for name in sorted(given):
            digest.update(f"{name} {given[name].dtype} {tuple(given[name].shape)}".encode())
            digest.update(_bytes(given[name]))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _named(trace: Trace) -> dict[str, Tensor]:
    return {f"positions/{number}": tensor for number, tensor in enumerate(trace.positions)}


def load_trace(path: str | Path) -> Trace:
    """The trace of a file; an InputError that says what is wrong with it."""
    home = Path(path)
    if not home.exists():
        raise InputError(f"{home}: no such file; make it with `noisescope trace -o {home.name}`")
    if not home.is_file():
        raise InputError(f"{home}: cannot be read as a trace (it is no regular file)")
    with _opened(home) as file:
        text = (file.metadata() or {}).get(KEY)
        if text is None:
            raise InputError(f"{home}: is a safetensors file, but no trace; make one with `noisescope trace`")
        plain = _decoded(home, text)
        return _checked(home, _read(home, file, _head(home, plain)), plain["digest"])


def _decoded(home: Path, text: str) -> dict[str, Any]:
    try:
        plain = decode(text) if len(text) <= _LARGEST else None
    except ValueError as error:
        raise InputError(f"{home}: its description is no JSON ({_short(error)})") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("digest"), str):
        raise InputError(f"{home}: its description is not that of a trace")
    return plain


def _head(home: Path, plain: dict[str, Any]) -> TraceHead:
    if plain.get("format") != FORMAT:
        raise InputError(
            f"{home}: is of format {quoted(plain.get('format'))}, this noisescope reads {FORMAT}; "
            "make it again, or use the noisescope that made it"
        )
    try:
        return unpack(TraceHead, plain)
    except ValueError as error:
        raise InputError(f"{home}: its description is damaged ({_short(error)})") from None


def _read(home: Path, file: Any, head: TraceHead) -> Trace:
    shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - not a dict
    count = len(head.sites)
    lists = max((site.positions for site in head.sites), default=-1) + 1
    wanted = {"sketch": (count, BUCKETS), "sample": (count, SLOTS)}
    wanted |= {f"positions/{number}": (SLOTS, 2) for number in range(min(lists, count))}
    for key, shape in wanted.items():
        if shapes.get(key) != shape:
            found = shapes.get(key, "missing")
            raise InputError(f"{home}: {key} is {found}, expected {shape} for {count} sites; the file is damaged")
    for key in (key for key in shapes if key.startswith("hidden/")):
        if (kind := file.get_slice(key).get_dtype()) not in _STORED:
            raise InputError(f"{home}: {quoted(key)} is of {kind}, expected floating point; the file is damaged")
    sketch, sample, *positions = (file.get_tensor(key) for key in wanted)
    full = {
        number: partial(_values, home, number, site)
        for number, site in enumerate(head.sites)
        if f"full/{number}/0" in shapes
    }
    kept = {int(match[1]) for key in shapes if (match := re.fullmatch(r"hidden/(\d{1,6})/\d{1,6}\.\d{1,3}", key))}
    hidden = {number: partial(_states, home, number) for number in sorted(kept)}
    return Trace(head, sketch, sample, tuple(positions), full, hidden, _ids(file, shapes), home.name)


def _ids(file: Any, shapes: Iterable[str]) -> tuple[dict[str, Tensor], ...]:
    found: dict[int, dict[str, Tensor]] = {}
    for key in shapes:
        if match := re.fullmatch(r"ids/(\d{1,6})/(\w{1,64})", key, re.ASCII):
            found.setdefault(int(match[1]), {})[match[2]] = file.get_tensor(key)
    return tuple(found[number] for number in sorted(found))


def _values(home: Path, number: int, site: SiteHead) -> list[Tensor]:
    with _opened(home) as file:
        values = [file.get_tensor(f"full/{number}/{at}") for at in range(len(site.sizes))]
    kinds = {str(value.dtype).removeprefix("torch.") for value in values}
    if tuple(value.numel() for value in values) != site.sizes or kinds != {site.dtype} or bits_of(values) != site.bits:
        raise InputError(f"{home}: the values of {quoted(site.name)} are not those that were recorded; make it again")
    return values


def _states(home: Path, number: int) -> dict[str, Tensor]:
    prefix = f"hidden/{number}/"
    with _opened(home) as file:
        keys = [key for key in file.keys() if key.startswith(prefix)]  # noqa: SIM118 - not a dict
        return {key.removeprefix(prefix): file.get_tensor(key) for key in keys}


@contextmanager
def _opened(home: Path) -> Iterator[Any]:
    try:
        with safe_open(str(home), framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(f"{home}: cannot be read as a trace ({_short(error)})") from None


def _checked(home: Path, trace: Trace, digest: str) -> Trace:
    """The trace, if its numbers can be those of one."""
    kinds = (torch.float32, torch.float64)
    if trace.sketch.dtype not in kinds or trace.sample.dtype not in kinds:
        raise InputError(f"{home}: sketch and sample must be float32 or float64; the file is damaged")
    if any(found.dtype != torch.int64 for found in trace.positions):
        raise InputError(f"{home}: positions must be int64; the file is damaged")
    if digest_of(trace) != digest:
        raise InputError(f"{home}: was changed after it was written, its digest is another; make it again")
    for problem in _problems(trace):
        raise InputError(f"{home}: {problem}; the file is damaged")
    return trace


def _problems(trace: Trace) -> Iterator[str]:
    head = trace.head
    for name, numbers in (("a sketch", trace.sketch), ("a sample", trace.sample)):
        if not bool((numbers.double().abs() < _HUGE).all()):
            yield f"{name} holds what is no number, or none that can be squared"
    if (head.buckets, head.slots) != (BUCKETS, SLOTS) or min(head.layers, head.decode) < 0:
        yield "its sizes are not those of this format"
    if head.environment.dtype not in WIDTHS:
        yield f"{quoted(head.environment.dtype)} is no dtype that a model has"
    units = head.floor.units if head.floor is not None else ()
    if not all(0 < unit < 1 for unit in units) or list(units) != sorted(set(units)):
        yield "its floor has units that no dtype has"
    for site in head.sites:
        if site.dtype not in WIDTHS:
            yield f"{quoted(site.dtype)} is no dtype that {quoted(site.name)} can have"
        given = (site.mean, site.std, site.min, site.max, site.norm, *(value for _, value in site.top_channels))
        if not all(abs(number) < _HUGE for number in given) or min(site.norm, site.std) < 0 or not site.sizes:
            yield f"the statistics of {quoted(site.name)} are not those of any values"
        if site.count != sum(site.sizes) or not 0 <= site.non_finite <= site.count:
            yield f"the counts of {quoted(site.name)} do not add up"
        if not 0 <= site.positions < max(len(trace.positions), 1) or (site.sizes and prod(site.shape) != site.sizes[0]):
            yield f"the shape of {quoted(site.name)} does not fit its count"
        for bounds in (site.floors, site.tolerances, site.own_tolerances):
            if len(bounds) not in (0, len(units)) or not all(isfinite(bound) and bound >= 0 for bound in bounds):
                yield f"the floor of {quoted(site.name)} is not a number for each unit"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
