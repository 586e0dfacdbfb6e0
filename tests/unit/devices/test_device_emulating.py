"""An emulated device from outside: it acts, counts, passes gradients, and leaves nothing behind."""

import copy

import pytest
import torch
import torch.nn.functional as F
from seen import DTYPES, bits, by_device, lively, numbers
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from families import FAMILIES, tokens
from noisescope.devices import DEVICES, Device, EmulatedDevice, Emulation, PlacedDevice, emulate, register
from noisescope.errors import InputError
from noisescope.faults import Fault, FaultSimulator
from noisescope.locating import locate

pytestmark = pytest.mark.usefixtures("one_thread")

EVERYWHERE = ("bf16_accumulation", "fp16_accumulation", "exp_table")
"""rows that change something in every model and dtype"""


def output(model: nn.Module, family: str = "llama") -> Tensor:
    with torch.no_grad():
        return model(**tokens(family))[0]


# --- every row on every family ----------------------------------------------------------------------------------


RUNS = [
    pytest.param(family, dtype, marks=[pytest.mark.slow] if at % len(DTYPES) != own else [])
    for at, family in enumerate(FAMILIES)
    for own, dtype in enumerate(DTYPES)
]
"""every family in every dtype; by default in one of them"""


@pytest.mark.parametrize(("family", "dtype"), RUNS)
def test_every_device_runs_every_family_and_leaves_no_trace(family: str, dtype: torch.dtype) -> None:
    model = lively(family, dtype)
    weights = {name: bits(value).clone() for name, value in model.state_dict().items()}
    clean = output(model, family)
    for name, row in DEVICES.items():
        with emulate(model, name) as device:
            found = output(model, family)
        assert found.isfinite().all(), name
        assert torch.equal(found, clean) or not device.inert, name
        assert device.inert == (device.first_changed is None), name
        assert device.inert if dtype not in row.dtypes and name != "tf32" else True, name
        assert not device.inert or name not in EVERYWHERE, name
        assert torch.equal(bits(output(model, family)), bits(clean)), name
    assert all(torch.equal(bits(value), weights[name]) for name, value in model.state_dict().items())
    assert not _get_current_function_mode_stack()


HEALTHY = [
    pytest.param(family, name, dtype, marks=[pytest.mark.slow] if (at + width) % 2 != own else [])
    for own, family in enumerate(["llama", "gpt2"])
    for at, name in enumerate(DEVICES)
    for width, dtype in enumerate(DTYPES)
]
"""every device in every dtype; by default on one of the families"""


@pytest.mark.parametrize(("family", "name", "dtype"), HEALTHY)
def test_honest_devices_are_healthy(family: str, name: str, dtype: torch.dtype) -> None:
    """What a row says of itself, asked of the locator; the others differ more than rounding does."""
    model = lively(family, dtype)
    with emulate(model, name):
        verdict = locate(model, tokens(family))
    assert not DEVICES[name].honest or verdict.healthy, str(verdict)


# --- counts -----------------------------------------------------------------------------------------------------


def test_it_counts_elements_and_calls() -> None:
    left, right = numbers(8, 64), numbers(64, 8, seed=1)
    found, device = by_device("tf32", lambda a, b: (a @ b) + (a @ b), left, right)
    healthy = left @ right
    assert device.calls == 2
    assert device.changed == 2 * int((found / 2 != healthy).sum())
    assert not device.inert


def test_before_it_ran_it_has_counted_nothing() -> None:
    device = EmulatedDevice(lively("llama"), "tf32")
    assert (device.changed, device.calls, device.first_changed, device.inert) == (0, 0, None, True)


def test_what_is_unchanged_keeps_its_very_bits() -> None:
    given = torch.tensor([[-0.0, 0.0, 2.0, -2.0]])
    found, device = by_device("flush_denormals", lambda x: x * 0.5, given)
    assert torch.equal(bits(found), bits(given * 0.5))
    assert device.inert


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEVICES)
def test_gradients_pass_as_if_nothing_had_happened(name: str) -> None:
    """With the other device's values, and this machine's derivatives: of a linear model they are the same bits."""
    weight, given = numbers(5, 40, seed=1), numbers(3, 40)

    def gradient(where: str | None) -> Tensor:
        block = nn.Module()
        block.inner = nn.Identity()
        block.forward = lambda x: F.linear(x, weight)  # type: ignore[method-assign]
        model = nn.Module()
        model.blocks = nn.ModuleList([block])
        model.forward = lambda x: model.blocks[0](x)  # type: ignore[method-assign]
        x = given.clone().requires_grad_()
        if where is None:
            model(x).sum().backward()
        else:
            with emulate(model, where):
                model(x).sum().backward()
        return x.grad

    assert torch.equal(gradient(name), gradient(None))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_model_can_be_trained_on_it(name: str, dtype: torch.dtype) -> None:
    model = lively("llama", dtype)
    given = tokens()
    clean = output(model)
    with emulate(model, name) as device:
        loss = model(**given, labels=given["input_ids"]).loss
        loss.backward()
    assert not device.inert
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
    assert torch.equal(output(model), clean)


# --- nothing stays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEVICES)
def test_an_error_closes_it(name: str) -> None:
    model = lively("llama")
    clean = output(model)
    with pytest.raises(RuntimeError, match="mine"), emulate(model, name):
        raise RuntimeError("mine")
    assert torch.equal(output(model), clean)
    assert not _get_current_function_mode_stack()


def test_a_copy_taken_inside_is_the_model() -> None:
    model = lively("llama")
    with emulate(model, "tf32"):
        other = copy.deepcopy(model)
    assert torch.equal(output(other), output(model))


def test_nobodys_dice_move() -> None:
    model = lively("llama")
    before = torch.get_rng_state()
    with emulate(model, ["racing_sums", "noise:0.1@1"]):
        output(model)
    assert torch.equal(before, torch.get_rng_state())


def test_autocast_is_seen() -> None:
    model = lively("llama")
    with torch.autocast("cpu", torch.bfloat16):
        clean = output(model)
        with emulate(model, "bf16_accumulation") as device:
            found = output(model)
    assert (found.dtype, device.inert) == (clean.dtype, False)
    torch.testing.assert_close(found, clean, rtol=0.2, atol=0.5)


# --- several ----------------------------------------------------------------------------------------------------


def test_a_fault_is_played_by_the_simulator() -> None:
    model = lively("llama")
    with FaultSimulator(model, "saturation:0.2@1.linear") as fault:
        alone = output(model)
    with emulate(model, "saturation:0.2@1.linear") as device:
        assert torch.equal(output(model), alone)
    assert isinstance(device.members[0], FaultSimulator)
    assert device.first_changed == fault.first_changed
    assert str(fault.first_changed) == "model.layers.1.mlp.down_proj.linear.0.forward"
    assert device.changed == fault.changed


def test_a_fault_that_changes_nothing_has_no_first_change() -> None:
    model = lively("llama")
    with FaultSimulator(model, "dead_zone:1e-30@1.linear") as fault:
        output(model)
    assert (fault.first_changed, fault.inert) == (None, True)


@pytest.mark.parametrize("order", [1, -1])
def test_devices_and_faults_work_together_in_any_order(order: int) -> None:
    model = lively("llama")
    with emulate(model, ["saturation:0.2@2.linear", "tf32@1"][::order]) as device:
        both = output(model)
    assert str(device.first_changed) == "model.layers.1.self_attn.q_proj.linear.0.forward"
    assert not any(member.inert for member in device.members)
    assert isinstance(device.members[0], FaultSimulator) == (order == 1)
    with EmulatedDevice(model, "tf32@1"), FaultSimulator(model, "saturation:0.2@2.linear"):
        assert torch.equal(output(model), both)


def test_a_fault_strikes_what_the_device_computed() -> None:
    model = lively("llama")
    with emulate(model, ["gain:0.5@1.linear", "tf32"]) as device:
        both = output(model)
    with emulate(model, "tf32"):
        assert not torch.equal(output(model), both)
    assert not device.members[0].inert


def test_devices_can_be_given_as_values() -> None:
    model = lively("llama")
    given = (PlacedDevice("tf32", "1"), Fault("saturation", 0.2, "2.linear"))
    with emulate(model, given) as device:
        output(model)
    assert len(device.members) == 2
    assert repr(device) == "<Emulation: tf32@1 saturation:0.2@2.linear>"
    assert isinstance(device, Emulation)


@pytest.mark.parametrize(
    ("what", "says"), [([], "got nothing"), ([3], "got 3, expected the name"), (["tf32", "x"], "unknown")]
)
def test_what_is_no_device_is_refused(what: list, says: str) -> None:
    with pytest.raises(InputError, match=says):
        emulate(lively("llama"), what)


def test_a_device_alone_is_no_fault() -> None:
    with pytest.raises(InputError, match="is a fault"):
        EmulatedDevice(lively("llama"), "gain@1")


# --- the registry -----------------------------------------------------------------------------------------------


def test_a_name_is_taken_once() -> None:
    with pytest.raises(InputError, match='device "tf32": there is a device of that name already'):
        register(DEVICES["tf32"])
    with pytest.raises(InputError, match="there is a fault of that name already"):
        register(Device("gain", "A fault.", (), lambda dice: lambda given: None, honest=True))


@pytest.mark.parametrize("name", DEVICES)
def test_a_row_says_what_it_is(name: str) -> None:
    row = DEVICES[name]
    assert row.name == name == name.lower().replace(" ", "_")
    assert row.description.endswith(".")
    assert row.description.count(". ") == 0
