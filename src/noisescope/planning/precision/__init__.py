"""Number formats for the weights of a model: chosen within so many bits, verified by running.

`texts` splits the data, `quantising.mapping` foretells and `quantising.checking` runs some of it; `choosing` makes of
it what `programme` solves, `refining` makes that better step by step, `rule` is the documented threshold rule;
`planning` verifies, and `plan` is what comes out.
"""

from .plan import PrecisionPlan
from .planning import plan_precision

__all__ = ["PrecisionPlan", "plan_precision"]
