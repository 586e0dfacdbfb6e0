"""From what a person writes to a device at a place: only there does anything come out otherwise."""

import pytest
import torch
from seen import bits, lively
from torch import Tensor, nn

from families import tokens
from noisescope.devices import DEVICES, EmulatedDevice, PlacedDevice, emulate, parse_device
from noisescope.errors import InputError, NothingMatched
from noisescope.faults import Fault
from noisescope.locating import locate

pytestmark = pytest.mark.usefixtures("one_thread")

MODEL = "model.layers.1"


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return lively("llama")


def hidden(model: nn.Module) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return model(**tokens(), output_hidden_states=True).hidden_states


# --- reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["tf32", "tf32@9", "exp_table@3.softmax", "tf32@9.mlp.down_proj.linear", "racing_sums,seed=4"]
)
def test_a_device_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_device(text)) == text
    assert isinstance(parse_device(text), PlacedDevice)


def test_faults_have_the_same_grammar() -> None:
    assert parse_device("saturation:0.2@15.linear,sparsity=0.5", seed=3) == Fault(
        "saturation", 0.2, "15.linear", sparsity=0.5, seed=3
    )
    assert parse_device("racing_sums@1", seed=3) == PlacedDevice("racing_sums", "1", 3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tf23", 'unknown device or fault "tf23", did you mean "tf32"?'),
        ("exp_tabel@3", 'did you mean "exp_table"?'),
        ("satturation:0.2@15.linear", 'did you mean "saturation"?'),
        ("", 'unknown device or fault ""'),
        ("tf32:0.5@3", 'got "tf32:0.5@3", expected tf32'),
        ("tf32@", "expected tf32"),
        ("tf32@3,p=0.1", "expected tf32"),
        ("saturation", "expected kind:magnitude@layer"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_device(text)
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_an_unknown_name_lists_all(llama: nn.Module) -> None:
    with pytest.raises(InputError) as refused:
        emulate(llama, "gpu")
    assert all(name in str(refused.value) for name in (*DEVICES, "saturation"))


def test_a_device_that_is_named_by_hand_is_checked_too() -> None:
    with pytest.raises(InputError, match='unknown device "tf23", did you mean'):
        PlacedDevice("tf23")
    with pytest.raises(InputError, match="seed: got -1"):
        PlacedDevice("tf32", seed=-1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tf32@99", "emulate: 99 is out of range, the model has 0 to 2"),
        ("tf32@-1", "emulate: -1 is out of range"),
        ("tf32@nowhere", 'emulate: no site "nowhere"'),
        ("tf32@1.lineer", 'emulate: unknown operator of layer 1 "lineer", did you mean "linear"?'),
        ("tf32@1.mlp.nobody.linear", "emulate: 1.mlp.nobody.linear: no such module of layer 1 computes linear"),
        ("exp_table@1.linear", "emulate: exp_table changes nothing at 1.linear (linear)"),
        ("tf32@final_norm", "emulate: tf32 changes nothing at final_norm"),
        ("saturation:0.2@99", "99 is out of range"),
    ],
)
def test_a_place_that_matches_nothing_is_refused(llama: nn.Module, text: str, says: str) -> None:
    with pytest.raises(NothingMatched) as refused:
        emulate(llama, text)
    assert says in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert refused.value.exit_code == 3


# --- only there -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "first", "calls"),
    [
        ("1", f"{MODEL}.self_attn.q_proj.linear.0.forward", 8),
        ("1.linear", f"{MODEL}.self_attn.q_proj.linear.0.forward", 7),
        ("1.mlp", f"{MODEL}.mlp.gate_proj.linear.0.forward", 3),
        ("1.self_attn", f"{MODEL}.self_attn.q_proj.linear.0.forward", 5),
        ("1.matmul", f"{MODEL}.self_attn.matmul.0.forward", 1),
        ("1.attention", f"{MODEL}.self_attn.matmul.0.forward", 1),
        ("1.mlp.down_proj.linear", f"{MODEL}.mlp.down_proj.linear.0.forward", 1),
        ("1.down_proj", f"{MODEL}.mlp.down_proj.linear.0.forward", 1),
        (f"{MODEL}.mlp.down_proj.linear", f"{MODEL}.mlp.down_proj.linear.0.forward", 1),
        (f"{MODEL}.mlp.down_proj.linear.0", f"{MODEL}.mlp.down_proj.linear.0.forward", 1),
        (f"{MODEL}.mlp.down_proj.linear.0.forward", f"{MODEL}.mlp.down_proj.linear.0.forward", 1),
        (f"{MODEL}.self_attn.matmul.1", f"{MODEL}.self_attn.matmul.1.forward", 1),
        ("head", "lm_head.linear.0.forward", 1),
    ],
)
def test_a_device_is_so_at_its_place_alone(llama: nn.Module, place: str, first: str, calls: int) -> None:
    clean = hidden(llama)
    with EmulatedDevice(llama, f"bf16_accumulation@{place}") as device:
        found = hidden(llama)
    assert (str(device.first_changed), device.calls) == (first, calls)
    layer = 3 if place == "head" else 1
    assert all(
        torch.equal(bits(one), bits(other)) for one, other in zip(clean[: layer + 1], found[: layer + 1], strict=True)
    )
    assert place == "head" or not torch.equal(clean[2], found[2])
    assert torch.equal(bits(hidden(llama)[-1]), bits(clean[-1]))


def test_everywhere_begins_at_the_first_product(llama: nn.Module) -> None:
    with EmulatedDevice(llama, "tf32") as device:
        hidden(llama)
    assert str(device.first_changed) == "model.layers.0.self_attn.q_proj.linear.0.forward"
    assert device.name == "tf32"
    assert repr(device) == "<EmulatedDevice: tf32>"


@pytest.mark.parametrize(
    ("family", "place"), [("gpt2", "1.mlp.c_proj.linear"), ("falcon", "1.linear"), ("mixtral", "1.linear")]
)
def test_products_that_are_spelled_otherwise_are_found(family: str, place: str) -> None:
    model = lively(family)
    with emulate(model, f"bf16_accumulation@{place}") as device, torch.no_grad():
        model(**tokens(family))
    assert (device.first_changed.layer, device.first_changed.operator) == (1, "linear")


def test_a_place_is_looked_up_on_what_is_given() -> None:
    model = lively("t5")
    with emulate(model, "tf32@2", inputs=tokens("t5")) as device, torch.no_grad():
        model(**tokens("t5"))
    assert device.first_changed.layer == 2


def test_probes_with_other_weights_are_at_the_place_too() -> None:
    """A locator asks a linear of a Conv1D again with weights that are not the module's own."""
    model = lively("gpt2")
    with emulate(model, "bf16_accumulation@1.mlp.c_proj.linear"):
        verdict = locate(model, tokens("gpt2"))
    assert not verdict.healthy
    assert {(site.layer, site.module) for site in verdict.sites} == {(1, "transformer.h.1.mlp.c_proj")}
