"""Conformance checks for extension authors: what noisescope's own tests run over its registries.

    from noisescope.testing import check_fault, check_noise, check_operator

    def test_my_noise():
        check_noise(MyNoise(0.05))

Each check raises AssertionError with a sentence that says which rule was broken.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .faults import FAULTS, FaultSimulator, Kind
from .injection import inject
from .injection.statistics import InjectionStats, sample
from .keys import Key
from .noise import NOISES, AbsoluteGaussian, Noise
from .operators import OPERATORS, Operator, Spelling
from .sites import Site

__all__ = ["TensorMaker", "check_fault", "check_noise", "check_operator", "check_spelling"]

_MANY = 2**20


class TensorMaker:
    """Makes the tensors of sample calls: `t(2, 3)` floats, `t.ids(2)` indices below 5, `t.ends(4, 8)` offsets."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        """Standard normal floats."""
        return torch.randn(shape, generator=self._generator)

    def ids(self, *shape: int) -> Tensor:
        """Indices."""
        return torch.randint(5, shape, generator=self._generator)

    def ends(self, *ends: int) -> Tensor:
        """Where groups of rows end."""
        return torch.tensor(ends, dtype=torch.int32)


def check_noise(noise: Noise, *, dtype: torch.dtype = torch.float32, tolerance: float = 0.02) -> None:
    """A noise model is registered, keyed, in place, deaf to global randomness, and delivers its dose.

    Not checked: that the error has the distribution you meant; write that test beside your noise.
    """
    assert isinstance(noise, Noise), f"{noise!r} lacks a member of the Noise protocol"
    assert NOISES.get(noise.name) is type(noise), f"{noise.name} is not registered with @register"
    key = Key(0, "a.linear.0.forward")
    before = TensorMaker(1)(_MANY).to(dtype)
    state = torch.get_rng_state()
    once, again, other = (_disturbed(noise, before, k) for k in (key, key, Key(1, key.site)))
    assert torch.equal(state, torch.get_rng_state()), f"{noise.name} moves torch's global generator"
    assert once.dtype == before.dtype, f"{noise.name} changes the dtype"
    assert _same_bits(once, again), f"{noise.name} is not a function of its key"
    draws = getattr(noise, "draws", True)
    assert not draws or not _same_bits(once, other), f"{noise.name} does not depend on its key"
    stats = InjectionStats(noise)
    after = before.clone()
    full = noise.disturb_(after, noise.scale, key)
    looked_at = [None if part is None else sample(part, everything=noise.sparse) for part in (before, after, full)]
    stats.book(Site(0, "linear", "a"), before.numel(), noise.scale, *looked_at)
    dose = stats.rows[0].dose
    assert abs(dose - noise.scale) <= tolerance * noise.scale, f"{noise.name}: asked {noise.scale}, gave {dose}"
    part = before.view(2, -1)[:, ::2]
    whole = part.clone()
    noise.disturb_(whole.t().t(), noise.scale, key)
    assert whole.shape == part.shape, f"{noise.name} changes the shape"


def check_fault(kind: Kind, *, dtype: torch.dtype = torch.float32) -> None:
    """A kind of fault is registered, has dice of its own, keeps shape and dtype, and strikes its channels only.

    At every operator where it exists. Less of it does no more harm. Not checked: that it is the fault you meant; write
    that test beside your fault.
    """
    assert FAULTS.get(kind.name) is kind, f"{kind.name} is not registered with register"
    kind.check(kind.documented, dtype)
    for operator in kind.operators or ("linear",):
        _check_fault_at(operator, kind, dtype)


def _check_fault_at(operator: str, kind: Kind, dtype: torch.dtype) -> None:
    function, args, kwargs = _sample_of(operator, kind, dtype)
    model = _OneCall(function, args, kwargs)
    clean = model(_HIDDEN)
    state = torch.get_rng_state()
    once, again = _broken(model, kind, kind.documented), _broken(model, kind, kind.documented)
    assert torch.equal(state, torch.get_rng_state()), f"{kind.name} moves torch's global generator"
    assert all(value.dtype == clean.dtype for value in once), f"{kind.name} changes the dtype"
    assert all(value.shape == clean.shape for value in once), f"{kind.name} changes the shape"
    assert all(map(_same_bits, once, again)), f"{kind.name} is not a function of its seed"
    assert _same_bits(*once) != kind.stochastic, f"{kind.name} says stochastic={kind.stochastic} and is not"
    assert not _same_bits(once[0], clean), f"{kind.name} changes nothing at its documented magnitude"
    assert torch.equal(clean, model(_HIDDEN)), f"{kind.name} changes the arguments of a call"
    harm = _harm(once[0], clean)
    weak = [_harm(_broken(model, kind, magnitude)[0], clean) for magnitude in _weak_magnitudes(kind, dtype)]
    assert min(weak) <= harm, f"{kind.name} does more harm where it is weak"
    sparse = _broken(model, kind, kind.documented, sparsity=0.1)
    struck = torch.stack([(value != clean).flatten(0, -2).any(0) for value in sparse]).any(0)
    most = max(1, round(0.1 * clean.shape[-1]))
    assert int(struck.sum()) <= most, f"{kind.name} strikes {int(struck.sum())} channels of the {most} that it may"


def check_operator(operator: Operator) -> None:
    """An operator's row is in the catalogue, each spelling is seen exactly once, and errors pass through."""
    assert OPERATORS.get(operator.name) is operator, f"{operator.name} is not registered"
    assert operator.spellings, f"{operator.name} has no spelling"
    for spelling in operator.spellings:
        check_spelling(operator, spelling)
    function = operator.spellings[0].resolve()
    assert function is not None, f"{operator.spellings[0].path} does not exist in this torch"
    args, kwargs = operator.refused(TensorMaker())
    plain, watched = _refusal(function, args, kwargs, None), _refusal(function, args, kwargs, operator.name)
    assert plain == watched, f"{operator.name}: {plain} became {watched}"


def check_spelling(operator: Operator, spelling: Spelling) -> None:
    """A call by this spelling in a block is disturbed exactly once, and booked on its operator and layer.

    Spellings that this torch lacks pass: `Spelling.resolve` gives None and the engine does not look for them.
    """
    function = spelling.resolve()
    if function is None:
        return
    args, kwargs = spelling.sample(TensorMaker())
    model = _OneCall(function, args, kwargs)
    with torch.no_grad():
        clean = model(torch.zeros(2, 4)).clone()
        model = _OneCall(function, *spelling.sample(TensorMaker()))
        with inject(model, AbsoluteGaussian(0.1), operators=[operator.name]) as run:
            noisy = model(torch.zeros(2, 4))
    assert run.stats.by_layer == {0: {"forward": 1, "backward": 0}}, f"{spelling.path}: booked {run.stats.by_layer}"
    assert not torch.equal(clean, noisy), f"{spelling.path}: not disturbed"


class _OneCall(nn.Module):
    """A model of one block that makes one call."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(function, args, kwargs)])

    def forward(self, hidden: Tensor) -> Any:
        return self.blocks[0](hidden)


class _Block(nn.Module):
    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.function, self.args, self.kwargs = function, args, kwargs

    def forward(self, hidden: Tensor) -> Any:
        self.inner(hidden)
        return self.function(*self.args, **self.kwargs)


_HIDDEN = torch.zeros(2, 4)


def _sample_of(
    operator: str, kind: Kind, dtype: torch.dtype
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A call for a fault: large enough that rare strikes are seen, and that sums are long."""
    spelling, make = OPERATORS[operator].spellings[0], TensorMaker()
    function = spelling.resolve()
    assert function is not None, f"{spelling.path} does not exist in this torch"
    args, kwargs = spelling.sample(make)
    if operator in ("linear", "matmul", "bmm"):
        size = 256 if kind.operators is None else 64
        args = tuple(make(*given.shape[:-2], size, size) for given in args)
    given = tuple(one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one for one in args)
    return function, given, kwargs


def _broken(model: nn.Module, kind: Kind, magnitude: float, *, sparsity: float = 1.0) -> tuple[Tensor, Tensor]:
    """What the model gives in two passes with a fault in it."""
    with FaultSimulator(model, "0", kind.name, magnitude, sparsity, inputs={"hidden": _HIDDEN}), torch.no_grad():
        return model(_HIDDEN), model(_HIDDEN)


def _weak_magnitudes(kind: Kind, dtype: torch.dtype) -> tuple[float, ...]:
    """A thousandth of the documented one; of bits the fewest and the most, as fewer may be worse or better."""
    if not kind.whole:
        return (kind.documented / 1000,)
    bits = round(-torch.log2(torch.tensor(torch.finfo(dtype).eps)).item())
    return kind.least, min(kind.most, bits)


def _harm(broken: Tensor, clean: Tensor) -> float:
    error = (broken.double() - clean.double()).nan_to_num(torch.inf, torch.inf, torch.inf)
    return float(error.square().mean())


def _disturbed(noise: Noise, value: Tensor, key: Key) -> Tensor:
    out = value.clone()
    noise.disturb_(out, noise.scale, key)
    return out


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.view(torch.uint8), b.view(torch.uint8)))


def _refusal(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], operator: str | None
) -> tuple[str, str]:
    """The error a call raises, plain or under injection."""
    model = _OneCall(function, args, kwargs)
    try:
        if operator is None:
            model(torch.zeros(2, 4))
        else:
            with inject(model, AbsoluteGaussian(0.1), operators=[operator]):
                model(torch.zeros(2, 4))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return type(error).__name__, str(error)
    return "no error", ""
