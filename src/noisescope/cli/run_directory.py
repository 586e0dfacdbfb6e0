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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .. import store
from ..errors import InputError, Interrupted, NoisescopeError, StoreError
from ..report.formats import DEFAULT, FORMATS

__all__ = ["RunDirectory", "peak_bytes", "program"]

REPORT = tuple(FORMATS[name].file for name in DEFAULT)
"""what `diagnose` renders"""
PROGRAM = "NOISESCOPE_PROGRAM"
"""environment variable: what a person types to get here, if it is not `noisescope`"""


class RunDirectory:
    """Where a run leaves its files. Raises at once for a directory that could not be used at the end of a long run."""

    def __init__(self, path: Path, *, overwrite: bool, resume: bool, command: Sequence[str]) -> None:
        self.path, self._command = path, list(command)
        self.journal = store.Journal(path / "journal", anew=overwrite)
        if overwrite and resume:
            raise InputError("--overwrite begins anew and --resume goes on: choose one")
        _refuse_place(path)
        self.journal.refuse_if_in_use()
        if not overwrite and not (resume and os.path.exists(self.journal.path)):
            _refuse_content(path)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The run itself: however it ends, `run.json` says so, and a person is told how to go on."""
        started, clock = datetime.now(timezone.utc), time.monotonic()
        try:
            with self.journal:
                yield
                self._record(started, time.monotonic() - clock, "finished")
                for name in (*REPORT, "run.json"):
                    store.sweep(self.path / name)
        except KeyboardInterrupt:
            if not len(self.journal):
                raise
            self._record_if_possible(started, time.monotonic() - clock, "interrupted")
            raise Interrupted(f"interrupted; {self._how_to_go_on()}") from None
        except Exception as error:
            if len(self.journal):
                self._record_if_possible(started, time.monotonic() - clock, "failed")
                if isinstance(error, NoisescopeError):
                    sys.stderr.write(f"noisescope: {self._how_to_go_on()}\n")
            raise

    def _how_to_go_on(self) -> str:
        steps = len(self.journal)
        kept = f"{steps} finished step{'s are' if steps != 1 else ' is'} kept in {self.path}"
        return f"{kept}; go on with: {resuming(self._command)}"

    def _record_if_possible(self, started: datetime, wall_s: float, status: str) -> None:
        with suppress(StoreError):  # the disk may be the very reason why the run ended
            self._record(started, wall_s, status)

    def _record(self, started: datetime, wall_s: float, status: str) -> None:
        entry = {
            "status": status,
            "started": started.isoformat(timespec="seconds"),
            "wall_s": round(wall_s, 3),
            "peak_bytes": peak_bytes(),
            "steps_kept": self.journal.kept,
            "steps_run": len(self.journal) - self.journal.kept,
            "damaged_lines": self.journal.damaged,
            "command": [program(), *self._command],
            "directory": os.getcwd(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        earlier = self._earlier() if self.journal.kept else []
        text = json.dumps({"engine": "local", "runs": [*earlier, entry]}, indent=1) + "\n"
        store.atomic_write(self.path / "run.json", text.encode())

    def _earlier(self) -> list[Any]:
        """Entries of the runs that this one went on with."""
        try:
            found = json.loads((self.path / "run.json").read_bytes())["runs"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return []
        return found if isinstance(found, list) else []


def program() -> str:
    """What a person types to get here."""
    if named := os.environ.get(PROGRAM):
        return named
    return "python -m noisescope" if Path(sys.argv[0]).name == "__main__.py" else "noisescope"


def resuming(command: Sequence[str]) -> str:
    """The command that goes on with a run."""
    words = [word for word in command if word not in ("--overwrite", "--resume")]
    return f"{program()} {shlex.join([*words, '--resume'])}"


def peak_bytes() -> int:
    """The largest memory of this process so far; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _refuse_place(path: Path) -> None:
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
    if not nearest.is_dir():
        raise StoreError(f"cannot write {path}: {nearest} is a file, expected a directory; choose another --output")
    if not os.access(nearest, os.W_OK):
        raise StoreError(f"cannot write {path}: permission denied; choose another --output")
    for name in (*REPORT, "journal", "run.json"):
        if (path / name).is_dir():
            raise StoreError(f"cannot write {path / name}: it is a directory, expected a file; choose another --output")


def _refuse_content(path: Path) -> None:
    if os.path.exists(path / "report.json"):
        raise InputError(
            f"{path} already holds a report{_whose(path)}; use another directory (--output) or --overwrite"
        )
    if os.path.exists(path / "journal"):
        raise InputError(
            f"{path} holds a run that is not finished; go on with --resume, or begin anew with --overwrite"
        )
    for name in (*REPORT, "run.json"):
        if os.path.lexists(path / name):
            raise InputError(f"{path / name}: is there already; use another directory (--output) or --overwrite")


def _whose(path: Path) -> str:
    """The model of a report, if it says so."""
    try:
        name = json.loads((path / "report.json").read_bytes())["config"]["model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f" of {name}" if isinstance(name, str) and name.isprintable() and len(name) < 80 else ""
