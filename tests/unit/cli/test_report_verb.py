"""`noisescope report`: rendered again without running, compared, and every bad input in one line."""

import contextlib
import io
import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import noisescope as ns
from noisescope.cli import main
from noisescope.report import Report
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def sections() -> dict[str, Any]:
    model, tokenizer = fixture("llama")
    found = ns.diagnose(model, None, tokenizer=tokenizer, n_samples=8, max_length=12, batch_size=8, name="a llama")
    return dict(found.sections)


@pytest.fixture
def home(sections: dict[str, Any], tmp_path: Path) -> Path:
    """A directory with report.json alone."""
    return Report(sections).save(tmp_path / "run", formats=["json"]).parent


@pytest.fixture
def worse(sections: dict[str, Any], tmp_path: Path) -> Path:
    """Another, with a KL a hundred times as large and other noise."""
    found = deepcopy(sections)
    row = found["operator_analysis"]["softmax"]
    row["kl"] = {name: value if name == "n" else 100 * value for name, value in row["kl"].items()}
    found["config"]["noise_scale"] = 0.1
    return Report(found).save(tmp_path / "worse", formats=["json"]).parent


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["report", *map(str, arguments)])
    return code, out.getvalue(), err.getvalue()


def names(home: Path) -> list[str]:
    return sorted(os.listdir(home))


# --- one report -------------------------------------------------------------------------------------------------


def test_without_a_format_the_summary(home: Path) -> None:
    report = Report.load(home)
    assert run(home) == (0, f"{report}\n\nReport: {home}\n", "")
    file = home / "report.json"
    assert run(file) == (0, f"{report}\n\nReport: {file}\n", "")
    report.save(home)
    assert run(home)[1].endswith(f"\nReport: {home / 'report.html'}\n")


def test_formats_are_rendered_beside_the_report(home: Path) -> None:
    code, out, err = run(home, "--format", "md,pdf", "--format", "png", "--format", "html")
    assert (code, err) == (0, "")
    assert out.splitlines() == [str(home / f"report.{name}") for name in ("md", "pdf", "png", "html")]
    assert names(home) == ["report.html", "report.json", "report.md", "report.pdf", "report.png"]
    assert (home / "report.md").read_text() == Report.load(home).to_markdown()


def test_or_into_another_directory(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "place"
    assert run(home / "report.json", "--format", "json,md", "-o", target)[0] == 0
    assert names(target) == ["report.json", "report.md"]
    assert (target / "report.json").read_bytes() == (home / "report.json").read_bytes()


def test_or_on_the_screen(home: Path) -> None:
    assert run(home, "--format", "md", "-o", "-") == (0, Report.load(home).to_markdown(), "")
    assert names(home) == ["report.json"]
    for formats in ("png", "md,html"):
        code, out, err = run(home, "--format", formats, "-o", "-")
        assert (code, out) == (2, "")
        assert "expected one text" in err


def test_files_that_are_there_are_refused_before_any_is_written(home: Path) -> None:
    (home / "report.md").write_text("precious")
    code, out, err = run(home, "--format", "html,md")
    assert (code, out) == (2, "")
    assert err == (
        f"noisescope: {home / 'report.md'}: is there already; choose another directory (--output) or --overwrite\n"
    )
    assert names(home) == ["report.json", "report.md"]
    assert run(home, "--format", "html,md", "--overwrite")[0] == 0
    assert (home / "report.md").read_text() == Report.load(home).to_markdown()


@pytest.mark.parametrize("formats", ["md", "md,png,pdf,html"])
def test_torch_is_not_imported(home: Path, formats: str, tmp_path: Path) -> None:
    code = (
        "import sys; from noisescope.cli import main; assert main(sys.argv[1:]) == 0; "
        "assert not {'torch', 'transformers', 'matplotlib.pyplot'} & set(sys.modules), 'heavy'"
    )
    for arguments in (["report", home, "--format", formats, "-o", tmp_path / "out"], ["report", home, home]):
        subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def test_a_terminal_without_unicode(home: Path) -> None:
    code = "import sys; from noisescope.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["report", str(home), "--format", "html", "-o", "-"]
    found = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    found.stdout.decode("ascii")


# --- two reports ------------------------------------------------------------------------------------------------


def test_two_reports_are_compared(home: Path, worse: Path) -> None:
    code, out, err = run(home, worse)
    assert (code, err) == (0, "")
    first = ["same model, same environment", "asked differently: noise_scale 0.05 -> 0.1"]
    assert out.splitlines()[:2] == first
    assert out.splitlines()[2].startswith("1 row significantly worse, 0 better, ")
    assert "operator softmax  " in out
    assert run(worse, home)[1].splitlines()[2].startswith("0 rows significantly worse, 1 better, ")


def test_a_comparison_in_other_formats(home: Path, worse: Path, tmp_path: Path) -> None:
    assert json.loads(run(home, worse, "--format", "json")[1])["counts"]["levels"]["worse"] == 1
    assert run(home, worse, "--format", "md")[1].startswith("## noisescope: a llama\n\n- same model")
    assert run(home, worse, "--format", "html,md", "-o", tmp_path / "both")[0] == 0
    assert names(tmp_path / "both") == ["differences.html", "differences.md"]
    text = (tmp_path / "both" / "differences.html").read_text()
    assert str(tmp_path) not in text, "nothing of where the files were"
    code, _, err = run(home, worse, "--format", "png")
    assert code == 2
    assert 'unknown format "png"' in err
    assert run(home, worse, "--format", "md,html", "-o", "-")[0] == 2


def test_the_page_of_a_comparison_is_a_file(
    home: Path, worse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(home, worse, "--format", "html") == (0, "differences.html\n", "")
    assert names(tmp_path / "here") == ["differences.html"]
    assert run(home, worse, "--format", "html")[0] == 2, "never over a file that is there"
    assert run(home, worse, "--format", "md,json") == (0, "differences.md\ndifferences.json\n", "")
    assert run(home, worse, "--format", "html", "-o", "-")[1].startswith("<!doctype html>")


def test_the_help_says_where_things_go() -> None:
    code, out, _ = run("--help")
    said = " ".join(out.split())
    assert code == 0
    assert "None: beside the report; of two, a single md or json goes to the screen" in said
    assert "anything else into the current directory" in said


def test_models_that_are_built_differently_are_refused(home: Path, sections: dict[str, Any], tmp_path: Path) -> None:
    found = deepcopy(sections)
    found["coverage"]["layers"] = 12
    Report(found).save(tmp_path / "deeper", formats=["json"])
    refused(2, "REPORT: got models with 8 layers and 12, expected the same structure", home, tmp_path / "deeper")


# --- bad input --------------------------------------------------------------------------------------------------


def refused(expected: int, words: str, *arguments: str | Path) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (expected, "")
    assert err.startswith("noisescope: ")
    assert err.count("\n") == 1
    assert words in err


def test_what_is_no_report(home: Path, tmp_path: Path) -> None:
    refused(2, "nowhere: cannot be read (No such file or directory)", tmp_path / "nowhere")
    refused(2, "report.json: cannot be read", tmp_path)
    for size in (0, 1, 100, 5000):
        cut = tmp_path / "cut.json"
        cut.write_bytes((home / "report.json").read_bytes()[:size])
        refused(2, "cut.json: not a report", cut, "--format", "md", "-o", tmp_path / "out")
        refused(2, "cut.json: not a report", home, cut)
    assert not (tmp_path / "out").exists()


def test_an_edited_report_names_the_place(home: Path, tmp_path: Path) -> None:
    found = json.loads((home / "report.json").read_text())
    found["operator_analysis"]["softmax"]["kl"]["low"] = "0.1"
    (tmp_path / "edited.json").write_text(json.dumps(found))
    words = "edited.json: operator_analysis.softmax.kl.low: got str, expected a number"
    refused(2, words, tmp_path / "edited.json", "--format", "md")
    assert names(tmp_path) == ["edited.json", "run"]


def test_flags_that_cannot_be_meant(home: Path, tmp_path: Path) -> None:
    refused(2, '--format: unknown format "htm", did you mean "html"?', home, "--format", "htm")
    refused(2, '--format: unknown format ""', home, "--format", "md,")
    refused(2, "--output: nothing to write", home, "-o", tmp_path / "out")
    refused(2, "REPORT: got 3, expected one, or two", home, home, home)
    refused(2, "REPORT", "--format", "md")


def test_a_file_where_a_directory_should_be_and_the_other_way_round(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    refused(5, "cannot write", home, "--format", "md", "-o", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
    (home / "report.md").mkdir()
    refused(2, "report.md: is a directory", home, "--format", "html,md", "--overwrite")
    assert names(home) == ["report.json", "report.md"]


def test_a_target_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(os, "replace", denied)
    refused(5, "report.md: Permission denied; choose a directory you may write to", home, "--format", "md")
    assert names(home) == ["report.json"]
