"""All exports: what can be said is said the same each time, what cannot is refused in one line, names stay names."""

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from hostile_strings import HOSTILE
from noisescope.errors import InputError
from noisescope.noise.formats import FORMATS
from noisescope.planning.exports import EXPORTS, export, exports
from noisescope.planning.exports.export import Written, register
from plan_sections import one, sections

EVERY = (
    *FORMATS,
    "fp8_e4m3:tensor",
    "fp8_e4m3:group=128",
    "int8:tensor",
    "int8:group=32",
    "int8:asymmetric",
    "int4:channel",
    "int4:tensor",
    "int4:group=32",
    "int4:group=64,asymmetric",
    "mxfp8:e5m2",
    "mxfp6:e3m2",
)
ROW = "fp8_e4m3 fp8_e4m3:tensor fp8_e4m3:group=128 int8 int8:tensor int8:group=32 int4 int4:channel int4:group=32"
INTEGERS = "int8 int8:group=32 int8:asymmetric int4 int4:channel int4:group=32 int4:group=64,asymmetric"
MX = "mxfp4 mxfp6 mxfp8"
OTHER_MX = "mxfp6:e3m2 mxfp8:e5m2"
SAID = {
    "auto-round": f"{ROW} fp8_e5m2 int4:tensor int4:group=64,asymmetric nvfp4 {MX} {OTHER_MX}",
    "bitsandbytes": "int8 int4 int4:channel int4:tensor int4:group=32 int4:group=64,asymmetric mxfp4 nvfp4",
    "gptqmodel": INTEGERS,
    "llama.cpp": "mxfp4 int8:group=32 int4:group=32",
    "llm-compressor": f"{ROW} int4:tensor int8:asymmetric int4:group=64,asymmetric nvfp4 {MX}",
    "modelopt": f"{ROW} int4:tensor nvfp4 {MX} {OTHER_MX}",
    "torchao": f"{ROW} fp8_e5m2 int8:asymmetric int4:group=64,asymmetric nvfp4",
}
"""tool -> the formats that it has"""


@pytest.mark.parametrize("tool", EXPORTS)
def test_a_format_is_said_or_refused_in_one_line(tool: str) -> None:
    said = []
    for form in EVERY:
        plan = one("model.layers.3.mlp.up_proj", form, layer=3)
        if form in ("bf16", "fp16"):
            with pytest.raises(InputError, match="has nothing to do: the plan keeps all weights in 16 bit"):
                export(plan, tool)
            continue
        found = exports(plan)
        if tool in found.refused:
            title = re.escape(EXPORTS[tool].title)
            assert re.fullmatch(rf"{title} .+; plan with --formats [\w:=,]+", found.refused[tool])
        else:
            said.append(form)
    assert sorted(said) == sorted(SAID[tool].split())


@pytest.mark.parametrize("tool", EXPORTS)
def test_a_weight_rounded_at_random_is_refused(tool: str) -> None:
    with pytest.raises(InputError, match="has no int8:stochastic"):
        export(one("model.layers.0.mlp.up_proj", "int8:stochastic"), tool)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("tool", EXPORTS)
def test_what_a_tool_advises_it_can_say(tool: str, name: str) -> None:
    found = export(sections(name, EXPORTS[tool].formats), tool)
    assert (found.tool, found.file) == (tool, EXPORTS[tool].file)
    assert found.notes
    assert all(note.endswith(".") and "\n" not in note for note in found.notes)


def test_every_tool_at_once(tmp_path: Any) -> None:
    found = exports(sections("llama", ["mxfp6", "nvfp4", None]))
    assert [one.tool for one in found.made] == ["auto-round", "llm-compressor", "modelopt"]
    assert found.refused == {
        "bitsandbytes": "bitsandbytes has one format for all weights, got mxfp6, nvfp4; plan with --formats int8,bf16",
        "gptqmodel": "GPTQModel has no mxfp6, nvfp4; plan with --formats int4,int8,bf16",
        "llama.cpp": "llama.cpp has nvfp4 only without the scale of the tensor; "
        "plan with --formats mxfp4,int8:group=32,bf16",
        "torchao": "torchao has MX formats only for weights and activations together; "
        "plan with --formats int4,nvfp4,fp8_e4m3,int8,bf16",
    }
    files = found.save(tmp_path / "exports")
    assert [file.read_text() for file in files] == [one.text for one in found.made]


def test_what_a_tool_had_of_another_plan_is_removed_if_it_refuses_this_one(tmp_path: Any) -> None:
    exports(sections("llama", ["int8"])).save(tmp_path)
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / EXPORTS["bitsandbytes"].file).unlink()
    (tmp_path / EXPORTS["bitsandbytes"].file).mkdir()
    found = exports(sections("llama", ["mxfp6", "nvfp4", None]))
    assert "gptqmodel" in found.refused
    found.save(tmp_path)
    kept = {*(one.file for one in found.made), "mine.json", EXPORTS["bitsandbytes"].file}
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    ("plan", "tool", "why"),
    [
        (sections("gpt2", ["mxfp4"], axis=True), "torchao", "computes with nn.Linear, and this model has Conv1D"),
        (sections("gpt2", ["int8"], axis=True), "llm-compressor", "leaves Conv1D as they are, and this model"),
        (one("re:.*", "mxfp4"), "torchao", "would take the name of a module for a pattern"),
        (one("model.layers.0.odd", "nvfp4"), "llama.cpp", "has no names for the modules of this model"),
        (one("model.odd", "nvfp4"), "llama.cpp", "names tensors by the number of their block"),
    ],
)
def test_no_formats_are_advised_where_none_would_do(plan: dict[str, Any], tool: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        export(plan, tool)
    assert str(caught.value).startswith(f"{EXPORTS[tool].title} {why}")
    assert "--formats" not in str(caught.value)


@pytest.mark.parametrize("tool", EXPORTS)
def test_the_same_plan_gives_the_same_bytes(tool: str) -> None:
    plan = sections("llama", EXPORTS[tool].formats)
    assert export(plan, tool) == export(json.loads(json.dumps(plan)), tool)


def test_unknown_tools_and_what_is_no_plan() -> None:
    plan = one("a.b", "int8")
    with pytest.raises(InputError, match='unknown export "gptqmodle", did you mean "gptqmodel"'):
        export(plan, "gptqmodle")
    for wrong in ({}, {"weights": []}, {"weights": "all"}, []):
        with pytest.raises(InputError, match="plan: has no weights"):
            exports(wrong)  # type: ignore[arg-type]
    for row in ({"path": "a"}, {"format": "int8"}, "a", {"path": "", "format": None}):
        with pytest.raises(InputError, match="plan: weight 0 has no path and format"):
            exports({"weights": [row]})
    with pytest.raises(InputError, match="a weight is in it twice"):
        exports({"weights": plan["weights"] * 2})
    with pytest.raises(InputError, match='unknown format "int9"'):
        exports(one("a.b", "int9"))


def test_a_tool_is_registered_once() -> None:
    with pytest.raises(InputError, match='export "torchao" is registered already'):
        register("torchao", title="", file="", formats=())(lambda planned: Written("", {}))


@pytest.mark.parametrize("tool", ["llm-compressor", "torchao"])
def test_conv1d_is_refused_where_it_is_known_and_noted_where_it_may_be(tool: str) -> None:
    with pytest.raises(InputError, match="Conv1D"):
        export(sections("gpt2", ["int8"], axis=True), tool)
    assert any("Conv1D" in note for note in export(sections("gpt2", ["int8"]), tool).notes)
    assert not any("Conv1D" in note for note in export(sections("llama", ["int8"], axis=True), tool).notes)


def unescaped(pattern: str) -> str:
    """The name that an escaped pattern of `re` stands for."""
    assert pattern.startswith("^")
    assert pattern.endswith("$")
    return re.sub(r"\\(.)", r"\1", pattern[1:-1], flags=re.DOTALL)


def recipe_names(text: str) -> list[str]:
    stage = yaml.safe_load(text)["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
    assert list(stage) == ["ignore", "config_groups"]
    return [
        unescaped(name.removeprefix("re:")) if name.startswith("re:") else name
        for name in [*stage["ignore"][1:], *stage["config_groups"]["group_0"]["targets"]]
    ]


def rule_names(text: str) -> list[str]:
    rules = yaml.safe_load(text)["quant_cfg"]
    assert [list(rule) for rule in rules] == [["quantizer_name", "enable"], ["quantizer_name", "cfg"]]
    return [re.sub(r"\[(.)\]", r"\1", rule["quantizer_name"].removesuffix(".weight_quantizer")) for rule in rules[1:]]


NAMES: dict[str, Callable[[str], list[str]]] = {
    "auto-round": lambda text: list(json.loads(text)),
    "bitsandbytes": lambda text: [
        unescaped(name) if name.startswith("^") else name for name in json.loads(text)["llm_int8_skip_modules"][2:]
    ],
    "gptqmodel": lambda text: [unescaped(rule[2:]) for rule in json.loads(text)["dynamic"]],
    "llm-compressor": recipe_names,
    "modelopt": rule_names,
    "torchao": lambda text: list(json.loads(text)["quant_type"]["default"]["_data"]["fqn_to_config"]),
}
"""tool -> the names of modules in what it is given"""
PATTERNS = (
    "model.*",
    "(a|b).c",
    "a[0-9].b",
    "re:.*",
    "_default",
    "^a$",
    "Linear",
    "a?b!c",
    "*",
    "{a: b}",
    "- a",
    "&x *x",
)


@pytest.mark.parametrize("tool", NAMES)
def test_names_stay_names(tool: str) -> None:
    kept, low = (None, "int8") if tool == "bitsandbytes" else ("int8", None)
    for text in (*HOSTILE, *PATTERNS):
        plan = {
            "weights": [{"path": text, "layer": 0, "format": kept}, {"path": f"{text}.x", "layer": 0, "format": low}]
        }
        if tool == "torchao" and (text.startswith("re:") or text == "_default"):
            with pytest.raises(InputError, match="would take the name of a module for a pattern"):
                export(plan, tool)
            continue
        expected = {text} if tool in ("bitsandbytes", "modelopt") else {text, f"{text}.x"}
        found = export(plan, tool).text
        assert found.encode().decode() == found
        assert set(NAMES[tool](found)) == expected


def test_only_names_of_gguf_reach_a_shell() -> None:
    for text in (*HOSTILE, *PATTERNS, "$(touch canary)", "`id`", "';reboot;'"):
        with pytest.raises(InputError, match=r"^llama.cpp has no names"):
            export(one(f"model.layers.0.{text}", "mxfp4"), "llama.cpp")
    for layer in ("$(id)", "0;id", None, 0.0):
        with pytest.raises(InputError, match="names tensors by the number of their block"):
            export(one(f"model.layers.{layer}.mlp.up_proj", "mxfp4", layer=layer), "llama.cpp")  # type: ignore[arg-type]
    text = export(sections("llama", ["mxfp4"]), "llama.cpp").text
    assert all(len(shlex.split(line)) == 2 for line in text.splitlines())
