"""Rules are read by GPTQModel's own config where it is at hand, and always as its documentation says rules are read."""

import json
import re
from typing import Any

import pytest

from noisescope.planning.exports import export
from plan_consumers import gptqmodel
from plan_sections import planned, sections

FORMATS = ["int4", "int8", None, "int4:group=32", "int8:asymmetric", "bf16", "int4:channel", "int4:group=64,asymmetric"]
WANTED: dict[str | None, dict[str, Any] | bool] = {
    None: False,
    "bf16": False,
    "int4": {"bits": 4, "group_size": 128, "sym": True},
    "int8": {"bits": 8, "group_size": -1, "sym": True},
    "int4:group=32": {"bits": 4, "group_size": 32, "sym": True},
    "int8:asymmetric": {"bits": 8, "group_size": -1, "sym": False},
    "int4:channel": {"bits": 4, "group_size": -1, "sym": True},
    "int4:group=64,asymmetric": {"bits": 4, "group_size": 64, "sym": False},
}
"""format -> what `dynamic_get` gives: False skips a module"""


def first_match(rules: dict[str, Any], path: str) -> Any:
    """As documented: the first pattern that matches from the beginning decides, `-:` skips, `+:` and none override."""
    for rule, override in rules.items():
        if re.match(rule.removeprefix("+:").removeprefix("-:"), path):
            return False if rule.startswith("-:") else override
    return None


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_module_is_matched_by_its_own_rule_alone(name: str) -> None:
    plan = sections(name, FORMATS)
    arguments = json.loads(export(plan, "gptqmodel").text)
    rules = arguments.pop("dynamic")
    assert arguments == WANTED["int4"]
    for path, form in planned(plan).items():
        assert first_match(rules, path) == WANTED[form]
        assert first_match(dict(reversed(rules.items())), path) == WANTED[form]
    assert first_match(rules, "lm_head") is None


@pytest.mark.skipif(
    gptqmodel() is None, reason="GPTQModel is published as source alone: unpack it, add it to PYTHONPATH"
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_its_own_config_reads_them(name: str) -> None:
    plan = sections(name, FORMATS)
    module = gptqmodel()
    assert module is not None
    config = module.QuantizeConfig(**json.loads(export(plan, "gptqmodel").text))
    assert (config.bits, config.group_size, config.sym) == (4, 128, True)
    for path, form in planned(plan).items():
        assert config.dynamic_get(path) == WANTED[form]
    assert config.dynamic_get("lm_head") is None
