"""Scores against the slow way, one position at a time; padding, excluded tokens, what is not finite, errors."""

from math import inf, isnan, log
from pathlib import Path

import numpy as np
import pytest
import torch
from allocated import Largest
from transformers import AutoModelForCausalLM

from noisescope.errors import InputError
from noisescope.measure import divergence
from noisescope.measure.batches import Batch
from noisescope.measure.scoring import RowScores, first_bad_row, kl_gradient, score, select

pytestmark = pytest.mark.usefixtures("one_thread")

FIXTURES = Path(__file__).parents[2] / "fixtures"
ROWS, LENGTH, VOCAB = 5, 9, 300
SUMS = ("kl_nats", "flips", "correct", "nll_nats")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def make_batch(seed=0, vocab=VOCAB, rows=ROWS):
    """Rows of several lengths, of which only some tokens are predicted, and of one none at all."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocab, (rows, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (rows,), generator=generator)
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    predicted = mask[:, 1:].bool() & (torch.rand(rows, LENGTH - 1, generator=generator) < 0.8)
    predicted[rows // 2] = False
    return Batch(ids, mask, predicted, tuple(range(rows)))


def make_logits(noise, dtype=torch.float32, seed=0, vocab=VOCAB, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    clean = 3 * torch.randn(rows, LENGTH, vocab, generator=generator, dtype=torch.float64)
    noisy = clean + noise * torch.randn(clean.shape, generator=generator, dtype=torch.float64)
    return clean.to(dtype), noisy.to(dtype)


def slowly(logits, batch, clean=None):
    """The definition: a loop over positions, log-softmax in float64."""
    found = np.zeros((4, batch.rows))
    tokens = np.zeros(batch.rows, dtype=np.int64)
    for row in range(batch.rows):
        for token in range(LENGTH - 1):
            if not batch.predicted[row, token]:
                continue
            target = int(batch.input_ids[row, token + 1])
            q = torch.log_softmax(logits[row, token].double(), -1)
            p = q if clean is None else torch.log_softmax(clean[row, token].double(), -1)
            likely = p > -inf
            kl = (p.exp() * (p - q))[likely].sum()
            top = int(logits[row, token].argmax())
            flip = clean is not None and top != int(clean[row, token].argmax())
            found[:, row] += float(kl), flip, top == target, -float(q[target])
            tokens[row] += 1
    return RowScores(tokens, *found)


def assert_close(found, expected):
    assert found.tokens.dtype == np.int64
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    for name in SUMS:
        assert getattr(found, name).dtype == np.float64
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("noise", [0, 1e-3, 0.1, 1, 10])
def test_against_the_slow_way(noise, dtype):
    batch, (clean, noisy) = make_batch(), make_logits(noise, dtype)
    assert_close(score(noisy, batch, select(clean, batch)), slowly(noisy, batch, clean))


def test_the_test_data_says_something():
    """Flips, equal logits in bf16, unequal rows: what the comparison above is about does occur."""
    batch, (clean, noisy) = make_batch(), make_logits(1)
    found = slowly(noisy, batch, clean)
    assert 0 < found.flips.sum() < found.tokens.sum()
    assert len(set(found.tokens)) > 2
    assert 0 in found.tokens
    narrow = make_logits(0.1, torch.bfloat16)[1]
    assert ((narrow == narrow.amax(-1, keepdim=True)).sum(-1) > 1).any()


def test_targets_that_are_right():
    batch, (_, logits) = make_batch(), make_logits(0)
    best = logits.argmax(-1)
    ids = torch.cat([batch.input_ids[:, :1], best[:, :-1]], dim=1)
    found = score(logits, Batch(ids, batch.attention_mask, batch.predicted, batch.samples))
    np.testing.assert_array_equal(found.correct, found.tokens)


@pytest.mark.parametrize("vocab", [1, 2, 255, 256, 257, 1000])
def test_any_vocabulary(vocab):
    batch, (clean, noisy) = make_batch(vocab=vocab), make_logits(0.3, vocab=vocab)
    assert_close(score(noisy, batch, select(clean, batch)), slowly(noisy, batch, clean))


@pytest.mark.parametrize("chunk", [1, VOCAB, 3 * VOCAB + 1, 10**9])
def test_chunks_make_no_difference(chunk, monkeypatch):
    monkeypatch.setattr(divergence, "CHUNK", chunk)
    batch, (clean, noisy) = make_batch(), make_logits(0.1)
    assert_close(score(noisy, batch, select(clean, batch)), slowly(noisy, batch, clean))


def test_the_clean_run():
    batch, (clean, _) = make_batch(), make_logits(0)
    alone, against_itself = score(clean, batch), score(clean, batch, select(clean, batch))
    assert_close(alone, slowly(clean, batch))
    assert_close(against_itself, slowly(clean, batch, clean))
    for found in (alone, against_itself):
        assert not found.kl_nats.any()
        assert not found.flips.any()


@pytest.mark.parametrize("offset", [100.0, -3e4])
def test_a_constant_added_to_all_logits_changes_nothing(offset):
    batch, (clean, noisy) = make_batch(), make_logits(0.1, torch.float64)
    clean, noisy = (2.0**-20 * (2**20 * logits).round() for logits in (clean, noisy))  # so that adding is exact
    assert_close(score(noisy + offset, batch, select(clean, batch)), score(noisy, batch, select(clean, batch)))


def test_kl_is_never_negative():
    batch, (clean, _) = make_batch(), make_logits(0, torch.float64)
    noisy = torch.nextafter(clean, torch.tensor(inf, dtype=torch.float64))
    assert (score(noisy, batch, select(clean, batch)).kl_nats >= 0).all()


def test_strides_and_gradients():
    batch, (clean, noisy) = make_batch(), make_logits(0.1)
    expected = slowly(noisy, batch, clean)
    wide = torch.cat([noisy, noisy], dim=-1)[..., :VOCAB].requires_grad_()
    turned = noisy.transpose(0, 1).contiguous().transpose(0, 1)
    kept = select(torch.nn.Parameter(clean), batch)
    assert not kept.requires_grad
    assert_close(score(wide, batch, kept), expected)
    assert_close(score(turned, batch, select(clean.transpose(0, 1).contiguous().transpose(0, 1), batch)), expected)
    with torch.inference_mode():
        assert_close(score(noisy, batch, kept), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_select(dtype):
    batch, (clean, _) = make_batch(), make_logits(0, dtype)
    kept = select(clean, batch)
    assert kept.dtype == dtype
    assert torch.equal(kept, clean[:, :-1][batch.predicted])
    assert kept.untyped_storage().data_ptr() != clean.untyped_storage().data_ptr()


def test_nothing_to_predict():
    batch, (clean, noisy) = make_batch(), make_logits(1)
    batch = Batch(batch.input_ids, batch.attention_mask, torch.zeros_like(batch.predicted), batch.samples)
    found = score(noisy, batch, select(clean, batch))
    assert len(found) == ROWS
    assert all(getattr(found, name).shape == (ROWS,) for name in ("tokens", *SUMS))
    assert not any(getattr(found, name).any() for name in ("tokens", *SUMS))


def test_concatenation():
    parts = [slowly(make_logits(1, seed=seed)[1], make_batch(seed)) for seed in range(3)]
    whole = RowScores.concatenate(iter(parts))
    assert len(whole) == 3 * ROWS
    for name in ("tokens", *SUMS):
        expected = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), expected)
        assert getattr(whole, name).dtype == expected.dtype
    assert len(RowScores.concatenate([])) == 0


# --- excluded tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("noise", [1e-3, 1])
def test_tokens_that_both_runs_exclude(noise, dtype):
    batch, (clean, noisy) = make_batch(), make_logits(noise, dtype)
    for logits in (clean, noisy):
        logits[..., 250:] = logits[1, ..., 3] = -inf
    expected = slowly(noisy, batch, clean)
    found = score(noisy, batch, select(clean, batch))
    assert np.isfinite(found.kl_nats).all()
    assert_close(found, expected)


def test_tokens_that_one_run_excludes():
    batch, (clean, noisy) = make_batch(), make_logits(1)
    row, token = batch.predicted.nonzero()[0].tolist()
    fewer = clean.clone()
    fewer[row, token, 7] = -inf
    assert np.isfinite(score(noisy, batch, select(fewer, batch)).kl_nats).all()
    assert_close(score(noisy, batch, select(fewer, batch)), slowly(noisy, batch, fewer))
    found = score(fewer, batch, select(clean, batch))
    assert found.kl_nats[row] == inf
    assert np.isfinite(np.delete(found.kl_nats, row)).all()


def test_an_excluded_target_is_infinitely_unlikely():
    batch, (_, logits) = make_batch(), make_logits(1)
    row, token = batch.predicted.nonzero()[0].tolist()
    logits[row, token, batch.input_ids[row, token + 1]] = -inf
    found = score(logits, batch)
    assert found.nll_nats[row] == inf
    assert np.isfinite(np.delete(found.nll_nats, row)).all()


# --- what is not finite -------------------------------------------------------------------------------------------


def spoil(logits, row, token, value):
    logits = logits.clone()
    if value == -inf:
        logits[row, token] = value  # nothing is left
    else:
        logits[row, token, 11] = value
    return logits


@pytest.mark.parametrize("value", [float("nan"), inf, -inf])
def test_a_bad_row_reads_nan_and_the_others_what_they_are(value):
    batch, (clean, noisy) = make_batch(), make_logits(1)
    row, token = batch.predicted.nonzero()[-1].tolist()
    expected = slowly(noisy, batch, clean)
    found = score(spoil(noisy, row, token, value), batch, select(clean, batch))
    for name in SUMS:
        assert isnan(getattr(found, name)[row]), name
        np.testing.assert_allclose(np.delete(getattr(found, name), row), np.delete(getattr(expected, name), row))
    assert first_bad_row(spoil(noisy, row, token, value)) == row
    assert first_bad_row(spoil(noisy, row, token, value), batch) == row


@pytest.mark.parametrize("value", [float("nan"), inf, -inf])
def test_a_bad_clean_run_spoils_only_what_compares_with_it(value):
    batch, (clean, noisy) = make_batch(), make_logits(1)
    row, token = batch.predicted.nonzero()[-1].tolist()
    found = score(noisy, batch, select(spoil(clean, row, token, value), batch))
    assert isnan(found.kl_nats[row])
    assert isnan(found.flips[row])
    assert np.isfinite(found.correct).all()
    assert np.isfinite(found.nll_nats).all()


def test_padding_may_be_anything():
    batch, (clean, noisy) = make_batch(), make_logits(1)
    expected = slowly(noisy, batch, clean)
    row, token = (~batch.predicted).nonzero()[0].tolist()
    dirty = spoil(spoil(noisy, row, token, float("nan")), 0, LENGTH - 1, inf)
    assert_close(score(dirty, batch, select(clean, batch)), expected)
    assert first_bad_row(dirty) == 0
    assert first_bad_row(dirty, batch) is None


def test_first_bad_row():
    logits = make_logits(1)[0]
    assert first_bad_row(logits) is None
    logits[..., 5] = -inf
    assert first_bad_row(logits) is None
    logits[3, 2, 1] = inf
    logits[4] = float("nan")
    assert first_bad_row(logits) == 3
    assert first_bad_row(logits[:, 0]) == 4


# --- errors, memory, a real model ---------------------------------------------------------------------------------


def test_logits_of_another_batch_are_refused():
    batch, (clean, noisy) = make_batch(), make_logits(1)
    expected = r"logits: got shape \[5, 8, 300\], expected \[5, 9, 'vocabulary'\]: those of batch.inputs\(\)"
    for ask in (score, select, first_bad_row):
        with pytest.raises(InputError, match=expected):
            ask(noisy[:, 1:], batch)
        with pytest.raises(InputError, match=r"logits: got shape \[45, 300\]"):
            ask(noisy.flatten(0, 1), batch)
    kept = select(clean, batch)
    with pytest.raises(InputError, match=r"clean_logits: got shape \[\d+, 300\], expected \[\d+, 300\] \(predicted"):
        score(noisy, batch, kept[1:])
    with pytest.raises(InputError, match=r"clean_logits: got shape \[5, 9, 300\].* as select\(\) gives"):
        score(noisy, batch, clean)


@pytest.mark.parametrize("masked", [False, True])
def test_temporary_memory_is_that_of_a_chunk(masked, monkeypatch):
    monkeypatch.setattr(divergence, "CHUNK", 4000)
    batch, (clean, noisy) = make_batch(rows=50), make_logits(1, rows=50)
    if masked:
        clean[..., 3] = noisy[..., 3] = -inf
    kept = select(clean, batch)
    with Largest() as largest:
        score(noisy, batch, kept)
    assert kept.nbytes > 2 * 3 * 4000 * 8  # so that a copy would be seen
    assert 0 < largest.bytes <= 3 * 4000 * 8


def test_a_trained_model():
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "llama").eval()
    batch = make_batch(vocab=512)
    with torch.no_grad():
        logits = model(**batch.inputs()).logits
    found = score(logits, batch)
    assert_close(found, slowly(logits, batch))
    labels = batch.input_ids.masked_fill(torch.nn.functional.pad(~batch.predicted, (1, 0), value=True), -100)
    with torch.no_grad():
        loss = model(**batch.inputs(), labels=labels).loss
    assert found.nll_nats.sum() / found.tokens.sum() == pytest.approx(float(loss), rel=1e-5)
    assert found.nll_nats.sum() / found.tokens.sum() < 3 * log(512)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("at_once", [1, 7, 10_000])
def test_the_gradient_of_the_kl_is_that_of_autograd(dtype, at_once, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "CHUNK", at_once * VOCAB)
    batch, (clean, noisy) = make_batch(), make_logits(0.5, dtype)
    by_hand = noisy.double().requires_grad_()
    p, q = clean.double().log_softmax(-1)[:, :-1], by_hand.log_softmax(-1)[:, :-1]
    ((p.exp() * (p - q)).sum(-1) * batch.predicted).sum().backward()
    kept = select(clean, batch)
    found = kl_gradient(noisy, batch, kept)
    torch.testing.assert_close(found.double(), by_hand.grad, rtol=1e-6, atol=1e-7)
    assert not found[:, :-1][~batch.predicted].any()
    assert not found[:, -1].any()
