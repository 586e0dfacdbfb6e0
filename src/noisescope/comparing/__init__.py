"""Comparing the traces of devices: what differs beyond the noise floor, where it began, who caused it."""

from .comparing import compare
from .comparison import Comparison

__all__ = ["Comparison", "compare"]
