"""smooth(): the model in, the same function with smaller outliers out, and as files."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from planting import awaken, data, plant
from transformers import AutoModelForCausalLM, AutoTokenizer

import families
import trained
from noisescope import ChannelOutlierDetector, smooth
from noisescope.errors import CompiledModel, InputError, ModelError, NoisescopeError, NothingMatched, StoreError
from noisescope.keys.fingerprints import fingerprint_model
from noisescope.measure.intervals import ratio
from noisescope.measure.opening import open_data
from noisescope.measure.scoring import RowScores, score, select
from noisescope.quantising import quantised
from noisescope.smoothing.groups import write
from noisescope.smoothing.logits import LogitChange

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def planted():
    """The trained llama with outliers planted, data to calibrate on, and what became of it."""
    model, tokenizer = trained.fixture("llama")
    plant(model, layers=range(8), channels=(3, 17), factor=60.0)
    calibration = open_data(None, tokenizer, n_samples=16)
    before = fingerprint_model(model)
    found = smooth(model, calibration, name="planted")
    assert fingerprint_model(model) == before
    return model, tokenizer, calibration, found


def logits_of(model, evaluation):
    with torch.no_grad():
        return [model(**batch.inputs()).logits for batch in evaluation]


def rounded_scores(model, reference, evaluation) -> RowScores:
    """KL of the model in W8A8 from a reference."""
    clean = [select(logits, batch) for logits, batch in zip(logits_of(reference, evaluation), evaluation, strict=True)]
    with quantised(model, "int8/int8"):
        noisy = logits_of(model, evaluation)
    return RowScores.concatenate(score(*parts) for parts in zip(noisy, evaluation, clean, strict=True))


def test_planted_outliers_are_undone(planted) -> None:
    _, _, _, found = planted
    fed = [row for row in found.groups if "layernorm" in row.name]
    assert len(fed) == 16
    assert all(row.alpha is not None and row.ratio_before > 20 > 5 > row.ratio_after for row in fed)
    assert all(row.error_after.value < row.error_before.value / 5 for row in fed)
    assert all(row.error_after.value <= row.error_before.value for row in found.groups)


def test_the_function_is_the_same(planted) -> None:
    model, tokenizer, _, found = planted
    fresh = open_data(None, tokenizer, n_samples=8, seed=3)
    before, after = (torch.cat(logits_of(one, fresh)) for one in (model, found.model))
    assert 0 < float((after - before).abs().max()) <= 1e-4 * float(before.std())
    assert found.logits.is_rounding
    assert found.logits.largest <= 1e-4 * found.logits.spread


def test_the_error_of_the_whole_model_is_smaller(planted) -> None:
    """On text that it was not calibrated on, paired by sample: significantly, and about as if nothing were planted."""
    model, tokenizer, _, found = planted
    fresh = open_data(None, tokenizer, n_samples=16, seed=3)
    worse, better = (rounded_scores(one, model, fresh) for one in (model, found.model))
    saved = ratio(worse.kl_nats - better.kl_nats, worse.kl_nats)
    assert saved.low > 0.8
    plain, _ = trained.fixture("llama")
    assert better.kl_nats.sum() < 1.5 * rounded_scores(plain, plain, fresh).kl_nats.sum()


def test_ratios_after_are_those_of_the_smoothed_model(planted) -> None:
    _, _, calibration, found = planted
    row = next(row for row in found.groups if row.name.startswith("post_attention"))
    seen = []
    handle = found.model.get_submodule(row.consumers[0]).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits_of(found.model, calibration)
    handle.remove()
    largest = torch.cat([given.flatten(0, 1) for given in seen]).abs().amax(0)
    ordered = largest.sort().values
    assert row.ratio_after == pytest.approx(float(ordered[-1] / ordered[(len(ordered) - 1) // 2]), rel=1e-3)


def test_what_is_printed(planted) -> None:
    _, _, _, found = planted
    text = str(found)
    assert text.startswith("planted, int8 weights and int8 activations: ")
    assert "input_layernorm -> q_proj k_proj v_proj" in text
    assert "more, with less gain" in text
    assert "same function: logits moved by at most" in text
    assert found.summary(verbose=True).count("mlp.up_proj -> down_proj") == 8
    assert found.summary(verbose=True).count("-> o_proj") == 8


# --- how it is asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", families.DECODERS)
def test_every_family_keeps_its_function(family: str) -> None:
    model = awaken(families.build(family))
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    found = smooth(model, data(family), alpha=0.6)
    assert {row.alpha for row in found.groups} == {0.6}
    assert 0 < found.logits.largest <= 1e-4 * found.logits.spread
    assert (found.model.get_output_embeddings().weight is found.model.get_input_embeddings().weight) == tied


def test_powers_of_two_are_what_16_bit_gets() -> None:
    model = awaken(families.build("llama"))
    assert not smooth(model, data()).powers_of_two
    exact = smooth(model, data(), powers_of_two=True, alpha=0.5)
    assert exact.logits.largest == 0
    assert "the same bit for bit" in str(exact)
    narrow = smooth(model.to(torch.bfloat16), data(), alpha=0.5)
    assert narrow.powers_of_two
    assert narrow.logits.largest == 0
    assert smooth(model, data(), powers_of_two=False, alpha=0.5).logits.largest > 0


@pytest.mark.parametrize("family", families.DECODERS)
def test_every_family_keeps_its_function_in_bfloat16(family: str) -> None:
    """Bit for bit, but for norms that multiply by 1 + weight."""
    model = awaken(families.build(family)).to(torch.bfloat16)
    found = smooth(model, data(family), alpha=0.6)
    assert (found.logits.largest == 0) == (family != "gemma3")
    if family != "gemma3":
        assert found.logits.bound <= 0.04 * found.logits.spread


def test_in_place() -> None:
    model = awaken(families.build("llama"))
    before = fingerprint_model(model)
    found = smooth(model, data(), alpha=0.5, inplace=True)
    assert found.model is model
    assert fingerprint_model(model) != before


def interrupted(what: str, total: int):
    """Progress that Ctrl-C ends in the middle of the choices."""
    left = iter(range(total // 2))

    def tick() -> None:
        if what == "smoothing" and next(left, None) is None:
            raise KeyboardInterrupt

    return tick


def test_what_is_raised_in_place_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = awaken(families.build("llama"))
    before = fingerprint_model(model)
    with pytest.raises(KeyboardInterrupt):
        smooth(model, data(), alpha=0.5, inplace=True, progress=interrupted)
    assert fingerprint_model(model) == before
    monkeypatch.setattr("noisescope.smoothing.logits.ROUNDINGS", 1e-6)
    with pytest.raises(ModelError, match="would move the logits"):
        ChannelOutlierDetector(model, data()).apply_smoothquant_scaling()
    assert fingerprint_model(model) == before


def test_a_block_is_written_whole_or_not_at_all() -> None:
    module = torch.nn.Linear(3, 2)
    before = fingerprint_model(module)
    with pytest.raises(RuntimeError):
        write({module.weight: torch.zeros(2, 3), module.bias: torch.zeros(5)})
    assert fingerprint_model(module) == before


def test_the_same_question_gives_the_same_answer() -> None:
    model = awaken(families.build("llama"))
    one, two = (smooth(model, data(), budget_bytes=1) for _ in range(2))
    assert one.sections == two.sections
    assert fingerprint_model(one.model) == fingerprint_model(two.model)


def test_padding_is_not_looked_at() -> None:
    """Rows of several lengths in one batch or one by one give the same largest values."""
    rows = [families.tokens(rows=1, length=length, seed=length) for length in (5, 9, 14, 20)]
    model = awaken(families.build("llama"))
    together, apart = (smooth(model, rows, batch_size=size, alpha=0.5) for size in (4, 1))
    for a, b in zip(together.groups, apart.groups, strict=True):
        assert a.ratio_before == pytest.approx(b.ratio_before, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"alpha": 1.5}, InputError, "alpha: got 1.5"),
        ({"weights": "int9"}, InputError, 'weights: unknown format "int9", did you mean "int8"'),
        ({"activations": "int8:stochastic"}, InputError, "activations: int8:stochastic rounds at random"),
        ({"calibration_samples": 1}, InputError, "calibration_samples: got 1"),
        ({"powers_of_two": "yes"}, InputError, "powers_of_two: got"),
    ],
)
def test_refusals_of_what_is_asked(options, kind, said) -> None:
    with pytest.raises(kind, match=said):
        smooth(families.build("llama"), data(), **options)


def test_refusals_of_models() -> None:
    with pytest.raises(ModelError, match="expected a causal language model"):
        smooth(families.build("bert"), data())
    with pytest.raises(InputError, match="in training mode"):
        smooth(families.build("llama").train(), data())
    packed = families.build("llama")
    packed.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(
        torch.zeros(48, 32, dtype=torch.int8), requires_grad=False
    )
    with pytest.raises(ModelError, match="is quantised already"):
        smooth(packed, data())
    with pytest.raises(CompiledModel, match="is compiled, and cannot be watched"):
        smooth(torch.compile(families.build("llama")), data())
    broken = families.build("llama")
    broken.model.layers[1].mlp.up_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        smooth(broken, data())
    bare = families.build("olmo")
    for layer in bare.model.layers:
        layer.self_attn.o_proj.weight = bare.model.layers[0].self_attn.o_proj.weight
        layer.mlp.down_proj.weight = bare.model.layers[0].mlp.down_proj.weight
    with pytest.raises(NothingMatched, match="nothing in it can be smoothed: input_layernorm has no weight"):
        smooth(bare, data())


def test_another_function_is_never_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisescope.smoothing.logits.ROUNDINGS", 1e-6)
    with pytest.raises(ModelError, match=r"smoothing would move the logits by .*, expected at most"):
        smooth(awaken(families.build("llama")), data(), alpha=0.5)
    assert not LogitChange(largest=2.0, spread=1.0, bound=1.0, tokens=1).is_rounding


# --- files ------------------------------------------------------------------------------------------------------


def test_a_saved_model_is_an_ordinary_one(planted, tmp_path: Path) -> None:
    _, tokenizer, calibration, found = planted
    place = found.save(tmp_path / "deep" / "smoothed", tokenizer=tokenizer)
    again = AutoModelForCausalLM.from_pretrained(place).eval()
    for before, after in zip(logits_of(found.model, calibration), logits_of(again, calibration), strict=True):
        assert torch.equal(before, after)
    assert AutoTokenizer.from_pretrained(place)("a text").input_ids == tokenizer("a text").input_ids
    record = json.loads((place / "smoothing.json").read_text())
    assert (record["schema"], record["version"], record["model"]) == ("noisescope smoothing", 1, "planted")
    assert len(record["groups"]) == 32
    assert {path.name for path in place.iterdir()} >= {"config.json", "generation_config.json", "model.safetensors"}
    assert [path.name for path in place.parent.iterdir()] == ["smoothed"]


def test_settings_of_generation_are_saved_as_they_are(tmp_path: Path) -> None:
    """Many published models have a temperature and no do_sample, which transformers opens and does not save."""
    model = awaken(families.build("llama"))
    model.generation_config.temperature = 0.6
    place = smooth(model, data(), alpha=0.5, inplace=True).save(tmp_path / "out")
    assert model.generation_config.temperature == 0.6
    assert AutoModelForCausalLM.from_pretrained(place).generation_config.temperature == 0.6
    assert json.loads((place / "generation_config.json").read_text())["temperature"] == 0.6


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    model = awaken(families.build("gpt2"))
    place = smooth(model, data("gpt2"), alpha=0.5).save(tmp_path / "tied")
    again = AutoModelForCausalLM.from_pretrained(place)
    assert again.lm_head.weight is again.transformer.wte.weight
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_what_is_there_is_replaced_only_if_it_is_ours(tmp_path: Path) -> None:
    found = smooth(awaken(families.build("llama")), data(), alpha=0.5)
    place = found.save(tmp_path / "out")
    with pytest.raises(InputError, match="is there already"):
        found.save(place)
    (place / "notes.txt").write_text("old")
    found.save(place, overwrite=True)
    assert not (place / "notes.txt").exists()
    (tmp_path / "mine").mkdir()
    found.save(tmp_path / "mine")  # empty: nothing is lost
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match="is no smoothed model, and is not replaced"):
        found.save(tmp_path / "precious", overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="it is a file, expected a directory"):
        found.save(tmp_path / "file", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine", "out", "precious"]


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = smooth(awaken(families.build("llama")), data(), alpha=0.5)
    place = found.save(tmp_path / "out")
    before = (place / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(found.model, "save_pretrained", full)
    for target in (place, tmp_path / "new"):
        with pytest.raises(NoisescopeError, match="No space left on device"):
            found.save(target, overwrite=True)
    assert (place / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class Deadly:
    """A tokenizer at which the process is killed."""

    def save_pretrained(self, place: Path) -> None:
        assert (Path(place) / "model.safetensors").exists()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_killed_save_leaves_nothing_that_looks_like_a_model(tmp_path: Path) -> None:
    """Killed once the weights are written and before the directory is in its place."""
    found = smooth(awaken(families.build("llama")), data(), alpha=0.5)
    old = found.save(tmp_path / "old")
    before = (old / "model.safetensors").read_bytes()
    for target in (tmp_path / "new", old):
        if not (child := os.fork()):
            found.save(target, tokenizer=Deadly(), overwrite=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (old / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["old"]
