"""Plans as recipes of llm-compressor: a group of modules for each format, in the words of compressed-tensors.

llmcompressor.oneshot(model=model, recipe="llm-compressor-recipe.yaml")
"""

from typing import Any

import yaml

from ...noise.formats import Format
from .export import Written, register
from .names import as_regex, named
from .planned import Planned, UnfitModel

__all__: list[str] = []

_FLOATS = ("mxfp4", "mxfp6", "mxfp8", "nvfp4", "fp8_e4m3")
"""what compressed-tensors means by a float of 4, 6 and 8 bits is E2M1, E2M3 and E4M3"""
_CONV1D = "A Conv1D, as GPT-2 has them, is left as it is, without a word: it is for models of nn.Linear."
_DIVIDES = "Groups must divide the inputs of a weight."
_SCALES = "Scales are stored in the dtype of the model."
_MX = (
    "An MX scale is doubled where the largest value of its block rounds up to the next power of two; the plan was "
    "measured with the scales of the standard."
)
_NVFP4 = "q, k and v, and gate and up, share the scale of the tensor in NVFP4."


@register(
    "llm-compressor",
    title="llm-compressor",
    file="llm-compressor-recipe.yaml",
    formats=("mxfp4", "nvfp4", "mxfp6", "mxfp8", "int8", "bf16"),
)
def write(planned: Planned) -> Written:
    """A recipe with one `QuantizationModifier`."""
    if planned.transposed:
        raise UnfitModel("leaves Conv1D as they are, and this model has them")
    planned.spelled(_arguments)
    groups = {
        f"group_{number}": {
            "targets": [_target(path) for path in planned.of_format(form)],
            "weights": _arguments(form),
        }
        for number, form in enumerate(planned.formats)
    }
    modifier = {"ignore": ["lm_head", *map(_target, planned.kept)], "config_groups": groups}
    recipe = {"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}}
    notes = {
        _CONV1D: not planned.straight,
        _DIVIDES: any(isinstance(form.block, int) for form in planned.formats),
        _SCALES: bool(planned.rules & {"range", "least"}),
        _MX: "shared" in planned.rules,
        _NVFP4: "two levels" in planned.rules,
    }
    return Written(yaml.safe_dump(recipe, sort_keys=False, width=1000), notes)


def _target(path: str) -> str:
    """Plain, or a regular expression: a name without a dot could be that of a class too."""
    return named(path, f"re:{as_regex(path)}")


def _arguments(form: Format) -> dict[str, Any] | None:
    """The `QuantizationArgs` of a weight."""
    is_float = form.grid.mantissa_bits is not None
    if is_float and (form.name not in _FLOATS or form.element):
        return None
    return {
        "num_bits": form.grid.bits,
        "type": "float" if is_float else "int",
        "symmetric": form.rule != "least",
        **_blocks(form),
        "observer": "memoryless_minmax",
    }


def _blocks(form: Format) -> dict[str, Any]:
    """Which elements share a scale, and its dtype where it is part of the format."""
    if form.rule == "shared":
        return {"strategy": "group", "group_size": form.block, **_dtypes("uint8")}
    if form.rule == "two levels":
        return {"strategy": "tensor_group", "group_size": form.block, **_dtypes("float8_e4m3fn")}
    if isinstance(form.block, int):
        return {"strategy": "group", "group_size": form.block}
    return {"strategy": form.block}


def _dtypes(name: str) -> dict[str, str]:
    return {"scale_dtype": f"torch.{name}", "zp_dtype": f"torch.{name}"}
