"""Places in a model: how they are named, where the blocks are, which of them a selection means.

The only room that knows architectures. It reads modules and never changes or calls the model.
"""

from .adapters import is_replaced
from .layout import Layout
from .linears import is_linear, matrix, reduction_axis
from .selecting import Selector
from .site import Site

__all__ = ["Layout", "Selector", "Site", "is_linear", "is_replaced", "matrix", "reduction_axis"]
