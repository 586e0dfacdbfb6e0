"""Processes that are not ours to edit: the recipes of the page reach them, and each proves the noise that it had."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rollout
import trained
from noisescope import noisy_ops
from noisescope.errors import InputError, StoreError
from noisescope.noise import RelativeGaussian
from noisescope.noisy_ops import environment, witness
from noisescope.noisy_ops.counts import _LOCK, Counts
from noisescope.noisy_ops.running import ThisThread
from noisescope.noisy_ops.settings import Settings
from noisescope.noisy_ops.witness import Witness
from noisescope.sites import Site

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "how-to" / "noise-in-workers.md").read_text()
SITECUSTOMIZE, RAY, CHECK, SEED = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
NOISE = {
    "VERL_NOISY_OPS_ENABLED": "1",
    "VERL_NOISY_OPS_SCALE": "0.05",
    "NOISESCOPE_LAYERS": "1,head",
    "NOISESCOPE_SEED": "3",
}
LINEARS, PRODUCTS = 7, 2
"""of one block of a Llama"""


def book(counts, *, layer=0, operator="linear", error=0.5):
    before = torch.ones(4)
    counts.of(RelativeGaussian(0.05)).book(Site(layer, operator, "a"), 4, 0.05, before, before + error)


def alone(directory):
    """The one file of a directory."""
    (found,) = noisy_ops.read_counts(directory)
    return found


# --- real processes -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A spawned process that ended, one with a forked child that was killed, and one without the variables."""
    home = tmp_path_factory.mktemp("fleet")
    (home / "noise").mkdir()
    (home / "noise" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    paths = os.pathsep.join(map(str, (home / "noise", TESTS, TESTS.parent / "src")))
    noise = {"PYTHONPATH": paths, "NOISESCOPE_COUNTS": str(home / "counts"), **NOISE}
    program = [sys.executable, str(TESTS / "rollout.py"), str(home)]
    clean = subprocess.Popen(program, env=os.environ | {"PYTHONPATH": paths})
    killed = subprocess.Popen([*program, "forever"], env=os.environ | noise, stdout=subprocess.PIPE, text=True)
    resource_tracker.ensure_running()  # before the variables are there: it would have noise too
    with pytest.MonkeyPatch.context() as patch:
        for name, text in noise.items():
            patch.setenv(name, text)
        spawned = multiprocessing.get_context("spawn").Process(target=rollout.run, args=(str(home),))
        spawned.start()
    try:
        forked = int(killed.stdout.readline())
        spawned.join(300)
        assert (clean.wait(300), spawned.exitcode) == (0, 0)
    finally:
        for process in (clean, killed, spawned):
            process.kill()
        killed.wait()
        killed.stdout.close()
    return SimpleNamespace(home=home, spawned=spawned, killed=killed, clean=clean, forked=SimpleNamespace(pid=forked))


@pytest.fixture(scope="module")
def expected(one_thread):
    """Clean logits, noisy logits, and the counts of the noisy ones."""
    model, _ = trained.fixture("llama")
    clean = rollout.logits(model)
    with noisy_ops.noisy_ops_context(0.05, seed=3):
        noisy_ops.set_selective_layers([1, "head"])
        noisy = rollout.logits(model)
    return clean, noisy, noisy_ops.get_injection_stats()["forward"]


def processes(fleet):
    return {process["pid"]: process for process in noisy_ops.read_counts(fleet.home / "counts")}


def found_logits(fleet, process):
    return torch.load(fleet.home / f"{process.pid}.pt")


def test_every_process_with_the_variables_leaves_one_file_and_no_other_does(fleet):
    assert set(processes(fleet)) == {fleet.spawned.pid, fleet.killed.pid, fleet.forked.pid}
    assert len(os.listdir(fleet.home / "counts")) == 3


def test_without_the_variables_the_logits_are_clean_bit_for_bit(fleet, expected):
    clean, _, _ = expected
    assert all(torch.equal(logits, clean) for logits in found_logits(fleet, fleet.clean))


def test_with_them_they_have_the_noise_that_was_asked_for_on_every_thread(fleet, expected):
    clean, noisy, _ = expected
    assert not torch.equal(noisy, clean)
    for process in (fleet.spawned, fleet.killed):
        assert all(torch.equal(logits, noisy) for logits in found_logits(fleet, process))


def test_a_process_that_ends_has_counted_everything_that_its_threads_disturbed(fleet, expected):
    found = processes(fleet)[fleet.spawned.pid]
    assert found["forward"] == 2 * expected[2] == 2 * (LINEARS + PRODUCTS + 1)
    assert found["layers"] == {
        "1": {"forward": 2 * (LINEARS + PRODUCTS), "backward": 0},
        "head": {"forward": 2, "backward": 0},
    }
    assert set(found["operators"]) == {"linear", "matmul"}
    assert found["doses"] == {"relative_gaussian": pytest.approx(0.05, rel=0.1)}
    assert {"error_scale": 0.05, "layers": [1, "head"], "seed": 3}.items() <= found["settings"].items()


def test_a_killed_process_has_told_that_it_had_noise(fleet):
    assert fleet.killed.returncode == -9
    assert processes(fleet)[fleet.killed.pid]["forward"] > 0


def test_a_forked_child_counts_from_zero(fleet, expected):
    assert processes(fleet)[fleet.forked.pid]["forward"] == 2 * expected[2]
    assert not torch.equal(*found_logits(fleet, fleet.forked))  # its main thread goes on from the step of its parent


def test_the_check_of_the_page_tells_who_had_no_noise(fleet, monkeypatch):
    monkeypatch.chdir(fleet.home)
    exec(CHECK, {"workers": [fleet.spawned, fleet.killed]})
    with pytest.raises(AssertionError, match=f"no noise in \\[{fleet.clean.pid}\\]"):
        exec(CHECK, {"workers": [fleet.spawned, fleet.clean]})


def test_a_process_whose_directory_cannot_be_written_to_does_not_start(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (tmp_path / "file").touch()
    paths = os.pathsep.join(map(str, (tmp_path, TESTS.parent / "src")))
    variables = {"PYTHONPATH": paths, "NOISESCOPE_COUNTS": str(tmp_path / "file"), **NOISE}
    command = [sys.executable, "-c", "print('went on')"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"SystemExit: no noise: NOISESCOPE_COUNTS: cannot write {tmp_path / 'file'}: File exists\n" in done.stderr


def test_rays_workers_prove_their_noise(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    paths = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS), str(TESTS.parent / "src")])
    for name, text in {"PYTHONPATH": paths, "NOISESCOPE_COUNTS": str(tmp_path / "counts"), **NOISE}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # a token would be left in the home directory

    class Worker:
        def run(self):
            return rollout.run(str(tmp_path))

    with tempfile.TemporaryDirectory(prefix="ray") as short:  # sockets have short names
        start = partial(ray.init, num_cpus=2, include_dashboard=False, _temp_dir=short)
        monkeypatch.setattr(ray, "init", start)
        try:
            exec(RAY, {})
            workers = [ray.remote(num_cpus=1)(Worker).remote() for _ in range(2)]
            pids = ray.get([worker.run.remote() for worker in workers], timeout=120)
            for worker in workers:
                ray.kill(worker)
        finally:
            ray.shutdown()
    found = {process["pid"]: process["forward"] for process in noisy_ops.read_counts(tmp_path / "counts")}
    assert len(set(pids)) == 2
    assert all(found[pid] > 0 for pid in pids)


# --- what is written, and when --------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(witness, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def counts(tmp_path, clock):
    """Counts whose witness writes to `tmp_path`."""
    counts = Counts()
    counts.booked = Witness(tmp_path, Settings(), counts).tell
    return counts


def test_the_first_value_is_told_at_once_and_then_those_of_a_second_together(counts, clock, tmp_path):
    told = []
    for pause in (0, 0.5, 0.4, 0.2, 0):
        clock.now += pause
        book(counts)
        told.append(alone(tmp_path)["forward"])
    assert told == [1, 1, 1, 4, 4]


def test_a_forked_child_tells_its_first_value_at_once_too(clock, tmp_path):
    counts = Counts()
    kept = Witness(tmp_path, Settings(), counts)
    counts.booked = kept.tell
    for _ in range(2):
        book(counts)
    kept.start_over()
    assert sorted(found["forward"] for found in noisy_ops.read_counts(tmp_path)) == [0, 1]
    book(counts)
    assert [found["forward"] for found in noisy_ops.read_counts(tmp_path)] == [1, 1]


def test_a_file_is_strict_json_and_has_what_the_statistics_have(counts, tmp_path):
    book(counts, layer=2, operator="softmax", error=float("nan"))
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text(), parse_constant=pytest.fail)
    assert (found["pid"], found["forward"], found["backward"]) == (os.getpid(), 1, 0)
    assert found["layers"] == {"2": {"forward": 1, "backward": 0}}
    assert found["operators"] == {"softmax": {"forward": 1, "backward": 0}}
    assert found["settings"]["error_type"] == "relative_gaussian"
    assert alone(tmp_path)["doses"] == counts.doses()


def test_while_a_cuda_graph_is_recorded_nothing_is_read_from_the_device(counts, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    book(counts)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    book(counts)
    assert alone(tmp_path)["forward"] == 2


def test_a_directory_that_goes_away_is_spoken_of_once_and_ends_nothing(tmp_path, clock, caplog):
    counts = Counts()
    counts.booked = Witness(tmp_path / "gone", Settings(), counts).tell
    for _ in range(3):
        book(counts)
        clock.now += 2
    (line,) = caplog.messages
    assert line.startswith(f"cannot write {tmp_path / 'gone'}")
    assert line.endswith("No such file or directory; noise is still on, but this process cannot prove it")
    (tmp_path / "gone").mkdir()
    book(counts)
    assert alone(tmp_path / "gone")["forward"] == 4


@pytest.mark.parametrize("host", ["../../up", "/etc/x", "a" * 300, "", "tab\tnewline\n", "näme", "."])
def test_no_name_of_a_host_leaves_the_directory(host, tmp_path, monkeypatch):
    monkeypatch.setattr(witness.socket, "gethostname", lambda: host)
    home = tmp_path / "counts"
    home.mkdir()
    Witness(home, Settings(), Counts()).write()
    assert os.listdir(tmp_path) == ["counts"]
    assert alone(home)["host"] == host


def test_processes_that_share_host_and_pid_do_not_share_a_file(tmp_path):
    for _ in range(2):
        Witness(tmp_path, Settings(), Counts()).write()
    assert len(noisy_ops.read_counts(tmp_path)) == 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_books_can_book():
    booking = threading.Event()

    def hold():
        with _LOCK:
            booking.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    booking.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        book(Counts())
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_directory_alone_switches_nothing_on(tmp_path):
    environment.activate({"NOISESCOPE_COUNTS": str(tmp_path / "counts")})
    assert not list(tmp_path.iterdir())
    assert not noisy_ops.get_injection_stats()["enabled"]


def test_a_directory_that_cannot_be_written_to_is_refused_by_the_variable_before_anything_is_on(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"^NOISESCOPE_COUNTS: cannot write \S+: Not a directory$"):
        environment.activate({"NOISESCOPE_COUNTS": str(tmp_path / "file" / "counts"), **NOISE})
    assert ThisThread.everywhere is None
    assert ThisThread.shared.booked is None


# --- read back ------------------------------------------------------------------------------------------------------


def test_files_are_read_by_host_and_pid_and_others_are_left_alone(tmp_path, monkeypatch):
    for host, pid in (("b", 2), ("a", 10), ("a", 9)):
        monkeypatch.setattr(witness.socket, "gethostname", lambda host=host: host)
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        Witness(tmp_path, Settings(), Counts()).write()
    (tmp_path / ".half-written.json.abc.tmp").write_text("{")
    found = [(process["host"], process["pid"]) for process in noisy_ops.read_counts(tmp_path)]
    assert found == [("a", 9), ("a", 10), ("b", 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:40], "not a counts"),
        (lambda text: "", "not a counts"),
        (lambda text: "[]", "schema: got a list"),
        (lambda text: "{}", 'schema: got None, expected "noisescope counts"'),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version: got 2, expected 1"),
        (lambda text: text.replace('"forward": 1', '"forward": NaN'), "a bare NaN is not JSON"),
        (lambda text: text.replace('"forward": 1', '"forward": true'), "forward: got bool, expected a whole number"),
        (lambda text: text.replace('"pid"', '"pit"'), r"pid: missing"),
        (lambda text: text.replace('"linear": {', '"linear": 1, "other": {'), "operators.linear: got int"),
        (lambda text: "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line_with_its_name(change, said, counts, tmp_path):
    book(counts)
    (file,) = tmp_path.iterdir()
    file.write_text(change(file.read_text()))
    with pytest.raises(InputError, match=f"{re.escape(file.name)}.*{re.escape(said)}") as caught:
        noisy_ops.read_counts(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match=r"pipe\.json: cannot be read \(is a pipe or a device, expected a file\)"):
        noisy_ops.read_counts(tmp_path)


def test_a_directory_that_is_not_there_is_refused_and_an_empty_one_is_empty(tmp_path):
    assert noisy_ops.read_counts(str(tmp_path)) == []
    with pytest.raises(InputError, match=r"counts: cannot be read \(No such file or directory\); a process with NOIS"):
        noisy_ops.read_counts(tmp_path / "counts")
