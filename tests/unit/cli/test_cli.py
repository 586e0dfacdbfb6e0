"""The command line as a person meets it: output, one-line errors, exit codes."""

import json
import subprocess
import sys

import pytest

from families import build
from noisescope.cli import main
from noisescope.errors import ModelError


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(path)
    return str(path)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


def test_sites_prints_groups_and_the_meter(capsys, directory: str) -> None:
    code, out, err = run(capsys, "sites", directory)
    assert (code, err) == (0, "")
    assert "3 layers" in out.splitlines()[0]
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "0-2 linear self_attn.q_proj 3" in lines
    assert "gelu 0 not computed by this model" in lines
    assert any(line.startswith("softmax 3 inside fused attention; computed in steps when selected") for line in lines)


def test_sites_of_a_selection(capsys, directory: str) -> None:
    code, out, _ = run(capsys, "sites", directory, "--layers", "1,head", "--operators", "linear", "--all")
    assert code == 0
    names = [line.split()[-1] for line in out.split("\n\n")[1].splitlines()[1:]]
    assert names[0] == "model.layers.1.self_attn.q_proj.linear.0.forward"
    assert names[-1] == "lm_head.linear.0.forward"
    assert len(names) == 8


def test_sites_as_json(capsys, directory: str) -> None:
    code, out, _ = run(capsys, "sites", directory, "--format", "json", "--attn", "eager")
    found = json.loads(out)
    assert code == 0
    assert found["layers"] == 3
    assert len(found["sites"]) == len({site["name"] for site in found["sites"]}) == 51
    assert not any(site["in_steps"] for site in found["sites"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--operators", "sofmax"],
            2,
            '--operators: unknown operator "sofmax", did you mean "softmax"? (linear matmul',
        ),
        (["--layers", "nine"], 2, '--layers: unknown layer "nine"'),
        (["--layers", "-1"], 2, 'noisescope: --layers: got "-1", expected an index'),
        (["--layers", "9-3"], 2, 'noisescope: --layers: got "9-3", expected a range'),
        (["--layers", "7"], 3, "layers: 7 is out of range, the model has 0 to 2"),
        (["--modules", "*.nope"], 3, 'modules: "*.nope" matches no module'),
        (["--operators", "gelu"], 3, "operators gelu: no such site"),
        (["--dtype", "float17"], 2, "float17"),
        (["--device", "nowhere"], 2, "nowhere"),
        (["--blocks", "no.such.list"], 4, 'blocks: "no.such.list" names neither'),
        (["--bogus"], 2, "No such option: --bogus"),
    ],
)
def test_bad_input_is_one_line_with_its_exit_code(capsys, directory: str, arguments, code, message) -> None:
    found, out, err = run(capsys, "sites", directory, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.startswith("noisescope: ")
    assert err.count("\n") == 1


def test_a_missing_model_and_a_missing_command(capsys) -> None:
    assert run(capsys, "sites", "./no/such/place")[0] == 4
    code, _, err = run(capsys, "sits")
    assert code == 2
    assert "Did you mean 'sites'?" in err


def test_version_and_module_entry() -> None:
    done = subprocess.run([sys.executable, "-m", "noisescope", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("noisescope 0.")


def test_an_interrupt_is_130(capsys, monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("noisescope.models.load", interrupt)
    assert run(capsys, "sites", directory)[0] == 130


@pytest.mark.parametrize("verb", ["sites", "diagnose", "locate"])
def test_who_gives_no_model_is_told_which_one_it_is(capsys, monkeypatch, tmp_path, verb: str) -> None:
    def refuse(name, **_kwargs):
        raise ModelError(f"asked for {name}")

    monkeypatch.setattr("noisescope.models.load", refuse)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, verb)
    assert (code, out) == (4, "")
    assert err.splitlines() == ["no model given: using SmolLM2-135M-Instruct", "noisescope: asked for None"]
    assert run(capsys, verb, "./a/model")[2] == "noisescope: asked for ./a/model\n"
