"""Plans as bitsandbytes reads them, through transformers: one width for all, and a list of what is left out.

BitsAndBytesConfig(**json.load(open("bitsandbytes-config.json")))
"""

from ...noise.formats import Format
from ...store.encoding import encode
from .export import Written, register
from .names import as_regex, named
from .planned import Inexpressible, Planned

__all__: list[str] = []

_HEADS = ("lm_head", "embed_out")
"""what transformers would leave out by itself, were there no list"""


@register("bitsandbytes", title="bitsandbytes", file="bitsandbytes-config.json", formats=("int8", "bf16"))
def write(planned: Planned) -> Written:
    """The arguments of a `BitsAndBytesConfig`: its formats are its own, so there is always a note."""
    if len(planned.formats) > 1:
        raise Inexpressible(f"has one format for all weights, got {', '.join(map(str, planned.formats))}")
    planned.spelled(_width)
    form = planned.formats[0]
    skipped = [*_HEADS, *(named(path, as_regex(path)) for path in planned.kept)]
    return Written(encode({**(_width(form) or {}), "llm_int8_skip_modules": skipped}), {_note(form): True})


def _width(form: Format) -> dict[str, object] | None:
    if str(form) == "int8":
        return {"load_in_8bit": True}
    return {"load_in_4bit": True, "bnb_4bit_quant_type": _four_bit(form)} if form.grid.bits == 4 else None


def _four_bit(form: Format) -> str:
    return "nf4" if form.grid.mantissa_bits is None else "fp4"


def _note(form: Format) -> str:
    if form.grid.bits == 8:
        return (
            "The largest value of a channel becomes 127 (the plan: 127.5), and products are computed with activations "
            "in int8 too, but for outliers (LLM.int8()): the plan was measured with activations as they are."
        )
    return (
        f"This is not {form}: bitsandbytes has 4 bit formats of its own alone, and {_four_bit(form)} in blocks of 64 "
        "with a scale of float32 stands for it; the plan was not measured with that."
    )
