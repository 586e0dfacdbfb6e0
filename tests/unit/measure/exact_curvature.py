"""A model so small that its Fisher information and its Hessian can be written down, and the slow ways to do it."""

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from noisescope.measure.batches import Batch

VOCAB = 11
LAYERS = ("embed", 0, 1, "final_norm", "head")


def tiny_llama(*, tied: bool = False, attn: str = "sdpa", act: str = "silu", seed: int = 0) -> LlamaForCausalLM:
    """Two layers of width 8 in float64, with weights large enough that its predictions are far from uniform."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        intermediate_size=6,
        hidden_act=act,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        initializer_range=0.4,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation=attn,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config).double().eval()


def rows(*lengths: int, seed: int = 0) -> Batch:
    """A batch of random tokens, one row for each length, padded at the end."""
    ids = torch.randint(3, VOCAB, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return Batch(ids * mask, mask.long(), mask[:, 1:], tuple(range(len(lengths))))


def layer_of(name: str) -> int | str:
    """The layer of a parameter of the tiny model, by its name."""
    parts = name.split(".")
    named = {"embed_tokens": "embed", "norm": "final_norm", "lm_head": "head"}
    return int(parts[2]) if parts[1] == "layers" else named[next(part for part in parts if part in named)]


def layer_sums(by_name: dict[str, Tensor]) -> dict[int | str, float]:
    """Sums of a dictionary by parameter name, by layer."""
    sums: dict[int | str, float] = {}
    for name, values in by_name.items():
        sums[layer_of(name)] = sums.get(layer_of(name), 0.0) + float(values.sum())
    return sums


def _log_probabilities(model: nn.Module, batch: Batch) -> Tensor:
    """Of every prediction that counts; each row alone and without padding."""
    found = []
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        logits = model(input_ids=batch.input_ids[row : row + 1, :length]).logits[0]
        found.append(logits[:-1].log_softmax(-1))
    return torch.cat(found)


def exact_fisher(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The mean over predictions of sum over labels p(label) (gradient of log p(label))^2, label by label."""
    names, weights = zip(*model.named_parameters(), strict=True)
    log_p = _log_probabilities(model, batch)
    sums = [torch.zeros_like(weight) for weight in weights]
    for value in log_p.flatten():
        for total, grad in zip(sums, torch.autograd.grad(value, weights, retain_graph=True), strict=True):
            total.addcmul_(grad, grad, value=float(value.detach().exp()))
    return {name: total / len(log_p) for name, total in zip(names, sums, strict=True)}


def exact_hessian(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Diagonal of the Hessian of the mean next-token cross entropy, one element at a time; attention must be eager."""
    names, weights = zip(*model.named_parameters(), strict=True)
    loss = -_log_probabilities(model, batch).gather(1, batch.targets.unsqueeze(1)).mean()
    diagonals = {}
    grads = torch.autograd.grad(loss, weights, create_graph=True)
    for name, weight, grad in zip(names, weights, grads, strict=True):
        unit = torch.eye(weight.numel(), dtype=weight.dtype).view(-1, *weight.shape)
        (block,) = torch.autograd.grad(grad, weight, unit, retain_graph=True, is_grads_batched=True)
        diagonals[name] = block.flatten(1).diagonal().view_as(weight)
    return diagonals
