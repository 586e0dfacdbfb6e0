"""A quant_cfg is read by ModelOpt's own classes, and says what its own recipes say."""

import fnmatch
from typing import Any

import pytest
import yaml

from noisescope.planning.exports import export
from plan_consumers import ORACLES, modelopt
from plan_sections import one, planned, sections

RECIPES = {"mxfp4": "mxfp4", "mxfp8": "mxfp8", "mxfp6:e3m2": "mxfp6", "nvfp4": "nvfp4", "int8": "int8_per_channel"}
RECIPES |= {"int8:tensor": "int8", "int4": "int4_per_block", "fp8_e4m3:tensor": "fp8"}
FORMATS = [*RECIPES, None, "mxfp6", "mxfp8:e5m2", "fp8_e4m3", "bf16", "int8:group=32"]


def config(plan: dict[str, Any]) -> Any:
    return modelopt().QuantizeConfig(**yaml.safe_load(export(plan, "modelopt").text))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_weight_has_one_rule_and_nothing_else_is_on(name: str) -> None:
    plan = sections(name, FORMATS)
    found = config(plan)
    first, *rules = found.quant_cfg
    assert (first.quantizer_name, first.enable, first.cfg) == ("*", False, None)
    for path, form in planned(plan).items():
        on = [rule for rule in rules if fnmatch.fnmatch(f"{path}.weight_quantizer", rule.quantizer_name)]
        assert len(on) == (form not in (None, "bf16"))
        assert not [rule for rule in rules if fnmatch.fnmatch(f"{path}.input_quantizer", rule.quantizer_name)]
    assert len(rules) == sum(form not in (None, "bf16") for form in planned(plan).values())
    assert found.algorithm == "max"


@pytest.mark.parametrize("form", RECIPES)
def test_a_format_is_that_of_its_recipes(form: str) -> None:
    recipe = (ORACLES / "modelopt_recipes" / "configs" / "numerics" / f"{RECIPES[form]}.yaml").read_text()
    wanted = _numbers(yaml.safe_load(recipe))
    wanted.pop("effective_bits", None)  # a price for its own search, no part of the format
    found = config(one("model.layers.0.mlp.up_proj", form)).quant_cfg[1].cfg
    assert found == modelopt().QuantizerAttributeConfig(**wanted)


def _numbers(value: Any) -> Any:
    """A recipe writes e4m3 for (4, 3)."""
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in value.items()}
    return (int(value[1]), int(value[3])) if isinstance(value, str) and value[0] == "e" and "m" in value else value


def test_what_its_classes_refuse_is_refused_before() -> None:
    with pytest.raises(ValueError, match="Only blockwise dynamic quantization"):
        modelopt().QuantizerAttributeConfig(num_bits=(5, 2), axis=0)
    with pytest.raises(ValueError, match="ModelOpt has no fp8_e5m2; plan with"):
        export(one("a.b", "fp8_e5m2"), "modelopt")
