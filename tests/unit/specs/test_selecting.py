import pytest

from noisescope.errors import InputError, NoisescopeError, unknown_name
from noisescope.specs import Selection, check_scale, parse_layers, parse_phases


@pytest.mark.parametrize(
    ("given", "parsed"),
    [
        (None, None),
        ([], ()),
        (3, (3,)),
        ("3", (3,)),
        ("L9-11, 3, head", (9, 10, 11, 3, "head")),
        ([4, "6-7", 4], (4, 6, 7)),
        (range(2), (0, 1)),
        ("embed final_norm", ("embed", "final_norm")),
    ],
)
def test_layers(given, parsed) -> None:
    assert parse_layers(given) == parsed


@pytest.mark.parametrize("given", [-1, "-1", "11-9", "haed", [1.5], [None], True])
def test_layers_that_cannot_be_meant(given) -> None:
    with pytest.raises(InputError) as caught:
        parse_layers(given)
    assert "\n" not in str(caught.value)


def test_phases() -> None:
    assert parse_phases("both") == ("forward", "backward")
    assert parse_phases(["backward", "forward"]) == ("forward", "backward")
    assert parse_phases([]) == ()
    with pytest.raises(InputError, match='unknown phase "forwards", did you mean "forward"'):
        parse_phases("forwards")


@pytest.mark.parametrize("given", [-1e-9, float("nan"), float("inf"), "x", None])
def test_scales_that_cannot_be_meant(given) -> None:
    with pytest.raises(InputError, match="expected a"):
        check_scale(given)


def test_empty_means_an_explicit_nothing() -> None:
    assert not Selection().empty
    assert Selection(layers=()).empty
    assert Selection(operators=()).empty
    assert Selection(phases=()).empty


def test_every_error_has_its_exit_code() -> None:
    def tree(kind: type[NoisescopeError]):
        return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]

    codes = {kind.__name__: kind.exit_code for kind in tree(NoisescopeError)}
    assert codes == {
        "NoisescopeError": 1,
        "InputError": 2,
        "BudgetExceeded": 2,
        "NothingMatched": 3,
        "HiddenOperator": 3,
        "CompiledModel": 3,
        "DoseVanished": 3,
        "ModelError": 4,
        "NonFinite": 4,
        "StoreError": 5,
        "MissingExtra": 6,
        "ExitOrder": 1,
        "Interrupted": 130,
    }
    assert issubclass(InputError, ValueError)


def test_unknown_names_suggest_the_nearest() -> None:
    assert str(unknown_name("operator", "sofmax", ["linear", "softmax"])) == (
        'unknown operator "sofmax", did you mean "softmax"? (linear softmax)'
    )
