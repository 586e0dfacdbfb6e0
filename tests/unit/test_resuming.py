"""A resumed forward pass gives the bits of the whole one, for every family, and leaves nothing behind."""

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import noisescope
from families import DECODERS, build, tokens
from noisescope.errors import InputError, ModelError
from noisescope.injection import forwards_replaced
from noisescope.resuming import Recording, Shelf
from noisescope.sites import Layout

NOISE = noisescope.RelativeGaussian(0.1)


def recorded(
    model: nn.Module, inputs: dict[str, torch.Tensor], *, budget: int = 2**30
) -> tuple[Recording, torch.Tensor]:
    recording = Recording(Layout.of(model), Shelf(budget))
    with torch.no_grad(), recording.record():
        return recording, model(**inputs, use_cache=False).logits


@pytest.mark.parametrize("family", DECODERS)
def test_every_layer_of_every_family(family: str) -> None:
    model, inputs = build(family), tokens(family)
    recording, clean = recorded(model, inputs)
    layers = len(Layout.of(model).blocks)
    for layer in range(layers + 1):
        noisy = []
        for start in (0, layer):
            where = list(range(layer, layers)) or ["head"]
            with torch.no_grad(), recording.resume(start), noisescope.inject(model, NOISE, layers=where):
                noisy.append(model(**inputs, use_cache=False).logits)
        with torch.no_grad(), recording.resume(layer):
            assert torch.equal(model(**inputs, use_cache=False).logits, clean)
        assert torch.equal(*noisy), layer
        assert not torch.equal(noisy[0], clean)


def test_a_padded_batch(one_thread: None) -> None:
    model, inputs = build("llama"), tokens("llama")
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 7:] = 0
    recording, clean = recorded(model, inputs)
    with torch.no_grad(), recording.resume(2):
        assert torch.equal(model(**inputs, use_cache=False).logits, clean)


def test_skipped_blocks_are_not_computed() -> None:
    """Or there would be nothing won: their linears are never called."""
    model, inputs = build("gpt2"), tokens("gpt2")
    recording, _ = recorded(model, inputs)
    with torch.no_grad(), recording.resume(2), noisescope.capture(model, operators="linear") as seen:
        model(**inputs, use_cache=False)
    assert {site.layer for site in seen.sites.values()} == {2, "head"}


def test_over_the_budget_it_spills_and_the_bits_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisescope.resuming.gettempdir", lambda: str(tmp_path))
    model, inputs = build("llama").to(torch.bfloat16), tokens("llama")
    shelf = Shelf(2000)
    recording = Recording(Layout.of(model), shelf)
    with torch.no_grad(), recording.record():
        clean = model(**inputs, use_cache=False).logits
    assert 0 < shelf.used_bytes <= 2000 < shelf.spilled_bytes
    assert len(list(tmp_path.rglob("*"))) > 1
    for layer in (1, 2, 3):
        with torch.no_grad(), recording.resume(layer):
            assert torch.equal(model(**inputs, use_cache=False).logits, clean)
    shelf.close()
    assert not list(tmp_path.iterdir())


def test_a_forgotten_shelf_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisescope.resuming.gettempdir", lambda: str(tmp_path))
    shelf = Shelf(0)
    shelf.put(torch.ones(3))
    assert list(tmp_path.iterdir())
    del shelf
    assert not list(tmp_path.iterdir())


def test_nothing_stays_on_the_model() -> None:
    model, inputs = build("llama"), tokens("llama")
    block = model.model.layers[0]
    own = block.forward.__func__
    recording, _ = recorded(model, inputs)

    def fail(*_args: object) -> None:
        raise RuntimeError("in a hook")

    handle = model.model.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in a hook"), recording.resume(2):
        model(**inputs, use_cache=False)
    handle.remove()
    assert all("forward" not in b.__dict__ for b in model.model.layers)
    assert block.forward.__func__ is own


def test_a_forward_that_somebody_else_has_set_comes_back() -> None:
    """As accelerate does, which sets `forward` on the modules it moves between devices."""
    model = build("llama")
    block = model.model.layers[0]
    wrapped = block.forward
    block.forward = lambda *args, **kwargs: wrapped(*args, **kwargs)
    theirs = block.__dict__["forward"]
    recording, clean = recorded(model, tokens("llama"))
    with torch.no_grad(), recording.resume(1):
        assert torch.equal(model(**tokens("llama"), use_cache=False).logits, clean)
    assert block.__dict__["forward"] is theirs


def test_another_thread_runs_the_whole_model() -> None:
    model = nn.Linear(2, 2)
    seen = []
    with forwards_replaced({model: lambda original, x: x}):
        thread = threading.Thread(target=lambda: seen.append(model(torch.ones(2))))
        thread.start()
        thread.join()
        mine = model(torch.ones(2))
    assert torch.equal(mine, torch.ones(2))
    assert torch.equal(seen[0], model(torch.ones(2)))


def test_a_block_that_did_not_run_cannot_be_resumed() -> None:
    recording = Recording(Layout.of(build("llama")), Shelf(0))
    with pytest.raises(ModelError, match="cannot resume at layer 1: block 0 did not run"), recording.resume(2):
        pass


def test_a_block_that_changes_its_input_in_place_is_refused() -> None:
    """What was stored would no longer be what it was."""
    model, inputs = build("llama"), tokens("llama")

    def change(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        args[0].mul_(2.0)

    model.model.layers[1].register_forward_pre_hook(change)
    recording, _ = recorded(model, inputs)
    with pytest.raises(ModelError, match="changed in place"), torch.no_grad(), recording.resume(1):
        model(**inputs, use_cache=False)


def test_a_negative_budget() -> None:
    with pytest.raises(InputError, match="budget_bytes: got -1"):
        Shelf(-1)
