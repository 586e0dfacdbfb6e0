"""Emulated devices and faults at every layer and operator of both fixtures: first site, source and amplifiers."""

from collections.abc import Iterator

import pytest
from trials import Trial, healthy, play

from noisescope.devices import DEVICES
from noisescope.faults import FAULTS

LAYERS = [*range(8), "embed", "final_norm", "head"]
EVERYWHERE = [
    pytest.param(name, layer, marks=[pytest.mark.slow] if at % 2 != own else [])
    for own, name in enumerate(["llama", "gpt2"])
    for at, layer in enumerate(LAYERS)
]
"""all layers of both; every other one of each by default, so that between them all are seen"""
KINDS = [kind for kind in FAULTS if not FAULTS[kind].whole]
DEVIANT = [name for name, row in DEVICES.items() if not row.honest]


def faults(name: str, layer: object) -> Iterator[str]:
    """At every traced operator of a layer one kind, magnitude and sparsity, going round through all of them."""
    _, reference = healthy(name, "float32")
    sites = [site for site in reference.sites if site.layer == layer]
    for at, site in enumerate(sites):
        turn = at + 3 * (layer if isinstance(layer, int) else 5)
        kinds = [kind for kind in KINDS if (FAULTS[kind].operators or (site.operator,)).count(site.operator)]
        kind = kinds[turn % len(kinds)]
        magnitude = FAULTS[kind].documented * (1, 0.1, 0.01)[turn % 3]
        yield f"{kind}:{magnitude:g}@{site.name},sparsity={(1, 0.1)[turn % 2]:g},seed={turn}"


def assert_found(trials: list[Trial]) -> None:
    """Those that leave the floor are found where they are; those below it differ in bits from there on."""
    for trial in trials:
        if trial.inert:
            continue
        assert trial.found.sections["verdict"]["first_in_bits"] == trial.truth, trial.what
        if trial.found.diverges:
            assert trial.first_is_right, (trial.what, trial.truth, trial.found.first)
            assert not trial.wrong_roles, (trial.what, trial.wrong_roles)


@pytest.mark.parametrize(("name", "layer"), EVERYWHERE)
def test_faults_at_every_operator(name: str, layer: object) -> None:
    trials = [play(name, "float32", fault) for fault in faults(name, layer)]
    assert_found(trials)
    beyond = [trial for trial in trials if trial.found.diverges]
    assert len(beyond) >= 0.6 * sum(not trial.inert for trial in trials)


@pytest.mark.parametrize(("name", "layer"), [("llama", 0), ("gpt2", 4), ("llama", 7), ("gpt2", "head")])
def test_faults_in_bfloat16(name: str, layer: object) -> None:
    assert_found([play(name, "bfloat16", fault) for fault in faults(name, layer)])


@pytest.mark.parametrize("device", DEVIANT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_devices_of_less_precision_at_one_layer(device: str, dtype: str) -> None:
    trials = [play("llama", dtype, f"{device}@{layer}") for layer in (0, 3, 7)]
    assert_found(trials)


@pytest.mark.parametrize(
    ("dtype", "what"),
    [
        ("float32", ("gain:0.01@2.linear", "noise:0.01@5.attention")),
        ("float32", ("saturation:0.2@1.mlp.up_proj.linear", "bias:0.1@6.rms_norm")),
        ("float32", ("tf32@3.linear", "exp_table@6")),
        ("bfloat16", ("gain:0.3@2.linear", "saturation:0.1@6.residual")),
        ("bfloat16", ("noise:0.5@0.mlp.down_proj.linear", "bf16_accumulation@4")),
    ],
)
def test_two_at_once_are_both_named(dtype: str, what: tuple[str, str]) -> None:
    trial = play("llama", dtype, *what)
    assert not trial.inert
    assert_found([trial])
    assert len(trial.found.sources) == 2


def test_a_whole_device_of_less_precision_is_found_at_its_first_product() -> None:
    trial = play("llama", "float32", "tf32")
    assert trial.found.first is not None
    assert trial.found.first.site.name == trial.truth == "model.layers.0.self_attn.q_proj.linear.0.forward"
    assert set(trial.found.sources) >= set(range(8))
