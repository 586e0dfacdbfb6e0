"""Plans as llama-quantize reads them: a `--tensor-type` for each tensor, by its name in a GGUF file.

    eval "llama-quantize $(tr '\\n' ' ' < llama-quantize.args) model-bf16.gguf model.gguf q8_0"

The last word must be a quantised type, or llama-quantize does not look at `--tensor-type`. All linears of the blocks
are named, so it stands for nothing but what the plan does not know of.
"""

import re
import shlex
from functools import cache

from gguf import MODEL_ARCH, MODEL_TENSOR, MODEL_TENSORS, TensorNameMap, get_tensor_name_map

from ...noise.formats import Format
from .export import Written, register
from .planned import Inexpressible, Planned, PlannedWeight, UnfitModel

__all__: list[str] = []

_TYPES = {"mxfp4": "mxfp4", "int8:group=32": "q8_0", "int4:group=32": "q4_0"}
_KEPT = {"fp16": "f16", "bf16": "bf16"}
_NOTES = {
    "mxfp4": "mxfp4: the same blocks and scales; a value in the middle of two goes to the smaller, not the even one.",
    "int8:group=32": "q8_0: the largest value of a block becomes 127 (the plan: 127.5), a scale is float16 "
    "(the plan: bfloat16).",
    "int4:group=32": "q4_0: the largest value of a block becomes -8 (the plan: 7.5), a scale is float16 "
    "(the plan: bfloat16).",
}
_CONVERTED = "Convert the model with --outtype bf16 first; what the plan keeps, embedding and head are stored in bf16."
_LAST = (
    "The type after the files must be a quantised one, such as q8_0; it is used for tensors that the plan does not "
    "name, such as stacked experts."
)


@register("llama.cpp", title="llama.cpp", file="llama-quantize.args", formats=("mxfp4", "int8:group=32", "bf16"))
def write(planned: Planned) -> Written:
    """Arguments, quoted for a shell, one option a line."""
    names = _tensors(planned.weights)
    planned.spelled(_word)
    types = [f"^{re.escape(name)}$={_type(weight)}" for weight, name in zip(planned.weights, names, strict=True)]
    options = [("--token-embedding-type", "bf16"), ("--output-tensor-type", "bf16")]
    options += [("--tensor-type", text) for text in types]
    used = {_NOTES[str(form)]: True for form in planned.formats}
    return Written("".join(f"{shlex.join(option)}\n" for option in options), {**used, _CONVERTED: True, _LAST: True})


def _word(form: Format) -> str | None:
    if form.name == "nvfp4":
        raise Inexpressible("has nvfp4 only without the scale of the tensor")
    return _TYPES.get(str(form))


def _type(weight: PlannedWeight) -> str:
    form = weight.format
    if form is None:
        return "bf16"
    return _TYPES[str(form)] if weight.low is not None else _KEPT[form.name]


def _tensors(weights: tuple[PlannedWeight, ...]) -> list[str]:
    """The name of each in GGUF, if it is the same for all architectures that have such modules."""
    kinds = [_in_first_block(weight) for weight in weights]
    found = set[tuple[str, ...]]()
    for names in _architectures():
        mapped = tuple(names.get_name(f"{kind}.weight", (".weight",)) or "" for kind in kinds)
        found |= {mapped} if all(mapped) else set()
    if len(found) != 1:
        raise UnfitModel(f"has {'several' if found else 'no'} names for the modules of this model")
    named = zip(weights, found.pop(), strict=True)
    return [re.sub(r"^blk\.0\.", f"blk.{weight.layer}.", name) for weight, name in named]


def _in_first_block(weight: PlannedWeight) -> str:
    """The path of the same module in block 0: names are alike in all blocks."""
    parts = weight.path.split(".")
    if not isinstance(weight.layer, int) or str(weight.layer) not in parts:
        raise UnfitModel("names tensors by the number of their block, and a module of this model has none")
    parts[parts.index(str(weight.layer))] = "0"
    return ".".join(parts)


@cache
def _architectures() -> tuple[TensorNameMap, ...]:
    """The names of every architecture that has attention.

    Recurrent models that were made of transformers call other tensors by the same names. An architecture with names of
    its own is left out: to look at them changes those of all others, for everyone in this process.
    """
    return tuple(
        get_tensor_name_map(architecture, 1)
        for architecture in MODEL_ARCH
        if MODEL_TENSOR.ATTN_OUT in MODEL_TENSORS[architecture]
        and architecture not in TensorNameMap.arch_block_mappings_cfg
    )
