"""What can be asked of a diagnosis: every field has its check, and an error tells of all that is wrong."""

from collections.abc import Callable
from dataclasses import fields

import pytest

from noisescope.errors import InputError
from noisescope.noise import NOISES, Uniform, make_noise, register
from noisescope.operators import OPERATORS
from noisescope.specs import FIELDS, LEVELS, OPTIONS, UNUSED, DiagnosisSpec, checked, known


def test_every_field_has_its_check() -> None:
    assert set(FIELDS) == {field.name for field in fields(DiagnosisSpec)}
    spec = DiagnosisSpec()
    assert checked(vars(spec), FIELDS) == vars(spec), "the defaults are right and canonical"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"level": "ful"}, 'level: unknown level "ful", did you mean "full"? (operator layer channel full)'),
        ({"sampled": ["all"]}, "sampled: unknown sampled \"['all']\""),
        ({"noise_scale": 0}, "noise_scale: got 0, expected a number > 0"),
        ({"noise_scale": float("inf")}, "noise_scale: got inf, expected a number > 0"),
        ({"noise_scale": "0.05"}, 'noise_scale: got "0.05", expected a number > 0'),
        ({"layer_noise_scale": -1}, "layer_noise_scale: got -1, expected a number > 0"),
        ({"outlier_threshold": True}, "outlier_threshold: got True, expected a number >= 1"),
        ({"window_size": "three"}, 'window_size: got "three", expected a whole number of at least 1'),
        ({"trials": 1.5}, "trials: got 1.5, expected a whole number of at least 1"),
        ({"seed": -1}, "seed: got -1, expected a whole number of at least 0"),
        ({"outlier_threshold": 0.5}, "outlier_threshold: got 0.5, expected a number >= 1"),
        ({"noise_scale": 1e300}, "noise_scale: got 1e+300, expected a number > 0, at most 1e+38"),
        ({"noise_scale": 10**400}, "noise_scale: got a number of 1329 bits, expected a number > 0"),
        ({"seed": 10**5000}, "seed: got a number of 16610 bits, expected a whole number below 2^63"),
        ({"error_type": ""}, 'error_type: unknown error type ""'),
        ({"error_type": "uniformm"}, 'error_type: unknown error type "uniformm", did you mean "uniform"?'),
        ({"error_type": "bit_flip", "noise_scale": 2}, "noise_scale: got 2, expected at most 1, because bit_flip"),
        ({"error_type": "stuck_at", "layer_noise_scale": 1.1}, "layer_noise_scale: got 1.1, expected at most 1"),
        ({"operators": ["sofmax"]}, 'operators: unknown operator "sofmax", did you mean "softmax"?'),
        ({"operators": "norm,sofmax"}, 'operators: unknown operator "sofmax", did you mean "softmax"?'),
        ({"curvature": "yes"}, 'curvature: got "yes", expected true or false'),
        ({"layers": "nine"}, 'layers: unknown layer "nine"'),
        ({"layers": -1}, "layers: got -1, expected an index from 0"),
        ({"operators": [1]}, "operators: got 1, expected a name or a pattern"),
    ],
)
def test_fields_that_cannot_be_meant(asked: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        DiagnosisSpec(**asked)
    assert str(caught.value).startswith(expected)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"n_samples": 1}, "n_samples: got 1, but intervals need at least two samples"),
        ({"n_samples": 0}, "n_samples: got 0, expected a whole number of at least 2"),
        ({"calibration_samples": 1}, "calibration_samples: got 1, expected a whole number of at least 2"),
        ({"batch_size": 0}, "batch_size: got 0, expected a whole number of at least 1"),
        ({"max_length": 1}, "max_length: got 1, expected a whole number of at least 2"),
        ({"engine": "ray"}, 'engine: got "ray", which is not available yet, expected local'),
        ({"engine": "locl"}, 'engine: unknown engine "locl", did you mean "local"? (local)'),
    ],
)
def test_options_that_cannot_be_meant(given: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(given, OPTIONS)
    assert str(caught.value) == expected


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        DiagnosisSpec(level="x", window_size=0, noise_scale=-1, layers="nine")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "level",
        "noise_scale",
        "layers",
        "window_size",
    ]
    assert str(caught.value).count("\n") == 3


def test_the_known_names_are_those_of_the_registries() -> None:
    assert set(known.ERROR_TYPES) >= set(NOISES)
    assert known.OPERATORS[: len(OPERATORS)] == list(OPERATORS)
    for name in NOISES:
        assert DiagnosisSpec(error_type=name).error_type == name


@pytest.mark.parametrize("scale", [1.0, 1.5])
@pytest.mark.parametrize("name", NOISES)
def test_the_spec_refuses_the_scales_that_the_noise_refuses(name: str, scale: float) -> None:
    by_noise = _refuses(lambda: make_noise(name, scale))
    assert _refuses(lambda: DiagnosisSpec(error_type=name, noise_scale=scale)) == by_noise


def _refuses(make: Callable[[], object]) -> bool:
    try:
        make()
    except InputError:
        return True
    return False


def test_a_noise_or_an_operator_of_ones_own_is_known_once_it_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "ERROR_TYPES", list(known.ERROR_TYPES))
    monkeypatch.setattr(known, "OPERATORS", list(known.OPERATORS))
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(NOISES, "uniform")
        known.ERROR_TYPES.remove("uniform")
        register(Uniform)
        assert "uniform" in known.ERROR_TYPES


def test_no_level_leaves_out_what_is_not_there() -> None:
    assert set(UNUSED) == set(LEVELS)
    assert {name for names in UNUSED.values() for name in names} <= {*FIELDS, *OPTIONS, "calibration_data"}


def test_values_are_canonical() -> None:
    spec = DiagnosisSpec(noise_scale=1, layers="0-1,head", operators="softmax")
    assert repr(spec.noise_scale) == "1.0"
    assert (spec.layers, spec.operators) == ((0, 1, "head"), ("softmax",))
    assert (spec.scale_of_layers, DiagnosisSpec(layer_noise_scale=0.02).scale_of_layers) == (1.0, 0.02)
