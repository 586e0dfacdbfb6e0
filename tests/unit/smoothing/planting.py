"""Outliers that a model gets without its function changing: a norm's channels up, what reads them down."""

import torch
from torch import nn

import families
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.opening import open_data


def plant(model: nn.Module, *, layers: range, channels: tuple[int, ...], factor: float) -> None:
    """Channels of the first norm of these llama blocks times the factor, and of the second."""
    for layer in layers:
        block = model.model.layers[layer]
        attention, mlp = block.self_attn, block.mlp
        fed = {
            block.input_layernorm: (attention.q_proj, attention.k_proj, attention.v_proj),
            block.post_attention_layernorm: (mlp.gate_proj, mlp.up_proj),
        }
        with torch.no_grad():
            for norm, linears in fed.items():
                norm.weight[list(channels)] *= factor
                for linear in linears:
                    linear.weight[:, list(channels)] /= factor


def data(family: str = "llama", *, rows: int = 6, length: int = 12) -> EvaluationSet:
    """Tokens that the tiny families know."""
    return open_data([families.tokens(family, rows=rows, length=length)], n_samples=rows)


def awaken(model: nn.Module) -> nn.Module:
    """Random weights large enough to matter, norms and biases too: those of a fresh model hide a wrong fold."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.3 * noise)
            elif "embed" not in name and "wte" not in name:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return model
