"""Emulated devices and faults at every layer and operator of both fixtures: first site, source and amplifiers."""

from collections.abc import Iterable, Iterator

import pytest
from trials import Trial, healthy, play

from noisescope.devices import DEVICES
from noisescope.faults import FAULTS

NAMES = ["llama", "gpt2"]
LAYERS = [*range(8), "embed", "final_norm", "head"]
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


def share(name: str, every: int) -> list[str]:
    """One in so many of the faults, at other operators in each layer, so that all layers and operators are met."""
    found = [list(faults(name, layer)) for layer in LAYERS]
    return [fault for at, one in enumerate(found) for fault in one[at % len(one) :: every]]


def assert_most_are_seen(trials: list[Trial]) -> None:
    beyond = [trial for trial in trials if trial.found.diverges]
    assert len(beyond) >= 0.6 * sum(not trial.inert for trial in trials)


@pytest.mark.parametrize("name", NAMES)
def test_faults_at_some_operators_of_every_layer(name: str) -> None:
    trials = [play(name, "float32", fault) for fault in share(name, 6)]
    assert_found(trials)
    assert_most_are_seen(trials)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", NAMES)
def test_faults_at_every_operator(name: str, layer: object) -> None:
    trials = [play(name, "float32", fault) for fault in faults(name, layer)]
    assert_found(trials)
    assert_most_are_seen(trials)


@pytest.mark.parametrize("name", NAMES)
def test_faults_in_bfloat16(name: str) -> None:
    """One in every layer of one of the fixtures."""
    assert_found([play(name, "bfloat16", fault) for fault in share(name, 13)[NAMES.index(name) :: 2]])


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", NAMES)
def test_faults_in_bfloat16_at_every_operator(name: str, layer: object) -> None:
    assert_found([play(name, "bfloat16", fault) for fault in faults(name, layer)])


def at_one_layer(device: str, dtype: str, layers: Iterable[int]) -> list[Trial]:
    return [play("llama", dtype, f"{device}@{layer}") for layer in layers]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("at", "device"), list(enumerate(DEVIANT)), ids=DEVIANT)
def test_devices_of_less_precision_at_one_layer(at: int, device: str, dtype: str) -> None:
    assert_found(at_one_layer(device, dtype, [(0, 3, 7)[(at + (dtype == "bfloat16")) % 3]]))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVIANT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_devices_of_less_precision_at_other_layers(device: str, dtype: str) -> None:
    assert_found(at_one_layer(device, dtype, (0, 3, 7)))


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
