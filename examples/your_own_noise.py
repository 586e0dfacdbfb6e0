"""A noise model of your own: registered, checked, then used like the ones that come along.

    python examples/your_own_noise.py [your/model]     without: on the small model that the tests use

The example is an analog device whose columns differ in gain: each channel is too large or too small by its own factor.
"""

import sys
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import ClassVar

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns
from noisescope.keys import Key
from noisescope.noise import Measured, register
from noisescope.testing import check_noise

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "llama"


@register  # known from now on by its name: error_type="channel_gain"
@dataclass(frozen=True)
class ChannelGain:
    """Channel c is multiplied by 1 + s * z_c, z_c ~ N(0, 1), the same in every step."""

    scale: float
    name: ClassVar[str] = "channel_gain"
    sparse: ClassVar[bool] = False  # every element moves, so the dose is measured on a sample of them

    def disturb_(self, value: torch.Tensor, scale: float, key: Key) -> None:
        # All randomness comes from the key; fixed() leaves the step out: a gain belongs to the device, not the moment.
        draw = key.fixed().generator(value.device)
        value.mul_(1 + scale * torch.randn(value.shape[-1:], generator=draw, device=value.device))

    def dose(self, seen: Measured) -> float:
        """The scale read back from what was seen to happen: root mean square of error / value."""
        return sqrt(seen.sq_ratio / seen.nonzero) if seen.nonzero else 0.0


def main(model_name: str = str(FIXTURE)) -> None:
    check_noise(ChannelGain(0.05))  # keyed, in place, deaf to global randomness, delivers its dose; else AssertionError
    print("channel_gain keeps the rules\n")
    model = AutoModelForCausalLM.from_pretrained(model_name).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    batch = tokenizer("The yield statement", return_tensors="pt")
    with ns.inject(model, ChannelGain(0.05), layers="2-3", operators=["linear"]) as run, torch.no_grad():
        model(**batch)
    print(run.stats, "\n")

    spec = ns.DiagnosisSpec(level="operator", error_type="channel_gain")
    print(ns.diagnose(model, tokenizer=tokenizer, spec=spec, n_samples=8, max_length=12))


if __name__ == "__main__":
    main(*sys.argv[1:])
