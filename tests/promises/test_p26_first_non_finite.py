"""P26: the first site whose value is not finite is named, wherever a NaN or an infinity comes from.

A case plants one bad element into the value of one site, in one row of the batch, as a broken kernel would; or into
the weights, as a broken memory would. The first is the site that must be named, and no other.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import inf, nan

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import noisescope as ns
from families import DECODERS, LAYERS, build, tokens
from noisescope.capturing import first_non_finite
from noisescope.cli import main
from noisescope.diagnosis import map_sensitivity
from noisescope.errors import NonFinite
from noisescope.injection import Watch
from noisescope.points import Bench
from noisescope.sites import Layout, Site
from trained import fixture

CASES = 105
ROWS = 3
BAD = (nan, inf, -inf)
Finder = Callable[[nn.Module, dict[str, Tensor]], Site | None]


class Looking:
    """An observer that lists the values it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[Site, ...]] = []

    def wants(self, layer, operator, module, phase) -> bool:
        return phase == "forward"

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        self.seen.append(sites)
        return value

    def backward(self, site: Site, grad: Tensor, *, step: int, part: int) -> Tensor:
        return grad


@dataclass(frozen=True)
class Case:
    """One bad element: in which value of a forward pass, in which row of it."""

    family: str
    place: int
    row: int
    bad: float


class Planting(Looking):
    """Puts the bad element of a case into its value."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.sites: tuple[Site, ...] = ()

    def forward(self, sites: tuple[Site, ...], value: Tensor, *, step: int, owned: bool) -> Tensor:
        super().forward(sites, value, step=step, owned=owned)
        if len(self.seen) - 1 != self.case.place:
            return value
        self.sites = sites
        with torch._C.DisableTorchFunction():
            value = value.clone(memory_format=torch.contiguous_format)
            row = value[self.case.row % len(value)].view(-1)
            row[random.Random(repr(self.case)).randrange(len(row))] = self.case.bad
        return value


@cache
def model_of(family: str) -> PreTrainedModel:
    return build(family)


@cache
def places(family: str) -> tuple[tuple[Site, ...], ...]:
    """The values of a forward pass, each with its sites, in the order they are computed."""
    looking = Looking()
    with torch.no_grad(), Watch(looking, model_of(family), in_steps=True):
        model_of(family)(**tokens(family, rows=ROWS))
    return tuple(looking.seen)


def cases(count: int) -> Iterator[Case]:
    """Families and operators in turn; places and rows at random."""
    draw = random.Random(26)
    for number in range(count):
        family = DECODERS[number % len(DECODERS)]
        by_operator: dict[str, list[int]] = {}
        for place, (site, *_) in enumerate(places(family)):
            by_operator.setdefault(site.operator, []).append(place)
        operator = sorted(by_operator)[number // len(DECODERS) % len(by_operator)]
        yield Case(family, draw.choice(by_operator[operator]), draw.randrange(ROWS), BAD[number % len(BAD)])


def check_named(case: Case, find: Finder = first_non_finite) -> None:
    planting = Planting(case)
    with Watch(planting, model_of(case.family), in_steps=True):
        found = find(model_of(case.family), tokens(case.family, rows=ROWS))
    assert planting.sites
    assert found == planting.sites[-1]


# --- values -----------------------------------------------------------------------------------------------------


def test_planted_values_are_named():
    operators = set()
    for case in cases(CASES):
        check_named(case)
        operators |= {site.operator for site in places(case.family)[case.place]}
    assert len(operators) >= 9


@pytest.mark.slow
def test_every_place_of_every_family_is_named():
    found = 0
    for family in DECODERS:
        for place in range(len(places(family))):
            for bad in BAD:
                check_named(Case(family, place, found % ROWS, bad))
                found += 1
    assert found > 1000


@pytest.mark.parametrize("attn", [None, "eager"])
@pytest.mark.parametrize("family", DECODERS)
def test_a_healthy_model_has_none(family, attn):
    """Also with padding on either side, whose scores are masked by infinities."""
    model, given = build(family, attn=attn), tokens(family, rows=ROWS)
    assert first_non_finite(model, given) is None
    if attn == "eager":
        mask = torch.ones_like(given["input_ids"])
        mask[0, :5] = mask[1, -5:] = 0
        assert first_non_finite(model, {**given, "attention_mask": mask}) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_healthy_model_in_half_precision_has_none(dtype):
    assert first_non_finite(build("llama").to(dtype), tokens()) is None


def test_the_first_of_two_is_named():
    """A second place that breaks by itself is not the first."""
    place = len(places("llama")) // 2
    earlier = Case("llama", place - 7, 1, nan)
    with Watch(Planting(Case("llama", place, 0, inf)), model_of("llama"), in_steps=True):
        check_named(earlier)


def test_noise_that_breaks_a_value_is_named():
    """Inside `inject` it is asked of the disturbed model."""
    model = model_of("llama")
    with ns.inject(model, ns.RelativeGaussian(1e38), layers=1, operators="rms_norm"):
        site = first_non_finite(model, tokens())
    assert site is not None
    assert site.name == "model.layers.1.input_layernorm.rms_norm.0.forward"


# --- weights ----------------------------------------------------------------------------------------------------


def check_weights_named(family: str, name: str, at: int, bad: float) -> None:
    """A bad weight shows first in the module that it belongs to."""
    model = build(family)
    module = model.get_submodule(name)
    module.weight.data.view(-1)[at % module.weight.numel()] = bad
    found = first_non_finite(model, tokens(family))
    assert found is not None
    assert found.module == name


def weighted(family: str) -> list[str]:
    """Modules of the blocks that every token meets, and the last norm."""
    model = build(family)
    layout = Layout.of(model)
    return [
        path
        for module, path in layout.paths.items()
        if isinstance(getattr(module, "weight", None), nn.Parameter)
        and (layout.home.get(module) is not None or layout.layer.get(module) == "final_norm")
        and not any(part in path for part in ("experts", "gate.", "router"))
    ]


def test_planted_weights_are_named():
    for family in ("llama", "gpt2", "opt", "gpt_neox", "qwen3", "bloom"):
        names = weighted(family)
        assert len(names) >= 5 * LAYERS
        for number, name in enumerate(random.Random(family).sample(names, 4)):
            check_weights_named(family, name, 97 * number, (nan, inf)[number % 2])


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in DECODERS if family != "mixtral"])
def test_every_module_with_a_bad_weight_is_named(family):
    for number, name in enumerate(weighted(family)):
        check_weights_named(family, name, 97 * number, nan)


@pytest.mark.parametrize("bad", BAD)
def test_a_norm_with_a_bad_weight_is_still_a_norm(bad):
    """Norms are recognised by what they do, which this one does no more."""
    check_weights_named("llama", "model.layers.0.input_layernorm", 5, bad)
    check_weights_named("qwen3", "model.layers.0.self_attn.k_norm", 5, bad)


def test_a_bad_row_of_the_embedding_shows_where_it_is_used():
    """The word is not among the tokens; the head, which shares the weight, is the first to meet it."""
    model = build("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    model.transformer.wte.weight.data[0] = nan
    given = tokens("gpt2")
    assert 0 not in given["input_ids"]
    assert first_non_finite(model, given).layer == "head"
    given["input_ids"][1, 4] = 0
    found = first_non_finite(model, given)
    assert (found.layer, found.operator) == ("embed", "embedding")


def test_an_overflow_is_named_where_it_happens():
    """All weights are finite, and so are all projections: the scores are not."""
    model = build("llama")
    for name in ("q_proj", "k_proj"):
        getattr(model.model.layers[1].self_attn, name).weight.data.mul_(1e20)
    assert first_non_finite(model, tokens()).name == "model.layers.1.self_attn.matmul.0.forward"


# --- who is told ------------------------------------------------------------------------------------------------


def broken(path: str = "model.layers.3.mlp.up_proj") -> tuple[nn.Module, object]:
    model, tokenizer = fixture("llama")
    model.get_submodule(path).weight.data[7, 2] = nan
    return model, tokenizer


EXPECTED = r"the model gives non-finite logits; .* is at model\.layers\.3\.mlp\.up_proj\.linear\.0\.forward$"


def test_a_bench_and_a_map_say_so():
    model, tokenizer = broken()
    data = ns.open_data(["It was a bright cold day in April."] * 4, tokenizer, batch_size=4)
    with pytest.raises(NonFinite, match=EXPECTED):
        _ = Bench(model, data).clean
    with pytest.raises(NonFinite, match=EXPECTED):
        map_sensitivity(model, data)
    with pytest.raises(NonFinite, match=EXPECTED):
        ns.diagnose(model, data)


def test_the_command_says_so(tmp_path, capsys):
    model, tokenizer = broken()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("It was a bright cold day in April. " * 20)
    capsys.readouterr()
    given = ["--data", str(tmp_path / "text.txt"), "--n-samples", "4", "--max-length", "12"]
    code = main(["diagnose", str(tmp_path / "model"), *given, "--output", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert "model.layers.3.mlp.up_proj.linear.0.forward" in err
    assert not (tmp_path / "out").exists()


# --- able to fail -----------------------------------------------------------------------------------------------


def finds_the_last(model, inputs):
    class Last(Looking):
        found = None

        def forward(self, sites, value, *, step, owned):
            with torch._C.DisableTorchFunction():
                if not value.isfinite().all():
                    self.found = sites[-1]
            return value

    looking = Last()
    with Watch(looking, model, in_steps=True), torch.no_grad():
        model(**inputs)
    return looking.found


def looks_at_modules_only(model, inputs):
    """Hooks on the modules, as one would write it: functions called between them are not seen."""
    layout = Layout.of(model)
    bad, handles = [], []

    def note(module, args, output):
        if isinstance(output, Tensor) and not output.isfinite().all():
            bad.append(module)

    for module in layout.paths:
        if not list(module.children()):
            handles.append(module.register_forward_hook(note))
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    if not bad:
        return None
    return next(site for (site, *_) in places("llama") if site.module == layout.paths[bad[0]])


def sees_nan_only(monkeypatch):
    monkeypatch.setattr(Tensor, "isfinite", lambda self: ~self.isnan())


def of_family(family: str) -> list[Case]:
    return [Case(family, place, place % ROWS, BAD[place % 3]) for place in range(0, len(places(family)), 5)]


@pytest.mark.parametrize("mutant", [finds_the_last, looks_at_modules_only, lambda model, inputs: None])
def test_the_mutants_are_caught(mutant):
    caught = 0
    for case in of_family("llama"):
        try:
            check_named(case, mutant)
        except AssertionError:
            caught += 1
    assert caught


def test_a_mutant_that_sees_no_infinity_is_caught(monkeypatch):
    sees_nan_only(monkeypatch)
    with pytest.raises(AssertionError):
        check_named(Case("llama", len(places("llama")) - 1, 0, inf))


def test_a_mutant_that_always_complains_is_caught(monkeypatch):
    monkeypatch.setattr(Tensor, "isfinite", lambda self: torch.zeros_like(self))
    assert first_non_finite(model_of("llama"), tokens()) is not None
