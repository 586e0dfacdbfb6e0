"""Plans as GPTQModel reads them: the arguments of a `QuantizeConfig`, with a `dynamic` rule for each module.

QuantizeConfig(**json.load(open("gptqmodel-dynamic.json")))
"""

from ...noise.formats import Format
from ...store.encoding import encode
from .export import Written, register
from .names import as_regex
from .planned import Planned

__all__: list[str] = []

_GPTQ = (
    "GPTQ makes up for the error of a column in the next ones, with its own calibration: the formats are the plan's, "
    "the codes are not those of plain rounding, which the plan was measured with."
)
_HEAD = "The head stays as it is, as by default (lm_head=False)."
_SCALES = "Scales are stored in float16."


@register("gptqmodel", title="GPTQModel", file="gptqmodel-dynamic.json", formats=("int4", "int8", "bf16"))
def write(planned: Planned) -> Written:
    """Every weight of the plan by name; the most frequent format also stands for what no rule names."""
    rules = {
        f"{'-' if word is None else '+'}:{as_regex(path)}": word or {} for path, word in planned.spelled(_rule).items()
    }
    usual = _rule(planned.formats[0]) or {}
    return Written(encode({**usual, "dynamic": rules}), {_GPTQ: True, _HEAD: True, _SCALES: True})


def _rule(form: Format) -> dict[str, object] | None:
    """Bits, group and symmetry, which is all that a rule can say."""
    if form.grid.mantissa_bits is not None or form.block == "tensor":
        return None
    group = form.block if isinstance(form.block, int) else -1
    return {"bits": form.grid.bits, "group_size": group, "sym": form.rule != "least"}
