"""Critical thresholds: the search against trying every scale, and the prediction against the search."""

from collections.abc import Callable

import pytest

import noisescope
from noisescope.diagnosis.thresholds import GRID, LARGEST, Link, Threshold, search
from noisescope.measure.intervals import Estimate
from noisescope.points import Point
from noisescope.specs import Selection

POINT = Point(Selection(), noisescope.RelativeGaussian(0.05))


def every_scale(curve: Callable[[float], float], target: float) -> float:
    steps = round(LARGEST / GRID)
    return next((at * GRID for at in range(1, steps + 1) if curve(at * GRID) > target), float("inf"))


@pytest.mark.parametrize("start", [0.001, 0.02, 0.05, 0.2, 5.0, float("inf")])
@pytest.mark.parametrize(
    "curve",
    [
        lambda s: s,
        lambda s: 20 * s * s,
        lambda s: 0.0 if s < 0.0735 else 1.0,
        lambda s: 0.3 * s**0.5,
        lambda s: 90 * s * s,
        lambda s: 0.4 * s,
        lambda s: 1.0,
        lambda s: 0.0,
        lambda s: -s,
    ],
)
def test_the_search_finds_what_trying_every_scale_finds(curve: Callable[[float], float], start: float) -> None:
    tried = []

    def degradation(point: Point) -> float:
        tried.append(point.noise_scale)
        return curve(point.noise_scale)

    (low, high), evaluations = search(POINT, degradation, target=0.10, start=start)
    assert high == pytest.approx(every_scale(curve, 0.10))
    assert low == pytest.approx(min(high - GRID, LARGEST))
    assert evaluations == len(tried) == len(set(tried)) <= 16
    assert all(0 < scale <= LARGEST + 1e-9 for scale in tried)


def test_a_good_start_saves_points() -> None:
    _, from_near = search(POINT, lambda p: 20 * p.noise_scale**2, target=0.10, start=0.07)
    _, from_far = search(POINT, lambda p: 20 * p.noise_scale**2, target=0.10, start=0.2)
    assert from_near < from_far
    assert from_near <= 4


def test_what_is_known_is_not_measured_again() -> None:
    tried = []

    def degradation(point: Point) -> float:
        tried.append(round(point.noise_scale / GRID))
        return point.noise_scale

    (_, high), _ = search(POINT, degradation, target=0.10, start=0.1, known={0.1: 0.1, 0.15: 0.15})
    assert high == pytest.approx(0.101)
    assert 100 not in tried
    assert 150 not in tried


def test_a_search_that_must_end_says_how_far_it_came() -> None:
    left = iter([True, True, False])
    (low, high), evaluations = search(POINT, lambda p: p.noise_scale, target=0.1, start=0.05, go_on=lambda: next(left))
    assert evaluations == 2
    assert low < 0.1 < high


class Measured:
    """As much of a row as the fit reads."""

    conclusive = True

    def __init__(self, kl: float, loss: float, stderr: float = 0.01) -> None:
        self.kl = Estimate(kl, kl, kl, 0.0, 50)
        self.degradation = Estimate(loss, loss - 2 * stderr, loss + 2 * stderr, stderr, 50)


@pytest.mark.parametrize("slope", [0.5, 0.8, 1.0])
def test_the_link_is_recovered(slope: float) -> None:
    rows = [Measured(kl, 1.2 * kl**slope) for kl in (0.001, 0.004, 0.01, 0.03, 0.1, 0.2)]
    link = Link.fit(rows)
    assert link.slope == pytest.approx(slope, abs=0.02)
    assert link.kl_at(0.10) == pytest.approx((0.10 / 1.2) ** (1 / slope), rel=0.05)
    kl = Estimate(0.05, 0.045, 0.055, 0.0025, 50)
    expected = 0.05 * (link.kl_at(0.10) / 0.05) ** 0.5
    found = link.threshold(kl, 0.05, 0.10)
    assert found.value == pytest.approx(expected)
    assert found.low < expected < found.high


def test_losses_below_their_error_do_not_tilt_it() -> None:
    """Half of the small ones are negative: dropping these would make the others look like losses."""
    rows = [Measured(kl, 1.0 * kl) for kl in (0.05, 0.1, 0.2)]
    rows += [Measured(0.0005 * n, (-1) ** n * 0.01) for n in range(1, 9)]
    assert Link.fit(rows).slope == pytest.approx(1.0, abs=0.08)


def test_nothing_lost_nothing_linked() -> None:
    assert Link.fit([Measured(0.01, 0.001), Measured(0.02, -0.002), Measured(0.03, 0.003)]) is None
    assert Link.fit([Measured(0.1, 0.1), Measured(0.2, 0.2)]) is None


def test_a_place_without_effect_has_no_threshold() -> None:
    link = Link(0.0, 0.5, 0.1, 9)
    assert link.threshold(Estimate(0.0, 0.0, 0.0, 0.0, 50), 0.05, 0.10).value == float("inf")


def test_a_search_that_was_cut_short_claims_no_more_than_it_saw() -> None:
    foretold = Estimate(0.08, 0.06, 0.11, 0.01, 50)
    cut, whole, none = (
        Threshold("L0", foretold, ends) for ends in ((0.05, float("inf")), (0.071, 0.072), (0.2, float("inf")))
    )
    assert (cut.complete, whole.complete, none.complete) == (False, True, True)
    assert (cut.value, whole.value, none.value) == (0.08, 0.072, float("inf"))
    assert cut.as_json()["how"] == "predicted"
    assert cut.as_json()["measured_between"] == [0.05, float("inf")]
    assert none.as_json()["critical_threshold"] is None
    assert Threshold("L0", foretold, (0.1, float("inf"))).value == pytest.approx(0.101), "the prediction gives way"
    assert Threshold("L0", None).as_json()["how"] == "unknown"
    assert Threshold("L0", None, (0.0, float("inf"))).as_json()["risk"] == "unknown"
    between = Threshold("L0", None, (0.12, 0.126)).as_json()
    assert (between["how"], between["critical_threshold"], between["risk"]) == ("bracketed", 0.126, "LOW")
    far = Threshold("L0", Estimate(0.3, 0.25, 0.4, 0.02, 50)).as_json()
    assert (far["critical_threshold"], far["predicted_interval"]) == (None, [0.2, None])
