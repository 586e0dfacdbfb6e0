"""The house rules: rooms import only from rooms above them, imports are light, exports are complete and sorted."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import noisescope

SRC = Path(noisescope.__file__).parent
ROOMS = [
    "errors",
    "store",
    "specs",
    "keys",
    "models",
    "sites",
    "operators",
    "noise",
    "measure",
    "injection",
    "capturing",
    "resuming",
    "points",
    "engines",
    "report",
    "diagnosis",
    "quantising",
    "faults",
    "devices",
    "traces",
    "comparing",
    "locating",
    "smoothing",
    "planning",
    "training",
    "gate",
    "noisy_ops",
    "documented",
    "testing",
    "cli",
]


def imported_rooms(file: Path) -> set[str]:
    """The rooms a file imports from, by its relative imports."""
    depth = len(file.relative_to(SRC).parts)
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {node.module.split(".")[0]} if node.module else {alias.name for alias in node.names}
    return found & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_above_it(room: str) -> None:
    home = SRC / room
    files = list(home.rglob("*.py")) if home.is_dir() else [home.with_suffix(".py")]
    for file in files:
        below = {other for other in imported_rooms(file) - {room} if ROOMS.index(other) > ROOMS.index(room)}
        assert not below, f"{file.relative_to(SRC)} imports from {below}"


def test_every_room_is_in_the_list() -> None:
    found = {path.stem for path in SRC.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} == set(ROOMS)


def test_relative_imports_only() -> None:
    """One way to import inside the package, so that the rule above sees everything."""
    for file in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[0] == "noisescope" for name in names), file


@pytest.mark.parametrize("command", ["import noisescope", "import noisescope.cli", "import noisescope.models"])
def test_torch_is_not_imported_for_nothing(command: str) -> None:
    code = f"{command}; import sys; assert not {{'torch', 'transformers', 'numpy'}} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys, noisescope.cli as c; c.main(['--help']); c.main(['sites', '--help']); "
        "c.main(['diagnose', '--help']); c.main(['locate', '--help']); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_exports_are_complete_and_sorted() -> None:
    assert noisescope.__all__ == sorted(noisescope.__all__)
    for name in noisescope.__all__:
        assert getattr(noisescope, name).__name__ == name
    assert set(noisescope.__all__) <= set(dir(noisescope))
    with pytest.raises(AttributeError, match="no attribute 'sweep'"):
        noisescope.sweep  # noqa: B018 - the access is the test


def test_a_room_never_shares_its_name_with_a_public_function() -> None:
    assert not set(noisescope.__all__) & set(ROOMS)
