"""`noisescope plan fault-tests`: tests of the faults that a model should bear, ready for pytest.

$ noisescope plan fault-tests noisescope-out
test        type              component                           why
operator-1  bit_flip          softmax                             critical operator
window-1    stuck_at_zero     L9-11                               avalanche window
channel-1   value_corruption  model.layers.4.mlp.down_proj ch...  outlier channel, 61.2 times the median
run with
 pytest noisescope-faults/test_faults.py
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ...planning.fault_tests import FILES, plan_fault_tests
from ..flags import flag
from ..interrupts import interruptible
from ..loading import TrustRemoteCode
from ..screen import show
from ..table import write_table
from .subject import Model, Overwrite, ReportPath, Subject, refuse_files

__all__ = ["fault_tests"]


def fault_tests(
    report: ReportPath,
    model: Model = None,
    data: Annotated[
        str | None, typer.Option(help="Text to run the tests on; none: that of the report, or a built-in one.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Take the tokenizer from there; none: as when it was diagnosed.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    output: Annotated[str, typer.Option(help="Directory of the tests.", metavar="<path>")] = "noisescope-faults",
    overwrite: Overwrite = False,
) -> int:
    """Write tests of faults at what is fragile: a table, a manifest, and a pytest file that runs them."""
    home = Path(output)
    refuse_files(home, FILES.values(), overwrite=overwrite)
    with interruptible():
        if data is not None:
            from ...measure.opening import require_text

            flag("--data", require_text, data)
        subject = Subject.open(report, model=model, data=data)
        has_text = data is not None or subject.report.sections["config"]["data"]["task"] == "next token"
        tests = plan_fault_tests(
            subject.report,
            model=subject.model,
            data=subject.data if has_text else None,
            tokenizer=tokenizer or subject.tokenizer,
            trust_remote_code=trust_remote_code,
            home=home,
        )
        rows = [(case.test_id, case.test_type, case.component, case.reason) for case in tests.cases]
        write_table(("test", "type", "component", "why"), rows)
        program = tests.save(home)
    show(f"run with\n pytest {shlex.quote(str(program))}\n")
    return 0
