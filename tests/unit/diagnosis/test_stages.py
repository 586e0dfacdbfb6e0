"""Which points a diagnosis asks for: layers, windows and operators as they were meant, and what it refuses to start."""

import pytest
import torch

import noisescope
from families import build, tokens
from noisescope.diagnosis import Diagnosis, Progress
from noisescope.diagnosis.by_layer import Window, longest_run
from noisescope.diagnosis.rows import Row
from noisescope.diagnosis.thresholds import Link
from noisescope.errors import DoseVanished, InputError, NothingMatched
from noisescope.measure.opening import open_data
from noisescope.noise import make_noise
from noisescope.points import Finding, Point, Result
from noisescope.specs import DiagnosisSpec, Selection
from trained import fixture

pytestmark = pytest.mark.usefixtures("one_thread")


def diagnosis(progress: Progress | None = None, **asked: object) -> Diagnosis:
    data = open_data([tokens(rows=4)])
    more = {"progress": progress} if progress else {}
    return Diagnosis(build("llama"), data, DiagnosisSpec(**asked), **more)


@pytest.mark.parametrize(
    ("layers", "expected"), [((), 0), ((4,), 1), (range(5), 5), ((0, 2, 4), 1), ((0, 1, 3, 4, 5, 9), 3)]
)
def test_the_longest_run_of_layers(layers: tuple[int, ...], expected: int) -> None:
    assert longest_run(tuple(layers)) == expected


@pytest.mark.parametrize(
    ("asked", "size"),
    [({}, 3), ({"window_size": 2}, 2), ({"layers": (0, 1)}, 2), ({"layers": (0, 2)}, 1), ({"layers": "1-2,head"}, 2)],
)
def test_the_size_of_windows(asked: dict, size: int) -> None:
    assert diagnosis(**asked).window_size == size


def test_a_window_that_was_asked_for_is_not_made_smaller() -> None:
    for asked in ({"window_size": 4}, {"window_size": 2, "layers": (0, 2)}):
        run = diagnosis(**asked)
        with pytest.raises(InputError, match=r"window_size: got [24], expected at most [31], the layers in a row"):
            run.check()
        assert "clean" not in run.runs.costs, "nothing was run over the data"


def test_a_window_over_a_gap_disturbs_what_was_asked_for() -> None:
    run = diagnosis(layers=(0, 2), operators=("linear",))
    selection = run._window_point(Window(0, 2)).selection
    assert (selection.layers, selection.operators) == ((0, 2), ("linear",))


def test_layers_and_operators_in_any_form_people_write() -> None:
    run = diagnosis(layers="1, head", operators=["norm", "softmax"])
    assert set(run.cells) == {(1, "rms_norm"), (1, "softmax")}
    assert run.spec.as_json()["layers"] == [1, "head"]
    with pytest.raises(InputError, match='unknown operator "sofmax", did you mean "softmax"'):
        diagnosis(operators=("sofmax",))
    with pytest.raises(InputError, match='unknown layer "nine"'):
        diagnosis(layers="nine")


def test_nothing_to_look_at() -> None:
    with pytest.raises(NothingMatched, match="operators gelu: no such site"):
        diagnosis(operators=("gelu",)).check()
    with pytest.raises(NothingMatched, match="layers head: no block is meant"):
        diagnosis(level="layer", layers=("head",)).check()
    diagnosis(level="channel", operators=("gelu",)).check()
    run = diagnosis(layers=("head",))
    run.check()
    assert (run.windows, run.groups, run.together) == ({}, {}, [])


def test_every_stage_says_how_far_it_is() -> None:
    """Each is begun once with the number of its steps, and each step is told."""
    begun: dict[str, int] = {}
    done: dict[str, int] = {}

    def progress(stage: str, total: int):
        assert stage not in begun
        begun[stage], done[stage] = total, 0

        def tick() -> None:
            done[stage] += 1

        return tick

    run = diagnosis(progress, sampled="all")
    _ = run.map, run.checked, run.operators, run.together, run.windows, run.groups, run.single_layers
    assert done == begun
    assert begun | {"layers": 3, "groups": 3, "windows": 1, "together": 2, "map": 1} == begun
    assert run.runs.cost == pytest.approx(sum(run.runs.costs.values()))


def test_the_model_is_left_as_it_was() -> None:
    run = diagnosis(level="operator")
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    _ = run.map, run.operators
    assert all(torch.equal(before[name], value) for name, value in run.model.state_dict().items())
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_what_would_not_be_clean_is_refused() -> None:
    model, data = build("gpt2"), [tokens("gpt2", rows=4)]
    model.transformer.h[1].train()
    with pytest.raises(InputError, match=r"transformer\.h\.1 is in training mode"):
        noisescope.diagnose(model, data)
    model.eval()
    with noisescope.inject(model, noisescope.RelativeGaussian(0.1)):
        model(**data[0])
        with pytest.raises(InputError, match="an injection is open around this"):
            noisescope.diagnose(model, data)


def test_inside_inference_mode_it_is_the_same() -> None:
    model, data = build("llama"), [tokens("llama", rows=4)]
    spec = DiagnosisSpec(level="layer")
    with torch.inference_mode():
        inside = noisescope.diagnose(model, data, spec=spec).sections
    assert inside == noisescope.diagnose(model, data, spec=spec).sections


@pytest.mark.parametrize(("error_type", "scale"), [("stuck_at", 0.01), ("relative_gaussian", 0.5)])
def test_thresholds_are_not_predicted_where_the_square_law_does_not_hold(error_type: str, scale: float) -> None:
    model, tokenizer = fixture("gpt2")
    data = open_data(None, tokenizer, n_samples=8, max_length=16)
    run = Diagnosis(model, data, DiagnosisSpec(level="operator", error_type=error_type, noise_scale=scale))
    assert run.thresholds
    assert all(found.predicted is None for found in run.thresholds.values())
    assert sum(found.how != "unknown" for found in run.thresholds.values()) <= 3


def test_an_iterator_is_not_read_twice() -> None:
    rows = (batch for batch in [tokens(rows=4), tokens(rows=4, seed=1)])
    with pytest.raises(InputError, match="data: an iterator can be read once"):
        noisescope.diagnose(build("llama"), rows, n_samples=4, calibration_samples=6)


def test_with_everything_sampled_the_measured_values_stand() -> None:
    run = diagnosis(sampled="all", level="operator", noise_scale=0.01)
    assert {cell.how for cell in run.checked.cells.values()} == {"measured"}


# --- a noise scale for layers -----------------------------------------------------------------------------------


def trained_run(**asked: object) -> Diagnosis:
    model, tokenizer = fixture("llama")
    return Diagnosis(model, open_data(None, tokenizer, n_samples=8, max_length=16), DiagnosisSpec(**asked))


def test_layers_have_the_scale_of_all_unless_they_are_given_one() -> None:
    one, two = trained_run(noise_scale=0.05), trained_run(noise_scale=0.05, layer_noise_scale=0.05)
    assert one._map_of_layers is one.checked
    assert two._map_of_layers is two.checked
    assert one.layer_kl(3) == two.layer_kl(3)


@pytest.mark.parametrize("sampled", ["checks", "all"])
def test_a_scale_of_layers_is_that_of_windows_groups_layers_and_what_they_are_compared_with(sampled: str) -> None:
    asked = {"layers": "2-4", "operators": ("linear",), "sampled": sampled}
    apart = trained_run(noise_scale=0.1, layer_noise_scale=0.02, **asked)
    alone = trained_run(noise_scale=0.02, **asked)
    assert {row.result.point.noise_scale for row in apart.operators} == {0.1}
    assert {row.result.point.noise_scale for row in apart.windows.values()} == {0.02}
    assert {row.result.point.noise_scale for _, row in apart.groups.values()} == {0.02}
    assert {row.result.point.noise_scale for row in apart.single_layers.values()} <= {0.02}
    window = Window(2, 4)
    assert apart.windows[window].kl == alone.windows[window].kl, "the other scale has no part in it"
    # predicted, not checked at that scale: the same up to what the checks of the other run moved
    assert apart.layer_kl(3).value == pytest.approx(alone.layer_kl(3).value, rel=0.2)
    assert apart.amplification(window).value == pytest.approx(alone.amplification(window).value, rel=0.2)


def test_thresholds_do_not_depend_on_the_scale_that_they_are_told_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is injected more softly is no sturdier for that."""
    starts = {}

    def search(point, _degradation, *, start, known, **_more):
        starts[point.selection.layers, known and tuple(known)] = start
        return (0.0, 0.2), 0

    monkeypatch.setattr("noisescope.diagnosis.stages.search", search)
    monkeypatch.setattr(Link, "fit", lambda _rows: Link(intercept=0.0, slope=0.5, spread=0.1, points=9))
    found = trained_run(noise_scale=0.1, layer_noise_scale=0.02, layers="2-4", sampled="all").thresholds
    assert {layers for layers, _ in starts} >= {(2,), (3,), (4,)}
    assert {known for layers, known in starts if layers in ((2,), (3,), (4,))} == {(0.02,)}
    assert {known for layers, known in starts if layers == (2, 3, 4)} == {(0.1,)}
    same = trained_run(noise_scale=0.02, layers="2-4", sampled="all").thresholds
    for name in ("L2", "L3", "L4"):
        assert found[name].predicted == same[name].predicted
    assert found["linear"].predicted.value == pytest.approx(same["linear"].predicted.value, rel=0.3)


def test_a_scale_of_layers_is_shown() -> None:
    run = noisescope.diagnose(
        build("llama"), [tokens(rows=4)], spec=DiagnosisSpec(layer_noise_scale=0.02, level="layer", operators="linear")
    )
    assert run.sections["config"]["layer_noise_scale"] == 0.02
    assert "(noise 0.05, of layers 0.02)" in str(run)


def test_rows_that_break_the_model_rank_first_and_those_that_nothing_is_known_of_last() -> None:
    point, clean = Point(Selection(), make_noise("relative_gaussian", 0.05)), diagnosis().bench.clean
    broken, unknown = (
        Row(name, Result(point, clean, Finding(None, 1, 1, 0.05, 1.0, 1, 1.0, "why", final=name == "broken")))
        for name in ("broken", "unknown")
    )
    measured = diagnosis(level="operator").operators
    ranked = sorted([unknown, *measured, broken], key=lambda row: row.rank, reverse=True)
    assert (ranked[0], ranked[-1]) == (broken, unknown)


def test_a_fault_too_rare_for_one_place_leaves_the_others() -> None:
    """A bit flip in ten thousand values: some places have fewer in so little data."""
    found = {row.name: row for row in trained_run(level="operator", error_type="bit_flip", noise_scale=1e-4).operators}
    vanished = {name for name, row in found.items() if row.result.finding.vanished}
    assert 0 < len(vanished) < len(found)
    for name in vanished:
        assert "bit_flip at scale 0.0001 changed none of" in found[name].as_json()["failed"]
        assert not found[name].broken


def test_a_fault_too_rare_for_every_place_is_refused() -> None:
    with pytest.raises(DoseVanished, match="bit_flip at scale 1e-09 changed none of"):
        _ = trained_run(level="operator", error_type="bit_flip", noise_scale=1e-9).operators
