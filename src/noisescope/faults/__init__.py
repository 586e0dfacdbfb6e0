"""The fault library: a model that runs as on a broken device, to see whether anybody would notice.

with FaultSimulator(model, "15.linear", "saturation", 0.2) as fault:
    model(**inputs)
fault.changed, fault.inert

A fault acts on everything that runs on the device, probes included; see `simulator` for the rules. It is one row of
`kinds`, whose arithmetic is in `changing` and `computing`; `placing` finds the site that a person means.
"""

from . import changing, computing
from .kinds import FAULTS, Fault, Kind, Struck, register
from .placing import Survey, parse_fault
from .simulator import FaultSimulator

__all__ = ["FAULTS", "Fault", "FaultSimulator", "Kind", "Struck", "Survey", "parse_fault", "register"]

_KINDS = (changing, computing)  # registered by being imported
