"""Faults that are run for real, against the slow obvious way to run them."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import noisescope as ns
import planned
from noisescope.errors import InputError, NothingMatched
from noisescope.keys import Key, fingerprint_model
from noisescope.measure.intervals import Estimate
from noisescope.planning import FaultCase, FaultTests
from noisescope.planning import fault_corruption as corruption
from noisescope.planning import fault_flips as flips
from noisescope.planning import fault_outage as outage
from noisescope.planning.fault_judging import Check, bounded
from noisescope.planning.fault_rows import BATCH, Rows
from noisescope.planning.fault_running import FaultRunner
from noisescope.specs import Selection
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def rows() -> Rows:
    model, tokenizer = fixture("llama")
    return Rows.of(model, ns.open_data(None, tokenizer, n_samples=10, batch_size=10, max_length=20))


def case(number: int, **changes: Any) -> FaultCase:
    """One of the documented families, with other parameters or criteria."""
    found = ns.plan_fault_tests(planned.with_findings()).cases[number]
    parameters = {name: changes.get(name, value) for name, value in found.parameters.items()}
    criteria = {name: changes.get(name, value) for name, value in found.acceptance_criteria.items()}
    return replace(found, parameters=parameters, acceptance_criteria=criteria)


# --- judging ----------------------------------------------------------------------------------------------------


def test_a_limit_holds_if_all_of_the_interval_is_within() -> None:
    assert Check.at_most("x", Estimate(0.01, 0.0, 0.05, 0.0, 9), 0.05).passed
    assert not Check.at_most("x", Estimate(0.01, 0.0, 0.051, 0.0, 9), 0.05).passed
    said = Check.at_most("NaN rate", Estimate(0.00117, 0.0002, 0.0021, 0.0, 9), 0.001).sentence
    assert said == "NaN rate 0.117% [0.02, 0.21], not shown to be within 0.1%"
    assert Check.at_most("x", Estimate(0.2, 0.1, 0.3, 0.0, 9), 0.05).sentence == "x 20% [10, 30], beyond 5%"
    assert not Check.at_most("x", Estimate(nan, nan, nan, nan, 9), 0.05).passed


def test_nothing_lost_is_below_three_in_n_and_not_zero() -> None:
    assert bounded([0, 0], [5, 5], draws=300).high == 0.01
    assert bounded([1, 0], [5, 5], draws=300).value == 0.1
    assert bounded([1, 0], [5, 5], draws=300, positive=True).low > 0
    assert isnan(bounded([0, 0], [0, 0], draws=300).high)


# --- rows -------------------------------------------------------------------------------------------------------


def test_rows_are_scored_as_a_plain_forward_scores_them() -> None:
    with torch.no_grad():
        logits = rows().model(input_ids=rows().ids).logits
    expected = (logits[:, :-1].argmax(-1) == rows().ids[:, 1:]).sum(1)
    assert rows().clean_plainly.correct.tolist() == rows().clean.correct.tolist() == expected.tolist()
    assert set(rows().clean.tokens.tolist()) == {19.0}
    assert not rows().clean.non_finite.any()


# --- bit flips --------------------------------------------------------------------------------------------------


def test_a_struck_operation_has_one_bit_of_one_value_inverted() -> None:
    value = torch.randn(3, 5, 7)
    before = value.clone()
    draws = tuple(flips.Draw(at, at, frozenset({"here"} if at != 1 else ())) for at in range(3))
    flips.Upsets(1.0, draws).disturb_(value, 1.0, Key(0, "here"))
    changed = value.view(torch.int32) ^ before.view(torch.int32)
    assert (changed != 0).sum((1, 2)).tolist() == [1, 0, 1]
    assert all(f"{int(bits) % 2**32:b}".count("1") == 1 for bits in changed[changed != 0])


def test_one_in_a_hundred_operations_is_struck() -> None:
    sites = [str(number) for number in range(20)]
    found = flips._struck(4000, 10, sites, share=0.01, seed=3)
    struck = sum(len(draw.struck) for draw in found)
    assert abs(struck - 800) < 4 * 800**0.5
    assert len(found) < 4000 * 0.25  # only what is struck is run
    assert all(draw.row == draw.number % 10 for draw in found)


def test_flips_are_those_of_every_draw_run_by_itself() -> None:
    """Also the draws in which nothing is struck, one row at a time."""
    asked = case(0, operators=["linear"], draws=30, share_of_operations=0.02)
    found = flips.run_flips(asked, rows())
    selection = Selection(layers=tuple(range(8)), operators=("linear",))
    sites = flips._sites(rows(), selection)
    assert len(sites) == 7 * 8
    struck = {draw.number: draw for draw in flips._struck(30, 10, sites, share=0.02, seed=0)}
    lost, clean = np.zeros(10), np.zeros(10)
    for number in range(30):
        row = number % 10
        draw = struck.get(number, flips.Draw(number, row, frozenset()))
        one = rows().disturbed([row], flips.Upsets(1.0, (draw,)), selection)
        lost[row] += rows().clean.correct[row] - one.correct[0]
        clean[row] += rows().clean.correct[row]
    assert lost.any()
    assert found.measured["degradation"].value == pytest.approx(lost.sum() / clean.sum())
    assert found.measured["degradation"].low <= found.measured["degradation"].value


def test_where_nothing_is_struck_nothing_is_lost() -> None:
    found = flips.run_flips(case(0, share_of_operations=0.0), rows())
    assert found.passed
    assert {(row.value, row.high) for row in found.measured.values()} == {(0.0, 0.001)}


def test_predictions_that_are_not_finite_are_counted_and_wrong() -> None:
    class Broken(flips.Names):
        def disturb_(self, value: Tensor, scale: float, key: Key) -> None:
            value.view(BATCH, -1)[0] = torch.nan

    broken = rows().disturbed([0] * BATCH, Broken(), Selection(layers=(7,), operators=("residual",)))
    assert broken.non_finite.tolist()[:2] == [19.0, 0.0]
    assert broken.correct.tolist()[:2] == [0.0, rows().clean.correct[0]]


def test_an_operator_that_the_model_lacks_is_an_error() -> None:
    with pytest.raises(NothingMatched, match="no such operation"):
        flips.run_flips(case(0, operators=["gelu"]), rows())


# --- an outage --------------------------------------------------------------------------------------------------


def slowly(ids: Tensor, start: int, steps: int, layers: list[int]) -> Tensor:
    """Without a cache: every module of these layers gives zeros at one position of whole rows."""
    model = rows().model

    def silence(_module: Any, _given: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        first[:, start] = 0.0
        return output

    hooks = [
        module.register_forward_hook(silence) for layer in layers for module in model.model.layers[layer].modules()
    ]
    try:
        with torch.no_grad():
            logits = model(input_ids=ids[:, : start + steps], use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return logits[:, start:].argmax(-1) == ids[:, start + 1 : start + steps + 1]


@pytest.mark.parametrize("layers", [[], [1, 2, 3], [7]])
def test_decoding_step_by_step_is_the_whole_row_at_once(layers: list[int]) -> None:
    found = outage._decoded(rows().model, rows().ids, 8, 9, stuck=layers or None)
    assert found.tolist() == slowly(rows().ids, 8, 9, layers).double().tolist()


def test_an_outage_is_paired_and_recovery_is_told() -> None:
    lenient = outage.run_outage(case(1, max_degradation=0.9), rows())
    assert lenient.passed
    assert 0 < lenient.measured["degradation"].value < 0.9
    assert "recovered after 0 steps" in lenient.sentence
    assert lenient.measured["degradation_after"].value < lenient.measured["degradation"].value
    harsh = outage.run_outage(case(1, max_degradation=-0.5), rows())
    assert not harsh.passed
    assert "not recovered in 9 steps, within 5 is required" in harsh.sentence
    assert "\n" not in harsh.sentence


def test_rows_that_are_too_short_to_recover_in_are_an_error() -> None:
    short = replace(rows(), ids=rows().ids[:, :8], mask=rows().mask[:, :8])
    with pytest.raises(InputError, match="fewer than two rows of the data have 13 tokens"):
        outage.run_outage(case(1), short)


# --- a corrupted channel ----------------------------------------------------------------------------------------


def test_a_corrupted_channel_costs_something_and_is_located() -> None:
    before = fingerprint_model(rows().model)
    found = corruption.run_corruption(case(2, magnitude=20.0), rows())
    assert found.measured["degradation"].value > 0
    assert "locate" not in found.sentence or found.checks[1].passed
    assert found.checks[1].sentence.endswith("first suspect model.layers.4.mlp.down_proj")
    assert fingerprint_model(rows().model) == before


def test_what_is_not_found_is_not_detected() -> None:
    """A corruption far below rounding, and a module that is a suspect anyway."""
    verdict = ns.locate(rows().model, {"input_ids": rows().ids[:2]}, method="repeat")
    assert not corruption._detection("model.layers.4.mlp.down_proj", verdict, verdict).passed
    with ns.FaultSimulator(rows().model, "4.mlp.down_proj.linear", "noise", 1.0):
        faulty = ns.locate(rows().model, {"input_ids": rows().ids[:2]}, method="repeat")
    assert corruption._detection("model.layers.4.mlp.down_proj", verdict, faulty).passed
    assert not corruption._detection("model.layers.4.mlp.up_proj", verdict, faulty).passed
    assert not corruption._detection("model.layers.4.mlp.down_proj", faulty, faulty).passed


def test_a_module_that_the_model_lacks_is_an_error() -> None:
    with pytest.raises(NothingMatched, match=r'computes nothing in "model\.layers\.99"'):
        corruption.run_corruption(case(2, module="model.layers.99"), rows())


# --- the runner -------------------------------------------------------------------------------------------------


def runner(change: Callable[[dict[str, Any]], Any] = dict) -> FaultRunner:
    sections = dict(ns.plan_fault_tests(planned.with_findings(), model=str(planned.MODEL)).sections)
    return FaultRunner(FaultTests(change(sections)))


def test_the_runner_loads_the_model_of_the_report() -> None:
    found = runner().run("window-1")
    assert found.case.test_id == "window-1"
    with pytest.raises(InputError, match='unknown test "window-9", did you mean "window-1"'):
        runner().run("window-9")


def test_a_text_on_which_there_is_nothing_to_lose_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.txt").write_text("".join(random.Random(0).choice("qxzjkvw#%&") for _ in range(4000)))

    def other(sections: dict[str, Any]) -> dict[str, Any]:
        return {**sections, "data": {**sections["data"], "load": str(tmp_path / "noise.txt")}}

    with pytest.raises(InputError, match="is no better than chance"):
        runner(other).run("window-1")


def test_another_model_is_refused() -> None:
    def other(sections: dict[str, Any]) -> dict[str, Any]:
        return {**sections, "model": {**sections["model"], "weights": "0" * 16}}

    with pytest.raises(InputError, match="has other weights"):
        runner(other).run("window-1")
