"""Persistence of outlier channels against counting by hand, whatever the dtype, the padding and the model."""

import gc
import math

import pytest
import torch

import noisescope as ns
from families import FAMILIES, build, tokens
from noisescope.capturing import Persistence, capture, persistence
from noisescope.capturing.persistence import PersistenceTally, lower_median
from noisescope.capturing.sequences import Padding, Sequences
from noisescope.errors import BudgetExceeded, InputError

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
DOWN = "model.layers.1.mlp.down_proj"
SITE = f"{DOWN}.linear.0.forward"


# --- by hand ----------------------------------------------------------------------------------------------------


def lower_of_two(numbers):
    numbers = sorted(numbers)
    return numbers[(len(numbers) - 1) // 2]


def count_by_hand(values, threshold, masks=None):
    """Samples, and for each channel those in which it is an outlier, also by a single token; the definition, slowly."""
    samples, channels = 0, values[0].shape[2]
    over, single = [0] * channels, [0] * channels
    for batch, value in enumerate(values):
        for row, sample in enumerate(value.double().tolist()):
            kept = [token for at, token in enumerate(sample) if masks is None or masks[batch][row][at]]
            if not kept:
                continue
            samples += 1
            sizes = [[abs(token[c]) if math.isfinite(token[c]) else 0.0 for token in kept] for c in range(channels)]
            peaks = list(map(max, sizes))
            median = lower_of_two(peaks) or lower_of_two([peak for peak in peaks if peak] or [0.0])
            for c in range(channels):
                if peaks[c] > threshold * median:
                    over[c] += 1
                    rest = sorted(sizes[c])[:-1]
                    single[c] += bool(rest) and rest[-1] <= min(threshold * median, peaks[c] / 2)
    return samples, over, single


def tally(values, threshold, masks=None):
    found = PersistenceTally(values[0].shape[2], threshold, torch.device("cpu"))
    for index, value in enumerate(values):
        found.fold(value, arranged(value, None if masks is None else masks[index]))
    return found.read()


def arranged(value, mask=None):
    rows, length = value.shape[:2]
    if mask is None:
        return Sequences(rows, length, None)
    return Sequences(rows, length, Padding(mask, mask.flatten().nonzero().squeeze(1), int(mask.any(1).sum())))


def heavy(*shape, seed=0):
    """Values with tails: outliers at several tokens and at single ones."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return noise * (1.6 * torch.randn(shape[:1] + shape[2:], generator=torch.Generator().manual_seed(seed + 9))).exp()[
        :, None
    ] + 6 * noise.pow(3) * (noise.abs() > 2.2)


def random_masks(values, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.rand(value.shape[:2], generator=random) < 0.7 for value in values]


def assert_counts(found, expected):
    samples, over, single = expected
    assert isinstance(found, Persistence)
    assert found.samples == samples
    assert found.outlier_samples.tolist() == over
    assert found.single_token_samples.tolist() == single
    assert found.share.tolist() == [count / max(samples, 1) for count in over]


# --- the definition ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [1.5, 4.0, 10.0])
@pytest.mark.parametrize("padded", [False, True])
def test_counts_are_those_by_hand(dtype, threshold, padded):
    values = [heavy(rows, length, 17, seed=rows).to(dtype) for rows, length in ((5, 9), (1, 30), (7, 2), (3, 1))]
    masks = random_masks(values) if padded else None
    expected = count_by_hand(values, threshold, masks)
    assert 0 < sum(expected[2]) < sum(expected[1])
    assert_counts(tally(values, threshold, masks), expected)


@pytest.mark.parametrize("padded", [False, True])
def test_pieces_and_devices_do_not_matter(padded, monkeypatch):
    values = [heavy(6, 20, 13, seed=seed) for seed in range(3)]
    masks = random_masks(values) if padded else None
    whole = tally(values, 3.0, masks)
    assert whole.single_token_samples.any()
    for name in ("CHUNK", "DEVICE_CHUNK"):
        monkeypatch.setattr(persistence, name, 7 * 6 * 13)
    in_pieces = tally(values, 3.0, masks)
    monkeypatch.setattr(persistence, "_single_sparse", persistence._single_dense)  # as on a device
    as_elsewhere = tally(values, 3.0, masks)
    for other in (in_pieces, as_elsewhere):
        assert other.samples == whole.samples
        assert other.outlier_samples.equal(whole.outlier_samples)
        assert other.single_token_samples.equal(whole.single_token_samples)


def planted(*tokens_of_channel, channels=9):
    """One sample of ones, but for channel 0."""
    value = torch.ones(1, len(tokens_of_channel), channels)
    value[0, :, 0] = torch.tensor(tokens_of_channel, dtype=torch.float32)
    return value


@pytest.mark.parametrize(
    ("channel", "outlier", "single"),
    [
        ((30.0, 1.0, 1.0), 1, 1),
        ((-30.0, 1.0, 1.0), 1, 1),
        ((30.0, 28.0, 1.0), 1, 0),  # two tokens
        ((100.0, 11.0, 1.0), 1, 0),  # an outlier without its largest token too
        ((100.0, 10.0, 1.0), 1, 1),  # just none
        ((12.0, 9.0, 1.0), 1, 0),  # one token over the threshold, but the next is about as large
        ((12.0, 6.0, 1.0), 1, 1),
        ((10.0, 1.0, 1.0), 0, 0),  # at the threshold
        ((10.1,), 1, 0),  # one token: nobody can tell
    ],
)
def test_what_a_single_token_is(channel, outlier, single):
    found = tally([planted(*channel)], 10.0)
    assert (found.outlier_samples[0].item(), found.single_token_samples[0].item()) == (outlier, single)
    assert not found.outlier_samples[1:].any()


def test_one_token_beside_padding_cannot_tell_either():
    mask = torch.tensor([[True, False, False]])
    found = tally([planted(30.0, 500.0, 500.0)], 10.0, [mask])
    assert (found.outlier_samples[0].item(), found.single_token_samples[0].item()) == (1, 0)


def test_a_sample_of_padding_only_is_none():
    values, masks = [heavy(3, 4, 5)], [torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]).bool()]
    assert tally(values, 2.0, masks).samples == 2
    assert_counts(tally(values, 2.0, masks), count_by_hand(values, 2.0, masks))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_left_out(bad):
    values = [heavy(4, 8, 11), heavy(4, 8, 11, seed=1)]
    values[0][1, 3, 2] = values[0][2, :, 5] = values[1][0, 0, 0] = bad
    assert_counts(tally(values, 2.5), count_by_hand(values, 2.5))


def test_where_most_channels_are_dead_the_others_say_what_is_usual():
    value = torch.zeros(2, 4, 9)
    value[0, :, 6], value[0, :, 7], value[0, :, 8] = 1.0, 2.0, 50.0  # the other sample is dead altogether
    found = tally([value], 10.0)
    assert found.samples == 2
    assert found.outlier_samples.tolist() == [0] * 8 + [1]
    assert_counts(found, count_by_hand([value], 10.0))


def test_the_median():
    assert lower_median(torch.tensor([3.0, 1.0, 2.0, 4.0])) == 2
    assert lower_median(torch.tensor([0.0, 0.0, 0.0, 5.0, 4.0])) == 4
    assert lower_median(torch.tensor([torch.nan, 0.0, 5.0, 6.0])) == 5
    assert lower_median(torch.zeros(3)) == 0
    assert lower_median(torch.full((3,), torch.nan)) == 0


# --- in a model -------------------------------------------------------------------------------------------------

MASKS = {
    "right": torch.tensor([[1] * 12, [1] * 7 + [0] * 5, [1] + [0] * 11]),
    "left": torch.tensor([[1] * 12, [0] * 5 + [1] * 7, [0] * 11 + [1]]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_does_not_count_in_any_family(family):
    model, batch, mask = build(family), tokens(family, rows=3), MASKS["right"]
    masks = {"decoder_attention_mask": mask} if family == "t5" else {}
    with capture(model, outputs=True, persistence=1.5) as captured, torch.no_grad():
        model(**batch, attention_mask=mask, **masks)
    assert captured.persistence.keys() == captured.statistics.keys()
    for name, found in captured.persistence.items():
        if "experts" in name:
            assert found is None
            assert captured.statistics[name].tokens == 2 * 3 * 12
            continue
        value = captured.outputs[name][0].reshape(3, 12, -1)
        assert captured.statistics[name].tokens == 12 + 7 + 1
        assert captured.statistics[name].max_abs.equal(value[mask.bool()].abs().amax(0).double())
        assert_counts(found, count_by_hand([value], 1.5, [mask]))
    assert any(found is not None and found.outlier_samples.any() for found in captured.persistence.values())


@pytest.mark.parametrize("call", [lambda m, i, k: m(i, k), lambda m, i, k: m(attention_mask=k, input_ids=i)])
@pytest.mark.parametrize("side", MASKS)
def test_the_mask_is_found_however_it_is_given(call, side):
    model, ids = build("llama"), tokens(rows=3)["input_ids"]
    for inner in (model, model.model):
        with capture(model) as captured, torch.no_grad():
            call(inner, ids, MASKS[side])
        assert {found.tokens for found in captured.statistics.values()} == {20}


@pytest.mark.parametrize("mask", [torch.ones(3, 12), None, torch.zeros(3, 1, 12, 12)])
def test_masks_that_leave_out_nothing(mask):
    model = build("llama")
    with capture(model, persistence=2.0) as captured, torch.no_grad():
        model(**tokens(rows=3), attention_mask=mask)
    assert {found.tokens for found in captured.statistics.values()} == {36}
    assert {found.samples for found in captured.persistence.values()} == {3}


def test_an_encoder_and_a_decoder_have_masks_of_their_own():
    model, mask, other = build("t5"), MASKS["right"], torch.arange(12).expand(3, -1) < 9
    for masks, expected in (({}, 36), ({"decoder_attention_mask": other.long()}, 27)):
        with capture(model) as captured, torch.no_grad():
            model(**tokens("t5", rows=3), attention_mask=mask, **masks)
        counted = {name.split(".")[0]: found.tokens for name, found in captured.statistics.items()}
        assert counted == {"encoder": 20, "decoder": expected}


def test_a_new_mask_in_every_pass_and_one_that_is_written_over():
    model, ids, mask = build("llama"), tokens(rows=3)["input_ids"], MASKS["left"].clone()
    with capture(model, modules=DOWN, persistence=1.5) as captured, torch.no_grad():
        model(ids, attention_mask=mask)
        mask.copy_(MASKS["right"].roll(1, 0))
        model(ids, attention_mask=mask)
        mask[0] = 0
        model(ids, attention_mask=mask)
    assert captured.statistics[SITE].tokens == 20 + 20 + 19
    assert captured.persistence[SITE].samples == 3 + 3 + 2


def test_generation_and_the_last_logits_take_the_end_of_the_mask():
    model, ids = build("llama"), tokens(rows=3)["input_ids"]
    with capture(model, modules=DOWN) as captured, torch.no_grad():
        model.generate(ids, attention_mask=MASKS["left"], max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert captured.statistics[SITE].tokens == 20 + 3 * 3
    with capture(model, layers="head", persistence=10.0) as captured, torch.no_grad():
        model(ids, attention_mask=MASKS["right"], logits_to_keep=8)
    (head,) = captured.persistence
    assert captured.statistics[head].tokens == 8 + 3
    assert captured.persistence[head].samples == 2


def test_sites_that_are_not_laid_out_by_token_have_ratios_but_no_persistence():
    model = build("llama")
    with capture(model, operators=["softmax", "linear", "rms_norm"], layers=1, persistence=5.0) as captured:
        model(**tokens())
    unknown = {name for name, found in captured.persistence.items() if found is None}
    assert unknown == {"model.layers.1.self_attn.softmax.0.forward"}
    assert unknown < captured.statistics.keys()


def test_experts_that_see_as_many_rows_as_there_are_tokens_are_not_taken_for_sequences():
    model = build("mixtral")
    for layer in model.model.layers:
        layer.mlp.gate.top_k = 1
        layer.mlp.top_k = 1
    with capture(model, outputs=True, persistence=5.0) as captured, torch.no_grad():
        model(**tokens())
    experts = [name for name in captured.sites if "experts" in name]
    assert {len(captured.outputs[name][0]) for name in experts} == {24}  # 2 x 12
    assert {captured.persistence[name] for name in experts} == {None}


def test_bfloat16():
    model = build("llama").to(torch.bfloat16)
    with capture(model, outputs=True, persistence=1.5) as captured, torch.no_grad():
        for seed in range(3):
            model(**tokens(seed=seed))
    for name, found in captured.persistence.items():
        assert_counts(found, count_by_hand(captured.outputs[name], 1.5))


@pytest.mark.parametrize("inside", [True, False])
def test_beside_injection(inside):
    model, batch = build("llama"), tokens(rows=3)
    injection = ns.inject(model, ns.RelativeGaussian(2.0), modules=DOWN)
    captured = capture(model, outputs=True, persistence=1.5)
    first, second = (injection, captured) if inside else (captured, injection)
    with first, second, torch.no_grad():
        model(**batch, attention_mask=MASKS["left"])
    value = captured.outputs[SITE][0]
    assert_counts(captured.persistence[SITE], count_by_hand([value], 1.5, [MASKS["left"]]))
    with capture(model, outputs=True) as clean, torch.no_grad():
        model(**batch, attention_mask=MASKS["left"])
    assert value.equal(clean.outputs[SITE][0]) != inside
    assert captured.statistics[SITE].tokens == 20


def test_logits_and_gradients_do_not_notice():
    model, batch = build("llama"), tokens(rows=3) | {"attention_mask": MASKS["right"]}

    def run(context):
        model.zero_grad()
        with context:
            output = model(**batch, labels=batch["input_ids"])
            output.loss.backward()
        return [output.logits, *(parameter.grad for parameter in model.parameters())]

    assert all(map(torch.equal, run(torch.enable_grad()), run(capture(model, persistence=2.0))))


# --- memory -----------------------------------------------------------------------------------------------------


def held_bytes(captured):
    """Bytes of all tensors behind the capture's statistics, found by what these refer to."""
    seen, storages, waiting = set(), {}, [captured._tallies, captured._samples]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor) and thing.ndim:
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif not isinstance(thing, torch.Tensor):
            waiting += gc.get_referents(thing)
    return sum(storages.values())


def test_memory_does_not_depend_on_the_number_of_samples():
    model, held = build("llama"), {}
    for batches in (2, 40):
        with capture(model, persistence=3.0) as captured, torch.no_grad():
            for seed in range(batches):
                model(**tokens(rows=1 + seed % 4, length=3 + seed % 7, seed=seed))
            held[batches] = held_bytes(captured), captured.used_bytes
        assert captured.persistence[SITE].samples == sum(1 + seed % 4 for seed in range(batches))
    assert held[2] == held[40]
    assert held[2][0] == held[2][1] == 3 * (32 + 32 + 48) * (1328 + 16)


def test_the_budget_knows_of_it_before_the_model_runs():
    model = build("llama")
    needed = 3 * (32 + 32 + 48) * (1328 + 16)
    with capture(model, persistence=10.0, budget_bytes=needed), torch.no_grad():
        model(**tokens())
        model(**tokens())
    entered = False
    with pytest.raises(BudgetExceeded, match="451 584 bytes in all"):  # noqa: SIM117
        with capture(model, persistence=10.0, budget_bytes=needed - 1):
            entered = True
    assert not entered


@pytest.mark.parametrize("family", FAMILIES)
def test_any_budget_is_kept_or_refused(family):
    model, batch = build(family), tokens(family)
    with capture(model, persistence=3.0) as whole, torch.no_grad():
        model(**batch)
    assert held_bytes(whole) == whole.used_bytes
    for short in (1, whole.used_bytes // 3, whole.used_bytes):
        captured = capture(model, persistence=3.0, budget_bytes=whole.used_bytes - short)
        with pytest.raises(BudgetExceeded), captured, torch.no_grad():
            model(**batch)
        assert held_bytes(captured) == captured.used_bytes <= whole.used_bytes - short


# --- asking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.5, -1, True, math.nan, math.inf, "10"])
def test_thresholds_that_cannot_be_meant(threshold):
    with pytest.raises(InputError, match=r"persistence: got .*, expected the ratio of an outlier, a number >= 1"):
        capture(build("llama"), persistence=threshold)


def test_persistence_needs_statistics_and_is_empty_unless_asked_for():
    model = build("llama")
    with pytest.raises(InputError, match="persistence belongs to the statistics"):
        capture(model, statistics=False, outputs=True, persistence=10.0)
    with capture(model) as captured:
        model(**tokens())
    assert captured.persistence == {}
    assert captured.persistence_threshold is None


def test_an_open_capture_goes_on_counting():
    model = build("llama")
    captured = capture(model, persistence=3)
    for seed in range(2):
        with captured:
            model(**tokens(seed=seed))
    assert captured.persistence[SITE].samples == 4
    assert captured.persistence_threshold == 3.0
