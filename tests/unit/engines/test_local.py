"""Engines: one result a point, in their order, whatever happened to the others."""

from collections.abc import Callable

import pytest

import noisescope
from noisescope.engines import LocalEngine
from noisescope.errors import NothingMatched
from noisescope.measure.opening import open_data
from noisescope.noise import make_noise
from noisescope.points import Bench, Point
from noisescope.specs import Selection
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")
NOISE = noisescope.RelativeGaussian(0.1)


@pytest.fixture(scope="module")
def bench() -> Bench:
    model, tokenizer = fixture("llama")
    return Bench(model, open_data(None, tokenizer, n_samples=6, batch_size=4, max_length=12))


def test_results_come_in_the_order_of_the_points_and_do_not_depend_on_each_other(bench: Bench) -> None:
    points = [Point(Selection((layer,)), NOISE) for layer in (5, 1, 3)]
    found = [result.comparison.kl.value for result in LocalEngine(bench).run(points)]
    alone = [bench.run(point).comparison.kl.value for point in points]
    assert found == alone
    assert len(set(found)) == 3


def test_a_point_that_changed_nothing_has_failed_and_says_why(bench: Bench) -> None:
    nothing = Point(Selection((3,)), make_noise("bit_flip", 1e-12))
    first, second = LocalEngine(bench).run([nothing, Point(Selection((3,)), NOISE)])
    assert first.finding.vanished
    assert first.comparison is None
    assert "changed none of" in first.finding.failure
    assert not second.finding.vanished
    assert second.comparison is not None


def test_what_cannot_be_meant_is_raised(bench: Bench) -> None:
    with pytest.raises(NothingMatched):
        list(LocalEngine(bench).run([Point(Selection((3,), ("gelu",)), NOISE)]))


def test_one_that_fails_otherwise_may_be_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = Bench.run

    def run(self: Bench, point: Point) -> object:
        if point.selection.layers == (2,):
            raise MemoryError("no more")
        return real(self, point)

    monkeypatch.setattr(Bench, "run", run)
    first, second = LocalEngine(bench).run([Point(Selection((layer,)), NOISE) for layer in (2, 4)])
    assert (first.finding.failure, first.finding.final, first.finding.vanished) == (
        "MemoryError: no more",
        False,
        False,
    )
    assert second.comparison is not None
