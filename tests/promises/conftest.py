"""Models that the promises are kept on; each is checked to be unchanged after every test that used it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from asking import Asking, Warm
from digests import digest_model
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

from families import CONFIGS, build

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="module", autouse=True)
def _quick(one_thread: None) -> None:
    """All of these are tiny."""


@pytest.fixture
def tiny() -> PreTrainedModel:
    """A Llama of two layers that a test may treat as it likes."""
    config = CONFIGS["llama"].__class__(**{**CONFIGS["llama"].to_dict(), "num_hidden_layers": 2})
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


@pytest.fixture(params=["llama", "gpt2", "mixtral", "opt"])
def family(request: pytest.FixtureRequest) -> tuple[str, PreTrainedModel]:
    """Four families whose blocks are written differently, with their name."""
    return request.param, build(request.param)


@pytest.fixture(scope="session")
def _trained() -> dict[str, PreTrainedModel]:
    return {name: AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval() for name in ("llama", "gpt2")}


def _lend(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    before = digest_model(model)
    yield model
    assert digest_model(model) == before, "a test changed the model that all tests share"


@pytest.fixture
def llama(_trained: dict[str, PreTrainedModel]) -> Iterator[PreTrainedModel]:
    """The trained Llama, shared by the session."""
    yield from _lend(_trained["llama"])


@pytest.fixture
def gpt2(_trained: dict[str, PreTrainedModel]) -> Iterator[PreTrainedModel]:
    """The trained GPT-2, shared by the session."""
    yield from _lend(_trained["gpt2"])


@pytest.fixture(scope="session")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Asking:
    """A small question for the command line."""
    return Asking(tmp_path_factory.mktemp("asking"))


@pytest.fixture(scope="session")
def warm(asking: Asking) -> Iterator[Warm]:
    """Who runs commands that are to be killed."""
    process = Warm(asking)
    yield process
    process.close()
