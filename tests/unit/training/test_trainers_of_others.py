"""TRL's trainers and PEFT's adapters with noise: it is there in the steps, and nowhere else."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, disable_progress_bars
from peft import IA3Config, LNTuningConfig, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import noisescope as ns
import trained
from noisescope.errors import InputError
from noisescope.injection import is_injecting
from short_trainings import (
    FEW,
    QUIET,
    SHORT,
    close,
    llama,
    logged,
    report,
    rows,
    same,
    saved_weights,
    texts,
    trainer,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")
disable_progress_bars()

KINDS = {"noise": partial(ns.OperatorNoise, 0.05, phases="both"), "norm_noise": partial(ns.NormWeightNoise, 0.05)}


@pytest.fixture(params=sorted(KINDS))
def noise(request: pytest.FixtureRequest) -> Any:
    """Each kind of noise, at one scale."""
    return KINDS[request.param]()


def sft(home: Path, *callbacks: Any, peft_config: Any = None, **settings: Any) -> SFTTrainer:
    """Of the llama on a little text."""
    return SFTTrainer(
        llama(),
        SFTConfig(str(home), **{**QUIET, **SHORT, "bf16": False, "max_length": 24, **settings}),
        train_dataset=Dataset.from_dict({"text": texts()}),
        eval_dataset=Dataset.from_dict({"text": texts()[:4]}),
        processing_class=trained.tokenizer("llama"),
        callbacks=list(callbacks),
        peft_config=peft_config,
    )


def grpo(home: Path, reward: Callable[..., list[float]], *callbacks: Any, **settings: Any) -> GRPOTrainer:
    """Two steps of the llama on four prompts."""
    tiny = {"max_steps": 2, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 5}
    return GRPOTrainer(
        llama(),
        reward,
        GRPOConfig(str(home), **{**QUIET, **SHORT, "bf16": False, **tiny, **settings}),
        train_dataset=Dataset.from_dict({"prompt": ["The name of", "An object is", "If the", "A class has"]}),
        processing_class=trained.tokenizer("llama"),
        callbacks=list(callbacks),
    )


def by_length(completions: list[str], **_: Any) -> list[float]:
    """The longer the better."""
    return [float(len(text)) for text in completions]


def lora(**settings: Any) -> LoraConfig:
    """A small adapter."""
    return LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **settings})


def own(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are trained."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}


def frozen(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are not."""
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}


def saved_adapter(home: Path) -> dict[str, Tensor]:
    """What a checkpoint has of an adapter, by the names of the live one."""
    found = load_file(home / "adapter_model.safetensors")
    return {_with_adapter(name): weight for name, weight in found.items()}


def _with_adapter(name: str) -> str:
    parts = name.split(".")
    if parts[-2] in ("lora_A", "lora_B"):
        return ".".join([*parts[:-1], "default", parts[-1]])
    return ".".join([*parts[:-1], "modules_to_save", "default", parts[-1]])


# --- SFT --------------------------------------------------------------------------------------------------------


def test_sft_has_operator_noise_of_its_schedule(tmp_path: Path) -> None:
    expected = [0.06, 0.05, 0.04]
    callback = ns.NoiseCallback(ns.OperatorNoise(0.0, schedule=ns.LinearSchedule(0.06, 0.04), phases="both"))
    run = sft(tmp_path, callback, learning_rate=0.0)
    run.train()
    assert logged(run, "noise_scale") == pytest.approx(expected)
    assert close(logged(run, "noise_dose"), expected)
    assert [(line.first, line.last) for line in callback.history] == [(0, 0), (1, 1), (2, 2)]
    for line, scale in zip(callback.history, expected, strict=True):
        assert close([line.dose, *line.layers.values()], [scale] * (1 + len(line.layers)), within=0.05)
        assert close([line.dose], [scale])
        assert set(line.layers) == {*range(8), "embed", "final_norm"}, "the head is fused"


def test_sft_has_norm_noise_of_its_schedule(tmp_path: Path) -> None:
    """The norms have 1088 weights, so a dose is known to 2% only over several steps."""
    callback = ns.NoiseCallback(ns.NormWeightNoise(ns.ExponentialStages(0.1, 0.05, stages=3)))
    run = sft(tmp_path, callback, learning_rate=0.0, max_steps=24, per_device_train_batch_size=1, logging_steps=8)
    run.train()
    assert [(line.first, line.last, line.scale) for line in callback.history] == [(8, 15, 0.1), (16, 23, 0.05)]
    assert close([line.dose for line in callback.history], [0.1, 0.05])
    assert logged(run, "norm_noise_scale") == pytest.approx([0, 0.1, 0.05])
    assert close(logged(run, "norm_noise_dose"), [0, 0.1, 0.05])


def test_sft_computes_its_loss_with_noise_and_evaluates_and_saves_without(tmp_path: Path, noise: Any) -> None:
    still = {"learning_rate": 0.0, "max_steps": 2}
    plain = sft(tmp_path / "plain", **still)
    plain.train()
    often = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    run = sft(tmp_path, ns.NoiseCallback(noise), **still, **often)
    start, clean = weights(run.model), run.evaluate()["eval_loss"]
    run.train()
    pairs = zip(logged(run, "loss"), logged(plain, "loss"), strict=True)
    assert all(noisy != without for noisy, without in pairs)
    assert logged(run, "eval_loss") == [clean] * 2
    for step in (1, 2):
        assert same(saved_weights(tmp_path / f"checkpoint-{step}"), start)
    assert same(weights(run.model), start)


def test_sft_trains_norms_although_they_have_noise(tmp_path: Path) -> None:
    """What is put back is the clean weight of this step, not of the first one."""
    run = sft(tmp_path, ns.NoiseCallback(ns.NormWeightNoise(0.05)))
    start = weights(run.model)
    run.train()
    moved = {name for name, weight in weights(run.model).items() if not torch.equal(weight, start[name])}
    assert {name for name in start if "norm" in name} <= moved


def test_sft_that_is_resumed_ends_where_the_straight_one_does(tmp_path: Path) -> None:
    in_stages = ns.NormWeightNoise(ns.ExponentialStages(0.1, 0.05, stages=4))
    noisy = partial(ns.NoiseCallback, ns.OperatorNoise(0.05, phases="both", **FEW), in_stages)
    straight = sft(tmp_path, noisy(), max_steps=4, save_strategy="steps", save_steps=2)
    straight.train()
    resumed = sft(tmp_path / "resumed", callback := noisy(), max_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [line.first for line in callback.history] == [2, 3, 2, 3]
    assert same(weights(resumed.model), weights(straight.model))


def test_noise_stays_out_of_the_fused_head_of_trl(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It computes its logits again for the gradient, where the noise would be missing."""
    run = sft(tmp_path, callback := ns.NoiseCallback(ns.OperatorNoise(0.05)), max_steps=1)
    with caplog.at_level("WARNING", logger="noisescope"):
        run.train()
    assert [record.message for record in caplog.records if record.name == "noisescope.training"] == [
        "no noise in the head: it writes its own backward pass (TRL's fused head), which would miss it"
    ]
    assert list(callback.history[0].layers) == ["embed", *range(8), "final_norm"]
    run = sft(tmp_path, ns.NoiseCallback(ns.OperatorNoise(0.05, layers="head")), max_steps=1)
    with pytest.raises(InputError, match="layers: got head alone, which writes its own backward pass here"):
        run.train()


def test_a_head_of_torchs_own_has_noise(tmp_path: Path) -> None:
    run = trainer(tmp_path, callback := ns.NoiseCallback(ns.OperatorNoise(0.05, layers="1,head")), max_steps=1)
    run.train()
    assert list(callback.history[0].layers) == [1, "head"]


# --- PEFT -------------------------------------------------------------------------------------------------------


def adapted(home: Path, *callbacks: Any, **settings: Any) -> Trainer:
    """The llama with an adapter in a plain Trainer."""
    torch.manual_seed(0)  # of the adapter's first weights
    return trainer(home, *callbacks, model=get_peft_model(llama(), lora()), **settings)


def test_an_adapter_is_trained_and_saved_without_noise(tmp_path: Path, noise: Any) -> None:
    run = adapted(tmp_path, callback := ns.NoiseCallback(noise), save_strategy="steps", save_steps=3)
    base, adapter = frozen(run.model), own(run.model)
    run.train()
    assert close([line.dose for line in callback.history], [0.05] * 3, within=0.05)
    assert same(frozen(run.model), base)
    trained_adapter = own(run.model)
    assert not any(torch.equal(weight, adapter[name]) for name, weight in trained_adapter.items() if "lora_B" in name)
    assert same(saved_adapter(tmp_path / "checkpoint-3"), trained_adapter)
    plain = adapted(tmp_path)
    plain.train()
    assert not same(own(plain.model), trained_adapter)


def test_norms_that_an_adapter_saves_have_no_noise(tmp_path: Path) -> None:
    model = get_peft_model(llama(), lora(modules_to_save=["input_layernorm"]))
    callback = ns.NoiseCallback(ns.NormWeightNoise(0.05))
    run = trainer(tmp_path, callback, model=model, learning_rate=0.0, save_strategy="steps", save_steps=3)
    start = own(run.model)
    run.train()
    assert close([line.dose for line in callback.history], [0.05] * 3, within=0.05)
    assert same(saved_adapter(tmp_path / "checkpoint-3"), start)


def test_sft_with_an_adapter(tmp_path: Path, noise: Any) -> None:
    run = sft(tmp_path, ns.NoiseCallback(noise), peft_config=lora())
    assert isinstance(run.model, PeftModel)
    base, adapter, clean = frozen(run.model), own(run.model), run.evaluate()["eval_loss"]
    run.train()
    assert close(logged(run, f"{noise.kind}_dose"), [0.05] * 3, within=0.05)
    assert same(frozen(run.model), base)
    assert not same(own(run.model), adapter)
    assert run.evaluate()["eval_loss"] != clean
    with run.model.disable_adapter():
        assert run.evaluate()["eval_loss"] == clean


@pytest.mark.parametrize("config", [lora(modules_to_save=["norm"]), LNTuningConfig(task_type="CAUSAL_LM")])
def test_norms_that_an_adapter_trains_are_the_ones_with_noise(config: Any) -> None:
    """They keep their place in the model; the originals beside them do not run, and get none."""
    model, noise = get_peft_model(llama(), config), ns.NormWeightNoise(0.05)
    training = ns.NoisyTraining(model, noise, ns.OperatorNoise(0.05, layers=["final_norm"]))
    spare = {name: weight for name, weight in weights(model).items() if "original" in name or "base_layer" in name}
    assert any("norm" in name for name in spare)
    with training.step(0):
        model(input_ids=rows()[0]["input_ids"].unsqueeze(0), labels=rows()[0]["labels"].unsqueeze(0)).loss.backward()
        assert same({name: weights(model)[name] for name in spare}, spare)
    in_norms, at_operators = training.history
    assert in_norms.elements == 1088, "each norm of the model once"
    assert list(in_norms.layers) == [*range(8), "final_norm"]
    assert list(at_operators.layers) == ["final_norm"]


@pytest.mark.parametrize("made", [ns.AdaptiveNoise.from_report, ns.AdaptiveNoise.equalize])
def test_the_report_of_a_model_fits_it_with_an_adapter(tmp_path: Path, made: Any) -> None:
    adaptive = made(report("llama"))
    callback = ns.NoiseCallback(ns.OperatorNoise(0.05, operators=["linear", "rms_norm"], adaptive=adaptive))
    adapted(tmp_path, callback, max_steps=1).train()
    doses, scales = callback.history[0].layers, adaptive.scales(0.05)
    blocks = [layer for layer in scales if isinstance(layer, int)]
    assert len(blocks) == 8
    assert close([doses[layer] for layer in blocks], [scales[layer] for layer in blocks])


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (lora(), "model"),
        (lora(), "0"),
        (lora(modules_to_save=["lm_head", "norm"]), "weight"),
        (IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[]), "self_attn"),
        (PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4), "default"),
    ],
)
def test_adapters_are_no_part_of_the_model_whatever_they_are_called(config: Any, name: str) -> None:
    model = get_peft_model(llama(), config, adapter_name=name)
    ns.AdaptiveNoise.from_report(report("llama")).check(model, layers=8)
    model.get_base_model().model.norm.register_parameter("more", nn.Parameter(torch.zeros(1)))
    with pytest.raises(InputError, match="8 layers, 459841 parameters"):
        ns.AdaptiveNoise.from_report(report("llama")).check(model, layers=8)


def test_the_report_of_another_model_is_refused(tmp_path: Path) -> None:
    adaptive = ns.AdaptiveNoise.from_report(report("gpt2"))
    run = adapted(tmp_path, ns.NoiseCallback(ns.OperatorNoise(0.05, adaptive=adaptive)))
    with pytest.raises(InputError, match=r"^report: is of another model .*diagnose the model that you train$"):
        run.train()
    assert run.state.global_step == 0


# --- GRPO -------------------------------------------------------------------------------------------------------


def test_grpo_has_noise_in_its_steps_and_none_behind_them(tmp_path: Path, noise: Any) -> None:
    seen = []

    def reward(completions: list[str], **rest: Any) -> list[float]:
        seen.append(is_injecting() if noise.kind == "noise" else not same(weights(run.model), start))
        return by_length(completions, **rest)

    callback = ns.NoiseCallback(noise)
    run = grpo(tmp_path, reward, callback, learning_rate=0.0)
    start = weights(run.model)
    run.train()
    assert seen == [True, True], "rollouts have the noise too"
    assert close(logged(run, f"{noise.kind}_dose"), [0.05] * 2)
    assert [(line.first, line.last) for line in callback.history] == [(0, 0), (1, 1)]
    assert same(weights(run.model), start)
    assert not is_injecting()
    assert "training_step" not in vars(run)


def test_grpo_keeps_its_reference_clean(tmp_path: Path, noise: Any) -> None:
    """At equal weights all that can differ from the reference is noise."""
    still = {"learning_rate": 0.0, "beta": 0.1, "max_steps": 1}
    plain, noisy = grpo(tmp_path, by_length, **still), grpo(tmp_path, by_length, ns.NoiseCallback(noise), **still)
    for run in (plain, noisy):
        run.train()
    assert logged(plain, "kl") == [0.0]
    assert logged(noisy, "kl")[0] > 1e-4
    assert same(weights(noisy.ref_model), weights(llama()))


def test_grpo_at_scale_zero_is_grpo(tmp_path: Path) -> None:
    found = []
    for callbacks in ([], [ns.NoiseCallback(ns.OperatorNoise(0.0), ns.NormWeightNoise(0.0))]):
        run = grpo(tmp_path, by_length, *callbacks)  # seeds what it samples with, so one after the other
        run.train()
        found.append(weights(run.model))
    assert same(*found)
    assert not same(found[0], weights(llama()))


def test_a_reward_that_raises_leaves_the_model_clean(tmp_path: Path) -> None:
    def reward(completions: list[str], **_: Any) -> list[float]:
        raise KeyError("no reward")

    both = ns.NoiseCallback(ns.OperatorNoise(0.05, **FEW), ns.NormWeightNoise(0.05))
    run = grpo(tmp_path, reward, both)
    start = weights(run.model)
    with pytest.raises(KeyError, match="no reward"):
        run.train()
    assert same(weights(run.model), start)
    assert not is_injecting()


def test_grpo_leaves_a_reward_model_alone(tmp_path: Path) -> None:
    """A model that judges completions runs inside the step; the noise is the trained model's."""
    judge, seen = llama(), []
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        clean = judge(ids).logits

    def reward(completions: list[str], **rest: Any) -> list[float]:
        with torch.no_grad():
            seen.append(torch.equal(judge(ids).logits, clean))
        return by_length(completions, **rest)

    grpo(tmp_path, reward, ns.NoiseCallback(ns.OperatorNoise(0.05), ns.NormWeightNoise(0.05)), max_steps=1).train()
    assert seen == [True]
