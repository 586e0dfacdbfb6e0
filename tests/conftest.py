"""Shared by all tests: where the helpers are, and quiet libraries."""

import sys
from pathlib import Path

from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).parent))
logging.set_verbosity_error()
