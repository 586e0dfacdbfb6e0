"""Noise in a loop of one's own: what is noisy, what is not, what it is logged by, and what is refused."""

import logging
import random
from functools import partial

import numpy as np
import pytest
import torch

import noisescope as ns
import trained
from families import build, tokens
from noisescope.errors import CompiledModel, DoseVanished, InputError, NothingMatched

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model():
    return build("llama").train()


def loss_of(model, seed=0):
    batch = tokens(seed=seed)
    return model(**batch, labels=batch["input_ids"], use_cache=False).loss


def gradients(model):
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


def equal(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("phases", ["forward", "backward", "both"])
def test_a_step_is_an_injection_with_the_number_as_its_trial(model, phases):
    """The slow, obvious way: inject by hand."""
    training = ns.NoisyTraining(model, ns.OperatorNoise(0.1, phases=phases, seed=4), total=10)
    for step in (0, 1, 7):
        with training.step(step):
            for seed in (0, 1):
                loss_of(model, seed).backward()
        found = gradients(model)
        with ns.inject(model, ns.RelativeGaussian(0.1), phases=phases, seed=4, trial=step):
            for seed in (0, 1):
                loss_of(model, seed).backward()
        assert equal(found, gradients(model))


def test_parts_of_a_step_go_on_with_it(model):
    training = ns.NoisyTraining(model, 0.1)
    for seed in (0, 1):
        with training.step(3):
            loss_of(model, seed).backward()
    in_parts = gradients(model)
    with ns.NoisyTraining(model, 0.1).step(3):
        for seed in (0, 1):
            loss_of(model, seed).backward()
    assert equal(in_parts, gradients(model))


def test_norm_weights_are_noisy_inside_and_restored_outside(model):
    norms = {name: weight for name, weight in model.named_parameters() if "norm" in name}
    others = {name: weight.clone() for name, weight in model.named_parameters() if "norm" not in name}
    clean = {name: weight.detach().clone() for name, weight in norms.items()}
    training = ns.NoisyTraining(model, ns.NormWeightNoise(0.1))
    drawn = []
    for step in (0, 1, 1):
        with training.step(step):
            drawn.append({name: weight.detach() - clean[name] for name, weight in norms.items()})
            assert equal(others, dict(model.named_parameters()))
            loss_of(model).backward()
        assert equal(clean, norms)
    assert len(norms) == 7
    assert all(error.any() for errors in drawn for error in errors.values())
    assert not equal(drawn[0], drawn[1])
    assert equal(drawn[1], drawn[2])


def test_the_gradient_is_that_of_the_noisy_weights(model):
    """Seen against a model whose weights were really moved."""
    training = ns.NoisyTraining(model, ns.NormWeightNoise(0.1))
    with training.step(0):
        state = {name: value.clone() for name, value in model.state_dict().items()}
        loss_of(model).backward()
    found = gradients(model)
    moved = build("llama").train()
    moved.load_state_dict(state)
    loss_of(moved).backward()
    assert equal(found, gradients(moved))


def test_layers_and_modules_are_chosen(model):
    names = ns.NormWeightNoise(0.1, layers=[1]).on(model).norms
    assert [norm.path for norm in names] == [
        f"model.layers.1.{name}" for name in ("input_layernorm", "post_attention_layernorm")
    ]
    names = ns.NormWeightNoise(0.1, modules="*.input_layernorm").on(model).norms
    assert [norm.layer for norm in names] == [0, 1, 2]
    assert ns.NormWeightNoise(0.1, layers="final_norm").on(model).norms[0].path == "model.norm"


def test_factors_scale_norm_noise(model):
    noise = ns.NormWeightNoise(0.1, adaptive=ns.AdaptiveNoise({0: 0.0, 1: 1.0, 2: 2.0}))
    with ns.NoisyTraining(model, noise).step(0):
        errors = [model.model.layers[layer].input_layernorm.weight.detach() - 1 for layer in range(3)]
        assert torch.equal(model.model.norm.weight, torch.ones(32)), "which has no factor"
        loss_of(model).backward()
    assert not errors[0].any()
    assert 0.05 < errors[1].std() < 0.15
    assert 0.1 < errors[2].std() < 0.3


def test_two_kinds_at_once_and_their_names(model):
    training = ns.NoisyTraining(
        model, ns.OperatorNoise(0.1, layers=[0]), ns.NormWeightNoise(0.2), ns.OperatorNoise(0.3, layers=[1]), total=4
    )
    with training.step(0):
        loss_of(model).backward()
    logs = training.logs()
    assert {name: scale for name, scale in logs.items() if "scale" in name} == {
        "noise_scale": 0.1,
        "norm_noise_scale": 0.2,
        "noise_2_scale": 0.3,
    }
    assert logs["noise_dose"] == pytest.approx(0.1, rel=0.1)
    assert logs["noise_2_dose"] == pytest.approx(0.3, rel=0.1)
    assert [line.kind for line in training.history] == ["noise", "norm_noise", "noise"]


def test_ranks_draw_each_on_their_own_but_share_their_weights(model):
    found = []
    for rank in (0, 1):
        training = ns.NoisyTraining(model, ns.OperatorNoise(0.1), rank=rank)
        with training.step(0):
            found.append(float(loss_of(model)))
    assert found[0] != found[1]
    norms = []
    for rank in (0, 1):
        with ns.NoisyTraining(model, ns.NormWeightNoise(0.1), rank=rank).step(0):
            norms.append(model.model.norm.weight.detach().clone())
    assert torch.equal(*norms)


def test_runs_of_one_scale_are_one_line(model):
    schedule = ns.ExponentialStages(0.1, 0.01, stages=3)
    training = ns.NoisyTraining(model, ns.OperatorNoise(1.0, schedule=schedule, operators="linear"), total=6)
    for step in range(6):
        with training.step(step):
            loss_of(model).backward()
    lines = [(line.first, line.last, line.scale) for line in training.history]
    assert lines == [(2, 3, 0.1), (4, 5, pytest.approx(0.01))]
    assert training.logs()["noise_scale"] == pytest.approx(0.01)
    assert training.history[0].dose == pytest.approx(0.1, rel=0.03)
    assert training.logs()["noise_dose"] == 0, "nothing since it was read last"


def test_evaluation_with_noise_has_draws_of_its_own(model):
    training = ns.NoisyTraining(model, 0.1)
    with training.step(2):
        noisy = float(loss_of(model))
    evaluated = []
    for _ in range(2):
        with torch.no_grad(), training.evaluation(2):
            evaluated.append(float(loss_of(model)))
    assert len({noisy, *evaluated, float(loss_of(model))}) == 4


# --- the ratio of gradients -----------------------------------------------------------------------------------------


def test_the_gradient_ratio_is_that_of_the_training(model):
    """Against gradients taken by hand, with noise and without; a training that measures it is not disturbed by it."""
    noise = ns.OperatorNoise(0.3, phases="both")
    plain, measured = (ns.NoisyTraining(model, noise, gradient_ratio_every=every) for every in (0, 2))
    losses: dict[int, list[float]] = {}
    for number, training in enumerate((plain, measured)):
        torch.manual_seed(0)
        for step in range(4):
            for seed in (0, 1):
                with training.step(step):
                    loss = loss_of(model, seed) + 0 * torch.rand(1).sum()
                    loss.backward()
                losses.setdefault(number, []).append(float(loss))
            found = gradients(model)
            if step == 2 and number == 1:
                ratio = training.logs()["gradient_ratio"]
    assert losses[0] == losses[1]
    loss_of(model, 0).backward()
    clean = gradients(model)
    with ns.inject(model, ns.RelativeGaussian(0.3), phases="both", trial=0):
        loss_of(model, 0).backward()
    first = ns.compute_gradient_ratio(clean, gradients(model))
    with ns.inject(model, ns.RelativeGaussian(0.3), phases="both", trial=2):
        loss_of(model, 0).backward()
    second = ns.compute_gradient_ratio(clean, gradients(model))
    assert ratio == pytest.approx((first + second) / 2, rel=1e-6), "steps 0 and 2"
    assert found
    assert "gradient_ratio" not in measured.logs()


class Counting(torch.nn.Module):
    """Keeps a running number, and draws from Python and NumPy."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden):
        self.calls += 1
        return hidden * (1 + 0.1 * random.random() + 0.1 * float(np.random.rand()))


def test_measuring_it_leaves_buffers_and_other_random_numbers_alone(model):
    model.model.embed_tokens = torch.nn.Sequential(model.model.embed_tokens, counting := Counting())
    losses = []
    for every in (0, 1):
        random.seed(0)
        np.random.seed(0)
        counting.calls.zero_()
        training = ns.NoisyTraining(model, ns.OperatorNoise(0.1, operators="linear"), gradient_ratio_every=every)
        for step in range(2):
            with training.step(step):
                losses.append(float(loss_of(model)))
        assert counting.calls == 2
    assert losses[:2] == losses[2:]
    assert "gradient_ratio" in training.logs()


def test_without_a_loss_it_says_so_once(model, caplog):
    training = ns.NoisyTraining(model, 0.1, gradient_ratio_every=1)
    with caplog.at_level(logging.WARNING):
        for step in range(2):
            with training.step(step):
                model(**tokens()).logits.sum().backward()
    assert [record.message for record in caplog.records] == [
        "gradient_ratio: not measured; the model's output has no loss; it has one where labels are given to it"
    ]


# --- never a silent nothing ---------------------------------------------------------------------------------------


def take_a_step(training, model):
    with training.step(0):
        loss_of(model).backward()


class Table:
    """A schedule of one's own that knows its steps and no others."""

    def __init__(self, *scales):
        self.scales = scales

    def at(self, step, total):
        return self.scales[step]


@pytest.mark.parametrize("kind", [partial(ns.OperatorNoise, 0.5), ns.NormWeightNoise])
def test_a_schedule_of_ones_own_is_asked_for_the_steps_of_the_training_alone(model, kind):
    training = ns.NoisyTraining(model, kind(schedule=Table(0.1, 0.2)), total=2)
    for step in range(2):
        with training.step(step):
            loss_of(model)
    assert [line.scale for line in training.history] == [0.1, 0.2]


class Below:
    """A schedule that goes where no noise can follow."""

    def at(self, step, total):
        return -1.0


REFUSED = {
    "no noise": (InputError, lambda model: ns.NoisyTraining(model), "noises: got none"),
    "a name": (InputError, lambda model: ns.NoisyTraining(model, "much"), 'noises: got "much", expected OperatorNoise'),
    "a class": (InputError, lambda model: ns.NoisyTraining(model, ns.NormWeightNoise), "noises: got <class"),
    "no model": (InputError, lambda model: ns.NoisyTraining("model", 0.1), "model: got str, expected a torch module"),
    "a negative scale": (InputError, lambda model: ns.NoisyTraining(model, -0.1), "noise: got -0.1"),
    "zero stages": (InputError, lambda model: ns.NormWeightNoise(ns.ExponentialStages(stages=0)), "stages: got 0"),
    "no total": (
        InputError,
        lambda model: ns.NoisyTraining(model, ns.NormWeightNoise()),
        "total: got none, expected how many steps there will be",
    ),
    "a bad total": (InputError, lambda model: ns.NoisyTraining(model, 0.1, total=0), "total: got 0"),
    "a bad step": (InputError, lambda model: ns.NoisyTraining(model, 0.1).step(-1).__enter__(), "step: got -1"),
    "a ratio": (
        InputError,
        lambda model: ns.NoisyTraining(model, 0.1, gradient_ratio_every=-1),
        "gradient_ratio_every: got -1",
    ),
    "an empty selection": (InputError, lambda model: ns.OperatorNoise(0.1, operators=[]), "got an empty one"),
    "a misspelt operator": (
        InputError,
        lambda model: ns.OperatorNoise(0.1, operators="sofmax"),
        'unknown operator "sofmax", did you mean "softmax"',
    ),
    "a probability": (
        InputError,
        lambda model: ns.OperatorNoise(ns.BitFlip(0.1), schedule=ns.ExponentialStages(2.0, 0.1)),
        "bit_flip: got scale 2.0, expected a probability between 0 and 1",
    ),
    "a schedule of one's own": (
        InputError,
        lambda model: take_a_step(ns.NoisyTraining(model, ns.NormWeightNoise(Below()), total=3), model),
        "norm_noise: its schedule: got -1.0, expected a finite number >= 0",
    ),
    "too large a probability in a schedule of one's own": (
        InputError,
        lambda model: take_a_step(
            ns.NoisyTraining(model, ns.OperatorNoise(ns.BitFlip(0.1), schedule=Table(2.0)), total=1), model
        ),
        "bit_flip: got scale 2.0, expected a probability between 0 and 1",
    ),
    "a schedule's class": (
        InputError,
        lambda model: ns.OperatorNoise(0.1, schedule=ns.CosineSchedule),
        "schedule: got <class 'noisescope.training.schedules.CosineSchedule'>, expected a number >= 0",
    ),
    "a schedule's class for norms": (
        InputError,
        lambda model: ns.NormWeightNoise(ns.CosineSchedule),
        "schedule: got <class 'noisescope.training.schedules.CosineSchedule'>, expected a number >= 0",
    ),
    "no factors for norms": (
        InputError,
        lambda model: ns.NormWeightNoise(0.1, adaptive=5),
        "adaptive: got int, expected an AdaptiveNoise",
    ),
    "factors of nothing": (
        DoseVanished,
        lambda model: take_a_step(
            ns.NoisyTraining(model, ns.NormWeightNoise(0.1, adaptive=ns.AdaptiveNoise({0: 0.0}))), model
        ),
        "norm weights: every factor in adaptive is 0",
    ),
    "no such layer": (
        NothingMatched,
        lambda model: ns.NoisyTraining(model, ns.OperatorNoise(0.1, layers=[7])),
        "layers: 7 is out of range, the model has 0 to 2",
    ),
    "no such operator here": (
        NothingMatched,
        lambda model: take_a_step(ns.NoisyTraining(model, ns.OperatorNoise(0.1, operators="gelu")), model),
        "operators gelu: nothing matched in 1 forward passes",
    ),
    "no backward pass": (
        NothingMatched,
        lambda model: only_forward(ns.NoisyTraining(model, ns.OperatorNoise(0.1, phases="backward")), model),
        "no gradient was disturbed",
    ),
    "another model": (
        NothingMatched,
        lambda model: take_a_step(ns.NoisyTraining(build("llama"), 0.1), model),
        "the model did not run inside the `with` block",
    ),
    "rounding": (
        DoseVanished,
        lambda model: take_a_step(ns.NoisyTraining(model.bfloat16(), ns.NormWeightNoise(1e-6)), model),
        "norm weights: sigma 1e-06 changed none of 224 weights in bfloat16",
    ),
    "compiled": (
        CompiledModel,
        lambda model: take_a_step(ns.NoisyTraining(torch.compile(model), 0.1), model),
        "is compiled, noise cannot reach inside",
    ),
}


def only_forward(training, model):
    with training.step(0):
        loss_of(model)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_one_line(model, case):
    kind, ask, says = REFUSED[case]
    with pytest.raises(kind) as refused:
        ask(model)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_noise_that_rounding_swallows_later_is_said_once(caplog):
    model, _ = trained.fixture("llama")
    schedule = ns.ExponentialStages(0.5, 1e-7, stages=3)
    training = ns.NoisyTraining(model.bfloat16(), ns.NormWeightNoise(schedule), total=3)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            with training.step(step):
                model(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
            training.logs()
    assert [record.message for record in caplog.records] == [
        "norm noise of scale 1e-07 changed nothing in steps 2 to 2: it is below the rounding of the model's dtype"
    ]
