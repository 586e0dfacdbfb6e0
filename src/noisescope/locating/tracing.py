"""One forward pass, looked at call by call: repeated, computed on the host, asked for identities, and let go.

Every call is judged from the inputs that the device itself gave it, so an operator behind a broken one looks healthy.
Nothing is kept of a call but its row: memory is that of the largest single operator, whatever the model's depth.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..capturing.finite import is_finite
from ..injection import Call, attention_in_steps, plain_name, sdpa_arguments
from ..injection.recognising import tensors
from ..sites import Site
from ..specs import Layer, Phase
from .device import Device
from .host import HostCall, Judgement, check_on_host, reference_of
from .host.products import products_of
from .host.rules import rule_of
from .identities import Probe, check_identities
from .identities.identity import Failure, same_bits
from .naming import name_kind
from .precision import explaining_modes
from .rounding import share_of_alarms

__all__ = ["Row", "Tracer"]

_NOTHING = frozenset({"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"})
"""functions that compute nothing"""
_RANDOM = frozenset(
    {
        *("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "normal", "uniform"),
        *("bernoulli", "multinomial", "exponential", "geometric", "cauchy", "log_normal", "poisson", "random"),
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout", "gumbel_softmax"),
        *("feature_alpha_dropout", "native_dropout", "rrelu"),
    }
)
"""functions whose value nobody can foretell"""
TESTS = 8
"""of one call, at most, that may raise a false alarm: the host's and those of identities that hold up to rounding"""
CLOSER_LOOKS = 4
"""how often the steps of a fused kernel that is off are tried by themselves, until one of them is off too"""


@dataclass
class Row:
    """What was found at one call."""

    site: Site
    elements: int
    dtype: str = ""
    host: Judgement | None = None
    repeated: int = 0
    """how often the call was made again"""
    differing: int = 0
    """elements that came out otherwise in one of these"""
    beyond: bool = False
    """whether one of these was outside the rounding bound, or nobody knows the bound"""
    identities: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """identities whose probe the device would not compute"""
    kind: str | None = None
    finite: bool = True
    is_product: bool = False
    modes: tuple[str, ...] = ()
    """precision modes in which a healthy device would give this value"""
    excused: bool = False
    """True if the device is in such a mode"""
    closer: "Row | None" = None
    """of a fused kernel: the step inside it that is off when it is computed by itself"""

    @property
    def faulty(self) -> bool:
        """True if something is wrong that neither rounding nor the device's precision mode can explain."""
        return not self.excused and self.deviates

    @property
    def deviates(self) -> bool:
        """True if something is off that rounding in float32 cannot explain."""
        return bool(self.beyond or self.convicted or self.failures or self.closer)

    @property
    def convicted(self) -> bool:
        """True if the host is sure of it."""
        return self.host is not None and self.host.bad > 0

    @property
    def repeats(self) -> bool:
        """True if the device gave the same bits every time."""
        return not self.differing

    @property
    def ratio(self) -> float | None:
        """The largest error in units of its bound, by the host."""
        return self.host.ratio if self.host is not None else None


@dataclass
class Plan:
    """What to do at every call."""

    runs: int = 2
    """how often each call is made in all"""
    host: bool = True
    identities: bool = True


class Tracer:
    """The observer of a traced pass."""

    def __init__(self, device: Device, plan: Plan, on_call: Callable[[Row], None] | None = None) -> None:
        self.rows: list[Row] = []
        self.work: dict[str, float] = {}
        """stage -> multiplications of products"""
        self.random: list[Site] = []
        """calls that draw random numbers, which nobody looked at"""
        self.device = device
        self._plan, self._on_call = plan, on_call
        self._looks = 0
        self._inside = False
        """True while the steps of a fused kernel are computed by themselves"""

    def wants(self, layer: Layer | None, operator: str, module: str, phase: Phase) -> bool:
        """Everything."""
        return phase == "forward"

    def after(self, call: Call, value: Any) -> Any:
        """Looks at a call; the value goes on unchanged."""
        with self.device.aside():
            for part, found in _results(call, value):
                if self._is_computed(part, found):
                    row = self._look(part, found)
                    self.rows.append(row)
                    if self._on_call is not None:
                        self._on_call(row)
        return value

    def _is_computed(self, call: Call, value: Tensor) -> bool:
        name = plain_name(call.function)
        if not value.numel() or name in _NOTHING or not call.computed(value):
            return False
        if name in _RANDOM:
            self.random.append(call.site)
        return name not in _RANDOM

    # --- one call -----------------------------------------------------------------------------------------------

    def _look(self, call: Call, value: Tensor) -> Row:
        with self.device.at(call.sites):
            return self._look_at(call, value)

    def _look_at(self, call: Call, value: Tensor) -> Row:
        row = Row(call.site, value.numel(), str(value.dtype).removeprefix("torch."))
        self._looks += 1
        alarms = share_of_alarms(self._looks) / TESTS
        here, mine = HostCall.of(call), value.detach().cpu()
        row.finite = not value.is_floating_point() or is_finite(mine)
        row.is_product = self._count("trace", here, mine) > 0
        others = self._repeat(row, call, here, mine)
        if self._plan.host:
            self._count("host", here, mine)
            row.host = check_on_host(here, mine, alarms)
        if others:
            row.beyond = self._is_beyond(here, [mine, *others], alarms)
        if self._plan.identities and value.is_floating_point() and not _has_nan(here):
            self._ask(row, call, here, value, alarms)
        if row.faulty:
            wrong = mine if row.convicted else next(iter(others), mine)
            row.kind = self._name(row, here, wrong, alarms) if value.is_floating_point() else "other"
            if row.is_product:
                shown = [failure.shown for failure in row.failures if failure.shown is not None]
                row.modes = explaining_modes(here, wrong, alarms, shown)
        if here.name == "scaled_dot_product_attention" and (row.faulty or self._plan.identities):
            looks = CLOSER_LOOKS if row.deviates else 1
            row.closer = next(filter(None, (self._look_closer(call) for _ in range(looks))), None)
        return row

    def _repeat(self, row: Row, call: Call, here: HostCall, value: Tensor) -> list[Tensor]:
        """Makes the call again; the values that came out otherwise."""
        others = []
        for _ in range(self._plan.runs - 1):
            self._count("repeat", here, value)
            again = self.device.run(call.again).detach().cpu()
            row.repeated += 1
            if not same_bits(again, value):
                row.differing = max(row.differing, int(((again != value) & ~(again.isnan() & value.isnan())).sum()))
                others.append(again)
        return others

    def _is_beyond(self, here: HostCall, values: list[Tensor], alarms: float) -> bool:
        """Whether a call that comes out otherwise every time leaves the bound that its order of summation may fill."""
        outcomes = [check_on_host(here, value, alarms) for value in values]
        return any(bool(outcome.bad) or not outcome.judged for outcome in outcomes)

    def _ask(self, row: Row, call: Call, here: HostCall, value: Tensor, alarms: float) -> None:
        probe = Probe(call, value, self.device, alarms)
        answers = check_identities(probe, repeats=row.repeats)
        row.identities, row.failures, row.refused = answers.asked, answers.failed, answers.refused
        self._count("identities", here, value, times=answers.calls)

    def _name(self, row: Row, here: HostCall, value: Tensor, alarms: float) -> str:
        """The kind of fault; from a probe whose right answer is known, where the call itself is within its bound."""
        shown = next((failure.shown for failure in row.failures if failure.shown is not None), None)
        if shown is not None and not row.beyond and not row.convicted:
            return name_kind(shown.got.cpu(), shown.expected.cpu().double(), 0.0, repeats=row.repeats)
        try:
            due, slack = reference_of(here, value, alarms)
        except (RuntimeError, TypeError):  # not every kernel exists in float64
            return "other"
        return name_kind(value, due, slack, repeats=row.repeats)

    def _look_closer(self, call: Call) -> Row | None:
        """Whether one step of a fused attention kernel is off when it is computed by itself, in float32 as inside."""
        found: list[Row] = []

        def step(operator: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
            index = sum(row.site.operator == operator for row in found)
            site = Site(call.site.layer, operator, call.site.module, index)
            with self.device.at((site,)):
                value: Tensor = self.device.run(function, *args, **kwargs)
            part = Call((site,), function, args, kwargs, call.module)
            found.append(self._look(part, value))
            return value

        given = sdpa_arguments(call.args, call.kwargs)
        self._inside = True
        try:
            attention_in_steps(step, **{name: _wide(part) for name, part in given.items()})
        finally:
            self._inside = False
        return next((row for row in found if row.faulty), None)

    def _count(self, stage: str, here: HostCall, value: Tensor, *, times: float = 1.0) -> float:
        done = times * _work(here, value)
        stage = "attention in steps" if self._inside else stage
        self.work[stage] = self.work.get(stage, 0.0) + done
        return done


class _Result:
    """A function that gives several tensors, taken for one that gives one of them."""

    def __init__(self, function: Callable[..., Any], index: int) -> None:
        self.__name__ = getattr(function, "__name__", "")
        self._function, self._index = function, index

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return tree_leaves(self._function(*args, **kwargs))[self._index]


def _results(call: Call, value: Any) -> Iterator[tuple[Call, Tensor]]:
    """Every tensor that a call gave, with a call that gives that one alone."""
    if isinstance(value, Tensor):
        yield call, value
        return
    for index, leaf in enumerate(tree_leaves(value)):
        if isinstance(leaf, Tensor):
            yield replace(call, function=_Result(call.function, index)), leaf


def _has_nan(here: HostCall) -> bool:
    """True if the call was given a NaN: no algebra holds for these."""
    given = tensors(here.args, here.kwargs)
    own = here.module.parameters() if here.module is not None else ()
    return any(bool(leaf.aminmax()[0].isnan()) for leaf in (*given, *own) if leaf.is_floating_point() and leaf.numel())


def _wide(given: Any) -> Any:
    narrow = isinstance(given, Tensor) and given.is_floating_point() and given.dtype.itemsize < 4
    return given.float() if narrow else given


def _work(here: HostCall, value: Tensor) -> float:
    """Multiplications of a product; other operators cost next to nothing."""
    if here.name == "scaled_dot_product_attention":
        given = sdpa_arguments(here.args, here.kwargs)
        return float(value.numel() * given["key"].shape[-2] * 2)
    rule = rule_of(here)
    if rule is None or rule.name != "product":
        return 0.0
    parts = products_of(here)
    return float(value.numel() * parts[0].length) if parts else float(value.numel())
