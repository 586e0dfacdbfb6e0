"""Models inside wrappers: one process of DDP has noise, DataParallel and compiled code are refused at operators."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import noisescope as ns
from noisescope.errors import CompiledModel, ModelError
from short_trainings import FEW, close, llama, rows, same, weights

pytestmark = pytest.mark.usefixtures("one_thread", "quick_collections")


def batch(step: int) -> dict[str, torch.Tensor]:
    """Two rows."""
    chosen = rows()[2 * step : 2 * step + 2]
    return {name: torch.stack([row[name] for row in chosen]) for name in chosen[0]}


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A group of one."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def train(model: nn.Module, called: nn.Module, *, gradient_ratio_every: int = 0) -> ns.NoisyTraining:
    """Two steps in a loop of one's own."""
    noises = ns.OperatorNoise(0.05, phases="both"), ns.NormWeightNoise(0.05)
    training = ns.NoisyTraining(model, *noises, gradient_ratio_every=gradient_ratio_every)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2):
        with training.step(step, called=called):
            called(**batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return training


@pytest.mark.usefixtures("one_process")
def test_ddp_of_one_process_trains_as_the_model_alone() -> None:
    alone, inside = llama(), llama()
    plain = train(alone, alone)
    wrapped = train(inside, DistributedDataParallel(inside), gradient_ratio_every=1)
    assert same(weights(inside), weights(alone))
    assert [line.dose for line in wrapped.history] == [line.dose for line in plain.history]
    assert close([wrapped.history[0].dose], [0.05])
    assert "gradient_ratio" in wrapped.logs()


@pytest.mark.usefixtures("one_process")
def test_ranks_draw_each_on_their_own_at_operators_and_alike_in_norms() -> None:
    losses = {}
    for rank in (0, 1):
        for kind, noise in {"noise": ns.OperatorNoise(0.05, **FEW), "norms": ns.NormWeightNoise(0.05)}.items():
            model = DistributedDataParallel(llama())
            training = ns.NoisyTraining(model.module, noise, rank=rank)
            with training.step(0, called=model), torch.no_grad():
                losses[kind, rank] = float(model(**batch(0)).loss)
    assert losses["noise", 0] != losses["noise", 1]
    assert losses["norms", 0] == losses["norms", 1]


def test_data_parallel_is_refused() -> None:
    model = llama()
    training = ns.NoisyTraining(model, ns.OperatorNoise(0.05, **FEW))
    before = weights(model)
    expected = r"^DataParallel runs copies of the model on other threads, .*\(CUDA_VISIBLE_DEVICES=0\)$"
    with pytest.raises(ModelError, match=expected), training.step(0, called=nn.DataParallel(model)):
        pytest.fail("the step has begun")
    assert same(weights(model), before)


def test_a_compiled_wrapper_is_refused_also_where_the_first_steps_are_clean() -> None:
    model = llama()
    noise = ns.OperatorNoise(0.05, schedule=ns.ExponentialStages(0.05, 0.01, stages=3), **FEW)
    training = ns.NoisyTraining(model, noise, total=9)
    with (
        pytest.raises(CompiledModel, match=r"^LlamaForCausalLM is compiled, .*$"),
        training.step(0, called=torch.compile(model, backend="eager")),
    ):
        pytest.fail("the step has begun")
