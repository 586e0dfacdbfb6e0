"""Plans as NVIDIA ModelOpt reads them: a `quant_cfg` with a rule for the weight quantiser of each module.

mtq.quantize(model, yaml.safe_load(open("modelopt-quant-cfg.yaml")))
"""

from typing import Any

import yaml

from ...noise.formats import Format
from .export import Written, register
from .names import as_glob
from .planned import Planned

__all__: list[str] = []

_ELEMENTS = {
    "mxfp4": (2, 1),
    "mxfp6": (2, 3),
    "mxfp6:e3m2": (3, 2),
    "mxfp8": (4, 3),
    "mxfp8:e5m2": (5, 2),
    "nvfp4": (2, 1),
    "fp8_e4m3": (4, 3),
}
"""bits of exponent and mantissa; ModelOpt itself refuses E5M2 whose scales are no powers of two"""
_SCALES = {"shared": (8, 0), "two levels": (4, 3)}
_WEIGHTS = "Weights only: the quantisers of activations are off, as the plan does not speak of them."
_INTEGERS = "The largest value of a block of integers becomes 2^(bits - 1) - 1; the plan: 2^(bits - 1) - 1/2."
_MX = (
    "An MX scale is the least power of two that cuts nothing off; the plan was measured with the scales of the "
    "standard, which may be half of it."
)


@register(
    "modelopt",
    title="ModelOpt",
    file="modelopt-quant-cfg.yaml",
    formats=("mxfp4", "nvfp4", "mxfp6", "mxfp8", "int8", "bf16"),
)
def write(planned: Planned) -> Written:
    """Everything off, then each weight of the plan on; YAML, as an axis is a number and JSON has no such keys."""
    rules: list[dict[str, Any]] = [{"quantizer_name": "*", "enable": False}]
    rules += [
        {"quantizer_name": f"{as_glob(path)}.weight_quantizer", "cfg": attributes}
        for path, attributes in planned.spelled(_attributes).items()
        if attributes is not None
    ]
    text = yaml.safe_dump({"quant_cfg": rules, "algorithm": "max"}, sort_keys=False, width=1000)
    return Written(text, {_WEIGHTS: True, _INTEGERS: planned.has_integers, _MX: "shared" in planned.rules})


def _attributes(form: Format) -> dict[str, Any] | None:
    """The `QuantizerAttributeConfig` of a weight."""
    bits = _bits(form)
    if bits is None:
        return None
    if form.rule in _SCALES:
        blocks = {-1: form.block, "type": "dynamic", "scale_bits": list(_SCALES[form.rule])}
        return {"num_bits": bits, "block_sizes": blocks}
    if isinstance(form.block, int):
        return {"num_bits": bits, "block_sizes": {-1: form.block, "type": "static"}}
    return {"num_bits": bits, "axis": 0 if form.block == "channel" else None}


def _bits(form: Format) -> int | list[int] | None:
    if form.grid.mantissa_bits is None:
        return form.grid.bits if form.rule == "range" else None  # its integers have no zero point
    found = _ELEMENTS.get(f"{form.name}:{form.element}" if form.element else form.name)
    return None if found is None else list(found)
