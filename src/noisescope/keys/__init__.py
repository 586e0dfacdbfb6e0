"""Random numbers as a function of (seed, site, trial, step), and fingerprints of models and tokenizers."""

from .fingerprints import fingerprint_config, fingerprint_model, fingerprint_tokenizer
from .key import Key
from .streams import streams_kept

__all__ = ["Key", "fingerprint_config", "fingerprint_model", "fingerprint_tokenizer", "streams_kept"]
