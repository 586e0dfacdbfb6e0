"""P27, metrics: every formula agrees with its closed form, or with exact arithmetic on the same numbers.

The references here are fractions, decimals of 50 digits and `math.fsum`: nothing of the code under test.
"""

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from math import cosh, exp, fsum, isclose, log, log10, sqrt
from statistics import median

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noisescope.measure import divergence, metrics, scoring, streaming
from noisescope.measure.batches import Batch
from noisescope.measure.metrics import (
    compute_correlation,
    compute_cosine,
    compute_gradient_ratio,
    compute_mae,
    compute_mape,
    compute_max_error,
    compute_snr,
    compute_sqnr,
)
from noisescope.measure.scoring import score, select

RELATIVE, ABSOLUTE = 1e-9, 1e-13
"""what a KL may be off: a ten-millionth of 5e-7 nats, the smallest that an experiment is about"""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def draw(*shape, dtype=torch.float64, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, dtype=torch.float64, generator=generator)).to(dtype)


# --- KL divergence ------------------------------------------------------------------------------------------------


def exact_kl(clean: Tensor, noisy: Tensor) -> float:
    """KL(clean || noisy) of one position by its definition, in decimals of 50 digits."""
    with localcontext() as context:
        context.prec = 50
        logits = [[Decimal(value) for value in row.double().tolist()] for row in (clean, noisy)]
        weights = [[value.exp() for value in row] for row in logits]
        normalisers = [sum(row).ln() for row in weights]
        terms = (
            weight / sum(weights[0]) * ((x - normalisers[0]) - (y - normalisers[1]))
            for weight, x, y in zip(weights[0], *logits, strict=True)
        )
        return float(sum(terms))


def measured_kls(clean: Tensor, noisy: Tensor) -> list[tuple[float, float]]:
    """The KL of each position: from the formula for tensors, and from the scores of an experiment."""
    rows = len(clean)
    ids = torch.zeros(rows, 2, dtype=torch.long)
    batch = Batch(ids, torch.ones_like(ids), torch.ones(rows, 1, dtype=torch.bool), tuple(range(rows)))
    wide = [torch.stack([logits, torch.full_like(logits, 7)], dim=1) for logits in (clean, noisy)]
    scored = score(wide[1], batch, select(wide[0], batch)).kl_nats
    return [(metrics.compute_kl_divergence(clean[row], noisy[row]), float(scored[row])) for row in range(rows)]


def check_kl(expected: list[float], found: list[tuple[float, float]]) -> None:
    for truth, both in zip(expected, found, strict=True):
        for value in both:
            assert isclose(value, truth, rel_tol=RELATIVE, abs_tol=ABSOLUTE), (value, truth)


def check_random_logits(noise: float, dtype: torch.dtype, vocab: int = 60) -> list[float]:
    clean = draw(3, vocab, dtype=dtype, scale=4)
    noisy = (clean.double() + draw(3, vocab, seed=1, scale=noise)).to(dtype)
    expected = [exact_kl(*pair) for pair in zip(clean, noisy, strict=True)]
    check_kl(expected, measured_kls(clean, noisy))
    return expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("noise", [1e-5, 1e-3, 0.03, 1, 8])
def test_kl_of_random_logits(noise, dtype):
    check_random_logits(noise, dtype)


def test_kl_at_the_smallest_that_counts():
    expected = check_random_logits(1e-3, torch.float32, vocab=1000)
    assert all(1e-7 < kl < 1e-6 for kl in expected)


CATEGORICAL = [
    ([Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)], [Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)]),
    ([Fraction(9, 10), Fraction(1, 10)], [Fraction(1, 10), Fraction(9, 10)]),
    ([Fraction(999, 1000), Fraction(1, 1000)], [Fraction(998, 1000), Fraction(2, 1000)]),
    ([Fraction(1, 3)] * 3, [Fraction(1, 3) + Fraction(1, 1000), Fraction(1, 3) - Fraction(1, 1000), Fraction(1, 3)]),
]


def check_categorical() -> None:
    """sum p log(p / q) of distributions that are written down; any constant may be added to their logits."""
    for clean, noisy in CATEGORICAL:
        truth = fsum(float(p) * log(p / q) for p, q in zip(clean, noisy, strict=True))
        logits = [torch.tensor([[log(p) for p in row]], dtype=torch.float64) for row in (clean, noisy)]
        check_kl([truth], measured_kls(*logits))
        check_kl([truth], measured_kls(logits[0] + 16, logits[1] - 8))


def test_kl_of_distributions_that_are_written_down():
    check_categorical()


def check_flat(step: float) -> None:
    """A flat distribution whose logits move by +-step, half of them each: log cosh(step)."""
    clean = torch.zeros(1, 1000, dtype=torch.float64)
    noisy = clean + step * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(500)
    truth = log(cosh(step)) if step > 1e-3 else step**2 / 2 - step**4 / 12
    check_kl([truth], measured_kls(clean, noisy))


@pytest.mark.parametrize("step", [1e-6, 1e-4, 1e-3, 0.5, 5, 30])
def test_kl_of_a_flat_distribution(step):
    check_flat(step)


@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_kl_of_small_gaussian_noise_is_half_its_variance(noise):
    """To second order, KL = 1/2 Var_p(d); for independent d of variance s^2 that is s^2 / 2 (1 - sum p^2)."""
    clean = draw(40, 5000)
    noisy = clean + draw(40, 5000, seed=1, scale=noise)
    p = torch.softmax(clean, -1)
    expected = noise**2 / 2 * float((1 - p.square().sum(-1)).mean())
    assert isclose(metrics.compute_kl_divergence(clean, noisy), expected, rel_tol=0.02)


# --- likelihood ---------------------------------------------------------------------------------------------------


def check_likelihood() -> None:
    """One row of easy tokens and one of hard ones: exp of the mean over tokens, which is no mean of exps."""
    vocab, odds = 64, (1000, 1)
    ids = torch.arange(12).view(2, 6)
    logits = torch.zeros(2, 6, vocab)
    for row in range(2):
        logits[row, torch.arange(5), ids[row, 1:]] = log(odds[row])
    batch = Batch(ids, torch.ones_like(ids), torch.ones(2, 5, dtype=torch.bool), (0, 1))
    found = score(logits, batch)
    likely = [Fraction(chance, chance + vocab - 1) for chance in odds]
    for row in range(2):
        assert isclose(found.nll_nats[row], -5 * log(likely[row]), rel_tol=1e-7)  # log(1000) as float32
    expected = 1 / sqrt(likely[0] * likely[1])
    assert isclose(metrics.perplexity(found.nll_nats.sum(), int(found.tokens.sum())), expected, rel_tol=1e-7)


def test_likelihood_and_perplexity():
    check_likelihood()


# --- tensors ------------------------------------------------------------------------------------------------------


TRUTHS: dict[str, Callable[[list[float], list[float]], float]] = {
    "mae": lambda r, m: fsum(abs(b - a) for a, b in zip(r, m, strict=True)) / len(r),
    "mape": lambda r, m: fsum(abs(b - a) / (abs(a) + 1e-8) for a, b in zip(r, m, strict=True)) / len(r),
    "max_error": lambda r, m: max(abs(b - a) for a, b in zip(r, m, strict=True)),
    "snr_db": lambda r, m: 20 * log10(fsum(map(abs, r)) / fsum(abs(b - a) for a, b in zip(r, m, strict=True))),
    "sqnr_db": lambda r, m: 10 * log10(fsum(a * a for a in r) / fsum((b - a) ** 2 for a, b in zip(r, m, strict=True))),
    "cosine": lambda r, m: (
        fsum(a * b for a, b in zip(r, m, strict=True)) / sqrt(fsum(a * a for a in r) * fsum(b * b for b in m))
    ),
    "correlation": lambda r, m: TRUTHS["cosine"]([a - fsum(r) / len(r) for a in r], [b - fsum(m) / len(m) for b in m]),
}
FORMULAS = {
    "mae": "compute_mae",
    "mape": "compute_mape",
    "max_error": "compute_max_error",
    "snr_db": "compute_snr",
    "sqnr_db": "compute_sqnr",
    "cosine": "compute_cosine",
    "correlation": "compute_correlation",
}


def check_definition(name: str, dtype: torch.dtype) -> None:
    """Values of very unequal size around a mean that is not zero, against sums without rounding errors."""
    reference = (draw(3000, seed=2) * draw(3000, seed=3).exp() + 5).to(dtype)
    measured = (reference.double() + draw(3000, seed=4, scale=0.05)).to(dtype)
    expected = TRUTHS[name](reference.double().tolist(), measured.double().tolist())
    assert isclose(getattr(metrics, FORMULAS[name])(reference, measured), expected, rel_tol=1e-12)
    assert isclose(getattr(metrics.compare_values(reference, measured), name), expected, rel_tol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_definitions_without_rounding(name, dtype):
    check_definition(name, dtype)


def check_snr() -> None:
    """Noise of 1% is 40 dB, wherever it is; a tenth of the signal in the same noise is 20 dB less."""
    signal = torch.tensor([1.0, -10.0, 100.0], dtype=torch.float64)
    assert isclose(metrics.compute_snr(signal, signal * 1.01), 40, rel_tol=1e-9)
    noise = torch.tensor([0.01, 1.05, -0.05], dtype=torch.float64)
    assert isclose(metrics.compute_snr(signal, signal + noise), 40, rel_tol=1e-9)
    assert isclose(metrics.compute_snr(signal / 10, signal / 10 + noise), 20, rel_tol=1e-9)


def test_snr_of_a_known_ratio():
    check_snr()


def check_sqnr(bits: int) -> None:
    """A uniform signal rounded to 2^bits levels: 6.02 dB a bit, with every point of a fine grid as the signal."""
    signal = (torch.arange(2**18, dtype=torch.float64) + 0.5) / 2**17 - 1
    step = 2.0 ** (1 - bits)
    rounded = ((signal / step).floor() + 0.5) * step
    assert isclose(metrics.compute_sqnr(signal, rounded), 20 * bits * log10(2), rel_tol=1e-4)
    assert isclose(metrics.compute_sqnr([3.0, 4.0], [3.0, 4.05]), 40, rel_tol=1e-9)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_sqnr_of_a_quantiser(bits):
    check_sqnr(bits)


def check_correlation(offset: float, noise: float) -> None:
    """x and z orthogonal, without mean and of equal norm: x against x + c z correlates by 1 / sqrt(1 + c^2)."""
    x = torch.tensor([1.0, 1, -1, -1], dtype=torch.float64).repeat(2**10)
    z = torch.tensor([1.0, -1, 1, -1], dtype=torch.float64).repeat(2**10)
    expected = 1 / sqrt(1 + noise**2)
    assert isclose(metrics.compute_correlation(x + offset, 2 * (x + noise * z) - offset), expected, rel_tol=1e-9)
    assert isclose(metrics.compute_correlation(x + offset, -(x + noise * z)), -expected, rel_tol=1e-9)


@pytest.mark.parametrize("offset", [0, 3, 2**27])
@pytest.mark.parametrize("noise", [0, 0.25, 3])
def test_correlation_of_orthogonal_parts(offset, noise):
    check_correlation(offset, noise)


def check_cosine() -> None:
    assert isclose(metrics.compute_cosine([1.0, 0.0], [1.0, 1.0]), 1 / sqrt(2))
    assert isclose(metrics.compute_cosine([3.0, 4.0], [-4.0, 3.0]), 0, abs_tol=1e-15)
    assert isclose(metrics.compute_cosine([5.0, 5.0, 5.1], [50.0, 50.0, 51.0]), 1)


def test_cosine_of_known_angles():
    check_cosine()


def check_mape() -> None:
    """1% of everything is 1%; an error of 1e-8 on a zero counts as 100%."""
    reference = torch.tensor([1.0, -10.0, 1000.0], dtype=torch.float64)
    assert isclose(metrics.compute_mape(reference, reference * 1.01), 0.01, rel_tol=1e-7)
    assert isclose(metrics.compute_mape([0.0, 1.0], [1e-8, 1.0]), 0.5)


def test_mape_near_zero_and_far_from_it():
    check_mape()


def check_sparsity() -> None:
    values = torch.tensor([0.0, 5e-7, -9.9e-7, 1.1e-6, 3.0], dtype=torch.float64)
    assert metrics.compute_sparsity(values) == 3 / 5
    assert metrics.compute_sparsity(values.repeat(10**5)) == 3 / 5


def test_sparsity():
    check_sparsity()


def check_gradient_ratio() -> None:
    """One norm over all parameters: (3, 4) and 12 make 13."""
    clean = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([12.0])}
    assert isclose(
        metrics.compute_gradient_ratio(clean, {name: 1.2 * grad for name, grad in clean.items()}), 1.2, rel_tol=1e-7
    )
    noisy = {"a": torch.tensor([0.0, 9.0]), "b": torch.tensor([12.0])}
    assert isclose(metrics.compute_gradient_ratio(clean, noisy), 15 / 13, rel_tol=1e-12)
    model = nn.Linear(100, 100, dtype=torch.bfloat16)
    model(draw(8, 100, dtype=torch.bfloat16)).float().square().mean().backward()
    norm = sqrt(fsum(g * g for parameter in model.parameters() for g in parameter.grad.double().flatten().tolist()))
    assert isclose(
        metrics.compute_gradient_ratio([torch.ones(100, 100), torch.zeros(100)], model), norm / 100, rel_tol=1e-12
    )


def test_gradient_ratio():
    check_gradient_ratio()


def check_outlier_ratios() -> None:
    for channels in (64, 65):  # even and odd, on which medians differ
        sizes = draw(channels, seed=5).exp()
        sizes[7] = 1000.0
        expected = [size / median(sizes.tolist()) for size in sizes.tolist()]
        np.testing.assert_allclose(metrics.outlier_ratios(sizes).numpy(), expected, rtol=1e-12)


def test_outlier_ratios():
    check_outlier_ratios()


# --- the tests can fail -------------------------------------------------------------------------------------------


class NarrowBuffers(divergence.Buffers):
    def __init__(self, rows, vocab, device):
        super().__init__(rows, vocab, device)
        self._held = self._held.float()


def kl_in_float32(patch):
    for room in (metrics, scoring):
        patch.setattr(room, "Buffers", NarrowBuffers)


def replace_kl(patch, mutant):
    for room in (metrics, scoring):
        patch.setattr(room, "kl_of_shifted", mutant)


def float32_exponentials(patch):
    """Sums in float64, of probabilities that are not."""

    def mutant(clean, noisy, noisy_sum, work):
        p, q = (logits.float().softmax(-1).double() for logits in (clean, noisy))
        return (p * (p.log() - q.log())).sum(-1)

    replace_kl(patch, mutant)


def epsilon_in_the_logarithm(patch):
    def mutant(clean, noisy, noisy_sum, work):
        p, q = clean.softmax(-1), noisy.softmax(-1)
        return (p * ((p + 1e-10).log() - (q + 1e-10).log())).sum(-1)

    replace_kl(patch, mutant)


def the_other_way_round(patch):
    real = divergence.kl_of_shifted
    replace_kl(patch, lambda clean, noisy, _, work: real(noisy.clone(), clean.clone(), clean.exp().sum(-1), work))


def second_order_only(patch):
    def mutant(clean, noisy, noisy_sum, work):
        p, d = clean.softmax(-1), noisy - clean
        return ((p * d.square()).sum(-1) - (p * d).sum(-1).square()) / 2

    replace_kl(patch, mutant)


def in_bits(patch):
    real = divergence.kl_of_shifted
    replace_kl(patch, lambda *given: real(*given) / log(2))


def every_kl():
    check_random_logits(1e-3, torch.float32, vocab=500)
    check_random_logits(1, torch.float32)
    check_categorical()
    check_flat(0.5)


KL_MUTANTS = [
    kl_in_float32,
    float32_exponentials,
    epsilon_in_the_logarithm,
    the_other_way_round,
    second_order_only,
    in_bits,
]


@pytest.mark.parametrize("mutant", KL_MUTANTS)
def test_a_wrong_kl_is_caught(mutant, monkeypatch):
    every_kl()
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        every_kl()


def test_kl_in_float32_is_far_off_where_it_counts(monkeypatch):
    """Why it is not: at 5e-7 nats it is wrong by percents, not by the last digit."""
    clean = draw(64, 5000, dtype=torch.float32, scale=4)
    noisy = clean + draw(64, 5000, dtype=torch.float32, seed=1, scale=1e-3)
    good = np.array([metrics.compute_kl_divergence(*pair) for pair in zip(clean, noisy, strict=True)])
    kl_in_float32(monkeypatch)
    bad = np.array([metrics.compute_kl_divergence(*pair) for pair in zip(clean, noisy, strict=True)])
    assert np.median(abs(bad / good - 1)) > 0.02


def narrow_sums(dtype):
    """Sums in a narrower dtype."""
    real = streaming.pairs

    def mutant(reference, measured):
        for r, m in real(reference, measured):
            yield r.to(dtype), m.to(dtype)

    return mutant


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "max_error"])
def test_sums_in_float32_are_caught(name, monkeypatch):
    monkeypatch.setattr(streaming, "pairs", narrow_sums(torch.float32))
    with pytest.raises(AssertionError):
        check_definition(name, torch.float32)


def mean_of_ratios(reference, measured):
    return 20 * (reference.abs() / (measured - reference).abs()).mean().log10().item()


def ratio_of_sums(reference, measured):
    reference, measured = torch.as_tensor(reference), torch.as_tensor(measured)
    return ((measured - reference).abs().sum() / (reference.abs().sum() + 1e-8)).item()


def mean_of_norm_ratios(clean, noisy):
    return sum(float(noisy[name].norm() / clean[name].norm()) for name in clean) / len(clean)


WRONG: list[tuple[str, Callable[..., object], Callable[[], None]]] = [
    ("compute_mae", compute_max_error, lambda: check_definition("mae", torch.float32)),
    ("compute_max_error", compute_mae, lambda: check_definition("max_error", torch.float32)),
    ("compute_snr", mean_of_ratios, check_snr),
    ("compute_snr", compute_sqnr, check_snr),
    ("compute_sqnr", compute_snr, lambda: check_sqnr(4)),
    ("compute_mape", ratio_of_sums, check_mape),
    ("compute_mape", lambda r, m: 100 * compute_mape(r, m), check_mape),
    ("compute_correlation", compute_cosine, lambda: check_correlation(3, 0.25)),
    (
        "compute_correlation",
        lambda r, m: compute_correlation(r.float(), m.float()),
        lambda: check_correlation(2**27, 0.25),
    ),
    ("compute_cosine", compute_correlation, check_cosine),
    ("compute_sparsity", lambda a: float((a == 0).double().mean()), check_sparsity),
    ("compute_gradient_ratio", mean_of_norm_ratios, check_gradient_ratio),
    ("compute_gradient_ratio", lambda c, n: 1 / compute_gradient_ratio(c, n), check_gradient_ratio),
    ("outlier_ratios", lambda sizes: sizes / sizes.median(), check_outlier_ratios),
    ("outlier_ratios", lambda sizes: sizes / sizes.mean(), check_outlier_ratios),
    ("perplexity", lambda nll, tokens: exp(nll / tokens / log(2)), check_likelihood),
    ("perplexity", lambda nll, tokens: (1 + exp(nll / 5)) / 2, check_likelihood),
]


@pytest.mark.parametrize(("name", "mutant", "check"), WRONG)
def test_a_wrong_formula_is_caught(name, mutant, check, monkeypatch):
    check()
    monkeypatch.setattr(metrics, name, mutant)
    with pytest.raises(AssertionError):
        check()
