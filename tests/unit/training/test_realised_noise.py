"""The noise that was asked for is the noise that was there: per layer and step, in Trainer runs of every setting."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer

import noisescope as ns
import trained
from short_trainings import trainer

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")

STAGES = ns.ExponentialStages(0.1, 0.01, stages=4)
FACTORS = {0: 0.5, 3: 1.0, 4: 2.0}


def run(model: torch.nn.Module, directory: Any, callback: ns.NoiseCallback, **options: Any) -> Trainer:
    """Two epochs of four steps, each of two accumulated batches of two rows."""
    settings = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 2} | options
    found = trainer(directory, callback, model=model, gradient_accumulation_steps=2, **settings)
    found.train()
    return found


def check(callback: ns.NoiseCallback, expected: dict[int, float], factors: dict[Any, float]) -> None:
    """Every step has its line, and every layer its scale within 2%."""
    found = {line.first: line for line in callback.history}
    assert {step: line.scale for step, line in found.items()} == pytest.approx(
        {step: scale for step, scale in expected.items() if scale}
    )
    for line in found.values():
        assert line.first == line.last, "with a log a step"
        assert line.layers.keys() == factors.keys()
        for layer, dose in line.layers.items():
            assert dose == pytest.approx(factors[layer] * line.scale, rel=0.02), (line.first, layer)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("phases", ["forward", "both"])
def test_operator_noise_is_what_the_schedule_says(tmp_path, phases, checkpointing):
    noise = ns.OperatorNoise(
        1.0, schedule=STAGES, operators="linear", phases=phases, adaptive=ns.AdaptiveNoise(FACTORS)
    )
    callback = ns.NoiseCallback(noise)
    found = run(trained.fixture("llama")[0], tmp_path, callback, gradient_checkpointing=checkpointing)
    check(callback, {step: STAGES.at(step, 8) for step in range(8)}, FACTORS)
    logged = [row for row in found.state.log_history if "loss" in row]
    assert [row["noise_scale"] for row in logged] == [STAGES.at(step, 8) for step in range(8)]
    assert all(0.3 * row["noise_scale"] <= row["noise_dose"] <= 2 * row["noise_scale"] for row in logged)


def test_by_epoch_it_changes_with_the_epoch(tmp_path):
    schedule = ns.LinearSchedule(0.1, 0.02)
    noise = ns.OperatorNoise(1.0, schedule=schedule, operators="linear", adaptive=ns.AdaptiveNoise(FACTORS))
    callback = ns.NoiseCallback(noise, by="epoch")
    run(trained.fixture("llama")[0], tmp_path, callback)
    check(callback, {step: 0.1 if step < 4 else 0.02 for step in range(8)}, FACTORS)


@pytest.fixture
def wide() -> LlamaForCausalLM:
    """Two blocks whose norms have weights enough to tell a standard deviation by: 16384 each."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=2**14,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def test_noise_in_norm_weights_is_what_the_schedule_says(tmp_path, wide):
    callback = ns.NoiseCallback(ns.NormWeightNoise(STAGES))
    run(wide, tmp_path, callback, gradient_checkpointing=True, optim="sgd", learning_rate=0.0)
    check(callback, {step: STAGES.at(step, 8) for step in range(8)}, {0: 1.0, 1: 1.0, "final_norm": 1.0})


def test_all_parts_of_a_step_see_the_same_noisy_norms(tmp_path):
    """And every step others, none of which is added to the one before."""
    model, _ = trained.fixture("llama")
    norm, seen = model.model.layers[2].input_layernorm, []
    start = norm.weight.detach().clone()
    norm.register_forward_pre_hook(lambda module, args: seen.append(module.weight.detach() - start))
    run(model, tmp_path, ns.NoiseCallback(ns.NormWeightNoise(0.1)), learning_rate=0.0)
    assert len(seen) == 16
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(first, second)
    assert len({tuple(error.tolist()) for error in seen}) == 8
    for error in seen:
        assert 0.06 < error.std() < 0.14  # 64 numbers


def test_every_part_of_a_step_draws_its_own_operator_noise(tmp_path):
    """With the same rows in all batches the losses of a step differ by the noise, and no two are alike."""
    model, _ = trained.fixture("llama")
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(output.loss.item()))
    callback = ns.NoiseCallback(ns.OperatorNoise(0.1, operators="linear", layers=[2]))
    found = trainer(tmp_path, callback, model=model, gradient_accumulation_steps=2, learning_rate=0.0)
    found.train_dataset = [found.train_dataset[0]] * 24
    found.train()
    assert len(seen) == len(set(seen)) == 6
