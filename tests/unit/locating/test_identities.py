"""Identities: they hold on healthy arithmetic, see what they say, and are blind to what they say."""

from collections import defaultdict
from functools import cache

import pytest

from families import LAYERS, build, tokens
from noisescope.faults import FAULTS, Fault
from noisescope.locating import locate
from noisescope.locating.identities import IDENTITIES

KINDS = ("dead_zone", "saturation", "bias", "gain", "stuck_at", "wrong_rounding", "low_precision_accumulate", "lut_exp")
"""the deterministic ones, which nobody sees by asking again"""
PLACES = {
    "linear": ("llama", "mlp.up_proj.linear", "eager"),
    "matmul": ("llama", "self_attn.matmul", "eager"),
    "softmax": ("llama", "self_attn.softmax", "eager"),
    "silu": ("llama", "mlp.act_fn.silu", "eager"),
    "rms_norm": ("llama", "input_layernorm.rms_norm", "eager"),
    "residual": ("llama", "residual", "eager"),
    "mul": ("llama", "mlp.mul", "eager"),
    "add": ("llama", "self_attn.add", "eager"),
    "attention": ("llama", "self_attn.attention", "sdpa"),
    "gelu": ("gpt_neox", "mlp.act.gelu", "eager"),
    "layer_norm": ("gpt_neox", "input_layernorm.layer_norm", "eager"),
}
"""operator -> where it is to be found"""


@cache
def seen(operator: str, kind: str) -> dict[str, list[bool]]:
    """Identity -> whether it failed, at each struck call that came out wrong."""
    family, site, attn = PLACES[operator]
    model, inputs = build(family, attn=attn), tokens(family, rows=2, length=9)
    faults = [Fault(kind, None, f"{layer}.{site}", seed=layer) for layer in range(LAYERS)]
    verdict = locate(model, inputs, simulate=faults, method="identities")
    struck = {truth["site"] for truth in verdict.sections["truth"] if not truth["inert"]}
    found: dict[str, list[bool]] = defaultdict(list)
    for row in verdict.sections["sites"]:
        if f"{row['module']}.{row['operator']}" in struck:
            for name in row["identities"]:
                found[name].append(name in row["failed"])
    return found


def slow(operator: str, kind: str) -> list[pytest.MarkDecorator]:
    """Every operator with half of the kinds by default, the next one with the others."""
    return [pytest.mark.slow] if (list(PLACES).index(operator) + list(KINDS).index(kind)) % 2 else []


ROWS = [
    pytest.param(row.name, operator, kind, kind in row.blind_to, marks=slow(operator, kind))
    for row in IDENTITIES
    for operator in row.operators
    if operator in PLACES
    for kind in KINDS
    if FAULTS[kind].operators is None or operator in FAULTS[kind].operators
]


@pytest.mark.parametrize(("identity", "operator", "kind", "blind"), ROWS)
def test_an_identity_sees_what_it_says(identity: str, operator: str, kind: str, blind: bool) -> None:
    failed = seen(operator, kind).get(identity, [])
    if not failed:
        pytest.skip("the fault changed no bit here")
    if blind:
        assert not all(failed)
    else:
        assert any(failed)


@pytest.mark.parametrize("operator", PLACES)
def test_every_operator_has_an_identity_that_holds_when_all_is_well(operator: str) -> None:
    family, _, attn = PLACES[operator]
    verdict = locate(build(family, attn=attn), tokens(family), method="identities")
    rows = [row for row in verdict.sections["sites"] if row["operator"] == operator and row["dtype"] == "float32"]
    assert rows
    assert all(row["identities"] and not row["failed"] for row in rows)


def test_embedding_and_the_rotary_table_have_one_too() -> None:
    asked = {(row["operator"], name) for row in _healthy().sections["sites"] for name in row["identities"]}
    assert {("embedding", "twin"), ("cos", "turned"), ("sin", "turned")} <= asked


@cache
def _healthy():
    return locate(build("llama"), tokens(), method="identities")
