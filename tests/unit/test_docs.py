"""The documentation: its Python runs, its commands parse, its links lead somewhere, its site builds strictly."""

import html
import os
import re
import shlex
import subprocess
import sys
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import typer

import noisescope
import trained
from noisescope.cli import app
from noisescope.cli.flags import CHECKS
from noisescope.devices import DEVICES
from noisescope.errors import InputError
from noisescope.noise import NOISES
from noisescope.specs import checked

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
COMMANDS = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line}")
    for page in PAGES
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    for line in re.findall(r"^\$ (?:scripts/)?noisescope (.*)$", block, re.MULTILINE)
]
CONFIGURATIONS = [
    (name, text)
    for page in PAGES
    for text, name in re.findall(r"```yaml\n(# (\S+\.yaml)\n.*?)```", page.read_text(), re.DOTALL)
]
ELSEWHERE = ("https://arxiv.org/abs/", "https://doi.org/")
"""what a page may link to outside the repository: sources that are cited"""


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of their own, which has the fixtures where the repository has them."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    registered = dict(NOISES)
    try:
        exec(compile(block, "block", "exec"), {})
    finally:  # a page may register a noise of its own
        NOISES.clear()
        NOISES.update(registered)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verb, flags and values are those of the program, and configurations those of the pages; nothing is run."""
    words = shlex.split(line, comments=True)
    for name, text in CONFIGURATIONS:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    program = typer.main.get_command(app)
    _deafen(program)
    program.main(words, standalone_mode=False)


def _deafen(command: Any) -> None:
    """Parsing and checks stay, running does not. `get_command` makes new commands each time: nothing is to restore."""

    def check(*_: Any, **given: Any) -> None:
        checked(given, CHECKS if command.name == "diagnose" else {})

    command.callback = wraps(command.callback)(check) if command.callback else None
    for inner in getattr(command, "commands", {}).values():
        _deafen(inner)


@pytest.mark.parametrize(
    "line", ["diagnos", "diagnose --levle full", "diagnose --level foo", "diagnose a b", "sites --all=x"]
)
def test_wrong_commands_are_seen(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((typer.BadParameter.__mro__[1], InputError)):
        test_commands_parse(line, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
        there = target.startswith(ELSEWHERE) or (page.parent / target).exists()
        assert there, f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as CI and people build it."""
    home = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(home)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return home


def test_the_reference_has_every_public_name(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    described = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="(noisescope\.[\w.]+)"', pages)}
    assert not sorted(set(noisescope.__all__) - described)


def test_the_site_fetches_nothing(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*', page.read_text())
        assert not fetched, f"{page.name}: {fetched}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


def test_the_format_page_names_every_section() -> None:
    model, tokenizer = trained.fixture("llama")
    report = noisescope.diagnose(
        model, tokenizer=tokenizer, spec=noisescope.DiagnosisSpec(level="channel"), n_samples=4, max_length=8
    )
    page = (ROOT / "docs" / "report-schema.md").read_text()
    assert not [section for section in report.sections if f"| `{section}` |" not in page]


def test_what_is_made_from_the_code_is_there(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text()
    assert all(f"noisescope {verb}" in commands for verb in typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    devices = (site / "reference" / "devices.html").read_text()
    assert all(
        name in devices and html.escape(row.description, quote=False) in devices for name, row in DEVICES.items()
    )
    assert "made by scripts" not in "".join(page.read_text() for page in site.rglob("*.html"))
