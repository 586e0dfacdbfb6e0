"""Datasets by name, with the hub played by a stand-in: no test reaches the network."""

import sys
from typing import Any

import pytest
from fixture_models import tokenizer

from noisescope.errors import InputError, MissingExtra, NoisescopeError
from noisescope.measure.opening import open_data

ROWS = {"text": ["the first text", "the second text"]}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the hub gives by (name, configuration); an exception is raised."""
    datasets = pytest.importorskip("datasets")
    given: dict[Any, Any] = {"asked": []}

    def load(name: str, configuration: str | None) -> Any:
        given["asked"].append((name, configuration))
        answer = given[name, configuration]
        if isinstance(answer, Exception):
            raise answer
        return datasets.DatasetDict({split: datasets.Dataset.from_dict(rows) for split, rows in answer.items()})

    def info(self: object, name: str, timeout: float) -> None:
        if isinstance(given.get("reach"), Exception):
            raise given["reach"]

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    return given


def refusal(source: str) -> NoisescopeError:
    with pytest.raises(NoisescopeError) as caught:
        open_data(source, tokenizer())
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_test_split_comes_before_the_others(hub: dict[str, Any]) -> None:
    other = {"text": ["of another split", "and more of it"]}
    for first, second in (("test", "train"), ("validation", "train"), ("test", "validation")):
        hub["org/name", None] = {second: other, first: ROWS}
        data = open_data("org/name", tokenizer())
        assert data.name == "org/name"
        assert data.fingerprint == open_data(ROWS["text"], tokenizer()).fingerprint


def test_a_configuration_and_a_field(hub: dict[str, Any]) -> None:
    hub["org/name", "main"] = {"test": {"body": ROWS["text"]}}
    data = open_data("org/name/main:body", tokenizer())
    assert hub["asked"] == [("org/name", "main")]
    assert data.fingerprint == open_data(ROWS["text"], tokenizer()).fingerprint


def test_a_field_that_is_missing_names_the_row(hub: dict[str, Any]) -> None:
    hub["org/name", None] = {"test": {"body": ROWS["text"]}}
    assert str(refusal("org/name")) == (
        'org/name:1: no field "text" or "prompt" (has: body); name it with --data org/name:body'
    )


def test_several_configurations_are_listed(hub: dict[str, Any]) -> None:
    hub["org/name", None] = ValueError(
        "Config name is missing.\nPlease pick one among the available configs: ['main', 'socratic']\nExample of usage:"
    )
    assert str(refusal("org/name")) == (
        "org/name: cannot be loaded (several configurations, name one as org/name/configuration: 'main', 'socratic')"
    )


def test_no_split_that_is_known(hub: dict[str, Any]) -> None:
    hub["org/name", None] = {"odd": ROWS}
    assert str(refusal("org/name")) == "org/name: no split test, validation, train (has: odd)"


def test_offline_is_one_line(hub: dict[str, Any]) -> None:
    hub["reach"] = OSError("[Errno -2] Name or service\nnot known")
    error = refusal("org/name")
    assert str(error) == (
        "org/name: no such file, and the hub cannot be reached ([Errno -2] Name or service not known); pass a file, "
        "or set HF_HUB_OFFLINE=1 if it was downloaded before"
    )
    assert isinstance(error, InputError)
    assert not hub["asked"]


def test_in_offline_mode_the_cache_is_asked_alone(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hub["reach"] = OSError("no")
    hub["org/name", None] = {"test": ROWS}
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert open_data("org/name", tokenizer()).rows == 2


def test_without_the_package_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    error = refusal("org/name")
    assert isinstance(error, MissingExtra)
    assert error.exit_code == 6
    assert str(error) == "org/name: no such file; a dataset of the hub needs datasets: pip install datasets"


def test_versions_that_run_loading_scripts_are_refused(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.__version__", "2.19.1")
    error = refusal("org/name")
    assert isinstance(error, MissingExtra)
    assert str(error) == "org/name: datasets 2.19.1 can run code of a dataset; pip install --upgrade datasets"
