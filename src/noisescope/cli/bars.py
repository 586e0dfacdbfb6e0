"""Progress bars with the time left, on a terminal; silence elsewhere.

map         ━━━━━━━━━━━━━━━━━━━━━━━━━  7/7    0:00:09
windows     ━━━━━━━━━━━━━━╸━━━━━━━━━━ 17/28   0:00:21 left
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..diagnosis import Progress

__all__ = ["bars"]


@contextmanager
def bars() -> Iterator["Progress"]:
    """What to hand to a long run; the bars are gone when the block ends."""
    if not sys.stderr.isatty():
        yield lambda _stage, _total: lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            shown = super().render(task)
            return shown if task.finished else shown + Text(" left")

    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        Left(elapsed_when_finished=True),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as shown:  # steps take minutes

        def begin(stage: str, total: int) -> Callable[[], None]:
            task = shown.add_task(stage, total=total)
            return lambda: shown.advance(task)

        yield begin
