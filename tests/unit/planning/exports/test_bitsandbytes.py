"""Skip lists are read by transformers as they are meant: what the plan keeps, and the head, and nothing else."""

import json
from typing import Any

import pytest
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.quantizers_utils import should_convert_module

import trained
from noisescope.errors import InputError
from noisescope.planning.exports import export
from plan_sections import one, planned, sections


def config(plan: dict[str, Any]) -> Any:
    return BitsAndBytesConfig(**json.loads(export(plan, "bitsandbytes").text))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("form", "method"), [("int8", "llm_int8"), ("int4", "nf4"), ("mxfp4", "fp4"), ("nvfp4", "fp4")]
)
def test_the_linears_of_the_plan_are_converted_and_no_other(name: str, form: str, method: str) -> None:
    plan = sections(name, [form, None, "bf16", form, form])
    found = config(plan)
    assert found.quantization_method() == method
    model, _ = trained.fixture(name)
    linears = {
        path
        for path, module in model.named_modules()
        if type(module).__name__ == "Linear" or isinstance(module, Conv1D)
    }
    converted = {path for path in linears if should_convert_module(path, found.llm_int8_skip_modules)}
    assert converted == {path for path, wanted in planned(plan).items() if wanted == form}


def test_a_name_that_is_a_pattern_skips_itself_alone() -> None:
    plan = {"weights": [*one("blocks.0.a", "int8")["weights"], *one("blocks.*", None)["weights"]]}
    skipped = config(plan).llm_int8_skip_modules
    assert should_convert_module("blocks.0.a", skipped)
    assert not should_convert_module("blocks.*", skipped)


def test_two_formats_are_refused_and_4_bit_formats_are_not_passed_for_others() -> None:
    with pytest.raises(InputError, match="bitsandbytes has one format for all weights, got int8, int4; plan with"):
        export(sections("llama", ["int8", "int4"]), "bitsandbytes")
    (note,) = export(sections("llama", ["mxfp4", None]), "bitsandbytes").notes
    assert note.startswith("This is not mxfp4: ")
