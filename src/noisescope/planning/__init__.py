"""What to do about what a report found: a migration, precisions by rule, tests of faults.

`sensitivity` and `divergence` are what is known of each layer, `risk` ranks them, `priorities` and `validation` make a
`migration` plan of it. `threshold` is the documented rule for precisions. `fault_cases` are what a model should be
tested with, `fault_tests` the files of it; `fault_running` runs them, and is imported by itself: it alone takes torch.
"""

from .fault_cases import FaultCase, fault_cases
from .fault_tests import FaultTests, cases_as_csv, plan_fault_tests
from .migration import MigrationPlan, plan_migration
from .threshold import assign_bits, average_bits
from .validation import Naming

__all__ = [
    "FaultCase",
    "FaultTests",
    "MigrationPlan",
    "Naming",
    "assign_bits",
    "average_bits",
    "cases_as_csv",
    "fault_cases",
    "plan_fault_tests",
    "plan_migration",
]
