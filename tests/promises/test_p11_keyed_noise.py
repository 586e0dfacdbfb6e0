"""P11: noise depends on seed, site, trial and step alone; checkpointing changes no bit of a gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import combinations, count
from typing import ClassVar

import pytest
import torch
from digests import bits
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential

import noisescope as ns
from families import build, tokens
from noisescope.injection import injecting
from noisescope.injection.scope import Scope
from noisescope.keys import Key

Draws = dict[tuple[str, int], str]
"""(site, step) -> the bits drawn there"""


class Notes:
    """Relative Gaussian noise that writes down what it drew."""

    name: ClassVar[str] = "notes"
    sparse: ClassVar[bool] = False

    def __init__(self, scale: float = 0.05) -> None:
        self.scale = scale
        self.draws: Draws = {}

    def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
        draw = torch.randn(value.shape, generator=key.generator(value.device))
        assert self.draws.setdefault((key.site, key.step), bits(draw)) == bits(draw)
        value.add_(value * draw.to(value.dtype), alpha=scale)

    def dose(self, seen) -> float:
        return seen.mean_rel_error


def train(model: nn.Module, *batches: int) -> None:
    for seed in batches or (0,):
        model(**tokens(seed=seed), use_cache=False).logits.square().mean().backward()
        model.zero_grad(set_to_none=True)


def draws(model: nn.Module, *batches: int, inside: Callable[[], object] | None = None, **where) -> Draws:
    """What is drawn in training steps over these batches."""
    noise = Notes()
    with ns.inject(model, noise, **{"phases": "both", **where}) as injection:
        if inside is None:
            train(model, *batches)
        else:
            inside()
    assert len(noise.draws) == injection.stats.calls()  # every site is another key
    return noise.draws


# --- the same draw, whatever else is going on -------------------------------------------------------------------


def check_same_draws(model: nn.Module) -> None:
    """Each site draws the same alone, among all others, inside and around other injections, in any order of batches."""
    everything = draws(model, 0, 1)
    assert len(everything) > 100
    for where in (
        {"operators": "linear"},
        {"operators": ["softmax", "rms_norm"]},
        {"layers": [1]},
        {"layers": "head"},
        {"modules": "*.mlp", "operators": "silu"},
        {"phases": "forward"},
        {"phases": "backward", "layers": 0},
    ):
        some = draws(model, 0, 1, **where)
        assert some
        assert some.items() <= everything.items(), where
    assert draws(model, 1, 0) == everything
    for other in ({"phases": "both"}, {"layers": [0]}, {"operators": ["softmax", "rms_norm"], "phases": "backward"}):
        another = ns.inject(model, ns.Uniform(0.1), seed=9, **other)
        with another:
            assert draws(model, 0, 1) == everything, f"inside {other}"

        def around_another(another=another) -> None:
            with another:
                train(model, 0, 1)

        assert draws(model, inside=around_another) == everything, f"around {other}"


def check_other_draws(model: nn.Module) -> None:
    """Another seed, trial, step or site is another draw."""
    base = draws(model, 0, 0)
    assert {step for _, step in base} == {0, 1}
    for other in (draws(model, 0, 0, seed=1), draws(model, 0, 0, trial=1)):
        assert other.keys() == base.keys()
        assert not set(other.values()) & set(base.values())
    assert len(set(base.values())) == len(base)


def test_the_same_draw_whatever_else_is_active(tiny):
    check_same_draws(tiny)


def test_another_seed_trial_step_or_site_is_another_draw(tiny):
    check_other_draws(tiny)


def test_seed_and_trial_are_two_things(tiny):
    one, other = draws(tiny, seed=1, trial=2), draws(tiny, seed=2, trial=1)
    assert not set(one.values()) & set(other.values())


def test_global_random_states_have_no_say(tiny):
    torch.manual_seed(1)
    one = draws(tiny)
    torch.manual_seed(2)
    assert draws(tiny) == one


def test_a_change_of_scale_keeps_the_numbers(tiny):
    found = []
    for scale in (1e-3, 1e-1):
        noise = Notes(scale)
        with ns.inject(tiny, noise, phases="both"):
            train(tiny, 0, 1)
        found.append(noise.draws)
    assert found[0] == found[1]


@pytest.mark.parametrize("noise", [ns.RelativeGaussian, ns.AbsoluteGaussian, ns.Uniform])
def test_twice_the_scale_is_twice_the_error(noise):
    value = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = []
    for scale in (0.01, 0.02):
        out = value.clone()
        noise(scale).disturb_(out, scale, Key(0, "here"))
        errors.append(out - value)
    torch.testing.assert_close(errors[1], 2 * errors[0], rtol=1e-9, atol=1e-15)


def test_models_of_other_families(family):
    name, model = family

    def use() -> None:
        model(**tokens(name), use_cache=False).logits.square().mean().backward()

    everything = draws(model, inside=use)
    for operators in combinations(["linear", "residual", "embedding"], 2):
        assert draws(model, inside=use, operators=operators).items() <= everything.items()


# --- recomputation ----------------------------------------------------------------------------------------------


@contextmanager
def calls_go_through(kind: type[nn.Module], reentrant: bool) -> Iterator[None]:
    """Every call of a module of that class is checkpointed."""
    plain = kind.__call__
    kind.__call__ = lambda self, *args, **kwargs: checkpoint(
        lambda *given: plain(self, *given, **kwargs), *args, use_reentrant=reentrant
    )
    try:
        yield
    finally:
        del kind.__call__


@contextmanager
def by_block(model: nn.Module, reentrant: bool) -> Iterator[None]:
    """As `gradient_checkpointing_enable` does it."""
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()


def by_part(model: nn.Module, reentrant: bool):
    """The feed-forward half of each block."""
    return calls_go_through(type(model.model.layers[0].mlp), reentrant)


def by_norm(model: nn.Module, reentrant: bool):
    """The norms alone."""
    return calls_go_through(type(model.model.norm), reentrant)


WAYS = {
    "block": (by_block, False),
    "block, reentrant": (by_block, True),
    "part": (by_part, False),
    "part, reentrant": (by_part, True),
    "norm": (by_norm, False),  # reentrant, it sums its gradients in another order, noise or not
}


def loss_of(model: nn.Module, seed: int) -> Tensor:
    logits = model(**tokens(seed=seed), use_cache=False).logits
    return logits.square().mean()


def gradients(model: nn.Module, losses: Callable[[], object], **where) -> tuple[list[str], dict]:
    """Bits of all gradients after backward passes under injection, and what was booked."""
    with ns.inject(model, ns.RelativeGaussian(0.05), **where) as injection:
        losses()
    found = [bits(parameter.grad) for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found, {row: injection.stats.calls(layer=row) for row in injection.stats.by_layer}


def check_checkpointing(model: nn.Module, way: Callable, *, reentrant: bool, losses=None, **where) -> None:
    """Gradients and books are the same with and without checkpointing."""
    model.train()
    model.enable_input_require_grads()  # reentrant checkpointing needs an input that has a gradient
    losses = losses or (lambda: loss_of(model, 0).backward())
    plain = gradients(model, losses, **where)
    with way(model, reentrant):
        recomputed = gradients(model, losses, **where)
    assert recomputed[0] == plain[0]
    assert recomputed[1] == plain[1]


OPERATORS = [None, ["linear"], ["softmax"], ["rms_norm", "silu"]]


@pytest.mark.parametrize("phases", ["forward", "backward", "both"])
@pytest.mark.parametrize(("way", "reentrant"), WAYS.values(), ids=WAYS)
def test_gradients_with_and_without_checkpointing(tiny, way, reentrant, phases):
    check_checkpointing(tiny, way, reentrant=reentrant, phases=phases)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("operators", OPERATORS[1:], ids=str)
def test_the_same_for_single_operators(tiny, operators, reentrant):
    check_checkpointing(tiny, by_block, reentrant=reentrant, operators=operators, phases="both")


ORDERS = [
    pytest.param(*way, order, id=f"{name}-{order}", marks=[pytest.mark.slow] if at % 2 != own else [])
    for at, (name, way) in enumerate(list(WAYS.items())[:4])
    for own, order in enumerate([(0, 1, 2), (1, 2, 0)])
]
"""every way in every order; by default in one of them"""


@pytest.mark.parametrize(("way", "reentrant", "order"), ORDERS)
def test_several_forwards_before_their_backwards(tiny, way, reentrant, order):
    def losses() -> None:
        pending = [loss_of(tiny, seed) for seed in (5, 5, 7)]  # the same batch twice, and another
        for number in order:
            pending[number].backward()

    check_checkpointing(tiny, way, reentrant=reentrant, losses=losses, phases="both")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_evaluations_between_forward_and_backward(tiny, reentrant):
    def losses() -> None:
        loss = loss_of(tiny, 0)
        with torch.no_grad():
            for seed in range(4):
                loss_of(tiny, seed)
        loss.backward()
        loss_of(tiny, 1).backward()

    check_checkpointing(tiny, by_block, reentrant=reentrant, losses=losses, phases="both")


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "opt"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_in_other_families(name, reentrant):
    model = build(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.config.attention_dropout = model.config.dropout = 0.0
    for module in model.modules():
        for rate in ("dropout", "attention_dropout", "layerdrop"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    check_checkpointing(model, by_block, reentrant=reentrant, phases="both")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_checkpointing_of_trained_models(request, name):
    model = deepcopy(request.getfixturevalue(name))
    for phases in ("forward", "both"):
        check_checkpointing(model, by_block, reentrant=False, phases=phases)


class Block(nn.Module):
    """A linear with an activation and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class Stack(nn.Module):
    """Six blocks, several of them in one checkpoint if asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.checkpoint: tuple[int, bool] | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.checkpoint is None:
            return self.blocks(hidden)
        segments, reentrant = self.checkpoint
        return checkpoint_sequential(self.blocks, segments, hidden, use_reentrant=reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("phases", ["forward", "backward", "both"])
@pytest.mark.parametrize("segments", [2, 3])
def test_several_blocks_in_one_checkpoint(segments, phases, reentrant):
    torch.manual_seed(0)
    model = Stack()
    batches = [torch.randn(4, 8).requires_grad_() for _ in range(2)]

    def losses() -> None:
        pending = [model(batch) for batch in batches]
        for found in pending:
            found.square().mean().backward()

    plain = gradients(model, losses, phases=phases)
    model.checkpoint = segments, reentrant
    assert gradients(model, losses, phases=phases) == plain


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
def test_the_whole_model_in_one_checkpoint(tiny, reentrant, by_name):
    start = torch.zeros(1, requires_grad=True)

    def run(ids: Tensor, _: Tensor) -> Tensor:
        return (tiny(input_ids=ids, use_cache=False) if by_name else tiny(ids, use_cache=False)).logits

    def losses(*, on: bool) -> Callable[[], None]:
        def use() -> None:
            batches = [tokens(seed=seed)["input_ids"] for seed in (0, 1)]
            pending = [
                checkpoint(run, ids, start, use_reentrant=reentrant) if on else run(ids, start) for ids in batches
            ]
            for found in pending:
                found.square().mean().backward()

        return use

    for phases in ("forward", "both"):
        assert gradients(tiny, losses(on=True), phases=phases) == gradients(tiny, losses(on=False), phases=phases)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_checkpoints(tiny, reentrant):
    """Each block, and in it the feed-forward half again."""

    @contextmanager
    def nested(model: nn.Module, _: bool) -> Iterator[None]:
        with by_block(model, False), by_part(model, reentrant):
            yield

    check_checkpointing(tiny, nested, reentrant=False, phases="both")


@pytest.mark.parametrize("operators", OPERATORS, ids=str)
def test_a_backward_after_the_injection_has_ended_is_not_silently_another_gradient(tiny, operators):
    tiny.train()
    with by_block(tiny, False):
        with ns.inject(tiny, ns.RelativeGaussian(0.05), operators=operators):
            loss = loss_of(tiny, 0)
        with pytest.raises(CheckpointError):  # recomputed without noise, it would be
            loss.backward()
    tiny.zero_grad(set_to_none=True)


# --- generation -------------------------------------------------------------------------------------------------


def generate(model: nn.Module, noise=None, *, new: int = 8, **options) -> tuple[list[list[int]], ns.Injection]:
    with ns.inject(model, noise or ns.RelativeGaussian(0.2), **options) as injection:
        found = model.generate(
            **tokens(length=6), max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
        )
    return found.tolist(), injection


def check_generation(model: nn.Module) -> None:
    """Fresh injections generate the same tokens again; another seed, others."""
    once, injection = generate(model)
    assert generate(model)[0] == once
    assert injection.step == 7
    assert any(generate(model, seed=seed)[0] != once for seed in (1, 2, 3))


def test_generating_again_gives_the_same_tokens(tiny):
    check_generation(tiny)


def test_every_decode_step_has_its_own_draw(tiny):
    noise = Notes()
    generate(tiny, noise, operators="linear")
    site = "model.layers.0.mlp.up_proj.linear.0.forward"
    found = [noise.draws[site, step] for step in range(8)]
    assert len(set(found)) == 8
    assert {step for _, step in noise.draws} == set(range(8))


def test_a_trial_that_stops_and_starts_again_draws_the_same(tiny):
    once = draws(tiny, 0, 1, 2)
    first = draws(tiny, 0)
    assert first.items() <= once.items()
    assert first == draws(tiny, 0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generation_of_trained_models(request, name):
    check_generation(request.getfixturevalue(name))


# --- able to fail -----------------------------------------------------------------------------------------------


def noise_comes_from_a_stream(monkeypatch):
    """A generator that is shared, as an implementation without keys would have: every draw is the next one."""
    numbers = count()
    monkeypatch.setattr(Key, "digest", property(lambda self: next(numbers)))


def keys_forget_the_step(monkeypatch):
    monkeypatch.setattr(injecting.Injection, "_key", lambda self, site, step: Key(self.seed, site.name, self.trial))


def keys_forget_the_trial(monkeypatch):
    monkeypatch.setattr(injecting.Injection, "_key", lambda self, site, step: Key(self.seed, site.name, 0, step))


def keys_forget_the_call(monkeypatch):
    monkeypatch.setattr(
        injecting.Injection,
        "_key",
        lambda self, site, step: Key(self.seed, f"{site.module} {site.operator}", self.trial, step),
    )


def recomputation_is_a_new_step(monkeypatch):
    monkeypatch.setattr(Scope, "_rewind", lambda self, frame, args: self.frames or self.start_step(args))


def recomputation_is_always_of_the_last_pass(monkeypatch):
    monkeypatch.setattr("noisescope.injection.scope._mark", lambda path, args: None)


def two_then_backward(model: nn.Module) -> Callable[[], None]:
    def losses() -> None:
        pending = [loss_of(model, seed) for seed in (0, 1)]
        for loss in pending:
            loss.backward()

    return losses


CHECKS: dict[str, Callable[[nn.Module], None]] = {
    "same": check_same_draws,
    "other": check_other_draws,
    "checkpointing": lambda model: check_checkpointing(
        model, by_block, reentrant=False, losses=two_then_backward(model), phases="both"
    ),
    "generation": check_generation,
}


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (noise_comes_from_a_stream, "same"),
        (noise_comes_from_a_stream, "checkpointing"),
        (noise_comes_from_a_stream, "generation"),
        (keys_forget_the_step, "other"),
        (keys_forget_the_trial, "other"),
        (keys_forget_the_call, "other"),
        (recomputation_is_a_new_step, "checkpointing"),
        (recomputation_is_always_of_the_last_pass, "checkpointing"),
    ],
)
def test_the_mutants_are_caught(tiny, monkeypatch, mutant, check):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[check](tiny)
