"""A locator sees the device and nothing else: neither the fault's arithmetic, nor its name, nor who plays it.

Three things fooled a prototype: the fault's own arithmetic was traced, a probe of a hand-written norm got the fault at
every step inside, and the truth was overwritten by the verdict. For each there is a mutant that does just that.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plain_model import PLAIN, Decoder, Wrapped, inputs
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from families import build, tokens
from noisescope.faults import FaultSimulator
from noisescope.faults.simulator import _Breaking
from noisescope.injection import Call, Watch, plain_name
from noisescope.injection.showing import Showing
from noisescope.locating import locate, sections, tracing
from noisescope.locating.device import Device
from noisescope.locating.host import HostCall, on_host
from noisescope.locating.tracing import Plan, Tracer
from noisescope.locating.verdict import Verdict
from noisescope.sites import Layout

pytestmark = pytest.mark.usefixtures("one_thread")

UNKNOWABLE = {"empty", "empty_like", "new_empty"}


# --- asking the device again ------------------------------------------------------------------------------------


def other_arguments(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call of other numbers; its own weights too are others, so that no parameter tells whose it is."""
    return tree_map(
        lambda leaf: leaf.detach() * 0.75 if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
        (call.args, call.kwargs),
    )


def known_weight(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A product with a weight that hands its input on: the addend is gone, and the module's own weight with it."""
    name, args = plain_name(call.function), call.args
    if name == "linear" and len(args) > 1:
        return (args[0], torch.eye(*args[1].shape)), {}
    if name == "addmm" and len(args) == 3:
        return (torch.zeros(args[2].shape[-1]), args[1], torch.eye(*args[2].shape)), {}
    if name == "grouped_mm" and len(args) == 2:
        weight = torch.empty_strided(args[1].shape, args[1].stride())  # the kernel minds how it lies in memory
        return (args[0], weight.copy_(torch.eye(*args[1].shape[1:]).expand(args[1].shape))), call.kwargs
    return None


class Asking:
    """An observer that asks the device about every call, in every way, and the host about the same."""

    def __init__(self) -> None:
        self.device = Device()
        self.answers: list[tuple[str, Call, Tensor, Tensor]] = []
        """how it was asked, about which call, what the device said, what the host said"""

    def wants(self, *_: Any) -> bool:
        return True

    def after(self, call: Call, value: Any) -> Any:
        with self.device.aside():
            if isinstance(value, Tensor) and value.is_floating_point() and plain_name(call.function) not in UNKNOWABLE:
                self._ask(call, value)
        return value

    def _ask(self, call: Call, value: Tensor) -> None:
        host = HostCall.of(call)
        self.answers.append(("given", call, value.clone(), host.native()))
        self.answers.append(("again", call, self.device.run(call.again), host.native()))
        for how in (other_arguments, known_weight):
            if not call.in_place and (asked := how(call)) is not None:
                args, kwargs = asked
                healthy = HostCall(call.operator, call.function, args, kwargs, host.module).native()
                self.answers.append((how.__name__, call, self.device.run(call.function, *args, **kwargs), healthy))


def ask(
    model: nn.Module, given: dict[str, Tensor], simulator: FaultSimulator
) -> list[tuple[str, Call, Tensor, Tensor]]:
    asking = Asking()
    asking.device.watch = Watch(asking, layout=Layout.of(model), whole=True)
    with simulator, asking.device.watch, torch.no_grad():
        model(**given)
    return asking.answers


def check_every_answer(model: nn.Module, given: dict[str, Tensor], site: str) -> dict[str, int]:
    """What the broken operator is asked comes out twice as large, whoever asks; all else is as on the host."""
    simulator = FaultSimulator(model, site, "gain", 1.0, inputs=given)
    asked: dict[str, int] = {}
    for how, call, got, healthy in ask(model, given, simulator):
        struck = any(simulator.target.holds(one) for one in call.sites)
        asked[how] = asked.get(how, 0) + struck
        due = 2 * healthy if struck else healthy
        assert torch.allclose(got, due, rtol=1e-5, atol=1e-6, equal_nan=True), f"{how}: {call.site}"
    return asked


PLACES = {
    "llama": ("1", "0.residual", "1.linear", "1.q_proj.linear", "1.rms_norm", "1.softmax", "1.attention", "1.silu"),
    "gpt2": ("1", "1.linear", "1.layer_norm", "embed"),
    "mixtral": ("1.experts.linear", "1.gate.linear", "head"),
    "falcon": ("1.linear", "final_norm"),
    "bloom": ("2", "1.linear"),
}


@pytest.mark.parametrize(("family", "site"), [(family, site) for family, sites in PLACES.items() for site in sites])
def test_however_the_device_is_asked_the_fault_answers_and_the_host_is_healthy(family, site):
    attn = "eager" if site in ("1.softmax", "1.attention") else None
    asked = check_every_answer(build(family, attn=attn), tokens(family), site)
    assert asked["given"] == asked["again"] == asked["other_arguments"] > 0
    if site in ("1.linear", "1.experts.linear", "1.gate.linear", "head") and family != "falcon":  # which writes `x @ w`
        assert asked["known_weight"] == asked["given"]


def test_of_two_residual_adds_the_last_is_broken_and_asked_again_it_stays_so():
    model = build("llama")
    simulator = FaultSimulator(model, "1", "gain", 1.0, inputs=tokens())
    adds = [
        (how, call.site.call, torch.equal(got, 2 * healthy), torch.equal(got, healthy))
        for how, call, got, healthy in ask(model, tokens(), simulator)
        if (call.operator, call.site.layer) == ("residual", 1)
    ]
    assert {(index, doubled, healthy) for _, index, doubled, healthy in adds} == {(0, False, True), (1, True, False)}
    assert {how for how, *_ in adds} == {"given", "again", "other_arguments"}


def test_questions_are_not_counted_as_the_models_own():
    model = build("llama")
    alone, asked = (FaultSimulator(model, "1.rms_norm", "gain", 1.0, inputs=tokens()) for _ in range(2))
    with alone, torch.no_grad():
        model(**tokens())
    ask(model, tokens(), asked)
    assert (asked.changed, asked.elements) == (alone.changed, alone.elements)


def test_a_probed_norm_is_computed_as_it_is_at_that_moment():
    """In bfloat16 the fault computes the norm once more in float32: with the epsilon that it has now."""
    model = build("llama").to(torch.bfloat16)
    norm = model.model.layers[1].post_attention_layernorm
    found = []
    with FaultSimulator(model, "1.rms_norm", "gain", 1.0), torch.no_grad():
        for epsilon in (1e-6, 1e6):
            norm.variance_epsilon = epsilon
            found.append(norm(torch.ones(1, 1, 32, dtype=torch.bfloat16)).float())
    assert torch.equal(found[0], torch.full((1, 1, 32), 2.0))
    assert float(found[1].max()) < 0.01


def test_arithmetic_on_the_host_is_healthy_inside_the_broken_module():
    model, found = Decoder(), {}
    down = model.blocks[1].down

    def forward(x: Tensor) -> Tensor:
        with on_host():
            found["host"] = F.linear(x, down.weight)
        found["device"] = F.linear(x, down.weight)
        return found["device"]

    simulator = FaultSimulator(model, "1.linear", "gain", 1.0, inputs=inputs())
    down.forward = forward
    with simulator, torch.no_grad():
        model(**inputs())
    assert torch.equal(found["device"], 2 * found["host"])


# --- (a) the fault's own arithmetic is seen by nobody -----------------------------------------------------------


class Recorder(TorchFunctionMode):
    """Writes down every function that is called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def functions_of(model: nn.Module, simulator: FaultSimulator) -> list[str]:
    with simulator, Recorder() as recorder, torch.no_grad():
        model(**inputs())
    return recorder.names


def rows_of(model: nn.Module, simulator: FaultSimulator) -> list[str]:
    """The sites that the locator's own tracer looks at."""
    tracer = Tracer(Device(), Plan(runs=2, host=False, identities=False))
    tracer.device.watch = Watch(tracer, layout=Layout.of(model), whole=True)
    with simulator, tracer.device.watch, torch.no_grad():
        model(**inputs())
    return [row.site.name for row in tracer.rows]


def check_its_arithmetic_is_unseen(site: str, kind: str) -> None:
    model = Decoder()
    healthy = FaultSimulator(model, site, "dead_zone", 1e-30, inputs=inputs())
    simulator = FaultSimulator(model, site, kind, inputs=inputs())
    assert functions_of(model, simulator) == functions_of(model, healthy)
    assert rows_of(model, simulator) == rows_of(model, healthy)
    assert healthy.inert
    assert not simulator.inert


@pytest.mark.parametrize(
    ("site", "kind"),
    [("1", "bias"), ("1.linear", "low_precision_accumulate"), ("1.rms_norm", "noise"), ("1.softmax", "lut_exp")],
)
def test_the_arithmetic_of_a_fault_is_seen_by_nobody(site, kind):
    check_its_arithmetic_is_unseen(site, kind)


def test_a_mutant_that_computes_in_the_open_is_caught(monkeypatch):
    def strike(self: FaultSimulator, call: Call, value: Tensor) -> Tensor:
        struck = self._struck(call, value)
        self.changed += int((struck != value).sum())
        return struck

    monkeypatch.setattr(FaultSimulator, "strike", strike)
    with pytest.raises(AssertionError):
        check_its_arithmetic_is_unseen("1.rms_norm", "noise")


# --- (b) a hand-written norm is broken once ---------------------------------------------------------------------


def check_a_norm_is_broken_once() -> None:
    check_every_answer(Decoder(), inputs(), "1.rms_norm")


def test_a_hand_written_norm_is_broken_once_not_at_every_step_inside():
    check_a_norm_is_broken_once()


def test_a_mutant_that_breaks_every_step_inside_is_caught(monkeypatch):
    def other(self: Showing, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        value, frame, observer = function(*args, **kwargs), self._scope.current, self._places.observer
        if not isinstance(observer, _Breaking) or frame is None or not isinstance(value, Tensor):
            return value
        simulator = observer._simulator
        inside = frame.path == simulator.target.module and value.is_floating_point()
        return value * 2 if inside else value

    monkeypatch.setattr(Showing, "other", other)
    with pytest.raises(AssertionError, match="rms_norm"):
        check_a_norm_is_broken_once()


# --- (c) the truth is what it was -------------------------------------------------------------------------------


def check_the_truth_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict that names another kind, at another place, does not change what was asked for."""
    monkeypatch.setattr(tracing, "name_kind", lambda *_, **__: "spikes")
    verdict = locate(Decoder(), inputs(), simulate=["gain:0.05@1.linear", "saturation:0.2@2"])
    assert {suspect.kind for suspect in verdict.sites} == {"spikes"}
    truth = verdict.sections["truth"]
    assert [one["fault"] for one in truth] == ["gain:0.05@1.linear", "saturation:0.2@2"]
    assert [one["site"] for one in truth] == ["blocks.1.down.linear", "blocks.2.residual.1"]
    assert [(one["layer"], one["operator"]) for one in truth] == [(1, "linear"), (2, "residual")]
    assert [one["rank"] for one in truth] == [1, 2]


def test_the_truth_is_not_overwritten_by_the_verdict(monkeypatch):
    check_the_truth_stays(monkeypatch)


def test_a_fault_that_nobody_finds_is_true_all_the_same():
    verdict = locate(Decoder(), inputs(), method="repeat", simulate="gain:0.05@1.linear")
    assert verdict.outcome != "faulty"
    assert verdict.sections["truth"][0]["fault"] == "gain:0.05@1.linear"
    assert verdict.sections["truth"][0]["rank"] is None
    assert not verdict.sections["truth"][0]["inert"]


def test_a_mutant_that_overwrites_it_is_caught(monkeypatch):
    real = sections._truth

    def overwritten(simulator: FaultSimulator, suspects: Any) -> dict[str, Any]:
        truth = real(simulator, suspects)
        return truth | {"fault": f"{suspects[0].kind}:0.05@{suspects[0].layer}.{suspects[0].operator}"}

    monkeypatch.setattr(sections, "_truth", overwritten)
    with pytest.raises(AssertionError):
        check_the_truth_stays(monkeypatch)


# --- the same device under other names --------------------------------------------------------------------------

RENAMED = {name: f"x{number}" for number, name in enumerate(PLAIN)}
FAULTS = (
    "gain:0.05@1.linear",
    "saturation:0.2@1",
    "bias:0.3@2.rms_norm",
    "noise:0.1@0.residual",
    "dead_zone:0.3@embed",
)


def found(verdict: Verdict) -> list[tuple[object, str, str]]:
    return [(suspect.layer, suspect.operator, suspect.kind) for suspect in verdict.sites]


def modules(verdict: Verdict, names: dict[str, str] = PLAIN, *, inside: str = "") -> list[str]:
    """The suspects' modules, in the words of the plain model."""
    plain = {new: old for old, new in names.items()}
    paths = [suspect.module.removeprefix(inside) for suspect in verdict.sites]
    return [".".join(plain.get(part, part) for part in path.split(".")) for path in paths]


@pytest.mark.parametrize("fault", FAULTS)
def test_names_order_and_wrapping_do_not_matter(fault):
    plain = locate(Decoder(), inputs(), simulate=fault)
    assert plain.outcome == "faulty"
    assert plain.sections["truth"][0]["rank"] == 1
    others = [
        (Decoder(RENAMED), RENAMED, ""),
        (Decoder(backwards=True), PLAIN, ""),
        (Wrapped(Decoder()), PLAIN, "wrapped."),
        (copy.deepcopy(Decoder()), PLAIN, ""),
        (Wrapped(Decoder(RENAMED, backwards=True)), RENAMED, "wrapped."),
    ]
    for model, names, inside in others:
        verdict = locate(model, inputs(), simulate=fault)
        assert found(verdict) == found(plain)
        assert modules(verdict, names, inside=inside) == modules(plain)
        assert verdict.sections["truth"][0]["rank"] == 1


def test_a_copy_of_a_model_that_is_broken_elsewhere_is_healthy():
    model = Decoder()
    with FaultSimulator(model, "1", "gain", inputs=inputs()):
        assert locate(copy.deepcopy(model), inputs()).healthy


# --- the same fault, played by somebody else --------------------------------------------------------------------


class ByHand:
    """An observer that knows nothing of faults: a module's products come out five percent too large."""

    def wants(self, _layer: object, operator: str, module: str, _phase: str) -> bool:
        return module == "blocks.1.down" and operator in ("linear", "matmul")

    def after(self, _call: Call, value: Tensor) -> Tensor:
        return value * 1.05


class BelowEverything(TorchFunctionMode):
    """A function mode that changes what F.linear gives while one module runs."""

    def __init__(self) -> None:
        self.inside = False

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        return value * 1.05 if self.inside and func is F.linear else value


@contextmanager
def played_by_a_mode(model: nn.Module) -> Iterator[None]:
    mode, down = BelowEverything(), model.blocks[1].down
    real = down.forward

    def forward(x: Tensor) -> Tensor:
        mode.inside = True
        try:
            return real(x)
        finally:
            mode.inside = False

    down.forward = forward
    with mode:
        yield
    del down.forward


PLAYERS = {
    "simulator": lambda model: FaultSimulator(model, "1.linear", "gain", 0.05, inputs=inputs()),
    "watch": lambda model: Watch(ByHand(), model),
    "mode": played_by_a_mode,
}


@pytest.mark.parametrize("player", PLAYERS)
def test_it_does_not_matter_who_plays_the_fault(player):
    asked = locate(Decoder(), inputs(), simulate="gain:0.05@1.linear")
    model = Decoder()
    with PLAYERS[player](model):
        verdict = locate(model, inputs())
    assert found(verdict) == found(asked) == [(1, "linear", "gain")]
    assert verdict.sections["sites"] == asked.sections["sites"]
    assert verdict.sections["suspects"] == asked.sections["suspects"]
    assert verdict.sections["truth"] == []
