"""Looking at what a model computes: streaming channel statistics and stored tensors at sites, in bounded memory.

The way of a value: the engine's watch shows it (`session`), the account says whether there is room (`budget`), its
rows are told apart (`sequences`), and its channels are tallied (`channels`, `histogram`, `persistence`) or a copy is
kept. Where to look by default is said by `projections`. Changes no value.
"""

from .channels import ChannelStatistics
from .finite import first_non_finite, non_finite
from .persistence import Persistence
from .session import Capture, capture

__all__ = ["Capture", "ChannelStatistics", "Persistence", "capture", "first_non_finite", "non_finite"]
