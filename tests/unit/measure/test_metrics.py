"""The formulas on what is empty, constant, infinite, of another shape or dtype; their values are promise 27."""

from math import inf, isclose, isnan, nan

import numpy as np
import pytest
import torch
from allocated import Largest
from torch import nn

from noisescope.errors import InputError
from noisescope.measure import divergence, metrics, streaming
from noisescope.measure.metrics import (
    compare_values,
    compute_correlation,
    compute_cosine,
    compute_gradient_ratio,
    compute_kl_divergence,
    compute_mae,
    compute_mape,
    compute_max_error,
    compute_snr,
    compute_sparsity,
    compute_sqnr,
    noise_tolerance_index,
    outlier_ratios,
    perplexity,
    relative_degradation,
    sensitivity_score,
    snr_db,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRED = {
    "mae": compute_mae,
    "mape": compute_mape,
    "sqnr_db": compute_sqnr,
    "snr_db": compute_snr,
    "correlation": compute_correlation,
    "cosine": compute_cosine,
    "max_error": compute_max_error,
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- of a run -----------------------------------------------------------------------------------------------------


def test_degradation():
    assert relative_degradation(0.8, 0.6) == pytest.approx(0.25)
    assert relative_degradation(0.5, 0.6) == pytest.approx(-0.2)
    assert isnan(relative_degradation(0.0, 0.1))
    assert isnan(relative_degradation(nan, 0.1))


def test_sensitivity_and_tolerance():
    assert sensitivity_score(0.15, 0.05) == pytest.approx(3)
    assert isnan(sensitivity_score(0.15, 0))
    assert noise_tolerance_index(0.05) == 20
    assert noise_tolerance_index(0.0) is None
    assert noise_tolerance_index(-0.1) is None
    assert isnan(noise_tolerance_index(nan))


def test_perplexity():
    assert perplexity(20 * np.log(7), 20) == pytest.approx(7)
    assert perplexity(1e6, 10) == inf
    assert perplexity(inf, 10) == inf
    assert isnan(perplexity(0.0, 0))
    assert isnan(perplexity(nan, 3))


def test_snr_of_two_means():
    assert snr_db(1.0, 0.01) == pytest.approx(40)
    assert snr_db(1.0, 0.0) == inf
    assert snr_db(0.0, 1.0) == -inf
    assert isnan(snr_db(0.0, 0.0))
    assert isnan(snr_db(nan, 0.0))


# --- of one tensor ------------------------------------------------------------------------------------------------


def test_sparsity():
    assert compute_sparsity(torch.tensor([0.0, 1e-7, -9e-7, 1e-5, -2.0])) == 0.6
    assert compute_sparsity(torch.tensor([1e-6, -1e-6], dtype=torch.float64)) == 0.0
    assert compute_sparsity(torch.tensor([inf, 0.0])) == 0.5
    assert isnan(compute_sparsity(torch.tensor([nan, 0.0])))
    assert isnan(compute_sparsity(torch.empty(0)))


def test_outlier_ratios():
    assert outlier_ratios(torch.tensor([1.0, 2, 4, 30])).tolist() == [1 / 3, 2 / 3, 4 / 3, 10]
    assert outlier_ratios(torch.tensor([1.0, 2, 40], dtype=torch.bfloat16)).dtype == torch.float64
    assert outlier_ratios(torch.empty(0)).tolist() == []


def test_outlier_ratios_of_channels_that_are_silent_or_unknown():
    found = outlier_ratios([1.0, 3.0, nan]).tolist()
    assert found[:2] == [0.5, 1.5]
    assert isnan(found[2])
    found = outlier_ratios([0.0, 0.0, 5.0]).tolist()
    assert found[2] == inf
    assert isnan(found[0])
    assert outlier_ratios([nan, nan]).isnan().all()


# --- of a tensor and its reference --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRED)
def test_empty_is_undefined(name):
    assert isnan(PAIRED[name](torch.empty(0, 3), torch.empty(0, 3)))
    assert isnan(getattr(compare_values([], []), name))


@pytest.mark.parametrize("name", PAIRED)
def test_shapes_that_differ_are_refused(name):
    message = r"reference and measured: got shapes \[2, 3\] and \[3, 2\], expected the same"
    with pytest.raises(InputError, match=message):
        PAIRED[name](torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(InputError, match=r"shapes \[3\] and \[1\]"):  # never broadcast
        PAIRED[name](torch.zeros(3), torch.zeros(1))


@pytest.mark.parametrize("name", PAIRED)
@pytest.mark.parametrize("bad", [0, 1])
def test_nan_is_passed_on(name, bad):
    pair = [draw(9), draw(9, seed=1)]
    pair[bad][4] = nan
    assert isnan(PAIRED[name](*pair))
    assert isnan(getattr(compare_values(*pair), name))


def test_infinities():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, inf])
    assert compute_max_error(one, other) == compute_mae(one, other) == compute_mape(one, other) == inf
    assert compute_snr(one, other) == compute_sqnr(one, other) == -inf
    assert isnan(compute_mae(other, other))  # inf - inf
    assert isnan(compute_correlation(one, other))
    assert isnan(compute_cosine(one, other))


def test_no_difference():
    values = draw(100)
    found = compare_values(values, values.clone())
    assert found.mae == found.mape == found.max_error == 0
    assert found.sqnr_db == found.snr_db == inf
    assert isclose(found.correlation, 1)
    assert isclose(found.cosine, 1)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-30, 12345.678])
def test_a_constant_has_no_correlation(value):
    constant, other = torch.full((1001,), value, dtype=torch.float64), draw(1001)
    assert isnan(compute_correlation(constant, other))
    assert isnan(compute_correlation(other, constant))
    assert isnan(compute_correlation(constant, constant))


def test_a_silent_reference():
    silent, noise = torch.zeros(4), torch.ones(4)
    assert compute_snr(silent, noise) == compute_sqnr(silent, noise) == -inf
    assert isnan(compute_snr(silent, silent))
    assert isnan(compute_cosine(silent, noise))
    assert compute_mape(silent, noise) == pytest.approx(1e8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PAIRED)
def test_every_dtype_is_computed_in_float64(name, dtype):
    """Equal to the last bits to what float64 copies of the same values give."""
    reference, measured = draw(40, 50, dtype=dtype), draw(40, 50, dtype=dtype, seed=1)
    wide = PAIRED[name](reference.double(), measured.double())
    assert PAIRED[name](reference, measured) == wide
    assert PAIRED[name](reference.double(), measured) == wide
    assert PAIRED[name](reference.double().numpy(), measured.double().tolist()) == wide
    assert type(wide) is float


@pytest.mark.parametrize("name", PAIRED)
def test_all_at_once_is_each_by_itself(name):
    reference = draw(30, 40)
    measured = reference + 0.1 * draw(30, 40, seed=1)
    assert getattr(compare_values(reference, measured), name) == PAIRED[name](reference, measured)


@pytest.mark.parametrize("name", PAIRED)
def test_chunks_and_strides_make_no_difference(name, monkeypatch):
    reference, measured = draw(30, 40), draw(30, 40, seed=1)
    whole = PAIRED[name](reference, measured)
    assert isclose(PAIRED[name](reference.t(), measured.t()), whole, rel_tol=1e-12)
    assert isclose(PAIRED[name](reference.t(), measured.t().contiguous()), whole, rel_tol=1e-12)
    monkeypatch.setattr(streaming, "CHUNK", 7)
    assert isclose(PAIRED[name](reference, measured), whole, rel_tol=1e-12)
    assert isclose(getattr(compare_values(reference, measured), name), whole, rel_tol=1e-12)


@pytest.mark.parametrize("name", PAIRED)
def test_tensors_with_a_gradient_and_of_other_kinds(name):
    reference, measured = draw(12), draw(12, seed=1)
    whole = PAIRED[name](reference, measured)
    assert PAIRED[name](reference.clone().requires_grad_(), nn.Parameter(measured)) == whole
    assert PAIRED[name](reference.to_sparse(), measured) == whole
    assert PAIRED[name](torch.tensor([1, 2, 4]), [1, 3, 4]) == PAIRED[name]([1.0, 2.0, 4.0], [1.0, 3.0, 4.0])


def test_what_is_not_numbers_is_refused():
    with pytest.raises(InputError, match="measured: got str, expected a tensor or an array of numbers"):
        compute_mae([1.0], "one")
    with pytest.raises(InputError, match="reference: got list, expected a tensor"):
        compute_mae([[1.0], [2.0, 3.0]], [1.0])
    with pytest.raises(InputError, match="reference: got complex64, expected real numbers"):
        compute_mae(torch.zeros(2, dtype=torch.complex64), torch.zeros(2))


# --- gradients ----------------------------------------------------------------------------------------------------


def model_with_gradients(scale=1.0):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = scale * draw(*parameter.shape, dtype=torch.float32, seed=number)
    return model


def test_gradients_in_every_form():
    clean, noisy = model_with_gradients(), model_with_gradients(2.0)
    by_name = {name: parameter.grad for name, parameter in noisy.named_parameters()}
    forms = [noisy, by_name, list(by_name.values()), iter(by_name.values()), noisy.parameters()]
    for form in forms:
        assert compute_gradient_ratio(clean, form) == pytest.approx(2)
    assert compute_gradient_ratio(by_name, clean) == pytest.approx(0.5)
    assert compute_gradient_ratio(torch.tensor([3.0, 4.0]), torch.tensor([6.0, 0.0])) == pytest.approx(6 / 5)


def test_unused_parameters_have_no_gradient():
    clean, noisy = model_with_gradients(), model_with_gradients(3.0)
    clean[1].bias.grad = noisy[1].bias.grad = None
    assert compute_gradient_ratio(clean, noisy) == pytest.approx(3)


def test_gradients_of_other_parameters_are_refused():
    clean, noisy = model_with_gradients(), model_with_gradients()
    noisy[1].bias.grad = None
    with pytest.raises(InputError, match="gradients: got 4 tensors of 26 values and 3 tensors of 24 values"):
        compute_gradient_ratio(clean, noisy)
    with pytest.raises(InputError, match="expected the same parameters"):
        compute_gradient_ratio({"w": torch.ones(2, 3)}, {"w": torch.ones(3, 2)})


def test_a_model_before_backward_is_refused():
    with pytest.raises(InputError, match=r"noisy gradients: got none of 2, expected at least one; call backward\(\)"):
        compute_gradient_ratio(model_with_gradients(), nn.Linear(2, 2))
    with pytest.raises(InputError, match="clean gradients: got none of 0"):
        compute_gradient_ratio([], [])


def test_gradients_that_vanish_or_explode():
    one, zero = torch.ones(3), torch.zeros(3)
    assert compute_gradient_ratio(zero, one) == inf
    assert compute_gradient_ratio(one, zero) == 0
    assert isnan(compute_gradient_ratio(zero, zero))
    assert isnan(compute_gradient_ratio(one, torch.tensor([1.0, nan, 1.0])))
    assert compute_gradient_ratio(one, torch.tensor([1.0, inf, 1.0])) == inf
    large = torch.full((3,), 1e38)
    assert compute_gradient_ratio(one, large) == pytest.approx(1e38)  # whose squares float32 cannot hold


# --- logits -------------------------------------------------------------------------------------------------------


def test_kl_of_any_leading_shape():
    clean, noisy = draw(2, 3, 11), draw(2, 3, 11, seed=1)
    each = [compute_kl_divergence(clean[i, j], noisy[i, j]) for i in range(2) for j in range(3)]
    assert compute_kl_divergence(clean, noisy) == pytest.approx(sum(each) / 6)
    assert compute_kl_divergence(clean, clean) == 0
    assert isnan(compute_kl_divergence(torch.empty(0, 11), torch.empty(0, 11)))


def test_kl_where_tokens_are_excluded():
    clean, noisy = draw(4, 11), draw(4, 11, seed=1)
    both = clean.clone(), noisy.clone()
    for logits in both:
        logits[:, 3] = -inf
    kept = [i for i in range(11) if i != 3]
    assert compute_kl_divergence(*both) == pytest.approx(compute_kl_divergence(clean[:, kept], noisy[:, kept]))
    assert compute_kl_divergence(clean, both[1]) == inf
    assert 0 < compute_kl_divergence(both[0], noisy) < inf
    assert isnan(compute_kl_divergence(clean, torch.full_like(noisy, -inf)))
    assert isnan(compute_kl_divergence(clean, torch.full_like(noisy, inf)))


def test_kl_of_probabilities_that_underflow():
    clean = torch.tensor([[0.0, -800.0]])
    assert compute_kl_divergence(clean, torch.tensor([[0.0, -inf]])) == inf
    assert compute_kl_divergence(clean, torch.tensor([[0.0, -1e5]])) == 0.0
    assert compute_kl_divergence(torch.tensor([[0.0, -1e5]]), torch.tensor([[-1e5, 0.0]])) == pytest.approx(1e5)


def test_kl_refuses_what_has_no_vocabulary():
    with pytest.raises(InputError, match=r"logits: got shape \[\], expected one of at least \[1\]"):
        compute_kl_divergence(torch.tensor(1.0), torch.tensor(1.0))
    with pytest.raises(InputError, match=r"shapes \[2, 3\] and \[2, 4\]"):
        compute_kl_divergence(torch.zeros(2, 3), torch.zeros(2, 4))


@pytest.mark.parametrize("vocab", [1, 5, 255, 256, 257, 600])
def test_top_1_is_argmax(vocab):
    logits = draw(50, vocab, seed=vocab).mul(2).round()  # many are equal
    index, best = divergence.top_1(logits)
    assert torch.equal(index, logits.argmax(-1))
    assert torch.equal(best, logits.amax(-1))


def test_nothing_large_is_copied(monkeypatch):
    assert 3 * 8 * max(divergence.CHUNK, streaming.CHUNK) < 64e6
    monkeypatch.setattr(divergence, "CHUNK", 1000)
    monkeypatch.setattr(streaming, "CHUNK", 1000)
    clean, noisy = draw(100, 100, dtype=torch.float32), draw(100, 100, dtype=torch.float32, seed=1)
    with Largest() as largest:
        compute_kl_divergence(clean, noisy)
        compare_values(clean, noisy)
        compute_sparsity(clean)
        compute_gradient_ratio(clean, noisy)
    assert 0 < largest.bytes <= 3 * 1000 * 8


def test_names_are_sorted_and_documented():
    assert sorted(metrics.__all__, key=lambda name: (not name[0].isupper(), name)) == metrics.__all__
    assert all(getattr(metrics, name).__doc__ for name in metrics.__all__)
