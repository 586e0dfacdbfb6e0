"""Fingerprints: 16 hexadecimal digits that tell two models, or two tokenizers, apart by what they hold."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["fingerprint_config", "fingerprint_model", "fingerprint_tokenizer"]


def fingerprint_model(model: "nn.Module") -> str:
    """Of every parameter and buffer: name, dtype, shape and bits. Reads the weights once, on all cores."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with ThreadPoolExecutor() as pool:  # hashing leaves the interpreter to others
        parts = pool.map(_of_tensor, tensors.values())
        return _digest(
            f"{name} {part}".encode("utf-8", "surrogatepass") for name, part in zip(tensors, parts, strict=True)
        )


def fingerprint_config(model: "nn.Module") -> str:
    """Of what its configurations say beside the weights: activations, epsilons, heads, how it generates."""
    found = [getattr(model, name, None) for name in ("config", "generation_config")]
    return _digest(repr(_said(config)).encode() for config in found)


def fingerprint_tokenizer(tokenizer: Any) -> str | None:
    """Of the vocabulary with its rules, and the chat template; None without a tokenizer."""
    if tokenizer is None:
        return None
    rules = getattr(tokenizer, "backend_tokenizer", None)
    words = rules.to_str() if rules is not None else repr(sorted(tokenizer.get_vocab().items()))
    return _digest([words.encode("utf-8", "surrogatepass"), repr(getattr(tokenizer, "chat_template", None)).encode()])


def _said(config: Any) -> list[tuple[str, str]]:
    """Its entries, without where it was read from and which version wrote it; a dtype and attention show elsewhere."""
    entries = config.to_dict() if hasattr(config, "to_dict") else {}
    left_out = ("_", "transformers_version", "dtype", "torch_dtype")
    return sorted((name, repr(value)) for name, value in entries.items() if not name.startswith(left_out))


def _of_tensor(tensor: "Tensor") -> str:
    import torch

    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{tensor.dtype} {tuple(tensor.shape)} {blake2b(bits.data, digest_size=16).hexdigest()}"


def _digest(parts: Any) -> str:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part + b"\x00")
    return digest.hexdigest()
