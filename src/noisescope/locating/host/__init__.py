"""The healthy side: every operator once more on the host's CPU, and how far from that a healthy device may be.

`check_on_host` is the way in. A rule beside each operator (`rules`) knows its rounding error; `products` are checked in
float32, and in float64 only where that is not enough to tell.
"""

from . import attention, elementwise, norms, products, softmax
from .arguments import HostCall, on_host
from .checking import Judgement, check_on_host, reference_of

__all__ = ["HostCall", "Judgement", "check_on_host", "on_host", "reference_of"]

_RULES = (attention, elementwise, norms, products, softmax)  # registered by being imported
