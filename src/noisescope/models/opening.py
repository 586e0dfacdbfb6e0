"""A checked checkpoint in, a torch model out: the only calls that load weights.

Every call passes `use_safetensors=True` and an explicit `trust_remote_code`, never asks on stdin, and never reaches for
the network. transformers fills weights it does not find with random numbers; here that is an error.
"""

__all__ = ["attention_names", "open_config", "open_model", "open_tokenizer"]

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelError
from .boundary import guarded, one_line
from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_AUTO_CLASSES = {  # tried in this order for the class that config.json names
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForPreTraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
}
_UNNAMED = ("AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForCausalLM")


def attention_names() -> list[str]:
    """The attention implementations that can be asked for by name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ["eager", *(name for name in sorted(ALL_ATTENTION_FUNCTIONS.valid_keys()) if "|" not in name)]


def open_config(checkpoint: Checkpoint, *, trust_remote_code: bool = False) -> "PreTrainedConfig":
    """The configuration, from config.json or the header of a GGUF file."""
    from transformers import AutoConfig

    with guarded(_configuration(checkpoint)):
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            **_location(checkpoint.path), trust_remote_code=trust_remote_code, local_files_only=True
        )
        return config


def _configuration(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.label}: {'header' if checkpoint.path.is_file() else 'config.json'}"


def open_model(
    checkpoint: Checkpoint,
    config: "PreTrainedConfig",
    *,
    dtype: str = "auto",
    device: str = "cpu",
    attn: str | None = None,
    trust_remote_code: bool = False,
) -> tuple["PreTrainedModel", tuple[str, ...]]:
    """The model in eval mode, and the names of weights in the files that it has no place for."""
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if attn is not None:
        options["attn_implementation"] = attn
    with guarded(_configuration(checkpoint)):
        _check_attention(checkpoint, config)
        auto = _auto_class(config)
        _check_size(checkpoint, config, lambda: auto.from_config(config, **options))
    with guarded(checkpoint.label):
        model, info = auto.from_pretrained(
            **_location(checkpoint.path),
            **_unpacked(checkpoint.path),
            **options,
            **({} if device == "cpu" else {"device_map": device}),
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with both shapes
        )
    _check_complete(checkpoint.label, info)
    return model, tuple(sorted(info["unexpected_keys"]))


def open_tokenizer(label: str, path: Path, *, trust_remote_code: bool = False) -> "PreTrainedTokenizerBase":
    """The tokenizer of a directory or GGUF file that has one."""
    from transformers import AutoTokenizer

    with guarded(f"{label}: tokenizer"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            **_location(path), trust_remote_code=trust_remote_code, local_files_only=True
        )
        tokenizer.encode("a")  # settings of a wrong type show only in use
        return tokenizer


def _location(path: Path) -> dict[str, str]:
    if path.is_file():  # absolute, because transformers would rather take a file of that name in the working directory
        return {"pretrained_model_name_or_path": str(path.parent), "gguf_file": str(path.absolute())}
    return {"pretrained_model_name_or_path": str(path)}


def _unpacked(path: Path) -> dict[str, Any]:
    """GGUF weights as plain tensors: packed ones would need compiled kernels from the hub and hide every linear."""
    import transformers

    packing = getattr(transformers, "GgufConfig", None)  # older releases always unpack
    return {"quantization_config": packing(dequantize=True)} if packing and path.is_file() else {}


def _check_attention(checkpoint: Checkpoint, config: "PreTrainedConfig") -> None:
    attention = config._attn_implementation
    if attention is not None and attention not in attention_names():  # a repository of compiled kernels, say
        raise ModelError(f"{_configuration(checkpoint)}: attn_implementation: got {one_line(repr(attention))}")


def _auto_class(config: "PreTrainedConfig") -> Any:
    """The Auto class whose model is the one that config.json names; AutoModel for a bare decoder or encoder."""
    import transformers
    from transformers.models.auto import modeling_auto

    def builds(auto: str) -> str | None:
        return getattr(modeling_auto, _AUTO_CLASSES[auto], {}).get(config.model_type)

    own = getattr(config, "auto_map", None) or {}
    if config.architectures:
        fits = [auto for auto in _AUTO_CLASSES if auto in own or builds(auto) in config.architectures]
    else:
        fits = [auto for auto in _UNNAMED if auto in own or builds(auto)]
    return getattr(transformers, fits[0] if fits else "AutoModel")


def _check_size(checkpoint: Checkpoint, config: "PreTrainedConfig", build: Callable[[], "PreTrainedModel"]) -> None:
    """A model that is far larger than its weights is refused while it is still a sketch without memory."""
    import torch

    packed = getattr(config, "quantization_config", None) is not None  # up to 32 one-bit weights in an element
    with torch.device("meta"):
        wanted = sum(parameter.numel() for parameter in build().parameters())
    stored = sum(math.prod(shape) for shape in checkpoint.shapes.values())
    if wanted > (32 if packed else 2) * stored:  # twice, because transformers derives some parts from others
        raise ModelError(f"{checkpoint.label}: the configuration needs {wanted} weights, the files hold only {stored}")


def _check_complete(label: str, info: dict[str, Any]) -> None:
    for key, got, expected in sorted(info["mismatched_keys"]):
        raise ModelError(f"{label}: {one_line(key)}: got shape {[*got]}, the configuration needs {[*expected]}")
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{label}: weights missing from the files: {len(missing)}, first {one_line(missing[0])}; the checkpoint is "
            "incomplete or belongs to another architecture"
        )
