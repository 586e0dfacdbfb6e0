"""P15: every file is at all times absent, old or new, whatever the disk does; nothing is overwritten unasked."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asking import REPORT, Asking, files_of
from interposing import interpose

from noisescope import store
from noisescope.cli import run_directory
from noisescope.store import Journal, files

CODES = (errno.ENOSPC, errno.EIO, errno.EACCES)
END = 10**6
"""of all operations"""
OWN = {name: f"my own {name}".encode() for name in REPORT}
"""what a person had there before"""


def check_whole(asking: Asking, output: Path, old: dict[str, bytes]) -> None:
    """Each file of the report is as it was before, or as it is to be."""
    found = files_of(output)
    for name in REPORT:
        assert found.get(name) in (old.get(name), asking.expected[name]), f"{name} is neither old nor new"
    assert old.keys() <= found.keys(), "what was there is gone"
    if (output / "run.json").exists():
        json.loads((output / "run.json").read_bytes())


def check_failure(
    asking: Asking, output: Path, number: int, code: int, *, lasting: bool = False, old: dict[str, bytes] | None = None
) -> bool:
    """The number-th file operation fails: exit 5, no traceback, whole files, and it can go on. False: there is none."""
    if old is not None:
        output.mkdir()
        for name, data in old.items():
            (output / name).write_bytes(data)

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    with pytest.MonkeyPatch.context() as patch:
        seen = interpose(patch.setattr, output, range(number, END if lasting else number + 1), fail)
        ran = asking.run(output, *["--overwrite"] * (old is not None))
    if len(seen) < number:
        return False
    check_whole(asking, output, old or {})
    lines = ran.err.splitlines()
    assert (ran.code, len(lines)) == (0, 0) or (ran.code == 5 and 1 <= len(lines) <= 2), ran
    assert all(line.startswith("noisescope: ") for line in lines), ran.err
    if ran.code:
        assert os.strerror(code) in lines[-1]
        assert not list(output.glob(".*.tmp")) or lasting
    else:  # what failed was of no account, such as removing the name of who holds the lock
        assert files_of(output) == asking.expected
    check_goes_on(asking, output, old)
    return True


def check_goes_on(asking: Asking, output: Path, old: dict[str, bytes] | None) -> None:
    """With --resume, or with --overwrite if nothing is there to go on with but what a person had."""
    if old and not (output / "journal").exists():
        ran = asking.run(output, "--overwrite")
        assert (ran.code, ran.err) == (0, "")
    else:
        asking.resume(output)
    asking.check_finished(output)


@pytest.mark.parametrize(("number", "code"), [(n, CODES[n % 3]) for n in (1, 4, 8, 12, 21, 29, 36, 40, 44, 48)])
def test_an_operation_fails(asking, tmp_path, number, code):
    assert check_failure(asking, tmp_path / "out", number, code, lasting=number % 2 == 0)


@pytest.mark.parametrize("number", [6, 33, 42])
def test_an_operation_fails_while_overwriting(asking, tmp_path, number):
    assert check_failure(asking, tmp_path / "out", number, errno.ENOSPC, lasting=True, old=OWN)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_every_operation_fails(asking, tmp_path, code, lasting, record_property):
    number = 1
    while check_failure(
        asking, tmp_path / "out", number, code, lasting=lasting, old=OWN if lasting and code == errno.ENOSPC else None
    ):
        shutil.rmtree(tmp_path / "out")
        number += 1
    record_property("operations", number - 1)
    assert number > 40


def check_at_all_times(asking: Asking, output: Path, old: dict[str, bytes]) -> None:
    """Looked at between any two operations."""
    output.mkdir()
    for name, data in old.items():
        (output / name).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        seen = interpose(patch.setattr, output, range(1, END), lambda: check_whole(asking, output, old))
        ran = asking.run(output, "--overwrite")
    assert ran.code == 0
    assert len(seen) > 40
    asking.check_finished(output)


@pytest.mark.parametrize("old", [{}, OWN], ids=["new", "overwritten"])
def test_files_are_whole_at_all_times(asking, tmp_path, old):
    check_at_all_times(asking, tmp_path / "out", old)


# --- real disks -------------------------------------------------------------------------------------------------


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A file system in memory; the test is skipped where this process may not mount one."""
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", place], check=False).returncode:
        pytest.skip("a file system of its own needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("size", ["8k", "1m"])
def test_a_disk_that_is_full(asking, tmp_path, size):
    """In 8 kB not even the journal has room; in 1 MB the page has not."""
    disk = tmp_path / "disk"
    with mounted(disk, f"size={size}"):
        output = disk / "out"
        ran = asking.run(output)
        assert ran.code == 5
        assert "No space left on device; free some space" in ran.err.splitlines()[-1]
        check_whole(asking, output, {})
        assert not list(output.glob(".*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        check_goes_on(asking, output, None)


def check_nothing_begun(ran, home: Path) -> None:
    """One line, exit 5, and nothing made."""
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1), ran
    assert not list(home.iterdir())


def test_a_disk_that_can_only_be_read(asking, tmp_path):
    disk = tmp_path / "disk"
    with mounted(disk, "ro"):
        check_nothing_begun(asking.run(disk / "out"), disk)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_that_may_only_be_read(asking, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    check_nothing_begun(asking.run(tmp_path / "out"), tmp_path / "out")


# --- nothing unasked --------------------------------------------------------------------------------------------


def contents(place: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


def check_refused(asking: Asking, output: Path, code: int, *more: str) -> str:
    """Nothing is changed; what was said."""
    before = contents(output)
    ran = asking.run(output, *more)
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1), ran
    assert contents(output) == before
    return ran.err


MORE = ("--format", "pdf,png", "--save-activations")
WRITTEN = (*REPORT, "journal", "run.json", "report.pdf", "report.png", "activations.safetensors")
"""all that a run writes which is asked for more"""


def check_unasked(asking: Asking, home: Path) -> None:
    for name in WRITTEN:
        output = home / name
        output.mkdir()
        (output / name).write_bytes(b"my own")
        assert "--overwrite" in check_refused(asking, output, 2, *MORE)
        if name != "journal":
            assert "--overwrite" in check_refused(asking, output, 2, "--resume", *MORE)


def test_nothing_is_overwritten_unasked(asking, tmp_path):
    check_unasked(asking, tmp_path)


def test_a_finished_run_is_not_overwritten_unasked(asking, tmp_path):
    output = Path(shutil.copytree(asking.undisturbed, tmp_path / "out"))
    assert "already holds a report of llama" in check_refused(asking, output, 2)
    (output / "report.json").unlink()
    assert "go on with --resume" in check_refused(asking, output, 2)


@pytest.mark.parametrize("more", [(), ("--overwrite",), ("--resume",)])
@pytest.mark.parametrize("name", WRITTEN)
def test_a_directory_where_a_file_should_be(asking, tmp_path, name, more):
    (tmp_path / name / "inner").mkdir(parents=True)
    said = check_refused(asking, tmp_path, 5, *MORE, *more)
    assert f"{tmp_path / name}: it is a directory, expected a file" in said


def test_what_is_not_written_may_be_there(asking, tmp_path):
    (tmp_path / "report.pdf").write_bytes(b"my own")
    assert asking.run(tmp_path).code == 0
    assert (tmp_path / "report.pdf").read_bytes() == b"my own"


def test_what_appears_before_the_lock_is_held_is_not_overwritten(asking, tmp_path, monkeypatch):
    """Another process may finish there while this one loads its model."""
    output, real = tmp_path / "out", Journal.begin

    def begin(self, question):
        shutil.copytree(asking.undisturbed, output)
        (output / "report.md").write_text("my own")
        real(self, question)

    _ = asking.undisturbed
    monkeypatch.setattr(Journal, "begin", begin)
    assert "already holds a report of llama" in asking.run(output).err
    assert (output / "report.md").read_text() == "my own"


def test_an_unfinished_run_over_an_older_report_is_spoken_of_first(asking, tmp_path, monkeypatch):
    """The report is as it was until the other is there; nobody takes it for that of the run that has begun."""
    output = Path(shutil.copytree(asking.undisturbed, tmp_path / "out"))
    with monkeypatch.context() as patch:
        patch.setattr("noisescope.report.Report.save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert asking.run(output, "--overwrite", "--trials", "2").code == 130
    assert files_of(output) == asking.expected
    for killed in (False, True):  # then run.json says nothing of how it ended
        if killed:
            (output / "run.json").unlink()
        said = check_refused(asking, output, 2, "--trials", "2")
        assert "holds a run that is not finished, over an older report; go on with --resume" in said
    assert asking.run(output, "--resume", "--trials", "2").code == 0
    assert "already holds a report" in check_refused(asking, output, 2)


def test_a_directory_that_appears_during_the_run(asking, tmp_path, monkeypatch):
    output, real = tmp_path / "out", Journal.begin

    def begin(self, question):
        real(self, question)
        (output / "report.md" / "inner").mkdir(parents=True)

    monkeypatch.setattr(Journal, "begin", begin)
    ran = asking.run(output)
    assert ran.code == 5
    assert ran.err.splitlines()[-1] == f"noisescope: cannot write {output / 'report.md'}: Is a directory"
    assert not (output / "report.json").exists()


def test_a_journal_that_cannot_be_read(asking, tmp_path, monkeypatch):
    output = Path(shutil.copytree(asking.undisturbed, tmp_path / "out"))

    def read_whole(path, most_bytes):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr("noisescope.store.journal.read_whole", read_whole)
        ran = asking.run(output, "--resume")
    assert (ran.code, ran.err) == (5, f"noisescope: cannot read {output / 'journal'}: Input/output error\n")
    check_goes_on(asking, output, None)


# --- able to fail -----------------------------------------------------------------------------------------------


def files_are_written_in_place(monkeypatch):
    def mutant(path, data):
        with files.store_errors(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            files.write_all(descriptor, data)
            os.close(descriptor)

    monkeypatch.setattr(store, "atomic_write", mutant)


def what_is_there_is_removed_first(monkeypatch):
    real = store.atomic_write

    def mutant(path, data):
        store.remove(path)
        real(path, data)

    monkeypatch.setattr(store, "atomic_write", mutant)


@pytest.mark.parametrize("mutant", [files_are_written_in_place, what_is_there_is_removed_first])
def test_the_mutants_are_caught_at_some_time(asking, tmp_path, monkeypatch, mutant):
    _ = asking.expected
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"is neither old nor new|what was there is gone"):
        check_at_all_times(asking, tmp_path / "out", OWN)


def errors_of_the_system_escape(monkeypatch):
    @contextmanager
    def mutant(_path, _verb="write"):
        yield

    monkeypatch.setattr(files, "store_errors", mutant)


def half_a_file_is_left(monkeypatch):
    def mutant(path, data):
        with files.store_errors(path):
            files._write_new(path.with_name(f".{path.name}.0123.tmp"), data)
            os.replace(path.with_name(f".{path.name}.0123.tmp"), path)

    monkeypatch.setattr(store, "atomic_write", mutant)


@pytest.mark.parametrize("mutant", [errors_of_the_system_escape, half_a_file_is_left])
def test_the_mutants_are_caught_when_something_fails(asking, tmp_path, monkeypatch, mutant):
    _ = asking.expected
    mutant(monkeypatch)
    first_of_the_page = first(asking, tmp_path / "counted", lambda seen: seen[-1] == "write" and "mkdir" in seen[5:])
    with pytest.raises((AssertionError, OSError)):
        check_failure(asking, tmp_path / "out", first_of_the_page, errno.ENOSPC)


def first(asking: Asking, output: Path, wanted: Callable[[list[str]], bool]) -> int:
    """The first operation of a run of which that holds."""
    with pytest.MonkeyPatch.context() as patch:
        seen = interpose(patch.setattr, output, (), lambda: None)
        assert asking.run(output).code == 0
    return next(at for at in range(1, len(seen) + 1) if wanted(seen[:at]))


def content_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(run_directory, "_refuse_content", lambda path, writes: None)


def only_the_report_is_looked_at(monkeypatch):
    real = run_directory._refuse_content
    monkeypatch.setattr(
        run_directory,
        "_refuse_content",
        lambda path, writes: real(path, writes) if (path / "report.json").exists() else None,
    )


def only_what_every_run_writes_is_looked_at(monkeypatch):
    real = run_directory._refuse_content
    monkeypatch.setattr(run_directory, "_refuse_content", lambda path, writes: real(path, REPORT))


@pytest.mark.parametrize(
    "mutant", [content_is_not_looked_at, only_the_report_is_looked_at, only_what_every_run_writes_is_looked_at]
)
def test_what_is_overwritten_unasked_is_caught(asking, tmp_path, monkeypatch, mutant):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_unasked(asking, tmp_path)
