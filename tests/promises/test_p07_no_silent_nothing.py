"""P7: what would do nothing is refused with exit code 3 and its cause; what does something is not refused."""

import copy
import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import noisescope as ns
from families import build, tokens
from noisescope.errors import CompiledModel, DoseVanished, HiddenOperator, NoisescopeError, NothingMatched
from noisescope.injection import Injection, watching
from noisescope.sites import Selector

# --- models -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """The smallest block: a linear, an activation, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + F.silu(self.linear(hidden))


class Toy(nn.Module):
    """Two blocks and nothing else: no embedding, norm or head."""

    def __init__(self, make: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.layers = nn.ModuleList([make(), make()])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Attends(nn.Module):
    """A block around torch's own attention module, whose kernel shows nothing of its inside."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.linear(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])


class Counts(nn.Module):
    """A block that multiplies integers: a product with nothing to disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden + torch.matmul(torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2).long()).sum())


def toy(make: Callable[[], nn.Module] = Block) -> nn.Module:
    torch.manual_seed(0)
    return Toy(make).eval()


@cache
def llama() -> nn.Module:
    return build("llama")


def hidden(rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    """Dynamo keeps what it compiled, with its tensors that have no memory; other tests count tensors."""
    yield
    torch._dynamo.reset()
    gc.collect()


# --- twenty ways to do nothing ----------------------------------------------------------------------------------


@dataclass
class Nothing:
    """A model, how it is used, what is asked of it, and how that must be refused."""

    model: Callable[[], nn.Module]
    use: Callable[[nn.Module], object]
    where: dict
    error: type[NoisescopeError]
    cause: str
    noise: object = ns.RelativeGaussian(0.05)


def use_tokens(model: nn.Module) -> object:
    with torch.no_grad():
        return model(**tokens())


def use_hidden(model: nn.Module) -> object:
    with torch.no_grad():
        return model(hidden())


def train(model: nn.Module) -> None:
    model(**tokens()).logits.sum().backward()
    model.zero_grad(set_to_none=True)


def compiled(backend: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch._dynamo.reset()
        return torch.compile(toy(), backend=backend)

    return make


def compiled_in_place() -> nn.Module:
    model = toy()
    model.compile(backend="eager")
    return model


def compiled_part() -> nn.Module:
    model = toy()
    model.layers[1].compile(backend="eager")
    return model


def with_compiled_forward(*, warm: bool) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch._dynamo.reset()
        model = toy()
        model.layers[0].forward = torch.compile(model.layers[0].forward, backend="eager")
        if warm:
            use_hidden(model)
        return model

    return make


def scripted() -> nn.Module:
    model = toy()
    model.layers[1] = torch.jit.trace(model.layers[1], hidden())
    return model


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


NOTHINGS = {
    "layer out of range": Nothing(llama, use_tokens, {"layers": 3}, NothingMatched, "the model has 0 to 2"),
    "one layer of several out of range": Nothing(llama, use_tokens, {"layers": "1-3"}, NothingMatched, "out of range"),
    "pattern without a module": Nothing(llama, use_tokens, {"modules": "*.mpl"}, NothingMatched, '"*.mpl" matches no'),
    "one pattern of two without a module": Nothing(
        llama, use_tokens, {"modules": ["*.mlp", "re:.*\\.attn"]}, NothingMatched, "matches no module"
    ),
    "gelu of a Llama": Nothing(llama, use_tokens, {"operators": "gelu"}, NothingMatched, "operators gelu"),
    "layer_norm of a Llama": Nothing(
        llama, use_tokens, {"operators": "layer_norm"}, NothingMatched, 'are rms_norm; "norm"'
    ),
    "bmm of a Llama": Nothing(llama, use_tokens, {"operators": "bmm"}, NothingMatched, "nothing matched in 1 forward"),
    "rms_norm of a GPT-2": Nothing(
        lambda: build("gpt2"), use_tokens, {"operators": "rms_norm"}, NothingMatched, "are layer_norm"
    ),
    "rms_norm of the head": Nothing(
        llama, use_tokens, {"operators": "rms_norm", "layers": "head"}, NothingMatched, "see `noisescope sites`"
    ),
    "an embedding inside a block": Nothing(
        llama, use_tokens, {"operators": "embedding", "layers": 2}, NothingMatched, "layers 2, operators embedding"
    ),
    "softmax of the head": Nothing(
        llama, use_tokens, {"operators": "softmax", "layers": "head"}, NothingMatched, "layers head"
    ),
    "a module outside the layers asked for": Nothing(
        llama, use_tokens, {"modules": "model.layers.0.mlp", "layers": 1}, NothingMatched, "layers 1, modules"
    ),
    "the head of a bare decoder": Nothing(
        lambda: llama().model, use_tokens, {"layers": "head"}, NothingMatched, "layers head"
    ),
    "an embedding that the model has not": Nothing(toy, use_hidden, {"layers": "embed"}, NothingMatched, "embed"),
    "softmax inside nn.MultiheadAttention": Nothing(
        lambda: toy(Attends), use_hidden, {"operators": "softmax"}, HiddenOperator, "multi_head_attention_forward"
    ),
    "the same beside an operator that is in view": Nothing(
        lambda: toy(Attends), use_hidden, {"operators": ["softmax", "linear"]}, HiddenOperator, "softmax runs inside"
    ),
    "softmax inside nn.TransformerEncoder": Nothing(
        encoder, use_hidden, {"operators": "softmax"}, HiddenOperator, "fused kernel"
    ),
    "matmul backward inside nn.TransformerEncoder": Nothing(
        encoder,
        lambda model: model(hidden()).sum().backward(),
        {"operators": "matmul", "phases": "backward"},
        HiddenOperator,
        "fused kernel",
    ),
    "compiled, backend eager": Nothing(compiled("eager"), use_hidden, {}, CompiledModel, "is compiled"),
    "compiled, backend aot_eager": Nothing(compiled("aot_eager"), use_hidden, {}, CompiledModel, "_orig_mod"),
    "compiled in place": Nothing(compiled_in_place, use_hidden, {}, CompiledModel, "Toy is compiled"),
    "a compiled part": Nothing(compiled_part, use_hidden, {}, CompiledModel, "Block is compiled"),
    "a compiled forward, cold": Nothing(
        with_compiled_forward(warm=False), use_hidden, {"operators": "silu"}, CompiledModel, "is compiled"
    ),
    "a compiled forward, warm": Nothing(
        with_compiled_forward(warm=True), use_hidden, {"operators": "silu"}, CompiledModel, "is compiled"
    ),
    "a scripted part": Nothing(scripted, use_hidden, {}, CompiledModel, "is scripted"),
    "a dose that bfloat16 swallows": Nothing(
        lambda: toy().bfloat16(),
        lambda model: model(hidden().bfloat16()),
        {},
        DoseVanished,
        "changed none of",
        ns.RelativeGaussian(1e-5),
    ),
    "a bias that bfloat16 swallows": Nothing(
        lambda: toy().bfloat16(),
        lambda model: model(hidden().bfloat16() + 4),
        {"operators": "residual"},
        DoseVanished,
        "below the rounding of their dtype",
        ns.SystematicBias(1e-5),
    ),
    "noise on values that are no numbers": Nothing(
        toy, lambda model: model(hidden() * float("nan")), {"operators": "silu"}, DoseVanished, "changed none"
    ),
    "a product of integers": Nothing(
        lambda: toy(Counts), use_hidden, {"operators": "matmul"}, DoseVanished, "changed none of 0 values"
    ),
    "no rows at all": Nothing(toy, lambda model: model(hidden(0)), {}, DoseVanished, "changed none of 0 values"),
    "backward without gradients": Nothing(
        llama, use_tokens, {"phases": "backward"}, NothingMatched, "no gradient was disturbed"
    ),
    "backward without a backward pass": Nothing(
        llama, lambda model: model(**tokens()), {"phases": "backward"}, NothingMatched, "no backward pass ran"
    ),
    "backward through nothing that needs a gradient": Nothing(
        lambda: copy.deepcopy(llama()).requires_grad_(False),
        lambda model: model(**tokens()),
        {"phases": "backward"},
        NothingMatched,
        "needs a gradient",
    ),
    "backward of an operator that is not there": Nothing(
        llama, train, {"phases": "backward", "operators": "gelu"}, NothingMatched, "operators gelu"
    ),
    "a typo at scale zero": Nothing(
        llama, use_tokens, {"operators": "gelu"}, NothingMatched, "operators gelu", ns.RelativeGaussian(0)
    ),
}


def check_refused(nothing: Nothing) -> None:
    """It raises its own class, with exit code 3, in one line that names the cause."""
    model, found = nothing.model(), None
    try:
        with ns.inject(model, nothing.noise, **nothing.where):
            nothing.use(model)
    except NoisescopeError as error:
        found = error
    assert found is not None, "nothing was done, and nothing was said"
    assert (type(found), found.exit_code) == (nothing.error, 3), found
    assert "\n" not in str(found)
    assert nothing.cause in str(found)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("case", NOTHINGS)
def test_nothing_is_refused(case):
    check_refused(NOTHINGS[case])


def test_there_are_twenty_of_them():
    assert len(NOTHINGS) >= 20


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_the_original_of_a_compiled_model_called_through_the_compiled_one():
    original = toy()
    model = torch.compile(original, backend="eager")
    use_hidden(model)
    check_refused(Nothing(lambda: original, lambda _: use_hidden(model), {}, CompiledModel, "is compiled"))


# --- what is allowed to do nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [{"operators": []}, {"layers": []}, {"modules": []}, {"phases": []}], ids=str)
def test_an_explicitly_empty_selection_does_nothing_and_says_so(where):
    with ns.inject(llama(), ns.RelativeGaussian(0.05), **where) as injection:
        use_tokens(llama())
    assert injection.stats.calls() == injection.stats.elements == 0
    assert str(injection.stats) == "nothing injected"


@pytest.mark.parametrize("phases", ["forward", "backward", "both"])
@pytest.mark.parametrize("operators", [None, "rms_norm", "softmax", "linear"])
def test_scale_zero_is_no_alarm(operators, phases):
    with ns.inject(llama(), ns.RelativeGaussian(0), operators=operators, phases=phases) as injection:
        train(llama())
    assert injection.stats.elements == 0


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_compiled_code_that_torch_runs_eagerly_is_injected():
    original = toy()
    model = torch.compile(original, backend="eager")
    with torch.compiler.set_stance("force_eager"), ns.inject(model, ns.RelativeGaussian(0.05)) as injection:
        use_hidden(model)
    assert injection.stats.dose > 0


# --- fifty targets that are there -------------------------------------------------------------------------------


def targets(number: int = 60) -> list[dict]:
    """Selections drawn over layers, operators, phases and patterns, each of which a Llama of three layers has."""
    draw = random.Random(0)
    inside = ["linear", "matmul", "softmax", "silu", "rms_norm", "attention", "residual"]
    patterns = {
        "*.mlp": ["linear", "silu"],
        "*.self_attn": ["linear", "matmul", "softmax", "attention"],
        "re:.*\\.(up|down)_proj": ["linear"],
        "model.layers.?.input_layernorm": ["rms_norm"],
        "*": inside,
    }
    outside = [("embed", "embedding"), ("final_norm", "rms_norm"), ("head", "linear")]
    found = []
    for kind in range(number):
        phases = draw.choice(["forward", "backward", "both"])
        layers = draw.choice([None, 0, [1, 2], "0-1", "L2"])
        if kind % 5 == 0:
            layer, operator = draw.choice(outside)
            found.append({"layers": [layer], "operators": draw.choice([None, operator]), "phases": phases})
        elif kind % 5 == 1:
            pattern = draw.choice(list(patterns))
            operators = draw.choice([None, draw.sample(patterns[pattern], 1)])
            found.append({"layers": layers, "modules": pattern, "operators": operators, "phases": phases})
        else:
            operators = draw.sample(inside, draw.randint(1, 3))
            found.append({"layers": layers, "operators": operators, "phases": phases})
    return found


def check_no_alarm(where: dict) -> None:
    """No error, and noise in every phase that was asked for."""
    try:
        with ns.inject(llama(), ns.RelativeGaussian(0.05), **where) as injection:
            train(llama())
    except NoisescopeError as error:
        raise AssertionError(f"false alarm: {error}") from error
    for phase in ("forward", "backward"):
        assert bool(injection.stats.calls(phase=phase)) == (where["phases"] in (phase, "both"))
    assert 0.03 < injection.stats.dose < 0.07


@pytest.mark.parametrize("where", targets(), ids=str)
def test_no_false_alarm(where):
    check_no_alarm(where)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_trained_models(request, name):
    model = request.getfixturevalue(name)
    for noise in (ns.RelativeGaussian(1e-4), ns.BitFlip(1e-3), ns.StuckAt(1e-3), ns.SystematicBias(1e-4)):
        with ns.inject(model, noise) as injection:
            use_tokens(model)
        assert injection.stats.dose > 0
    with pytest.raises(NothingMatched), ns.inject(model, ns.BitFlip(1e-3), operators="bmm"):
        use_tokens(model)


# --- able to fail -----------------------------------------------------------------------------------------------


def never_asks_at_the_end(monkeypatch):
    monkeypatch.setattr(Injection, "refuse_silence", lambda self: None)


def never_looks_at_the_dose(monkeypatch):
    real = Injection.refuse_silence

    def mutant(self):
        try:
            real(self)
        except DoseVanished:
            return

    monkeypatch.setattr(Injection, "refuse_silence", mutant)


def never_looks_for_compiled_code(monkeypatch):
    monkeypatch.setattr(watching, "refuse_compiled", lambda model: None)
    monkeypatch.setattr(watching, "under_compile", lambda: False)


def forgets_hidden_kernels(monkeypatch):
    monkeypatch.setattr(watching, "fused_kernels", dict)


def never_checks_the_selection(monkeypatch):
    monkeypatch.setattr(Selector, "_check", lambda self, layout: None)
    never_asks_at_the_end(monkeypatch)


MUTANTS = [
    (never_asks_at_the_end, "gelu of a Llama"),
    (never_asks_at_the_end, "backward without a backward pass"),
    (never_asks_at_the_end, "softmax inside nn.TransformerEncoder"),
    (never_looks_at_the_dose, "a dose that bfloat16 swallows"),
    (never_looks_at_the_dose, "a product of integers"),
    (never_looks_for_compiled_code, "a scripted part"),
    (forgets_hidden_kernels, "softmax inside nn.MultiheadAttention"),
    (forgets_hidden_kernels, "the same beside an operator that is in view"),
    (never_checks_the_selection, "layer out of range"),
    (never_checks_the_selection, "pattern without a module"),
]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("mutant", "case"), MUTANTS)
def test_the_mutants_are_caught(monkeypatch, mutant, case):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_refused(NOTHINGS[case])


def test_a_mutant_that_always_complains_is_caught(monkeypatch):
    def mutant(self):
        raise self._why_nothing()

    monkeypatch.setattr(Injection, "refuse_silence", mutant)
    with pytest.raises(AssertionError):
        check_no_alarm(targets()[0])
