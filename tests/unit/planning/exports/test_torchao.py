"""Configs are read by torchao and transformers, equal to those made by hand, and applied to the fixture."""

import json
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from transformers import TorchAoConfig
from transformers.utils import import_utils

import trained
from noisescope.noise.formats import parse_format
from noisescope.planning.exports import export
from plan_consumers import ORACLES, beside, torchao
from plan_documented import as_documented
from plan_sections import planned, sections, weights

SAME = (
    "int8",
    "int8:tensor",
    "int8:asymmetric",
    "int4:channel",
    "fp8_e4m3",
    "fp8_e4m3:tensor",
    "fp8_e4m3:group=32",
    "fp8_e5m2",
    "nvfp4",
)
ALIKE = ("int8:group=32", "int4:group=32", "int4:group=32,asymmetric")
"""scales of these are rounded to bfloat16 after the codes were chosen, or not at all"""


def config(plan: dict[str, Any]) -> Any:
    found = json.loads(export(plan, "torchao").text)
    assert found["quant_method"] == "torchao"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return torchao().config.config_from_dict(found["quant_type"]["default"])


def by_hand() -> dict[str, Any]:
    """Format -> the config that a person would write."""
    api = torchao().api
    row, tensor, group = api.PerRow(), api.PerTensor(), api.PerGroup(32)
    intx = {"weight_dtype": torch.int4, "granularity": group, "scale_dtype": torch.bfloat16}
    return {
        "int8": api.Int8WeightOnlyConfig(granularity=row),
        "int8:tensor": api.Int8WeightOnlyConfig(granularity=tensor),
        "int4:group=32": api.IntxWeightOnlyConfig(**intx),
        "int4:group=32,asymmetric": api.IntxWeightOnlyConfig(**intx, mapping_type=api.MappingType.ASYMMETRIC),
        "fp8_e4m3": api.Float8WeightOnlyConfig(weight_dtype=torch.float8_e4m3fn, granularity=row),
        "fp8_e5m2": api.Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2, granularity=row),
    }


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_config_is_the_one_that_a_person_would_write(name: str) -> None:
    wanted = by_hand()
    plan = sections(name, [*wanted, None, "bf16"])
    expected = {path: wanted.get(str(form)) for path, form in planned(plan).items()}
    assert config(plan) == torchao().api.FqnToConfig(OrderedDict(expected))


def test_transformers_reads_it() -> None:
    found = json.loads(export(sections("llama", ["int8", "int4", None]), "torchao").text)
    import_utils.is_torchao_available.cache_clear()
    with beside(ORACLES):
        read = TorchAoConfig.from_dict(found)
        assert len(read.quant_type.fqn_to_config) == len(weights("llama"))
        again = TorchAoConfig.from_dict(read.to_dict())
        assert again.quant_type == read.quant_type
    import_utils.is_torchao_available.cache_clear()


def applied(form: str) -> torch.nn.Module:
    """The fixture after the real quantize_, on a CPU; every other weight has the format."""
    model, _ = trained.fixture("llama")
    torchao().api.quantize_(model, config(sections("llama", [form, None])), filter_fn=None)
    return model


@pytest.mark.parametrize("form", [*SAME, *ALIKE])
def test_weights_are_rounded_as_the_plan_was_measured(form: str) -> None:
    model, own_error, their_error = applied(form), 0.0, 0.0
    for number, (path, weight) in enumerate(weights("llama").items()):
        stored, value = model.get_submodule(path).weight, weight.value.detach()
        if number % 2:
            assert torch.equal(stored, value)
            continue
        assert type(stored.data) is not torch.Tensor
        own, theirs = parse_format(form).round(value), stored.dequantize().detach()
        own_error += float((own - value).square().sum())
        their_error += float((theirs - value).square().sum())
        assert form in ALIKE or torch.equal(own, theirs), path
    ratio = (their_error / own_error) ** 0.5
    assert ratio == pytest.approx(1, abs=0.05)
    assert as_documented("torchao", form, ratio), ratio


def test_conv1d_do_not_compute_as_the_note_says() -> None:
    model, _ = trained.fixture("gpt2")
    torchao().api.quantize_(model, config(sections("gpt2", ["int8"])), filter_fn=None)
    with pytest.raises(NotImplementedError, match="addmm"):
        model(torch.tensor([[1, 2, 3]]))
