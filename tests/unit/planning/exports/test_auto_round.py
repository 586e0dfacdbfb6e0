"""A layer_config is read by AutoRound's own resolver, and its data types round as they should."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import datasets
import pytest
import torch

import trained
from noisescope.noise.formats import parse_format
from noisescope.planning.exports import export
from plan_consumers import auto_round
from plan_documented import as_documented
from plan_sections import one, planned, sections, weights

FORMATS = ["mxfp4", "nvfp4", "mxfp6", None, "mxfp8", "int8", "int4:group=32", "bf16", "fp8_e4m3"]
SAME = ("mxfp4", "mxfp6", "mxfp6:e3m2", "mxfp8", "mxfp8:e5m2", "nvfp4", "fp8_e4m3", "fp8_e4m3:tensor", "fp8_e5m2")
ALIKE = ("int8", "int8:tensor", "int4:group=32", "int4:group=32,asymmetric")
PRESETS = {"mxfp4": "MXFP4", "mxfp6": "MXFP6", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    before = datasets.load_dataset
    with auto_round() as found:
        yield found
    assert datasets.load_dataset is before
    assert "auto_round" not in sys.modules


def layers(plan: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(export(plan, "auto-round").text)
    return found


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_its_resolver_reads_every_layer(tool: Any, name: str) -> None:
    plan = sections(name, FORMATS)
    model, _ = trained.fixture(name)
    resolver = tool.resolver
    read, _, keys, ignored = resolver._resolve_layer_config_presets(
        layers(plan), model, "", tool.schemes.preset_name_to_scheme("W4A16"), torch.float16, True
    )
    types = resolver.SUPPORTED_LAYER_TYPES
    read, patterns, *_ = resolver._traverse_and_expand_layer_config(read, model, types, (), ignored, keys, None)
    assert not patterns  # every name is that of a layer, none is taken for a regular expression
    assert set(read) == set(planned(plan))
    for path, form in planned(plan).items():
        scheme = tool.schemes.QuantizationScheme.from_dict(read[path])
        assert scheme.act_bits == 16
        if form in PRESETS:
            preset = tool.schemes.preset_name_to_scheme(PRESETS[form])
            assert (scheme.bits, scheme.group_size, scheme.data_type) == (
                preset.bits,
                preset.group_size,
                preset.data_type,
            )
        if form in (None, "bf16"):
            assert scheme.bits == 16
            assert not tool.resolver.check_to_quantized(read[path])


@pytest.mark.parametrize("form", [*SAME, *ALIKE])
def test_its_data_types_round_as_the_plan_was_measured(tool: Any, form: str) -> None:
    """Where it does not tune: the function that a scheme stands for, on the weights of the fixture."""
    (scheme,) = layers(one("model.layers.0.mlp.up_proj", form)).values()
    function, _ = tool.types.get_quant_func(scheme["data_type"], scheme["bits"], scheme["sym"])
    own_error, their_error = 0.0, 0.0
    for path, weight in list(weights("llama").items())[:7]:
        value = weight.value.detach()
        theirs = function(value, bits=scheme["bits"], group_size=scheme["group_size"], data_type=scheme["data_type"])[0]
        own = parse_format(form).round(value)
        own_error += float((own - value).square().sum())
        their_error += float((theirs - value).square().sum())
        assert form in ALIKE or torch.isclose(own, theirs, rtol=1e-6, atol=0).float().mean() > 0.999, path
    ratio = (their_error / own_error) ** 0.5
    assert ratio == pytest.approx(1, abs=0.1)
    assert as_documented("AutoRound", form, ratio), ratio
