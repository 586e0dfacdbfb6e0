"""The panel: who agrees with sensitivity, what theory expects of it, and whom not to trust."""

import json
from math import nan

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from noisescope.errors import InputError
from noisescope.measure.agreement import EXPECTED, Expectation, agreement_panel

RNG = np.random.default_rng(0)
SENSITIVITY = RNG.exponential(size=24)
VALUES = {
    "sensitivity": SENSITIVITY,
    "fisher": SENSITIVITY**2 * np.exp(0.2 * RNG.normal(size=24)),
    "hessian_trace": SENSITIVITY * np.exp(2.0 * RNG.normal(size=24)),
    "outlier_count": RNG.integers(0, 5, size=24),
    "sparsity": -SENSITIVITY + 0.2 * RNG.normal(size=24),
}


@pytest.fixture(scope="module")
def panel():
    return agreement_panel(VALUES)


def test_every_pair_once_with_both_correlations(panel):
    assert len(panel.pairs) == 10
    assert len({frozenset((pair.left, pair.right)) for pair in panel.pairs}) == 10
    for pair in panel.pairs:
        x, y = VALUES[pair.left], VALUES[pair.right]
        assert pair.spearman.value == pytest.approx(spearmanr(x, y).statistic)
        assert pair.kendall.value == pytest.approx(kendalltau(x, y).statistic)
        assert pair.spearman.low <= pair.spearman.value <= pair.spearman.high


def test_every_proxy_has_its_expectation_and_its_verdict(panel):
    found = {proxy.name: (str(proxy.expected), proxy.verdict, proxy.holds) for proxy in panel.proxies}
    assert found == {
        "fisher": ("r > 0", "trusted", True),
        "hessian_trace": ("r > 0.7", "trusted", False),
        "outlier_count": ("r > 0.6", "unrelated", False),
        "sparsity": ("r < -0.5", "trusted", True),
    }
    assert panel.distrusted == ("outlier_count",)
    assert [proxy.trusted for proxy in panel.proxies] == [True, True, False, True]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_wrong_sign_is_contrary_whatever_its_strength(name):
    proxy = -EXPECTED[name].sign * SENSITIVITY + 0.05 * RNG.normal(size=24)
    (found,) = agreement_panel({name: proxy, "sensitivity": SENSITIVITY}).proxies
    assert (found.name, found.verdict, found.trusted, found.holds) == (name, "contrary", False, False)


def test_a_proxy_without_expectation_may_go_either_way():
    (found,) = agreement_panel({"sensitivity": SENSITIVITY, "depth": -SENSITIVITY}).proxies
    assert (found.expected, found.holds, found.verdict) == (None, None, "trusted")


@pytest.mark.parametrize("column", [[0.5] * 24, [nan] * 24, [1.0, 2.0] + [None] * 22])
def test_constant_or_missing_columns_are_undefined(column):
    (found,) = agreement_panel({"sensitivity": SENSITIVITY, "sparsity": column}).proxies
    assert (found.verdict, found.holds, found.trusted) == ("undefined", None, False)


def test_expectations_at_their_bound():
    assert Expectation(1, 0.7).holds(0.71)
    assert not Expectation(1, 0.7).holds(0.7)
    assert Expectation(-1, -0.5).holds(-0.51)
    assert not Expectation(-1, -0.5).holds(-0.5)
    assert Expectation(1, 0.7).holds(nan) is None


def test_columns_by_layer_are_put_in_one_order():
    by_layer = {"sensitivity": {0: 1.0, 1: 2.0, 2: 4.0, 3: 3.0}, "fisher": {"embed": 9.0, 3: 30, 2: 40, 1: 20, 0: 10}}
    panel = agreement_panel(by_layer)
    assert panel.proxies[0].spearman.value == 1.0
    assert panel.layers == panel.proxies[0].spearman.n == 4


def test_another_column_can_be_the_truth():
    panel = agreement_panel({"kl": SENSITIVITY, "fisher": VALUES["fisher"]}, sensitivity="kl")
    assert panel.proxies[0].name == "fisher"


def test_the_panel_as_values_and_as_a_table(panel):
    told = json.loads(json.dumps(panel.as_json(), allow_nan=False))
    assert told["distrusted"] == ["outlier_count"]
    assert told["proxies"][2]["reason"] == "its interval includes zero"
    assert told["proxies"][1]["expected"] == "r > 0.7"
    assert told["proxies"][1]["holds"] is False
    assert set(told["pairs"][0]) == {"left", "right", "spearman", "kendall"}
    assert (told["layers"], told["resamples"], told["seed"]) == (24, 2000, 0)
    head, *rows = str(panel).splitlines()
    assert head.split() == ["proxy", "Spearman", "Kendall", "expected", "verdict"]
    assert rows[2].endswith("r > 0.6   unrelated: its interval includes zero")
    assert len({row.index(" r ") for row in rows}) == 1


def test_seeds_decide_intervals_and_nothing_else(panel):
    again, other = agreement_panel(VALUES), agreement_panel(VALUES, seed=1)
    assert again == panel
    assert other.pairs[0].spearman.value == panel.pairs[0].spearman.value
    assert other.pairs[0].spearman.low != panel.pairs[0].spearman.low


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ({"fisher": [1, 2, 3]}, {}, 'values: got fisher, expected a column "sensitivity" among them'),
        (
            {"sensitivity": [1, 2], "fisher": [1, 2, 3]},
            {},
            r"values: got columns of different length \(sensitivity 2, fisher 3\), expected one value per layer",
        ),
        ({"sensitivity": [[1, 2]]}, {}, r"values\['sensitivity'\]: got an array of \[1, 2\], expected one number per"),
        ({"sensitivity": ["high"]}, {}, r"values\['sensitivity'\]: .*'high', expected one number per layer"),
        ({"sensitivity": [1, 2]}, {"resamples": 10}, "resamples: got 10, expected >= 100 for a 95% interval"),
    ],
)
def test_mistakes(values, options, message):
    with pytest.raises(InputError, match=message):
        agreement_panel(values, **options)
