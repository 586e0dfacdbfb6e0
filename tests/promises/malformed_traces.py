"""Malformed and hostile traces for P20: edited heads with a right digest and without, odd tensors, other files."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from malformed import DIRECTORY, Kind, WentOn
from safetensors import safe_open
from safetensors.torch import load, save

import noisescope as ns
from families import build, tokens
from hostile_strings import HOSTILE
from noisescope.cli import main
from noisescope.store.encoding import encode_line

__all__ = ["TRACES"]

KEY = "noisescope.trace"
Edit = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


@cache
def valid() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        found = ns.trace(build("llama"), tokens("llama"), sites="*.mlp.*", inputs=True)
        return found.save(Path(home) / "a.trace").read_bytes()


@cache
def _parts() -> tuple[str, bytes]:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".trace") as file:
        file.write(valid())
        file.flush()
        with safe_open(file.name, framework="pt") as opened:
            return opened.metadata()[KEY], valid()


def forged(edit: Edit, *, signed: bool = True) -> bytes:
    """A trace whose head or tensors were edited; signed again, as somebody who means harm would."""
    text, data = _parts()
    head, tensors = json.loads(text), load(data)
    digest = head.pop("digest")
    edit(head, tensors)
    if signed:
        found = blake2b(encode_line(head).encode(), digest_size=8)
        lists = sorted((key for key in tensors if key.startswith("positions/")), key=lambda key: int(key.split("/")[1]))
        for key in ("sketch", "sample", *lists):
            if key in tensors:
                found.update(_bytes(tensors[key]))
        for prefix in ("ids/0/", "hidden/0/"):
            for key in sorted(key for key in tensors if key.startswith(prefix)):
                value = tensors[key]
                found.update(f"{key.removeprefix(prefix)} {value.dtype} {tuple(value.shape)}".encode())
                found.update(_bytes(value))
        digest = found.hexdigest()
    return save(tensors, metadata={KEY: encode_line({"digest": digest, **head})})


def _bytes(value: torch.Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def head(name: str, value: Any) -> Edit:
    return lambda head, _: head.__setitem__(name, value)


def site(name: str, value: Any, at: int = 0) -> Edit:
    return lambda head, _: head["sites"][at].__setitem__(name, value)


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    return lambda _, tensors: tensors.__setitem__(name, change(tensors[name]).contiguous())


def without(name: str) -> Edit:
    return lambda _, tensors: tensors.pop(name)


def _zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
    return data.getvalue()


def _saved() -> bytes:
    data = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, data)
    return data.getvalue()


EDITS: dict[str, Edit] = {
    "another format": head("format", 2),
    "a format in words": head("format", "1"),
    "no format": lambda head, _: head.pop("format"),
    "no sites": lambda head, _: head.pop("sites"),
    "sites that are a number": head("sites", 3),
    "sites that are an object": head("sites", {"a": 1}),
    "an empty list of sites": head("sites", []),
    "one site too few": lambda head, _: head["sites"].pop(),
    "one site too many": lambda head, _: head["sites"].append(head["sites"][0]),
    "layers in words": head("layers", "three"),
    "negative layers": head("layers", -3),
    "a seed that is true": head("seed", True),
    "other buckets": head("buckets", 7),
    "other slots": head("slots", 7),
    "an environment that is a list": head("environment", []),
    "an environment without a dtype": lambda head, _: head["environment"].pop("dtype"),
    "a floor without units": lambda head, _: head["floor"].pop("units"),
    "a floor of one unit": lambda head, _: head["floor"].__setitem__("units", [1e-7]),
    "passes that are words": head("passes", ["a"]),
    "tokens that are a number": head("tokens", 7),
    "a name that is a number": site("name", 7),
    "a layer that is a list": site("layer", [1]),
    "a layer that is true": site("layer", True),
    "a count that does not fit": site("count", 10**18),
    "a negative count": site("count", -1),
    "more that are not finite than there are": site("non_finite", 10**9),
    "a mean that is not a number": site("mean", {"non_finite": "NaN"}),
    "an infinite norm": site("norm", {"non_finite": "Infinity"}),
    "a negative norm": site("norm", -1.0),
    "a norm in words": site("norm", "large"),
    "a shape that does not fit": site("shape", [7, 7]),
    "a shape of words": site("shape", ["a"]),
    "sizes that do not add up": site("sizes", [1]),
    "positions that are not there": site("positions", 10**9),
    "negative positions": site("positions", -1),
    "top channels of one number": site("top_channels", [[1]]),
    "floors of another length": site("floors", [1.0, 2.0, 3.0, 4.0]),
    "a negative tolerance": site("tolerances", [-1.0, -1.0]),
    "an infinite tolerance": site("tolerances", [{"non_finite": "Infinity"}] * 2),
    "an unknown field is left out": lambda head, _: head["sites"][0].pop("bits"),
    "no sketch": without("sketch"),
    "no sample": without("sample"),
    "no positions": without("positions/0"),
    "a sketch of whole numbers": tensor("sketch", lambda t: t.to(torch.int32)),
    "a sketch of another width": tensor("sketch", lambda t: t[:, :100]),
    "a sketch of fewer sites": tensor("sketch", lambda t: t[:-1]),
    "a flat sketch": tensor("sketch", lambda t: t.reshape(-1)),
    "a sketch that is not a number": tensor("sketch", lambda t: t.index_fill(1, torch.tensor([3]), torch.nan)),
    "an infinite sketch": tensor("sketch", lambda t: t.index_fill(1, torch.tensor([3]), torch.inf)),
    "a sample of whole numbers": tensor("sample", lambda t: t.to(torch.int64)),
    "a sample of another width": tensor("sample", lambda t: t[:, :5]),
    "positions of another shape": tensor("positions/0", lambda t: t[:, :1]),
    "positions of bfloat16": tensor("positions/0", lambda t: t.bfloat16()),
    "positions that are not whole": tensor("positions/0", lambda t: t.float()),
    "a unit of nothing": lambda head, _: head["floor"].__setitem__("units", [0.0, 0.0078125]),
    "units in no order": lambda head, _: head["floor"].__setitem__("units", [0.0078125, 1e-7]),
    "a dtype that there is not": lambda head, _: head["environment"].__setitem__("dtype", "nope"),
    "a dtype of whole numbers": lambda head, _: head["environment"].__setitem__("dtype", "int64"),
    "a norm beyond all numbers": site("norm", 1e308),
    "a negative decode": head("decode", -3),
    "a site without calls": site("sizes", []),
    "a site of whole numbers": site("dtype", "int64"),
    "a sample that cannot be squared": tensor("sample", lambda t: t.double().fill_(1e300)),
    "a sketch that cannot be squared": tensor("sketch", lambda t: t.double().fill_(1e300)),
    "a sample that is not a number": tensor("sample", lambda t: t.index_fill(1, torch.tensor([3]), torch.nan)),
    "complex hidden states": tensor("hidden/0/0.0", lambda t: t.to(torch.complex64)),
    "hidden states of whole numbers": tensor("hidden/0/0.0", lambda t: t.to(torch.int64)),
    "an input in words": head("inputs", ["image"]),
    **{f"a dtype called {number}": site("count", text) for number, text in enumerate(HOSTILE[:10])},
}
UNSIGNED: dict[str, Edit] = {
    "an edited name": site("name", "another"),
    "an edited mean": site("mean", 0.5),
    "an edited floor": site("tolerances", [1.0, 1.0]),
    "an edited sketch": tensor("sketch", lambda t: t * 1.001),
    "an edited sample": tensor("sample", lambda t: t + 1),
    "edited tokens": head("tokens", "0" * 16),
    "edited ids": tensor("ids/0/input_ids", lambda t: t + 1),
    "ids of no dimension": tensor("ids/0/input_ids", lambda t: t[0, 0]),
    "edited hidden states": tensor("hidden/0/0.0", lambda t: t * 2),
}


def _with_text(text: str) -> bytes:
    return save({"sketch": torch.zeros(1)}, metadata={KEY: text})


def _classics() -> Mapping[str, tuple[str, bytes | str | None]]:
    contents: dict[str, bytes | str | None] = {
        "nothing there": None,
        "a directory": DIRECTORY,
        "empty": b"",
        "eight bytes": b"\x00" * 8,
        "a pickle": pickle.dumps({"sketch": [1, 2]}),
        "a zip of a pickle": _zipped(),
        "what torch.save writes": _saved(),
        "words": b"this is not a trace\n",
        "JSON": b'{"format": 1}',
        "half of it": valid()[: len(valid()) // 2],
        "all but the last byte": valid()[:-1],
        "one byte more": valid() + b"x",
        "a header without end": (2**62).to_bytes(8, "little") + valid()[8:],
        "a header of nothing": b"\x02\x00\x00\x00\x00\x00\x00\x00{}",
        "safetensors of something else": save({"weight": torch.zeros(3)}),
        "no JSON": _with_text("{"),
        "a bare NaN": _with_text('{"digest": "0", "format": NaN}'),
        "a list": _with_text("[]"),
        "a number": _with_text("7"),
        "deep lists": _with_text("[" * 100_000),
        "deep objects": _with_text('{"a":' * 50_000),
        "no digest": _with_text('{"format": 1}'),
        "a digest that is a number": _with_text('{"format": 1, "digest": 7}'),
        "a million digits": _with_text('{"digest": "0", "format": ' + "9" * 100_000 + "}"),
        "a format called by a hostile name": _with_text(json.dumps({"digest": "0", "format": "\x1b[2J<script>"})),
    }
    contents |= {name: forged(edit) for name, edit in EDITS.items()}
    contents |= {name: forged(edit, signed=False) for name, edit in UNSIGNED.items()}
    return {name: ("suspect.trace", content) for name, content in contents.items()}


def stop(*_given: object, **_more: object) -> None:
    raise WentOn


@cache
def _reference() -> str:
    import tempfile

    file = Path(tempfile.mkdtemp(prefix="noisescope-p20-")) / "good.trace"
    file.write_bytes(valid())
    return str(file)


def ask(home: Path, file: str) -> int:
    with mock.patch("noisescope.comparing.comparing.refuse", stop):
        return main(["compare", _reference(), file])


TRACES = Kind("trace", lambda: {"suspect.trace": valid()}, ask, _classics())
