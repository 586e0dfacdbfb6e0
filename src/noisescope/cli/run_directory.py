"""The directory of a run: what may be there before, the journal while it runs, `run.json` afterwards.

`run.json` has what the report leaves out because it differs from run to run: when, where, how long, how much memory,
which command. It has an entry for every run that added to the report.
"""

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import store
from ..errors import InputError, Interrupted, NoisescopeError, StoreError, printable
from ..store.files import store_errors

__all__ = ["RunDirectory", "peak_bytes", "program", "refuse_place", "whose"]

REPORT, JOURNAL, RUN = "report.json", "journal", "run.json"
LARGEST = 256 << 20
"""bytes of a JSON file that is looked into"""
PROGRAM = "NOISESCOPE_PROGRAM"
"""environment variable: what a person types to get here, if it is not `noisescope`"""


class RunDirectory:
    """Where a run leaves its files, `writes` and those of its own. The clock of the run starts here.

    `asked` is what a later command has to know by the name that it was given here, such as the model's path.

    Raises at once for a directory that could not be used at the end of a long run.
    """

    def __init__(
        self,
        path: Path,
        *,
        writes: Sequence[str],
        overwrite: bool,
        resume: bool,
        command: Sequence[str],
        asked: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        self.path, self._writes, self._command, self._asked = path, list(writes), list(command), dict(asked)
        self._overwrite, self._resume = overwrite, resume
        self._started, self._clock = datetime.now(timezone.utc), time.monotonic()
        self.wall_s = 0.0
        """how long the run took, once it has ended"""
        self.journal = store.Journal(path / JOURNAL, anew=overwrite, once_held=self._take)
        if overwrite and resume:
            raise InputError("--overwrite begins anew and --resume goes on: choose one")
        with store_errors(path):
            refuse_place(path, (*writes, JOURNAL, RUN))
            self.journal.refuse_if_in_use()
            self._refuse_content()
        if resume and not os.path.exists(self.journal.path):
            _say(f"--resume: there is nothing to go on with in {path}; it begins from the start")

    @contextmanager
    def running(self) -> Iterator[None]:
        """The run itself: however it ends, `run.json` says so, and a person is told how to go on."""
        try:
            with self.journal:
                try:
                    yield
                    self._record("finished")
                    for name in (*self._writes, RUN):
                        store.sweep(self.path / name)
                except KeyboardInterrupt:
                    self._record_if_possible("interrupted")
                    raise
                except Exception:
                    self._record_if_possible("failed")
                    raise
        except KeyboardInterrupt:
            if not len(self.journal):
                raise
            raise Interrupted(f"interrupted; {self._how_to_go_on()}") from None
        except NoisescopeError:
            if len(self.journal):
                _say(self._how_to_go_on())
            raise

    def _take(self) -> None:
        """Nobody else is at the directory now: what was looked at before may have changed meanwhile."""
        self._refuse_content()
        if self._overwrite:  # it tells of the run that begins to be replaced; the report stays until there is another
            store.remove(self.path / RUN)

    def _refuse_content(self) -> None:
        if not self._overwrite and not (self._resume and os.path.exists(self.journal.path)):
            _refuse_content(self.path, self._writes)

    def _how_to_go_on(self) -> str:
        steps = len(self.journal)
        kept = f"{steps} finished step{'s are' if steps != 1 else ' is'} kept in {self.path}"
        return f"{kept}; go on with: {resuming(self._command)}"

    def _record_if_possible(self, status: str) -> None:
        if len(self.journal):
            with suppress(StoreError):  # the disk may be the very reason why the run ended
                self._record(status)

    def _record(self, status: str) -> None:
        self.wall_s = time.monotonic() - self._clock
        entry = {
            "status": status,
            "started": self._started.isoformat(timespec="seconds"),
            "wall_s": round(self.wall_s, 3),
            "peak_bytes": peak_bytes(),
            "steps_kept": self.journal.kept,
            "steps_run": len(self.journal) - self.journal.kept,
            "damaged_lines": self.journal.damaged,
            "command": [program(), *self._command],
            **self._asked,
            "directory": os.getcwd(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        earlier = _runs(self.path) if self.journal.kept else []
        text = json.dumps({"engine": "local", "runs": [*earlier, entry]}, indent=1) + "\n"
        store.atomic_write(self.path / RUN, text.encode())


def program() -> str:
    """What a person types to get here."""
    if named := os.environ.get(PROGRAM):
        return named
    return "python -m noisescope" if Path(sys.argv[0]).name == "__main__.py" else "noisescope"


def resuming(command: Sequence[str]) -> str:
    """The command that goes on with a run; the flag comes right after the verb, as all that follows `--` is no flag."""
    verb, *words = command
    flags = words[: words.index("--")] if "--" in words else words
    kept = [word for word in flags if word not in ("--overwrite", "--resume")]
    return f"{program()} {shlex.join([verb, '--resume', *kept, *words[len(flags) :]])}"


def peak_bytes() -> int:
    """The largest memory of this process so far; 0 where the system does not say.

    On Linux `getrusage` goes on from what the process had that started this one, the status file does not.
    """
    with suppress(OSError):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        if "VmHWM" in status:
            return int(status["VmHWM"].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _say(message: str) -> None:
    sys.stderr.write(f"noisescope: {printable(message)}\n")


def refuse_place(path: Path, writes: Sequence[str], *, flag: str = "--output") -> None:
    """Raises for a directory in which these files could not be written; `flag` is what would choose another."""
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
    if not nearest.is_dir():
        raise StoreError(f"cannot write {path}: {nearest} is a file, expected a directory; choose another {flag}")
    if not os.access(nearest, os.W_OK):
        raise StoreError(f"cannot write {path}: permission denied; choose another {flag}")
    for name in writes:
        if (path / name).is_dir():
            raise StoreError(f"cannot write {path / name}: it is a directory, expected a file; choose another {flag}")


def _refuse_content(path: Path, writes: Sequence[str]) -> None:
    has_report = os.path.exists(path / REPORT)
    if os.path.exists(path / JOURNAL) and not (has_report and _is_finished(path)):
        older = ", over an older report" if has_report else ""
        raise InputError(
            f"{path} holds a run that is not finished{older}; go on with --resume, or begin anew with --overwrite"
        )
    if has_report:
        raise InputError(
            f"{path} already holds a report{whose(path / REPORT)}; use another directory (--output) or --overwrite"
        )
    for name in (*writes, RUN):
        if os.path.lexists(path / name):
            raise InputError(f"{path / name}: is there already; use another directory (--output) or --overwrite")


def _is_finished(path: Path) -> bool:
    """Whether the last run here came to its end: the report that is there is then its own."""
    last = _runs(path)[-1:]
    return bool(last) and isinstance(last[0], dict) and last[0].get("status") == "finished"


def _runs(path: Path) -> list[Any]:
    """The entries of `run.json`."""
    try:
        found = json.loads(store.read_whole(path / RUN, LARGEST))["runs"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def whose(file: Path) -> str:
    """The model of a report or a verdict, if it says so."""
    try:
        name = json.loads(store.read_whole(file, LARGEST))["config"]["model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f" of {name}" if isinstance(name, str) and name.isprintable() and len(name) < 80 else ""
