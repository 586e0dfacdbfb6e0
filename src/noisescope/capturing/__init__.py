"""Looking at what a model computes: streaming channel statistics and stored tensors at sites, in bounded memory.

The way of a value: the engine's watch shows it (`session`), the account says whether there is room (`budget`), and
its channels are tallied (`channels`, `histogram`) or a copy is kept. Where to look by default is said by `projections`.
Changes no value.
"""

from .channels import ChannelStatistics
from .session import Capture, capture

__all__ = ["Capture", "ChannelStatistics", "capture"]
