"""Files are absent, old or new whatever fails, and a lock lets one process in."""

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from numpy.typing import NDArray

from noisescope import store
from noisescope.errors import StoreError
from noisescope.measure.comparing import Outcome
from noisescope.store.packing import pack, unpack

SOURCES = str(Path(__file__).parents[2] / "src")
CALLS = ("open", "fsync", "replace", "rename", "mkdir")


def fail_at(monkeypatch, name, number, code):
    """Let the number-th call of os.name fail with code; the list tells whether it came to that."""
    original, calls = getattr(os, name), []

    def call(*args, **kwargs):
        calls.append(args)
        if len(calls) == number:
            raise OSError(code, os.strerror(code))
        return original(*args, **kwargs)

    monkeypatch.setattr(os, name, call)
    return calls


class TestAtomicWrite:
    def test_new_and_replaced(self, tmp_path):
        store.atomic_write(tmp_path / "f", b"one")
        store.atomic_write(tmp_path / "f", b"two")
        assert (tmp_path / "f").read_bytes() == b"two"
        assert [path.name for path in tmp_path.iterdir()] == ["f"]

    def test_permissions_follow_the_umask(self, tmp_path):
        (tmp_path / "plain").write_bytes(b"")
        store.atomic_write(tmp_path / "f", b"")
        assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_longest_legal_name(self, tmp_path):
        store.atomic_write(tmp_path / ("é" * 127), b"x")

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
    @pytest.mark.parametrize("old", [None, b"old"])
    def test_failure_of_every_call_leaves_old_or_new(self, code, old, tmp_path, monkeypatch):
        lines = []
        for name in CALLS:
            for number in range(1, 5):
                target = tmp_path / f"{name}{number}"
                if old:
                    target.write_bytes(old)
                with monkeypatch.context() as patch:
                    calls = fail_at(patch, name, number, code)
                    try:
                        store.atomic_write(target, b"new")
                    except StoreError as error:
                        lines.append(str(error))
                    else:
                        assert len(calls) < number
                assert (target.read_bytes() if target.exists() else None) in (old, b"new")
                target.unlink(missing_ok=True)
        assert not any("\n" in line for line in lines)
        assert len(lines) == 5  # open and fsync of the file, replace, open and fsync of the directory
        assert list(tmp_path.iterdir()) == []

    def test_disk_that_is_full_for_real(self, tmp_path):
        (tmp_path / "f").write_bytes(b"old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(StoreError, match="File too large"):
                store.atomic_write(tmp_path / "f", b"x" * 5000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert (tmp_path / "f").read_bytes() == b"old"
        assert [path.name for path in tmp_path.iterdir()] == ["f"]

    def test_advice(self, tmp_path, monkeypatch):
        fail_at(monkeypatch, "fsync", 1, errno.ENOSPC)
        with pytest.raises(StoreError) as caught:
            store.atomic_write(tmp_path / "f", b"")
        expected = (
            f"cannot write {tmp_path / 'f'}: No space left on device; free some space or choose another directory"
        )
        assert str(caught.value) == expected
        assert caught.value.exit_code == 5

    def test_directory_in_the_way(self, tmp_path):
        (tmp_path / "d" / "inner").mkdir(parents=True)
        with pytest.raises(StoreError):
            store.atomic_write(tmp_path / "d", b"")
        assert [path.name for path in tmp_path.iterdir()] == ["d"]

    def test_interrupt(self, tmp_path, monkeypatch):
        def interrupt(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.atomic_write(tmp_path / "f", b"")
        assert list(tmp_path.iterdir()) == []


class TestAtomicDirectory:
    def test_appears_whole(self, tmp_path):
        target = tmp_path / "deep" / "d"
        with store.atomic_directory(target) as directory:
            (directory / "inner").mkdir()
            (directory / "inner" / "f").write_bytes(b"x")
            assert not target.exists()
        assert (target / "inner" / "f").read_bytes() == b"x"
        assert list(target.parent.iterdir()) == [target]

    @pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, SystemExit])
    def test_exception_leaves_nothing(self, failure, tmp_path):
        def fill_and_fail():
            with store.atomic_directory(tmp_path / "d") as directory:
                (directory / "f").write_bytes(b"x")
                raise failure

        with pytest.raises(failure):
            fill_and_fail()
        assert list(tmp_path.iterdir()) == []

    def test_existing_one_is_kept(self, tmp_path):
        with store.atomic_directory(tmp_path / "d") as directory:
            (directory / "f").write_bytes(b"late")
            (tmp_path / "d").mkdir()
            (tmp_path / "d" / "f").write_bytes(b"first")
        assert (tmp_path / "d" / "f").read_bytes() == b"first"
        assert [path.name for path in tmp_path.iterdir()] == ["d"]

    def test_existing_one_is_replaced_where_that_is_asked(self, tmp_path):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "old").write_bytes(b"old")
        with store.atomic_directory(tmp_path / "d", replace=True) as directory:
            (directory / "new").write_bytes(b"new")
            assert (tmp_path / "d" / "old").exists()
        assert [path.name for path in tmp_path.rglob("*")] == ["d", "new"]

    def test_failure_of_every_call_leaves_the_old_one_or_the_new_one(self, tmp_path, monkeypatch):
        failures = 0
        for name in CALLS:
            for number in range(1, 8):
                (tmp_path / "d").mkdir()
                (tmp_path / "d" / "old").write_bytes(b"old")
                with monkeypatch.context() as patch:
                    fail_at(patch, name, number, errno.EIO)
                    try:
                        with store.atomic_directory(tmp_path / "d", replace=True) as directory:
                            (directory / "new").write_bytes(b"new")
                    except StoreError:
                        failures += 1
                assert [path.name for path in (tmp_path / "d").iterdir()] in (["old"], ["new"])
                store.sweep(tmp_path / "d")  # the failure may have hit the removal of the old one
                assert [path.name for path in tmp_path.iterdir()] == ["d"]
                store.remove(tmp_path / "d")
        assert failures >= 9

    def test_file_in_the_way(self, tmp_path):
        (tmp_path / "d").write_bytes(b"mine")
        with pytest.raises(StoreError), store.atomic_directory(tmp_path / "d"):
            pass
        assert (tmp_path / "d").read_bytes() == b"mine"
        assert [path.name for path in tmp_path.iterdir()] == ["d"]

    def test_failure_of_every_call_leaves_all_or_nothing(self, tmp_path, monkeypatch):
        failures = 0
        for name in CALLS:
            for number in range(1, 8):
                target = tmp_path / f"{name}{number}"
                with monkeypatch.context() as patch:
                    fail_at(patch, name, number, errno.EIO)
                    try:
                        with store.atomic_directory(target) as directory:
                            (directory / "a").write_bytes(b"a")
                            (directory / "b").write_bytes(b"b")
                    except StoreError:
                        failures += 1
                assert not target.exists() or {path.name for path in target.iterdir()} == {"a", "b"}
                store.remove(target)
        assert failures >= 10
        assert list(tmp_path.iterdir()) == []

    def test_body_out_of_space_is_a_store_error(self, tmp_path):
        with pytest.raises(StoreError, match="No space left"), store.atomic_directory(tmp_path / "d"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def test_sweep_takes_only_its_own(self, tmp_path):
        for name in (".d.0123.tmp", ".other.0123.tmp", "d", ".d.lock"):
            (tmp_path / name).mkdir()
        store.sweep(tmp_path / "d")
        assert {path.name for path in tmp_path.iterdir()} == {".other.0123.tmp", "d", ".d.lock"}

    def test_sweep_reads_no_pattern_into_the_name(self, tmp_path):
        (tmp_path / ".d.0123.tmp").mkdir()
        store.sweep(tmp_path / "[a-z]")
        assert (tmp_path / ".d.0123.tmp").exists()


def hold(path, then="input()"):
    """A process that holds the lock at path until it gets a line."""
    script = f"from pathlib import Path; from noisescope import store\nwith store.lock(Path({str(path)!r})):\n"
    script += f"    print('held', flush=True); {then}\n"
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, **pipes)
    assert process.stdout.readline() == "held\n"
    return process


class TestLock:
    def test_second_process_is_refused_and_told_the_pid(self, tmp_path):
        path = tmp_path / "deep" / "lock"
        process = hold(path)
        with pytest.raises(StoreError) as caught, store.lock(path, wait=False):
            pass
        assert str(caught.value) == f"{path}: in use by process {process.pid}; wait for it to end"
        process.communicate("\n")
        with store.lock(path, wait=False):
            pass

    def test_waiting_is_announced_once_and_ends(self, tmp_path):
        process, told = hold(tmp_path / "lock"), []

        def waiting(pid):
            told.append(pid)
            process.stdin.write("\n")
            process.stdin.flush()

        with store.lock(tmp_path / "lock", waiting=waiting):
            assert told == [process.pid]
        process.communicate()

    def test_dead_process_does_not_block(self, tmp_path):
        process = hold(tmp_path / "lock")
        process.kill()
        process.communicate()
        with store.lock(tmp_path / "lock", wait=False):
            pass

    def test_released_after_an_exception(self, tmp_path, monkeypatch):
        made = []  # kept alive, because a lock that is collected frees itself

        def make(path):
            made.append(FileLock(path))
            return made[-1]

        monkeypatch.setattr(store.files, "FileLock", make)
        with pytest.raises(RuntimeError), store.lock(tmp_path / "lock"):
            raise RuntimeError
        with store.lock(tmp_path / "lock", wait=False):
            assert len(made) == 2

    def test_two_blocks_of_one_process_exclude_each_other(self, tmp_path):
        mine = pytest.raises(StoreError, match=f"process {os.getpid()}")
        with store.lock(tmp_path / "lock"), mine, store.lock(tmp_path / "lock", wait=False):
            pass

    def test_place_that_cannot_hold_a_lock(self, tmp_path):
        (tmp_path / "f").write_bytes(b"")
        with pytest.raises(StoreError) as caught, store.lock(tmp_path / "f" / "lock"):
            pass
        assert "\n" not in str(caught.value)

    def test_body_errors_pass_unchanged(self, tmp_path):
        with pytest.raises(FileNotFoundError), store.lock(tmp_path / "lock"):
            raise FileNotFoundError

    def test_one_that_is_removed_by_its_holder_lets_no_two_in(self, tmp_path, monkeypatch):
        """Whoever opened the file before it was removed gets a lock that guards no name, and must not rely on it."""
        fcntl = pytest.importorskip("fcntl")
        path, real, first = tmp_path / "lock", fcntl.flock, store.lock(tmp_path / "lock")
        first.__enter__()

        def leave_just_before(file, what):
            nonlocal first
            if first is not None:
                leaving, first = first, None
                path.unlink()
                leaving.__exit__(None, None, None)
            return real(file, what)

        monkeypatch.setattr(fcntl, "flock", leave_just_before)
        with ExitStack() as second, suppress(StoreError):
            second.enter_context(store.lock(path, wait=False))
            with pytest.raises(StoreError), store.lock(path, wait=False):
                pass
        assert first is None


class TestReadWhole:
    def test_a_file(self, tmp_path):
        (tmp_path / "f").write_bytes(b"x" * 10)
        (tmp_path / "link").symlink_to(tmp_path / "f")
        assert store.read_whole(tmp_path / "link", 10) == b"x" * 10

    def test_what_is_no_file_or_too_large(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "f").write_bytes(b"x" * 2049)
        for name, why in {"pipe": "is a pipe or a device", ".": "is a directory", "f": "is larger than 2 kB"}.items():
            with pytest.raises(OSError, match=why):
                store.read_whole(tmp_path / name, 2048)
        with pytest.raises(OSError, match="is a pipe or a device"):
            store.read_whole(Path("/dev/zero"), 1 << 30)


@dataclass(frozen=True)
class Kept:
    """Something of each kind."""

    count: int
    share: float
    name: str
    sure: bool
    layer: int | str
    more: float | None
    sums: NDArray[np.float64]


KEPT = Kept(3, 0.5, "a", True, "head", None, np.array([1.0, 2.0]))


class TestUnpack:
    def test_what_was_packed(self):
        found = unpack(Kept, pack(KEPT))
        assert repr(found) == repr(KEPT)
        assert unpack(Kept, {**pack(KEPT), "share": 1}).share == 1, "a whole number is a number"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"count": "x"},
            {"count": 1.0},
            {"count": True},
            {"count": None},
            {"share": "0.5"},
            {"share": False},
            {"name": 1},
            {"sure": 1},
            {"layer": 1.5},
            {"layer": None},
            {"more": "x"},
            {"sums": [1.0]},
            {"sums": pack(np.array([1, 2]))},
            {"sums": {**pack(np.array([1.0])), "shape": [3]}},
        ],
    )
    def test_what_is_of_another_kind(self, wrong):
        with pytest.raises(ValueError, match=r"expected|not a Kept|cannot reshape"):
            unpack(Kept, {**pack(KEPT), **wrong})

    @pytest.mark.parametrize("lengths", [(0, 3), (3, 2), (0, 0)])
    def test_an_outcome_whose_sums_are_not_of_one_length(self, lengths, tmp_path):
        sums = [np.zeros(lengths[0]), *[np.zeros(lengths[1])] * 5]
        names = ("tokens", "kl_nats", "flips", "nll_nats", "correct", "asked")
        with store.Journal(tmp_path / "journal") as journal:
            journal.begin({})
            journal.keep("clean", {})
            journal._records["clean"] = {**dict(zip(names, map(pack, sums), strict=True)), "chance": 0.5}
            assert journal.recall(Outcome, "clean") is None


def test_sha256(tmp_path):
    data = os.urandom(3_000_000)
    (tmp_path / "f").write_bytes(data)
    assert store.sha256(tmp_path / "f") == hashlib.sha256(data).hexdigest()
    with pytest.raises(StoreError, match=r"cannot read .*: No such file"):
        store.sha256(tmp_path / "absent")


def test_remove(tmp_path):
    (tmp_path / "d" / "inner").mkdir(parents=True)
    (tmp_path / "f").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "d")
    store.remove(tmp_path / "link")
    assert (tmp_path / "d").exists()
    for name in ("d", "f", "absent"):
        store.remove(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_imports_no_torch():
    script = "import sys, noisescope.store; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
