"""P6: an injection affects the thread that opened it and no other: 8 threads, one shared model, many forwards."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from digests import bits, digest, quarantine
from torch import nn
from torch.utils.checkpoint import checkpoint

import noisescope as ns
from families import tokens
from noisescope.injection import Watch

THREADS = 8
PLACES = (
    {"operators": "linear"},
    {"operators": "rms_norm", "layers": [0]},
    {"operators": ["softmax", "silu"], "phases": "both"},
    {"phases": "both", "modules": "*.mlp"},
)


@pytest.fixture(autouse=True)
def _one_thread_each() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def forward(model: nn.Module, seed: int) -> list[str]:
    with torch.no_grad():
        return [bits(model(**tokens(seed=seed), use_cache=False).logits)]


def forward_and_backward(model: nn.Module, seed: int) -> list[str]:
    logits = model(**tokens(seed=seed), use_cache=False).logits
    return [bits(logits), *map(bits, torch.autograd.grad(logits.square().mean(), list(model.parameters())))]


def work(model: nn.Module, number: int, rounds: int, use: Callable[[nn.Module, int], list[str]]) -> list[list[str]]:
    """What one thread computes: noisy for odd numbers, each with places and a seed of its own, clean for even ones."""
    if number % 2 == 0:
        return [use(model, number) for _ in range(rounds)]
    found = []
    for part in range(2):  # opened twice, so that others run while it opens and closes
        with ns.inject(model, ns.RelativeGaussian(0.05), seed=number + part, **PLACES[number // 2]) as injection:
            found += [use(model, number) for _ in range(rounds // 2)]
        assert injection.step == rounds // 2 - 1
    return found


def check_threads_do_not_meet(model: nn.Module, rounds: int, use=forward, threads: int = THREADS) -> None:
    """Every thread gets, among the others, exactly what it gets alone."""
    before = digest(model)
    alone = [work(model, number, rounds, use) for number in range(threads)]
    assert len({found[0] for clean in alone[::2] for found in clean}) == len(alone[::2])
    start = threading.Barrier(threads)

    def join(number: int) -> list[list[str]] | Exception:
        torch.set_num_threads(1)
        start.wait()
        try:
            return work(model, number, rounds, use)
        except Exception as error:  # noqa: BLE001 - whatever one thread does to another is a finding
            return error

    with ThreadPoolExecutor(threads) as pool:
        together = list(pool.map(join, range(threads)))
    for number in range(threads):
        assert together[number] == alone[number], f"thread {number}"
    assert digest(model) == before


def test_threads_do_not_meet(tiny):
    check_threads_do_not_meet(tiny, rounds=26)


def test_nor_do_their_gradients(tiny):
    check_threads_do_not_meet(tiny, rounds=6, use=forward_and_backward)


@pytest.mark.slow
def test_threads_do_not_meet_in_200_forwards_each(tiny):
    check_threads_do_not_meet(tiny, rounds=200)


@pytest.mark.slow
def test_nor_do_their_gradients_in_200_passes_each(tiny):
    check_threads_do_not_meet(tiny, rounds=200, use=forward_and_backward)


# --- one thread at a time, so that every run meets the danger ---------------------------------------------------


def elsewhere(act: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def check_another_thread_is_clean(model: nn.Module, use=forward_and_backward) -> None:
    """While an injection is open here, also in the middle of a forward, another thread computes cleanly."""
    clean, found = use(model, 0), []
    handle = model.model.layers[1].register_forward_hook(lambda *_: found.append(ask()))

    def ask() -> object:
        handle.remove()
        return elsewhere(lambda: use(model, 0))

    with ns.inject(model, ns.RelativeGaussian(0.05), phases="both") as injection:
        noisy = use(model, 0)
        calls = injection.stats.calls()
        found.append(elsewhere(lambda: use(model, 0)))
        assert injection.stats.calls() == calls
    assert noisy != clean
    assert found == [clean, clean]


def test_another_thread_is_clean(tiny):
    check_another_thread_is_clean(tiny)


def test_the_other_way_round(tiny):
    clean = forward(tiny, 0)
    opened, closed = threading.Event(), threading.Event()

    def hold() -> list[str]:
        with ns.inject(tiny, ns.RelativeGaussian(0.05)):
            opened.set()
            closed.wait(30)
            return forward(tiny, 0)

    with ThreadPoolExecutor(1) as pool:
        noisy = pool.submit(hold)
        opened.wait(30)
        assert forward(tiny, 0) == clean
        closed.set()
        assert noisy.result() != clean


# --- recomputation, which torch may run on threads of its own -----------------------------------------------------


def checkpointed(model: nn.Module, hidden: torch.Tensor, *, reentrant: bool) -> list[str]:
    """Gradients of a block that is checkpointed, for an input that others may hold too."""
    hidden = hidden.detach().requires_grad_()  # the same memory
    positions = model.model.rotary_emb(hidden, torch.arange(hidden.shape[1])[None])

    def block(value: torch.Tensor) -> torch.Tensor:
        return model.model.layers[1](value, position_embeddings=positions)

    checkpoint(block, hidden, use_reentrant=reentrant).square().mean().backward()
    found = [bits(hidden.grad), *(bits(parameter.grad) for parameter in model.model.layers[1].parameters())]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_backward_elsewhere_is_clean_though_it_shares_its_input(tiny, reentrant):
    hidden = torch.randn(2, 12, 32, generator=torch.Generator().manual_seed(0))
    clean = checkpointed(tiny, hidden, reentrant=reentrant)
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        noisy = checkpointed(tiny, hidden, reentrant=reentrant)
        found = elsewhere(lambda: checkpointed(tiny, hidden, reentrant=reentrant))
    assert noisy != clean
    assert found == clean


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_backward_elsewhere_is_clean_though_it_reuses_memory(tiny, reentrant):
    def use() -> list[list[str]]:
        return [
            checkpointed(tiny, torch.full((2, 12, 32), 0.1 * number + 0.1), reentrant=reentrant) for number in range(5)
        ]

    clean = use()
    with ns.inject(tiny, ns.RelativeGaussian(0.05), phases="both"):
        use()
        assert elsewhere(use) == clean


# --- able to fail -----------------------------------------------------------------------------------------------


def hooks_ask_for_no_thread(monkeypatch):
    monkeypatch.setattr(Watch, "_mine", lambda self, module, args: self.active)


def test_the_mutant_is_caught(tiny, monkeypatch):
    hooks_ask_for_no_thread(monkeypatch)
    with quarantine(), pytest.raises(AssertionError):
        check_another_thread_is_clean(tiny)


def test_the_mutant_is_caught_among_threads(tiny, monkeypatch):
    hooks_ask_for_no_thread(monkeypatch)
    with quarantine(), pytest.raises(AssertionError):
        check_threads_do_not_meet(tiny, rounds=8)
