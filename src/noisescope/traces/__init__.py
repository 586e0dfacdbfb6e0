"""Traces: what a model's operators gave on one device, small enough to carry to another.

The way of a value: a recorder sees it (`recorder`), folds it into statistics, sketch and sample (`tally`, `sketch`,
`sampling`), and the file holds these for every site (`file`, `heads`). How far a healthy device may be off is measured
with the trace (`floor`), and the hidden states that a suspect is fed with are kept in it (`hidden`).
"""

from .file import load_trace, save_trace
from .heads import SiteHead, TraceHead
from .own import Tracing, tracing
from .recorded import Trace
from .running import trace

__all__ = ["SiteHead", "Trace", "TraceHead", "Tracing", "load_trace", "save_trace", "trace", "tracing"]
