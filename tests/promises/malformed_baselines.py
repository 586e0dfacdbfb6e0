"""Baselines for P20: a valid one, and those that are cut off, edited, of another version or no baseline at all."""

import json
import pickle
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from malformed import DIRECTORY, Kind, WentOn

import noisescope.models
from noisescope.cli import main
from noisescope.gate import Baseline
from noisescope.gate.evaluating import Evaluation
from noisescope.store.encoding import encode_line

FILE = "baseline.json"


def valid() -> bytes:
    asked, clean = np.full(6, 11), np.arange(2, 8)
    places = {"softmax": clean - 1, "head": clean - 2}
    question = {
        "error_type": "relative_gaussian",
        "noise_scale": 0.05,
        "seed": 0,
        "layers": None,
        "operators": None,
        "places": list(places),
        "n_samples": 6,
    }
    return Baseline("m", question, {"dtype": "float32"}, Evaluation(asked, clean, places, 0.1, 9.0)).to_json().encode()


def edited(*, signed: bool, **changes: Any) -> bytes:
    """With other entries; with `signed`, under a digest that fits, as only a person with intent would make it."""
    content = {**json.loads(valid()), **changes}
    if signed:
        content.pop("digest", None)
        digest = blake2b(encode_line(content).encode("ascii"), digest_size=8).hexdigest()
        content = {"digest": digest, **content}
    return json.dumps(content).encode()


def evaluation(**changes: Any) -> bytes:
    return edited(signed=True, evaluation={**json.loads(valid())["evaluation"], **changes})


CLASSICS: Mapping[str, bytes | str | None] = {
    "no file": None,
    "a directory": DIRECTORY,
    "empty": b"",
    "words": b"a baseline",
    "half of it": valid()[: len(valid()) // 2],
    "all but its end": valid().rstrip()[:-1],
    "a list": b"[1, 2]",
    "a number": b"7",
    "an empty table": b"{}",
    "bytes": bytes(range(256)),
    "utf-16": valid().decode().encode("utf-16"),
    "a pickle": pickle.dumps({"schema": "noisescope baseline"}),
    "a bare NaN": b'{"schema": "noisescope baseline", "version": NaN}',
    "deep": b'{"a":' * 100_000,
    "another version": edited(signed=True, version=2),
    "a version in words": edited(signed=True, version="one"),
    "a version that is true": edited(signed=True, version=True),
    "another schema": edited(signed=True, schema="noisescope vote"),
    "no schema": edited(signed=True, schema=None),
    "no digest": edited(signed=False, digest=None),
    "another model's name": edited(signed=False, model="n"),
    "another question": edited(signed=False, question={}),
    "no question": edited(signed=True, question=None),
    "half a question": edited(signed=True, question={"places": ["softmax", "head"]}),
    "no evaluation": edited(signed=True, evaluation={}),
    "more right than asked": evaluation(clean=[99] * 6),
    "fewer sequences": evaluation(clean=[1, 2]),
    "negative counts": evaluation(clean=[-1] * 6),
    "fractions of counts": evaluation(clean=[0.5] * 6),
    "counts that are true": evaluation(clean=[True] * 6),
    "huge counts": evaluation(clean=[10**30] * 6),
    "no sequences": evaluation(asked=[], clean=[], noisy={"softmax": [], "head": []}),
    "no operators": evaluation(noisy={}),
    "other operators": evaluation(noisy={"silu": [1] * 6}),
    "a chance in words": evaluation(chance="one"),
}


def stop(*_given: object, **_more: object) -> None:
    raise WentOn


def ask(home: Path, file: str) -> int:
    with mock.patch.object(noisescope.models, "load", stop):
        return main(["check", "model", "--baseline", file])


BASELINES = Kind("baseline", lambda: {FILE: valid()}, ask, {name: (FILE, what) for name, what in CLASSICS.items()})
