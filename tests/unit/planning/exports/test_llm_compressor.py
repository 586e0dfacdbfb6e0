"""Recipes are read by llm-compressor itself, put on the fixtures, and round weights as they should."""

from typing import Any

import pytest
import torch

import trained
from noisescope.noise.formats import parse_format
from noisescope.planning.exports import export
from plan_consumers import llm_compressor
from plan_documented import as_documented
from plan_sections import planned, sections, weights

PRESETS = {"mxfp4": "MXFP4A16", "mxfp6": "MXFP6A16", "mxfp8": "MXFP8A16", "nvfp4": "NVFP4A16", "int4": "W4A16"}
SAME = ("int8", "int8:tensor", "int8:asymmetric", "fp8_e4m3", "fp8_e4m3:tensor")
ALIKE = (
    ("mxfp4", 0.95, 1.0),
    ("mxfp6", 0.98, 1.0),
    ("mxfp8", 0.8, 1.0),
    ("nvfp4", 0.99, 1.05),
    ("int4:group=32", 0.995, 1.005),
    ("int4:group=32,asymmetric", 0.995, 1.005),
)
"""format, and the error of llm-compressor over that of the plan: MX scales are better, those of groups finer"""


def modifier(text: str) -> Any:
    recipe = llm_compressor().recipe.Recipe.create_instance(text)
    (found,) = recipe.modifiers
    return found


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_module_gets_its_scheme_and_no_other(name: str) -> None:
    plan = sections(name, ["mxfp4", "nvfp4", "mxfp6", None, "mxfp8", "int8", "int4", "bf16", "fp8_e4m3"])
    config = modifier(export(plan, "llm-compressor").text).resolved_config
    found = {target: group.weights for group in config.config_groups.values() for target in group.targets}
    kept = {path for path, form in planned(plan).items() if form in (None, "bf16")}
    assert set(found) == set(planned(plan)) - kept
    assert set(config.ignore) == {"lm_head", *kept}
    for path, arguments in found.items():
        form = planned(plan)[path]
        if form in PRESETS:
            preset = llm_compressor().schemes.PRESET_SCHEMES[PRESETS[form]]["weights"]
            assert arguments.model_dump(exclude={"observer"}) == preset.model_dump(exclude={"observer"})


def applied(form: str) -> torch.nn.Module:
    """The fixture with a recipe applied as `oneshot` does without data; every other layer has the format."""
    tools = llm_compressor()
    model, _ = trained.fixture("llama")
    plan = sections("llama", [form])
    for row in plan["weights"]:
        row["format"] = form if row["layer"] % 2 else None
    recipe = modifier(export(plan, "llm-compressor").text)
    recipe.initialize_quantization(model)
    recipe.start_calibration(model)
    modules = [module for module in model.modules() if hasattr(module, "weight_observer")]
    tools.calibration.observe(modules, base_name="weight")
    tools.calibration.update_qparams(modules, base_name="weight")
    recipe.end_calibration(model)
    return model


def rounded(module: Any) -> torch.Tensor:
    found = llm_compressor().forward.fake_quantize(
        module.weight,
        module.weight_scale,
        getattr(module, "weight_zero_point", None),
        module.quantization_scheme.weights,
        global_scale=getattr(module, "weight_global_scale", None),
    )
    return found.detach()


@pytest.mark.parametrize("form", SAME)
def test_weights_are_rounded_as_the_plan_was_measured(form: str) -> None:
    """But for the last bit, and for the largest of a channel, which lies in the middle of -128 and -127."""
    model = applied(form)
    for path, weight in weights("llama").items():
        module = model.get_submodule(path)
        assert hasattr(module, "quantization_scheme") == weight.layer % 2
        if hasattr(module, "quantization_scheme"):
            value = weight.value.detach()
            same = torch.isclose(rounded(module), parse_format(form).round(value), rtol=1e-6, atol=0)
            assert (same | (value.abs() == value.abs().amax(1, keepdim=True))).all(), path


@pytest.mark.parametrize(("form", "low", "high"), ALIKE)
def test_the_error_is_about_that_of_the_plan_where_scales_are_chosen_otherwise(
    form: str, low: float, high: float
) -> None:
    model = applied(form)
    own, theirs = 0.0, 0.0
    for path, weight in weights("llama").items():
        if weight.layer % 2:
            value = weight.value.detach()
            own += float((parse_format(form).round(value) - value).square().sum())
            theirs += float((rounded(model.get_submodule(path)) - value).square().sum())
    ratio = (theirs / own) ** 0.5
    assert low < ratio < high
    assert as_documented("llm-compressor", form, ratio), ratio


def test_it_leaves_conv1d_as_they_are_as_the_note_says() -> None:
    model, _ = trained.fixture("gpt2")
    modifier(export(sections("gpt2", ["int8"]), "llm-compressor").text).initialize_quantization(model)
    assert not any(hasattr(module, "quantization_scheme") for module in model.modules())
