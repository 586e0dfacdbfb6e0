"""P29: capture stays within its memory budget or refuses before the forward; 100 captures end with the memory of one.

Memory is counted here by walking from the capture to every tensor it can reach, not by its own account.
"""

import gc
import weakref

import pytest
import torch
from torch._subclasses import FakeTensor

from families import FAMILIES, build, tokens
from noisescope.capturing import budget, capture, session
from noisescope.capturing.channels import tally_bytes
from noisescope.errors import BudgetExceeded

DEFAULT_WIDTHS = 3 * (32 + 32 + 48)  # output, down and gate projections of the three layers
STATISTICS = tally_bytes(DEFAULT_WIDTHS)


def held_bytes(captured):
    """Bytes of all tensors that a capture keeps, found by what it refers to."""
    seen, storages = set(), {}
    waiting = [captured._tallies, captured.inputs, captured.outputs]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            if thing.ndim:
                storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
            continue
        waiting += gc.get_referents(thing)
    return sum(storages.values())


def count_blocks(model):
    """A list that grows by one whenever a block starts."""
    started = []
    for block in model.model.layers:
        block.register_forward_pre_hook(lambda *_: started.append(1))
    return started


# --- refusing ---------------------------------------------------------------------------------------------------


def test_statistics_that_do_not_fit_are_refused_on_entering():
    model = build("llama")
    with capture(model, budget_bytes=STATISTICS) as captured:
        model(**tokens())
    assert held_bytes(captured) == captured.used_bytes == STATISTICS
    entered = False
    with pytest.raises(BudgetExceeded, match=f"{STATISTICS:,} bytes in all".replace(",", " ")):  # noqa: SIM117
        with capture(model, budget_bytes=STATISTICS - 1):
            entered = True
    assert not entered


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_tensors_that_do_not_fit_are_refused_before_the_first_block(kind):
    model, batch = build("llama"), tokens(rows=4, length=16)
    widths = {"inputs": 3 * (32 + 48 + 32), "outputs": DEFAULT_WIDTHS}[kind]
    needed = 4 * 16 * 4 * widths
    options = {"statistics": False, kind: True}
    with capture(model, **options, budget_bytes=needed) as captured:
        model(**batch)
    assert held_bytes(captured) == captured.used_bytes == needed
    started = count_blocks(model)
    short = capture(model, **options, budget_bytes=needed - 1)
    with pytest.raises(BudgetExceeded, match=r"a forward pass over 64 tokens needs .* bytes in all"), short:
        model(**batch)
    assert not started
    assert held_bytes(short) == 0


def test_room_for_one_forward_pass_is_not_room_for_two():
    model = build("llama")
    one = 24 * 4 * DEFAULT_WIDTHS
    with capture(model, outputs=True, budget_bytes=STATISTICS + one) as captured:
        model(**tokens())
        started = count_blocks(model)
        with pytest.raises(BudgetExceeded):
            model(**tokens())
    assert not started
    assert held_bytes(captured) == STATISTICS + one


def test_a_later_step_of_generation_is_refused_before_its_blocks():
    model = build("llama")
    room = 2 * (4 + 3) * 4 * DEFAULT_WIDTHS
    captured = capture(model, statistics=False, outputs=True, budget_bytes=room)
    started = count_blocks(model)
    with pytest.raises(BudgetExceeded), captured, torch.no_grad():
        model.generate(**tokens(rows=2, length=4), max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert len(started) == 4 * 3
    assert held_bytes(captured) == room


def test_half_precision_needs_half():
    model, batch = build("llama"), tokens()
    half = 24 * 2 * DEFAULT_WIDTHS
    with capture(model, statistics=False, outputs=True, budget_bytes=half) as captured:  # noqa: SIM117
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(**batch)
    assert held_bytes(captured) == half
    with capture(model.to(torch.bfloat16), statistics=False, outputs=True, budget_bytes=half) as captured:
        model(**batch)
    assert held_bytes(captured) == half


@pytest.mark.parametrize("options", [{"statistics": True}, {"statistics": False, "outputs": True}])
def test_what_is_not_known_in_advance_is_refused_before_it_is_kept(options):
    model, batch = build("llama"), tokens()
    with capture(model, operators=["softmax", "attention"], **options) as captured:
        model(**batch)
    for allowed in range(0, captured.used_bytes, captured.used_bytes // 7):
        short = capture(model, operators=["softmax", "attention"], **options, budget_bytes=allowed)
        with pytest.raises(BudgetExceeded, match=r"self_attn\.(softmax|attention)\.0\.forward"), short:
            model(**batch)
        assert held_bytes(short) == short.used_bytes <= allowed


@pytest.mark.parametrize("family", FAMILIES)
def test_any_budget_is_kept_or_refused(family):
    model, batch = build(family), tokens(family)
    with capture(model, inputs=True, outputs=True) as whole:
        model(**batch)
    assert held_bytes(whole) == whole.used_bytes
    for share in (0.1, 0.5, 0.9, 0.999, 1.0):
        allowed = int(share * whole.used_bytes)
        captured = capture(model, inputs=True, outputs=True, budget_bytes=allowed)
        if share < 1:
            with pytest.raises(BudgetExceeded), captured:
                model(**batch)
        else:
            with captured:
                model(**batch)
        assert held_bytes(captured) <= allowed


def test_a_pass_that_fits_is_never_refused_for_sites_that_see_fewer_tokens():
    model = build("llama")
    with capture(model, layers="head", statistics=False, outputs=True, budget_bytes=2 * 64 * 4) as captured:
        model(**tokens(rows=2, length=30), logits_to_keep=1)
    assert held_bytes(captured) == 2 * 64 * 4


# --- no more memory with more samples, or with more captures ----------------------------------------------------


def test_statistics_do_not_grow_with_the_number_of_samples():
    model = build("llama")
    with capture(model) as captured, torch.no_grad():
        for seed in range(30):
            model(**tokens(rows=1 + seed % 3, length=4 + seed, seed=seed))
            assert held_bytes(captured) == STATISTICS


def assert_memory_returns(model, *, captures):
    """Captures one after the other, with the cycle collector off: each must go by itself when it is dropped."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(captures):
            with capture(model, inputs=True, outputs=True) as captured, torch.no_grad():
                model(**tokens())
            stored = [weakref.ref(tensor) for kept in captured.outputs.values() for tensor in kept]
            stored += [weakref.ref(tally) for tally in captured._tallies.values()]
            assert all(reference() is not None for reference in stored)
            del captured
            assert not [reference for reference in stored if reference() is not None], "tensors outlive their capture"
    finally:
        gc.enable()


@pytest.mark.parametrize("captures", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_captures_in_a_row_end_with_the_memory_of_one(captures):
    model = build("llama")
    assert_memory_returns(model, captures=1)
    before = live_bytes()
    assert_memory_returns(model, captures=captures)
    assert live_bytes() <= before


def live_bytes():
    """Bytes of all tensors alive in this process; the fake ones of a compiler have none."""
    gc.collect()
    alive = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    alive = [tensor for tensor in alive if not isinstance(tensor, FakeTensor)]
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}.values())


def test_a_failed_capture_leaves_nothing_either():
    model = build("llama")
    model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    references = []
    for _ in range(3):
        captured = capture(model, outputs=True)
        with pytest.raises(ZeroDivisionError), captured, torch.no_grad():
            model(**tokens())
        references += [weakref.ref(tensor) for kept in captured.outputs.values() for tensor in kept]
        del captured
    gc.collect()
    assert len(references) == 3 * 9
    assert not any(reference() is not None for reference in references)


def test_an_open_capture_that_nobody_holds_is_still_there():
    model = build("llama")
    captured = capture(model)
    captured.__enter__()
    reference = weakref.ref(captured)
    del captured
    gc.collect()
    model(**tokens())
    reference().__exit__(None, None, None)
    gc.collect()
    assert reference() is None


# --- the tests can fail -----------------------------------------------------------------------------------------


def test_mutant_a_strong_reference_to_the_observer_is_caught(monkeypatch):
    monkeypatch.setattr(session.weakref, "proxy", lambda captured: captured)
    with pytest.raises(AssertionError, match="outlive"):
        assert_memory_returns(build("llama"), captures=1)


def test_mutant_an_account_that_never_refuses_is_caught(monkeypatch):
    monkeypatch.setattr(budget.Budget, "check", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_what_is_not_known_in_advance_is_refused_before_it_is_kept({"statistics": True})


def test_mutant_a_capture_without_foresight_is_caught(monkeypatch):
    monkeypatch.setattr(session.Capture, "_foresee", lambda *_: None)
    with pytest.raises(AssertionError):
        test_tensors_that_do_not_fit_are_refused_before_the_first_block("outputs")
