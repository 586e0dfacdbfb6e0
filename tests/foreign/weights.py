"""Weights as a quantised model has them: rounded, but of the model's dtype."""

import torch
from torch import nn

__all__ = ["quantised"]


def quantised(model: nn.Module, bits: int) -> nn.Module:
    """Every matrix of the model's blocks rounded to so many bits, with one scale for each row; in place."""
    most = 2 ** (bits - 1) - 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or "embed" in name or "wte" in name or "wpe" in name:
                continue
            scale = parameter.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / most
            parameter.copy_((parameter.float() / scale).round().clamp(-most, most) * scale)
    return model
