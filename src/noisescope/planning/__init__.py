"""What to do about what a report found: a migration, precisions by rule, tests of faults.

`sensitivity` and `divergence` are what is known of each layer, `risk` ranks them, `priorities` and `validation` make a
`migration` plan of it. `threshold` is the documented rule for precisions.
"""

from .migration import MigrationPlan, plan_migration
from .priorities import PRIORITIES
from .threshold import assign_bits, average_bits
from .validation import Naming

__all__ = ["PRIORITIES", "MigrationPlan", "Naming", "assign_bits", "average_bits", "plan_migration"]
