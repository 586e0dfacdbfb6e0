"""Train a model further with noise where it bears it, and see what that did to its robustness.

python examples/train_with_noise.py                     the small model that the tests use, 20 steps
python examples/train_with_noise.py path/to/model 500   yours, with so many steps
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

import noisescope as ns

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "llama"
LENGTH = 64


def main(model_name: str = str(FIXTURE), steps: str = "20") -> None:
    model = AutoModelForCausalLM.from_pretrained(model_name).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_name)

    # 1. Where is it fragile? The noise of the training is made so that every layer contributes the same.
    report = ns.diagnose(model, tokenizer=tokenizer, n_samples=8, max_length=12)
    adaptive = ns.AdaptiveNoise.equalize(report, operators="linear")
    print(adaptive)

    # 2. Train, in any Trainer: noise goes down from 0.1 to 0.01, the first quarter of the steps has none.
    ids = tokenizer("\n".join(topics[name] for name in sorted(topics)), verbose=False)["input_ids"]
    rows = torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).view(-1, LENGTH)
    schedule = ns.ExponentialStages(0.1, 0.01, stages=4)
    noise = ns.NoiseCallback(ns.OperatorNoise(0.1, schedule=schedule, operators="linear", adaptive=adaptive))
    trainer = Trainer(
        model,
        TrainingArguments("trained", max_steps=int(steps), learning_rate=1e-3, logging_steps=5, report_to=[]),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[noise],
    )
    trainer.train()

    # 3. What was really applied, and what came of it. The saved model is an ordinary one, without noise.
    for line in noise.history:
        print(f"steps {line.first:2} to {line.last:2}: asked {line.scale:.3f}, layer 0 had {line.layers[0]:.4f}")
    trainer.save_model("trained/last")
    trained = AutoModelForCausalLM.from_pretrained("trained/last").eval()
    for name, which in (("before", AutoModelForCausalLM.from_pretrained(model_name).eval()), ("after", trained)):
        loss = ns.operator_level_diagnosis(which, ns.open_data(None, tokenizer, n_samples=16), noise_scale=0.1)
        print(f"{name}: noise in linears loses {loss['linear']['degradation']:.1%} of the accuracy")


if __name__ == "__main__":
    main(*sys.argv[1:])
