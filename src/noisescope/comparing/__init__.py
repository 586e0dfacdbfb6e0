"""Comparing the traces of devices: what differs beyond the noise floor, where it began, who caused it.

`pairing` says which site is which, and refuses traces of different models or data; `estimating` how far two values are
apart; `judging` whether a healthy device would be, and where it began; `blaming` which layer added the error;
`ranking` what to fix first. `voting` is over several traces, `gate` a yes or no for a pipeline.
"""

from .comparing import compare
from .comparison import Comparison
from .gate import Gate, validate_migration
from .voting import Vote, compare_many

__all__ = ["Comparison", "Gate", "Vote", "compare", "compare_many", "validate_migration"]
