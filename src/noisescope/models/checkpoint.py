"""What lies on the disk, checked before transformers opens it.

Refused: pickles (they can run code), adapters without their model, shard names that leave the directory, damaged or
truncated weight files, unknown architectures, and configurations that ask for more layers than there are weights.
"""

__all__ = [
    "PICKLES",
    "WEIGHTS",
    "Checkpoint",
    "has_tokenizer",
    "inspect_directory",
    "inspect_gguf",
    "pickle_refused",
]

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .boundary import one_line, remote_code_refused
from .gguf_header import read_header

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
WEIGHTS = (*PICKLES, ".safetensors", ".gguf")

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json"),
    *("vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
)
_LARGEST_JSON = 64 << 20  # the index of a thousand shards has some 10 MB
_FEW_LAYERS = 64  # a configuration may count layers that hold no weights, but not millions


@dataclass(frozen=True)
class Checkpoint:
    """A model's files, found whole: its directory or GGUF file, the weight files and the shape of every tensor."""

    label: str
    path: Path
    weights: tuple[Path, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    has_tokenizer: bool


def inspect_gguf(label: str, path: Path) -> Checkpoint:
    """The checkpoint in a GGUF file whose header and extents are sound."""
    header = read_header(path)
    layers = {key: value for key, value in header.values.items() if key.endswith(".block_count")}
    _check_layers(label, layers, len(header.shapes))
    return Checkpoint(label, path, (path,), header.shapes, "tokenizer.ggml.model" in header.values)


def inspect_directory(label: str, path: Path, *, trust_remote_code: bool = False) -> Checkpoint:
    """The checkpoint in a directory with config.json and safetensors weights, all readable and consistent."""
    try:
        names = {entry.name for entry in path.iterdir() if entry.is_file()}
    except OSError as error:
        raise ModelError(f"{label}: cannot read the directory: {error.strerror}") from error
    _check_kind(label, names)
    weights = _weight_files(label, path, names)
    shapes = {key: shape for file in weights for key, shape in _shapes(file)}
    config = _read_json(path / "config.json")
    if config.get("transformers_weights", weights[0].name) != weights[0].name:
        raise ModelError(
            f"{label}: config.json: transformers_weights: only {weights[0].name} is opened; remove the line"
        )
    _check_architecture(label, config, trust_remote_code=trust_remote_code)
    _check_layers(label, config, len(shapes))
    return Checkpoint(label, path, weights, shapes, has_tokenizer(path))


def has_tokenizer(path: Path) -> bool:
    """Whether the directory holds any file that a tokenizer is made from."""
    return any((path / name).is_file() for name in _TOKENIZER_FILES)


def pickle_refused(label: str, name: str) -> ModelError:
    """The error for a model that comes as a pickle, with the way out."""
    return ModelError(
        f"{label}: {one_line(name)} is a pickle and is never loaded, because it can run code; if you trust it, "
        "convert it: `AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)`, then pass NEW_DIR"
    )


def _check_kind(label: str, names: set[str]) -> None:
    """Layouts that transformers would follow to other files than the ones inspected here."""
    if "adapter_config.json" in names:
        raise ModelError(
            f"{label}: is an adapter, not a whole model; merge it first: "
            "`model.merge_and_unload().save_pretrained(DIR)`"
        )
    if any(re.match(r"shard-\d+-model-", name) for name in names):
        raise ModelError(f"{label}: is a distributed checkpoint; write a plain one with `model.save_pretrained(DIR)`")


def _weight_files(label: str, path: Path, names: set[str]) -> tuple[Path, ...]:
    if "model.safetensors" in names:
        return (path / "model.safetensors",)
    if "model.safetensors.index.json" in names:
        return _shards(path / "model.safetensors.index.json")
    for name in sorted(names):
        if name.endswith(PICKLES):
            raise pickle_refused(label, name)
        if name.endswith(".gguf"):
            raise ModelError(f"{label}: holds a GGUF file; pass the file itself: {path / one_line(name)}")
    raise ModelError(f"{label}: no model.safetensors or model.safetensors.index.json in it")


def _shards(index: Path) -> tuple[Path, ...]:
    """The files an index names, each a plain name of an existing file beside it."""
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index}: weight_map: expected tensor names with their files")
    for name in names.values():
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\:\0]+\.safetensors", name):
            raise ModelError(
                f"{index}: weight_map: got {one_line(repr(name))}, expected a .safetensors file beside the index"
            )
        if not (index.parent / name).is_file():
            raise ModelError(f"{index}: weight_map: {one_line(name)} is missing; fetch the model again")
    return tuple(index.parent / name for name in sorted(set(names.values())))


def _shapes(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a dict: it has no iterator
                yield key, tuple(tensors.get_slice(key).get_shape())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file}: damaged or truncated ({one_line(error)}); fetch it again") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise ModelError(f"{path.parent}: no {path.name} in it")
        if path.stat().st_size > _LARGEST_JSON:
            raise ModelError(f"{path}: larger than any configuration ({_LARGEST_JSON >> 20} MB)")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: got a {type(content).__name__}, expected an object")
    return content


def _check_architecture(label: str, config: dict[str, Any], *, trust_remote_code: bool) -> None:
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if (isinstance(kind, str) and kind in CONFIG_MAPPING) or ("auto_map" in config and trust_remote_code):
        return
    if "auto_map" in config:
        raise remote_code_refused(f"{label}: config.json")
    near = get_close_matches(str(kind), CONFIG_MAPPING.keys(), n=1)
    hint = f'did you mean "{near[0]}"?' if near else "a newer transformers may know it"
    raise ModelError(
        f"{label}: config.json: model_type: got {one_line(json.dumps(kind))}, unknown to transformers; {hint}"
    )


def _check_layers(label: str, config: Mapping[str, Any], tensors: int) -> None:
    """A corrupt layer count would build modules until memory ends, long before a missing weight is noticed."""
    for key, value in _integers(config):
        if re.search(r"(layers?|block_count)$", key) and value > max(tensors, _FEW_LAYERS):
            raise ModelError(f"{label}: {one_line(key)}: got {value}, but the weights hold only {tensors} tensors")


def _integers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _integers(value)
        elif isinstance(value, int):
            yield key, value
