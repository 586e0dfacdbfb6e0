"""The only room that loads weights: names, safe-loading policy, the default model.

Importing it is cheap: torch and transformers are imported when a function needs them.
"""

__all__ = [
    "DEFAULT",
    "DTYPES",
    "CachedModel",
    "DefaultModel",
    "LoadedModel",
    "cache_directory",
    "cached_models",
    "default_path",
    "digest_of",
    "fetch_default",
    "is_fetched",
    "load",
]

from .default import (
    DEFAULT,
    DefaultModel,
    cache_directory,
    default_path,
    fetch_default,
    is_fetched,
)
from .listing import CachedModel, cached_models
from .loading import DTYPES, LoadedModel, digest_of, load
