"""Arguments name tensors and types that GGUF has, and its own quantisers round as the notes say."""

import re
import shlex
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig

import families
import trained
from noisescope.errors import InputError
from noisescope.noise.formats import parse_format
from noisescope.planning.exports import export
from noisescope.quantising import find_weights
from noisescope.sites import Layout
from plan_documented import as_documented
from plan_sections import planned, sections, weights

TYPES = {
    "mxfp4": "mxfp4",
    "int8:group=32": "q8_0",
    "int4:group=32": "q4_0",
    "bf16": "bf16",
    "fp16": "f16",
    None: "bf16",
}


def options(plan: dict[str, Any]) -> list[tuple[str, str]]:
    lines = export(plan, "llama.cpp").text.splitlines()
    return [(option, value) for option, value in map(shlex.split, lines)]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_tensor_is_named_once_with_a_type_of_ggml(name: str) -> None:
    plan = sections(name, list(TYPES))
    (_, embedding), (_, head), *rest = options(plan)
    assert (embedding, head) == ("bf16", "bf16")
    depth = AutoConfig.from_pretrained(trained.FIXTURES / name).num_hidden_layers
    architecture = {arch_name: arch for arch, arch_name in gguf.MODEL_ARCH_NAMES.items()}[name]
    names = gguf.get_tensor_name_map(architecture, depth)
    tensors = {path: names.get_name(f"{path}.weight", (".weight",)) for path in planned(plan)}
    rules = [value.split("=") for option, value in rest if option == "--tensor-type"]
    assert len(rules) == len(rest) == len(tensors)
    for path, tensor in tensors.items():
        matching = [kind for pattern, kind in rules if re.search(pattern.lower(), str(tensor))]
        assert matching == [TYPES[planned(plan)[path]]]
        assert matching[0].upper() in gguf.GGMLQuantizationType.__members__
    assert not [pattern for pattern, _ in rules if re.search(pattern, "output.weight")]


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "qwen3", "gemma3", "mistral", "phi3", "gpt2", "gpt_neox", "bloom", "olmo", "cohere"]
)
def test_names_of_families_are_those_of_their_architecture(family: str) -> None:
    architectures = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    chosen = {"mistral": "llama", "gpt_neox": "gptneox", "cohere": "command-r"}.get(family, family)
    names = gguf.get_tensor_name_map(architectures[chosen], families.LAYERS)
    found = find_weights(Layout.of(families.build(family)))
    rows = [{"path": path, "layer": weight.layer, "format": "mxfp4"} for path, weight in found.items()]
    values = [value for option, value in options({"weights": rows}) if option == "--tensor-type"]
    expected = [names.get_name(f"{path}.weight", (".weight",)) for path in found]
    assert [re.sub(r"\\(.)", r"\1", value.split("=")[0])[1:-1] for value in values] == expected


def test_a_model_without_names_in_gguf_is_refused() -> None:
    found = find_weights(Layout.of(families.build("opt")))
    rows = [{"path": path, "layer": weight.layer, "format": "mxfp4"} for path, weight in found.items()]
    with pytest.raises(InputError, match=r"^llama.cpp has no names for the modules of this model$"):
        export({"weights": rows}, "llama.cpp")


def test_looking_for_names_leaves_the_names_of_gguf_as_they_are() -> None:
    before = dict(gguf.TensorNameMap.block_mappings_cfg)
    export(sections("llama", ["mxfp4"]), "llama.cpp")
    assert gguf.TensorNameMap.block_mappings_cfg == before


@pytest.mark.parametrize(
    ("form", "low", "high"), [("mxfp4", 1, 1), ("int8:group=32", 0.95, 0.98), ("int4:group=32", 0.89, 0.92)]
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_its_own_quantisers_round_as_the_plan_was_measured(name: str, form: str, low: float, high: float) -> None:
    kind = gguf.GGMLQuantizationType[TYPES[form].upper()]
    own_error, their_error = 0.0, 0.0
    for weight in weights(name).values():
        rows = weight.value.detach().movedim(weight.axis, -1).contiguous()  # as its converter lays them
        theirs = torch.from_numpy(gguf.dequantize(gguf.quantize(rows.numpy().astype(np.float32), kind), kind))
        own = parse_format(form).round(rows)
        own_error += float((own - rows).square().sum())
        their_error += float((theirs - rows).square().sum())
        if form == "mxfp4":
            assert (own == theirs).float().mean() > 0.999
    ratio = (their_error / own_error) ** 0.5
    assert low * 0.9999 <= ratio <= high * 1.0001
    assert name == "gpt2" or as_documented("llama.cpp", form, ratio), ratio
