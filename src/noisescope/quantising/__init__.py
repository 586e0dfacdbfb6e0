"""What number formats do to a model: computed in them (`emulating`), foretold for all at once (`mapping`).

The way of a question: `weights` finds what can get a format, `schemes` says which, `emulating` lets the model compute
in it, `mapping` foretells the KL of every format at every weight from one pass of gradients (`gathering`), `checking`
runs some of them to see whether that is true, and `slopes` asks the same of a model that computes in formats already.
"""

from .emulating import Quantised, assign, quantised
from .format_map import FormatMap
from .mapping import map_formats
from .schemes import Scheme, parse_scheme
from .weights import Weight, find_weights, refuse_quantised

__all__ = [
    "FormatMap",
    "Quantised",
    "Scheme",
    "Weight",
    "assign",
    "find_weights",
    "map_formats",
    "parse_scheme",
    "quantised",
    "refuse_quantised",
]
