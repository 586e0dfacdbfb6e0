"""The format map against the slow, obvious way: gradients sequence by sequence, and formats that are run."""

from functools import cache
from math import inf

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import families
import noisescope as ns
import odd_models
import trained
from noisescope.diagnosis.accepting import data_for
from noisescope.diagnosis.mapping import score_of_sampled
from noisescope.errors import InputError
from noisescope.keys import Key
from noisescope.measure.intervals import Estimate
from noisescope.measure.labels import as_batches
from noisescope.noise.formats import parse_format
from noisescope.points import Bench
from noisescope.quantising import find_weights, map_formats
from noisescope.quantising.checking import PER_FORMAT, Cell, check_formats, measure
from noisescope.quantising.format_map import FormatMap
from noisescope.quantising.map_file import load_map, save_map
from noisescope.sites import Layout

PLAIN = [name for name in families.DECODERS if name != "mixtral"]
FORMATS = ["mxfp4", "int8"]


def padded(rows: int = 3, length: int = 10) -> dict[str, torch.Tensor]:
    given = families.tokens(rows=rows, length=length)
    mask = torch.ones_like(given["input_ids"])
    mask[1, 7:] = 0
    return {**given, "attention_mask": mask}


def slowly(model: nn.Module, batch: dict[str, torch.Tensor], form: str) -> dict[str, np.ndarray]:
    """<G, e> of each weight and sequence, by autograd of one sequence after the other."""
    (rows,) = as_batches(batch)
    weights = find_weights(Layout.of(model))
    found: dict[str, list[float]] = {path: [] for path in weights}
    logits = model(**rows.inputs()).logits
    score = score_of_sampled(logits.detach(), rows, Key(0, "labels#0"))
    for row in range(rows.rows):
        own = score * (torch.arange(rows.rows) == row)[:, None, None]
        grads = torch.autograd.grad(logits, [weight.value for weight in weights.values()], own, retain_graph=True)
        for (path, weight), grad in zip(weights.items(), grads, strict=True):
            error = parse_format(form).round(weight.value.detach(), axis=weight.axis) - weight.value.detach()
            found[path].append(float((grad * error).sum()))
    return {path: np.array(numbers) for path, numbers in found.items()}


@pytest.mark.parametrize("family", PLAIN)
def test_every_number_is_the_inner_product_of_gradient_and_error(family: str) -> None:
    model, batch = families.build(family), padded()
    known = map_formats(model, batch, FORMATS)
    for at, form in enumerate(FORMATS):
        for number, (path, expected) in enumerate(slowly(model, batch, form).items()):
            assert known.places[number].path == path
            size = np.abs(expected).max() + 1e-9
            assert known.projections[number, :, at] == pytest.approx(expected, rel=0.02, abs=0.05 * size), path


def test_nothing_is_left_behind_and_frozen_parameters_are_fine() -> None:
    model, batch = families.build("llama"), padded()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    free = map_formats(model, batch, FORMATS)
    model.requires_grad_(False)
    frozen = map_formats(model, batch, FORMATS)
    assert np.array_equal(free.projections, frozen.projections)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_what_is_cached_and_how_much_is_held_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches = families.build("gpt2"), [padded(), padded(4)]
    whole = map_formats(model, batches, FORMATS, diagonal=True)
    without = map_formats(model, batches, FORMATS, diagonal=True, cache_bytes=0)
    monkeypatch.setattr("noisescope.quantising.gathering.AT_ONCE", 300)
    parts = map_formats(model, batches, FORMATS, diagonal=True)
    assert np.array_equal(whole.projections, without.projections)
    assert np.allclose(whole.projections, parts.projections, rtol=1e-3, atol=1e-7)
    assert np.allclose(whole.diagonal, parts.diagonal, rtol=1e-3)
    assert whole.sequences.tolist() == [*range(7)]


def test_activations_by_the_gradient_of_the_input() -> None:
    model, batch = families.build("llama"), families.tokens(rows=2, length=8)
    known = map_formats(model, batch, [], activations=["int8"])
    (rows,) = as_batches(batch)
    module = model.model.layers[1].mlp.down_proj
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits = model(**rows.inputs()).logits
    handle.remove()
    (grad,) = torch.autograd.grad(logits, seen, score_of_sampled(logits.detach(), rows, Key(0, "labels#0")))
    error = parse_format("int8").round(seen[0].detach()) - seen[0].detach()
    at = [place.path for place in known.places].index("model.layers.1.mlp.down_proj")
    assert known.formats == ("none/int8",)
    assert known.projections[at, :, 0] == pytest.approx((grad * error).sum((1, 2)).numpy(), rel=1e-3)
    assert known.together({"model.layers.1.mlp.down_proj": "none/int8"}).value > 0


def test_the_diagonal_estimate_has_no_cross_terms() -> None:
    model, batch = families.build("llama"), families.tokens(rows=1, length=8)
    known = map_formats(model, batch, ["mxfp4"], diagonal=True)
    (rows,) = as_batches(batch)
    weight = find_weights(Layout.of(model))["model.layers.0.mlp.up_proj"].value
    logits = model(**rows.inputs()).logits
    (grad,) = torch.autograd.grad(logits, [weight], score_of_sampled(logits.detach(), rows, Key(0, "labels#0")))
    error = parse_format("mxfp4").round(weight.detach()) - weight.detach()
    at = [place.path for place in known.places].index("model.layers.0.mlp.up_proj")
    assert known.diagonal[at, 0, 0] == pytest.approx(float((grad * error).square().sum()), rel=0.03)
    with pytest.raises(InputError, match="diagonal=True"):
        map_formats(model, batch, ["mxfp4"]).without_cross_terms({})


@pytest.mark.parametrize(
    ("family", "groups"),
    [
        ("llama", {("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)}),
        ("gpt2", {("c_attn",), ("c_proj",), ("c_fc",)}),
        ("gpt_neox", {("query_key_value",), ("dense",), ("dense_h_to_4h",), ("dense_4h_to_h",)}),
        ("gptj", {("q_proj", "k_proj", "v_proj"), ("out_proj",), ("fc_in",), ("fc_out",)}),
        ("opt", {("q_proj", "k_proj", "v_proj"), ("out_proj",), ("fc1",), ("fc2",)}),
    ],
)
def test_weights_that_meet_the_same_input_are_one_group(family: str, groups: set[tuple[str, ...]]) -> None:
    known = map_formats(families.build(family), families.tokens(), ["int8"])
    assert {tuple(sorted(path.rpartition(".")[2] for path in paths)) for paths in known.groups.values()} == {
        tuple(sorted(group)) for group in groups
    }


def test_weights_whose_module_is_not_called_have_no_place() -> None:
    known = map_formats(odd_models.build("mamba"), families.tokens(), ["mxfp4"])
    assert known.left_out == tuple(f"backbone.layers.{layer}.mixer.dt_proj" for layer in (0, 1))
    assert not set(known.left_out) & {place.path for place in known.places}
    assert min(known.together({place.path: "mxfp4"}).value for place in known.places) > 0


@pytest.mark.parametrize("name", ["zamba2", "deepseek_v2"])
def test_shared_parameters_and_inputs_of_four_dimensions(name: str) -> None:
    model, batch = odd_models.build(name).double(), families.tokens(rows=2, length=8)
    known = map_formats(model, batch, ["mxfp4"])
    assert known.left_out == ()
    for number, (path, expected) in enumerate(slowly(model, batch, "mxfp4").items()):
        assert known.places[number].path == path
        size = np.abs(expected).max()
        assert known.projections[number, :, 0] == pytest.approx(expected, rel=0.02, abs=0.05 * size), path


# --- against running -----------------------------------------------------------------------------------------------


@cache
def of_llama() -> tuple[FormatMap, Bench]:
    model, tokenizer = trained.fixture("llama")
    mapped = data_for(model, None, tokenizer, n_samples=192, batch_size=32, max_length=16, seed=1)
    run = data_for(model, None, tokenizer, n_samples=64, batch_size=32, max_length=16, seed=2)
    return map_formats(model, mapped, ["int8", "mxfp6", "mxfp4"], diagonal=True), Bench(model, run)


@pytest.mark.parametrize("form", ["int8", "mxfp6", "mxfp4"])
def test_layers_cost_what_was_foretold(form: str) -> None:
    known, bench = of_llama()
    choices = [known.uniform(form, paths) for paths in known.layers.values()]
    predicted = np.array([known.together(choice).value for choice in choices])
    measured = np.array([measure(bench, choice, start=layer).value for layer, choice in enumerate(choices)])
    assert spearmanr(predicted, measured)[0] > 0.9
    assert 0.8 < np.median(predicted / measured) < 1.25


def test_layers_add_up() -> None:
    known, bench = of_llama()
    mixture = {place.path: ("int8", "mxfp6", "mxfp4")[place.layer % 3] for place in known.places}
    assert known.kl(mixture).value == pytest.approx(measure(bench, mixture).value, rel=0.3)
    layers = [known.together({path: mixture[path] for path in paths}).value for paths in known.layers.values()]
    assert known.kl(mixture).value == pytest.approx(sum(layers))


def test_where_the_second_order_fails_what_was_measured_stands() -> None:
    """A map that says ten times too much of one format."""
    known, bench = of_llama()
    wrong = known.projections.copy()
    wrong[:, :, 2] *= 10**0.5
    odd = FormatMap(known.places, known.formats, wrong, known.sequences, known.tokens)
    right, found = (check_formats(one, bench, known.formats) for one in (known, odd))
    assert right.failed == ()
    assert 0.7 < right.ratio < 1.4
    assert right.agreement.value > 0.9
    assert found.failed == ("mxfp4",)
    paths = known.layers[3]
    run = measure(bench, known.uniform("mxfp4", paths), start=3).value
    assert found.cost(paths, 3, "mxfp4") == pytest.approx(run)
    assert found.cost(paths, 3, "int8") == right.cost(paths, 3, "int8")


def test_cells_that_are_known_worst_are_run_and_stand_where_that_is_better() -> None:
    """One cell of a map that a single sequence has made, too large by less than a failure."""
    known, bench = of_llama()
    odd = known.projections.copy()
    layer, name = 2, "mxfp6"
    first = next(number for number, place in enumerate(known.places) if place.layer == layer)
    odd[first, 0, 1] += 12 * np.abs(odd[:, :, 1]).max()
    found = check_formats(
        FormatMap(known.places, known.formats, odd, known.sequences, known.tokens), bench, known.formats
    )
    assert len(found.cells) == PER_FORMAT * len(known.formats)
    (cell,) = (cell for cell in found.cells if (cell.layer, cell.format) == (layer, name))
    assert cell.stands
    run = measure(bench, known.uniform(name, known.layers[layer]), start=layer).value
    assert found.cost(known.layers[layer], layer, name) == pytest.approx(run)
    few = data_for(bench.model, None, trained.fixture("llama")[1], n_samples=8, batch_size=8, max_length=16, seed=2)
    for checked in (found, check_formats(known, Bench(bench.model, few), known.formats)):
        for other in checked.cells:
            better = other.measured.stderr < other.predicted.stderr
            assert ((other.layer, other.format) in checked.corrections) == (better or other.format in checked.failed)
    assert any(not other.stands for other in checked.cells)


def test_what_was_measured_stands_also_where_it_is_infinite_or_nothing() -> None:
    known, bench = of_llama()
    infinite = known.projections.copy()
    infinite[:, :, 2] = np.inf
    odd = FormatMap(known.places, known.formats, infinite, known.sequences, known.tokens)
    found = check_formats(odd, bench, known.formats)
    assert found.cost(known.layers[0], 0, "mxfp4") == inf
    assert 0.7 < found.ratio < 1.4
    estimate = Estimate(0.1, 0.05, 0.2, 0.01, 9)
    none, endless = (Estimate(value, value, value, 0.0, 9) for value in (0.0, inf))
    assert Cell(0, "mxfp4", estimate, none).correction == 0.0
    assert Cell(0, "mxfp4", estimate, endless).correction == inf
    assert Cell(0, "mxfp4", estimate, estimate.scaled(3)).correction == pytest.approx(3)


# --- as a file, and what cannot be meant ---------------------------------------------------------------------------


def test_a_map_is_kept_with_its_question(tmp_path) -> None:
    known, _ = of_llama()
    file, question = tmp_path / "maps" / "map.json", {"weights": "a", "data": "b", "seed": 0}
    assert load_map(file, question, ("int8",)) is None
    save_map(known, file, question)
    again = load_map(file, question, known.formats)
    assert np.array_equal(again.projections, known.projections)
    assert again.places == known.places
    assert load_map(file, {**question, "seed": 1}, ("int8",)) is None
    assert load_map(file, question, ("int4",)) is None
    fewer = load_map(file, question, ("mxfp4", "int8"))
    assert fewer.together(fewer.uniform("mxfp4")) == known.together(known.uniform("mxfp4"))


def test_what_overflows_is_infinite_and_kept_as_it_is(tmp_path) -> None:
    known, _ = of_llama()
    over = known.projections.copy()
    over[0, :2, 0], over[1, 0, 0] = (np.inf, np.nan), -np.inf
    file = tmp_path / "map.json"
    save_map(FormatMap(known.places, known.formats, over, known.sequences, known.tokens), file, {})
    again = load_map(file, {}, known.formats)
    assert np.array_equal(again.projections, over, equal_nan=True)
    first, second, third = (place.path for place in known.places[:3])
    for paths in ([first], [second], [first, second], [second, third]):
        found = again.together(dict.fromkeys(paths, "int8"))
        assert found == again.kl(dict.fromkeys(paths, "int8"))
        assert (found.value, found.low, found.high) == (np.inf, np.inf, np.inf)
    assert again.together({third: "int8"}) == known.together({third: "int8"})
    assert again.together({first: "mxfp4"}) == known.together({first: "mxfp4"})


@pytest.mark.parametrize("text", ["{", '{"schema": "else"}', '{"schema": "noisescope format map", "version": 1}'])
def test_a_file_that_is_no_map(tmp_path, text: str) -> None:
    file = tmp_path / "map.json"
    file.write_text(text)
    if "version" in text:
        assert load_map(file, {}, ("int8",)) is None
        return
    with pytest.raises(InputError, match=r"map\.json: not a format map"):
        load_map(file, {}, ("int8",))


def test_a_damaged_map(tmp_path) -> None:
    known, _ = of_llama()
    file = tmp_path / "map.json"
    save_map(known, file, {})
    file.write_text(file.read_text().replace('"sequences"', '"sequenzen"', 1))
    with pytest.raises(InputError, match=r"map\.json: is damaged"):
        load_map(file, {}, ("int8",))


def test_what_cannot_be_meant() -> None:
    model, batch = families.build("llama"), families.tokens()
    with pytest.raises(InputError, match="formats: got none"):
        map_formats(model, batch, [])
    with pytest.raises(InputError, match="twice"):
        map_formats(model, batch, ["mxfp4", "mxfp4"])
    with pytest.raises(InputError, match="embed has no map"):
        map_formats(model, batch, ["mxfp4"], include=["embed"])
    known = map_formats(model, batch, ["mxfp4"])
    with pytest.raises(InputError, match='unknown format of this map "int8"'):
        known.together(known.uniform("int8"))
    with pytest.raises(InputError, match="unknown weight"):
        known.together({"nothing": "mxfp4"})


def test_the_head_if_it_is_asked_for() -> None:
    known = map_formats(families.build("llama"), families.tokens(), ["mxfp4"], include=["head"])
    assert known.layers["head"] == ("lm_head",)
    assert known.together({"lm_head": "mxfp4"}).value > 0


def test_public() -> None:
    assert ns.map_formats is map_formats
