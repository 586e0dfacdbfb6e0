"""A comparison in words: the same in every format, whatever its figures are."""

from math import inf, nan
from typing import Any

import pytest

from noisescope.report.divergence.sites import figure, how_far, inside, place, times, worst
from noisescope.report.divergence.words import advice, blame, headline, layer_word, outcome, subject

pytestmark = pytest.mark.usefixtures("one_thread")

Sections = dict[str, Any]


def site(**more: Any) -> Sections:
    found: Sections = {
        "name": "model.layers.4.mlp.up_proj.linear.0.forward",
        "module": "model.layers.4.mlp.up_proj",
        "operator": "linear",
        "layer": 4,
        "stage": "prefill",
        "phase": "forward",
        "same_bits": False,
        "beyond": True,
        "non_finite": [0, 0],
        "floor": 1e-7,
        "tolerance": 4e-7,
        "excess": 50.0,
        "metrics": {"relative_error": {"value": 2e-5, "low": 1e-5, "high": 3e-5}},
    }
    return found | more


# --- the verdict ------------------------------------------------------------------------------------------------


def test_what_diverges_and_who_is_to_blame(comparison: Sections) -> None:
    assert outcome(comparison) == "DIVERGES"
    assert headline(comparison).startswith(
        "The suspect diverges from L3 linear (mlp.down_proj) on: relative error 0.018"
    )
    assert blame(comparison).startswith("2 layers add errors of their own, L3 the largest (0.001")
    assert "L3, L5. The others carry what they inherit." in blame(comparison)
    assert advice(comparison) == ""
    comparison["verdict"]["sources"] = [3]
    assert blame(comparison).startswith("Of all layers, L3 alone adds")


def test_layers_in_a_row_are_told_by_their_ends(comparison: Sections) -> None:
    comparison["verdict"]["sources"] = [0, 1, 2, 3, 5, 6, "head"]
    assert blame(comparison).endswith("L0 to L3, L5, L6, head. The others carry what they inherit.")


def test_without_a_fed_run_layers_are_not_told_apart(comparison: Sections) -> None:
    comparison["verdict"]["fed"] = False
    assert blame(comparison).startswith("Layers after it are not told apart")
    assert "--inputs-from" in advice(comparison)


def test_where_it_began_may_be_before_what_is_beyond(comparison: Sections) -> None:
    early, late = site(beyond=False, excess=0.25), site(layer=6, name="late")
    comparison |= {"sites": [early, late]}
    comparison["verdict"]["first"] = early["name"]
    assert headline(comparison) == (
        "The suspect diverges from L4 linear (mlp.up_proj) on: relative error 2.00e-5, 0.250 of what is tolerated; "
        "it has grown beyond what is tolerated at L6 linear (mlp.up_proj)."
    )


def test_a_first_site_that_is_not_listed(comparison: Sections) -> None:
    comparison["sites"] = []
    assert headline(comparison) == f"The suspect diverges at {comparison['verdict']['first']}."


def test_within_the_floor(comparison: Sections) -> None:
    comparison["verdict"] |= {"outcome": "within the noise floor", "first": None, "first_in_bits": "x"}
    comparison["sites"] = [site(excess=0.11), site(excess=0.3), site(same_bits=True, excess=0.0)]
    assert headline(comparison).startswith(
        "No divergence beyond the noise floor: at most 0.300 of what is tolerated, at"
    )
    comparison["sites"] = [site(tolerance=None)]
    assert headline(comparison) == "No divergence beyond the noise floor."
    comparison["verdict"]["first_in_bits"] = None
    assert headline(comparison) == "No divergence: all bits are equal."
    assert (blame(comparison), advice(comparison)) == ("", "")


def test_without_a_floor_nothing_is_called_clean(comparison: Sections) -> None:
    comparison["verdict"]["outcome"] = "inconclusive"
    assert headline(comparison).startswith("It cannot be told")
    assert advice(comparison) == "Record the reference without --no-floor."
    assert {layer_word(comparison, row) for row in comparison["layers"]} == {"not judged"}


def test_what_was_compared(comparison: Sections) -> None:
    told = dict(subject(comparison))
    assert told["reference"] == "float32 on cpu, sdpa"
    assert told["differs"] == "emulated (none → saturation:0.2@3.linear, noise:0.01@5.softmax)"
    assert told["compared"] == "107 sites in 8 layers, 128 tokens (token ids)"
    comparison |= {"floor": None, "differences": []}
    comparison["traces"]["suspect"] |= {"file": "npu.trace"}
    comparison["traces"]["suspect"]["environment"]["attention"] = None
    told = dict(subject(comparison))
    assert (told["suspect"], told["differs"]) == ("npu.trace: float32 on cpu", "nothing that is known")
    assert "tolerated" not in told


# --- one site ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "L4 linear (mlp.up_proj)"),
        ({"layer": None}, "outside linear (mlp.up_proj)"),
        ({"stage": "decode"}, "L4 linear (mlp.up_proj), decode"),
        ({"phase": "backward", "name": "model.layers.4.mlp.up_proj.linear.0.backward.2"}, ", backward 2"),
        ({"name": "model.layers.4.mlp.up_proj.linear.1.forward"}, "L4 linear 1 (mlp.up_proj)"),
        ({"name": "model.layers.4.linear.1.forward", "module": "model.layers.4"}, "L4 linear 1"),
        ({"name": "another name"}, "L4 linear (mlp.up_proj)"),
    ],
)
def test_where_a_site_is(more: Sections, words: str) -> None:
    assert place(site(**more)).endswith(words)
    assert place(site(**more)).endswith(inside(site(**more)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "relative error 2.00e-5, 50.0 times what is tolerated"),
        ({"excess": 0.5}, "relative error 2.00e-5, 0.500 of what is tolerated"),
        ({"excess": None}, "relative error 2.00e-5, beyond anything that is tolerated"),
        ({"tolerance": None}, "relative error 2.00e-5"),
        ({"metrics": {}}, "relative error –, 50.0 times what is tolerated"),  # noqa: RUF001 - for no figure
        ({"non_finite": [0, 1]}, "1 value is not finite there, 0 in the reference"),
        ({"same_bits": True}, "relative error 2.00e-5, bits equal"),
    ],
)
def test_how_far_a_site_is_off(more: Sections, words: str) -> None:
    assert how_far(site(**more)) == words


def test_what_is_not_finite_is_no_question_of_tolerance() -> None:
    assert times(site(non_finite=[2, 3], tolerance=None)) == "other values are not finite than in the reference"


def test_the_worst_sites_first() -> None:
    rows = [site(excess=excess, name=str(excess)) for excess in (2.0, None, 7.0)] + [site(same_bits=True)]
    assert [row["name"] for row in worst(rows)] == ["None", "7.0", "2.0"]
    unjudged = [
        site(excess=0.0, tolerance=None, name=str(error), metrics={"relative_error": {"value": error}})
        for error in (0.1, None, 0.3)
    ]
    assert [row["name"] for row in worst(unjudged)] == ["None", "0.3", "0.1"]


@pytest.mark.parametrize(
    ("metric", "ends", "words"),
    [
        ("relative_error", (2e-5, 1e-5, 3e-5), "2.00e-5 [1.00e-5, 3.00e-5]"),
        ("relative_error", (0.5, 0.5, 0.5), "0.500"),
        ("sqnr_db", (inf, inf, inf), "infinite"),
        ("mae", (nan, nan, nan), "not a number"),
        ("mae", (None, None, None), "–"),  # noqa: RUF001 - for no figure
        ("mae", (1.0, None, None), "1.00"),
        ("cosine", (0.75, 0.5, 0.875), "0.250 [0.125, 0.500]"),
        ("mape", (0.0025, 0.002, 0.003), "0.250 [0.200, 0.300]"),
        ("within_01", (1.0, 0.99, 1.0), "100 [99.0, 100]"),
    ],
)
def test_figures(metric: str, ends: tuple[float | None, ...], words: str) -> None:
    assert figure(dict(zip(("value", "low", "high"), ends, strict=True)), metric) == words


def test_no_figure_at_all() -> None:
    assert figure(None, "mae") == figure({}, "mae") == "–"  # noqa: RUF001 - for no figure
