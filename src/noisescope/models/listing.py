"""What is already on this disk: the default model and the Hugging Face cache."""

__all__ = ["CachedModel", "cached_models"]

from dataclasses import dataclass
from pathlib import Path

from .default import DEFAULT, default_path, is_fetched
from .sources import Kind


@dataclass(frozen=True)
class CachedModel:
    """One model that load() can open without the network, or the default model before it is fetched (no path)."""

    name: str
    source: Kind
    size_bytes: int
    path: Path | None


def cached_models() -> list[CachedModel]:
    """The default model first, then the models in the Hugging Face cache by name."""
    return [_default(), *_hub_models()]


def _default() -> CachedModel:
    path = default_path()
    if not is_fetched():
        return CachedModel(DEFAULT.name, "default", 0, None)
    return CachedModel(DEFAULT.name, "default", sum(file.stat().st_size for file in path.iterdir()), path)


def _hub_models() -> list[CachedModel]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, OSError, ValueError):
        return []
    models = [repository for repository in repositories if repository.repo_type == "model"]
    return sorted(
        (CachedModel(model.repo_id, "hub", model.size_on_disk, model.repo_path) for model in models),
        key=lambda model: model.name,
    )
