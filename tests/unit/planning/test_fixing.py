"""The minimal fix against trying every number of raised groups."""

from functools import cache
from math import inf

import pytest
import torch

import noisescope as ns
import trained
from noisescope.errors import InputError
from noisescope.planning.precision.texts import Texts
from noisescope.points import Bench
from noisescope.quantising.checking import measure

OPTIONS = {"n_samples": 48, "n_verified": 24, "batch_size": 48, "max_length": 16}


@cache
def model() -> torch.nn.Module:
    return trained.fixture("gpt2")[0]


def fixed(max_kl: float, **asked) -> ns.FixPlan:
    return ns.plan_fix(model(), tokenizer=trained.tokenizer("gpt2"), max_kl=max_kl, **{**OPTIONS, **asked})


@cache
def bench() -> Bench:
    return Bench(model(), Texts.of(model(), None, trained.tokenizer("gpt2"), seed=0, **OPTIONS).held_out)


def test_one_fewer_would_not_do() -> None:
    everything = measure(bench(), dict.fromkeys(fixed(1e9).formats, "mxfp4")).value
    found = fixed(everything / 3)
    assert found.met
    count = len(found.sections["raised"])
    assert 0 < count < found.sections["groups"]
    assert measure(bench(), found.formats).value <= everything / 3
    last = found.sections["raised"][-1]["paths"]
    fewer = {**found.formats, **dict.fromkeys(last, "mxfp4")}
    assert measure(bench(), fewer).value > everything / 3
    steps = {step["raised"]: step for step in found.sections["steps"]}
    assert steps[count]["within"]
    assert not steps[count - 1]["within"]
    assert f"Raise {count} of {found.sections['groups']} groups" in str(found)


def test_nothing_has_to_be_raised() -> None:
    found = fixed(100.0)
    assert found.met
    assert found.raised == []
    assert set(found.formats.values()) == {"mxfp4"}
    assert "Nothing: all weights in mxfp4 are within 100" in found.to_markdown().replace("`", "")


def test_weights_that_the_model_does_not_call_are_named() -> None:
    found = fixed(100.0)
    assert "Left as they are" not in str(found)
    told = str(ns.FixPlan({**found.sections, "left_out": ["a.dt_proj", "b.dt_proj"]}))
    assert "Left as they are, as the model does not call their modules: a.dt_proj and 1 more." in told


def test_a_target_that_no_raising_meets() -> None:
    found = fixed(1e-9, raised="mxfp6")
    assert not found.met
    everything = measure(bench(), dict.fromkeys(found.formats, "mxfp6"))
    assert f"No: with all weights raised from mxfp4 to mxfp6 the KL is {everything} nats per token" in str(found)
    assert len(found.raised) == len(found.formats)


def test_what_overflows_is_raised_first(tmp_path) -> None:
    """Also by the map that was left behind, in which it is infinite."""
    llama, tokenizer = trained.fixture("llama")
    mlp = llama.model.layers[2].mlp
    mlp.up_proj.weight.data *= 2.0**30
    mlp.down_proj.weight.data *= 2.0**-30
    for _ in range(2):
        found = ns.plan_fix(
            llama,
            tokenizer=tokenizer,
            format="bf16/fp16",
            max_kl=0.01,
            map_file=tmp_path / "map.json",
            **{**OPTIONS, "n_samples": 16, "n_verified": 8},
        )
        assert found.raised == ["model.layers.2.mlp.down_proj"]
        assert found.sections["raised"][0]["gain"] == inf
        assert "infinite" in str(found)


def test_with_activations(tmp_path) -> None:
    found = fixed(1e-4, format="W8A8", raised="bf16")
    assert set(found.formats.values()) <= {"int8/int8", "bf16"}
    page = found.save(tmp_path / "out")
    assert sorted(path.name for path in page.parent.iterdir()) == ["fix.html", "fix.json", "fix.md"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"max_kl": 0.0}, "max_kl: got 0.0, expected a number > 0"),
        ({"max_kl": 0.1, "raised": "mxfp4"}, "raised: got mxfp4, the format itself"),
        ({"max_kl": 0.1, "format": "mxfp9"}, 'format: unknown format "mxfp9"'),
        ({"max_kl": 0.1, "raised": "mxfp9"}, 'raised: unknown format "mxfp9"'),
        ({"max_kl": 0.1, "raised": 7}, "raised: got 7, expected a format"),
        ({"max_kl": 0.1, "format": "none"}, 'format: got "none", expected a format such as mxfp4'),
        ({"max_kl": 0.1, "raised": "none"}, 'raised: got "none", expected a format such as mxfp4'),
        ({"max_kl": 0.1, "format": "int8", "raised": "mxfp4"}, "raised: got mxfp4, which has fewer bits than int8"),
        ({"max_kl": 0.1, "format": "bf16", "raised": "bf16/int8"}, "raised: got bf16/int8, which has fewer bits"),
    ],
)
def test_what_cannot_be_meant(asked: dict, why: str) -> None:
    with pytest.raises(InputError) as caught:
        fixed(**asked)
    assert str(caught.value).startswith(why)
