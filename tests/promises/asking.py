"""One small question, asked through the command line, and what it leaves: for the promises about runs."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from signal import SIGKILL
from typing import NamedTuple

import noisescope
from noisescope.cli import main
from noisescope.measure.texts import built_in_text

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
SOURCE = Path(noisescope.__file__).parents[1]
REPORT = ("report.html", "report.json", "report.md")
LEFT = {*REPORT, "journal", ".journal.lock", "run.json"}
"""all that a finished run leaves"""
SMALL = ("--level", "layer", "--layers", "6-7", "--operators", "softmax", "--n-samples", "4", "--max-length", "12")


class Ran(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Asking:
    """Asks the question; `home` is a directory of its own."""

    home: Path

    @cached_property
    def text(self) -> Path:
        """The data."""
        (self.home / "text.txt").write_text(built_in_text()[:2000])
        return self.home / "text.txt"

    def arguments(self, output: Path, *more: object, model: Path = FIXTURES / "llama") -> list[str]:
        """The words of the command; what comes later wins. Channels are looked at without regard to operators."""
        small = [word for word in SMALL if word not in ("--operators", "softmax")] if "channel" in more else SMALL
        given = ("diagnose", model, "--data", self.text, *small, "--output", output, *more)
        return [str(word) for word in given]

    def run(self, output: Path, *more: object, model: Path = FIXTURES / "llama") -> Ran:
        """The command in this process."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(self.arguments(output, *more, model=model))
        return Ran(code, out.getvalue(), err.getvalue())

    @cached_property
    def undisturbed(self) -> Path:
        """The directory of a run that nothing happened to."""
        output = self.home / "undisturbed"
        ran = self.run(output)
        assert (ran.code, ran.err) == (0, "")
        return output

    @cached_property
    def expected(self) -> dict[str, bytes]:
        """The report of that run."""
        return files_of(self.undisturbed)

    def resume(self, output: Path) -> Ran:
        """The same again with --resume, which is said to be in vain where there is nothing to go on with."""
        begun = (output / "journal").exists()
        ran = self.run(output, "--resume")
        nothing = f"noisescope: --resume: there is nothing to go on with in {output}; it begins from the start\n"
        assert (ran.code, ran.err) == (0, "" if begun else nothing)
        return ran

    def check_finished(self, output: Path) -> None:
        """The report is that of a run that nothing happened to, byte for byte, and nothing else lies about."""
        found = files_of(output)
        assert found.keys() == self.expected.keys()
        for name, data in self.expected.items():
            assert found[name] == data, f"{name} differs from that of an undisturbed run"
        assert {path.name for path in output.iterdir()} == LEFT
        keys = [record["key"] for record in records_of(output / "journal")]
        assert len(keys) == len(set(keys)), "a finished step was computed again"
        assert json.loads((output / "run.json").read_bytes())["runs"][-1]["status"] == "finished"


def files_of(output: Path) -> dict[str, bytes]:
    """The files of a report that are there."""
    return {name: (output / name).read_bytes() for name in REPORT if (output / name).exists()}


def records_of(journal: Path) -> Iterator[dict[str, object]]:
    """What the lines of a journal hold after the first, if they are whole."""
    for line in journal.read_bytes().splitlines()[1:]:
        if line[:16] == blake2b(line[17:], digest_size=8).hexdigest().encode():
            yield json.loads(line[17:])


class Warm:
    """A process that has everything imported, and forks one for each command: see `warm.py`."""

    def __init__(self, asking: Asking) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        world = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "warm.py"), *asking.arguments(asking.home / "warming")]
        self._process = subprocess.Popen(command, env=world, **pipes)

    def start(
        self,
        arguments: Sequence[str],
        said: Path,
        *,
        at: Sequence[int] = (),
        signal: int = SIGKILL,
        torn: bool = False,
    ) -> int:
        """The pid of a process that runs the command; before these of its file operations it gets a signal.

        With `torn`, a write is half done by then. What it says goes into the file `said`.
        """
        asked = {"arguments": list(arguments), "said": str(said), "at": list(at), "signal": int(signal), "torn": torn}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self) -> int:
        """The exit code of that process; that of a killed one is negative."""
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends it."""
        self._process.communicate()
