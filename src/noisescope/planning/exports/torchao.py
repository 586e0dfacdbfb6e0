"""Plans as torchao reads them: a config for each module by its name, as transformers keeps them in `config.json`.

config = TorchAoConfig.from_dict(json.load(open("torchao-config.json")))
AutoModelForCausalLM.from_pretrained(name, quantization_config=config)
"""

from collections.abc import Mapping
from typing import Any

from ...noise.formats import Format
from ...store.encoding import encode
from .export import Written, register
from .planned import Inexpressible, Planned, UnfitModel

__all__: list[str] = []

_FLOAT8 = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
_CONV1D = "A Conv1D, as GPT-2 has them, does not compute with these weights: it is for models of nn.Linear."
_BYTES = "int4 is held in a byte each until it is packed for a device."
_SCALES = "Scales of int8 and float8 are stored in the dtype of the model."
_NVFP4 = "NVFP4 takes weights whose sides are multiples of 16."


@register(
    "torchao",
    title="torchao",
    file="torchao-config.json",
    formats=("int4", "nvfp4", "fp8_e4m3", "int8", "bf16"),
)
def write(planned: Planned) -> Written:
    """A `TorchAoConfig` with one `FqnToConfig`; what it does not name stays as it is."""
    if planned.transposed:
        raise UnfitModel("computes with nn.Linear, and this model has Conv1D")
    if any(weight.path.startswith("re:") or weight.path == "_default" for weight in planned.weights):
        raise UnfitModel("would take the name of a module for a pattern, as it begins with re: or is _default")
    named = _typed("FqnToConfig", {"fqn_to_config": planned.spelled(_config)}, version=1)
    names = {form.name for form in planned.formats}
    notes = {
        _CONV1D: not planned.straight,
        _BYTES: "int4" in names,
        _SCALES: bool(names & {"int8", *_FLOAT8}),
        _NVFP4: "nvfp4" in names,
    }
    return Written(encode({"quant_method": "torchao", "quant_type": {"default": named}}), notes)


def _config(form: Format) -> dict[str, Any] | None:
    """The config of a format, as torchao writes configs."""
    if form.rule == "shared":
        raise Inexpressible("has MX formats only for weights and activations together")
    if form.name == "nvfp4":
        return _typed("NVFP4WeightOnlyConfig", {"use_dynamic_per_tensor_scale": True}, version=1)
    if form.name in _FLOAT8:
        data = {"weight_dtype": _dtype(_FLOAT8[form.name]), "granularity": _granularity(form)}
        return _typed("Float8WeightOnlyConfig", data)
    if form.name == "int8" and form.rule == "range":
        return _typed("Int8WeightOnlyConfig", {"granularity": _granularity(form)})
    if form.grid.mantissa_bits is None and form.block != "tensor":
        return _typed("IntxWeightOnlyConfig", _intx(form))
    return None


def _intx(form: Format) -> dict[str, Any]:
    grouped = isinstance(form.block, int)
    return {
        "weight_dtype": _dtype(form.name),
        "granularity": _granularity(form) if grouped else _typed("PerAxis", {"axis": 0}, version=1),
        "mapping_type": {"_type": "MappingType", "_data": "ASYMMETRIC" if form.rule == "least" else "SYMMETRIC"},
        "scale_dtype": _dtype("bfloat16") if grouped else None,
    }


def _granularity(form: Format) -> dict[str, Any]:
    if isinstance(form.block, int):
        return _typed("PerGroup", {"group_size": form.block}, version=1)
    return _typed("PerTensor", {}, version=1) if form.block == "tensor" else _typed("PerRow", {"dim": -1}, version=1)


def _typed(name: str, data: Mapping[str, Any], *, version: int = 2) -> dict[str, Any]:
    return {"_type": name, "_version": version, "_data": dict(data)}


def _dtype(name: str) -> dict[str, Any]:
    return {"_type": "torch.dtype", "_data": name}
