"""Plans as AutoRound reads them: its `layer_config`, a scheme for each layer by name.

AutoRound(model, tokenizer, scheme="W4A16", layer_config=json.load(open("auto-round-layer-config.json")))
"""

from ...noise.formats import Format
from ...store.encoding import encode
from .export import Written, register
from .planned import Inexpressible, Planned

__all__: list[str] = []

_FLOATS = {
    "mxfp4": "mx_fp",
    "mxfp6": "mx_fp",
    "mxfp6:e3m2": "mx_fp6e3m2",
    "mxfp8": "mx_fp",
    "mxfp8:e5m2": "mx_fp8e5m2",
    "nvfp4": "nv_fp",
    "fp8_e4m3": "fp",
    "fp8_e5m2": "fp8_e5m2",
}
_KEPT = {"bits": 16, "data_type": "float", "act_bits": 16, "act_data_type": "float"}
_GROUPS = {"channel": -1, "tensor": 0}
_TUNED = (
    "AutoRound tunes rounding and scales with its own calibration: the formats are the plan's, the codes are not those "
    "of plain rounding, which the plan was measured with (iters=0 with disable_opt_rtn=True rounds only)."
)
_OTHERS = "The scheme decides on layers that the plan does not name; the head stays as it is by default."
_INTEGERS = (
    "A scale of integers is the largest value over 2^(bits - 1), with its sign, in float16; a scheme of integers keeps "
    "layers in 16 bit whose sides are no multiples of 32."
)
_MIXED = "Not every output format of AutoRound stores floats beside integers, or floats of several widths."


@register(
    "auto-round",
    title="AutoRound",
    file="auto-round-layer-config.json",
    formats=("mxfp4", "nvfp4", "mxfp6", "mxfp8", "int8", "bf16"),
)
def write(planned: Planned) -> Written:
    """Every weight of the plan by name, the kept ones in 16 bit."""
    schemes = planned.spelled(_scheme)
    if any(form.name == "int8" and form.rule == "least" for form in planned.formats):
        raise Inexpressible("refuses int8 with a zero point for most of its output formats")
    layers = {path: _KEPT if scheme is None else scheme for path, scheme in schemes.items()}
    notes = {
        _TUNED: True,
        _OTHERS: True,
        _INTEGERS: planned.has_integers,
        _MIXED: len(planned.formats) > 1 and bool(planned.rules & {"shared", "two levels"}),
    }
    return Written(encode(layers), notes)


def _scheme(form: Format) -> dict[str, object] | None:
    """The `QuantizationScheme` of a weight whose activations stay in 16 bit."""
    element = f"{form.name}:{form.element}" if form.element else form.name
    kind = "int" if form.grid.mantissa_bits is None else _FLOATS.get(element)
    if kind is None:
        return None
    return {
        "bits": form.grid.bits,
        "group_size": form.block if isinstance(form.block, int) else _GROUPS[form.block],
        "sym": form.rule != "least",
        "data_type": kind,
        "act_bits": 16,
    }
