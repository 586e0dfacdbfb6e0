"""Where a device is broken, without another to compare it with.

The way of a verdict: a traced forward pass (`tracing`) makes every call again (`device`), computes it on the host
(`host`) and asks for algebra that holds on healthy arithmetic (`identities`); what was found becomes a verdict
(`deciding`, `verdict`) that names the operator and the kind of fault (`naming`).
"""

from .running import METHODS, locate
from .verdict import EXIT_CODES, Evidence, Suspect, Verdict

__all__ = ["EXIT_CODES", "METHODS", "Evidence", "Suspect", "Verdict", "locate"]
