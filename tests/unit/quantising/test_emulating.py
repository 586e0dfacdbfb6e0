"""A model in number formats against the slow, obvious way: a copy whose weights are rounded, with hooks that round."""

import threading
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import families
import noisescope as ns
import odd_models
import trained
from noisescope.errors import InputError, NothingMatched
from noisescope.noise.formats import parse_format, quality
from noisescope.quantising import find_weights, parse_scheme
from noisescope.sites import Layout

IDS = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(0))
PLAIN = [name for name in families.DECODERS if name != "mixtral"]


def slowly(
    model: nn.Module, weights: str | None, activations: str | None = None, include: tuple[str, ...] = ()
) -> Tensor:
    copy = deepcopy(model)
    for weight in find_weights(Layout.of(copy), include=include).values():
        if weights is not None:
            rounded = parse_format(weights).round(weight.value.data, axis=weight.axis)
            weight.module.weight = nn.Parameter(rounded)
        if activations is not None:
            form = parse_format(activations)
            weight.module.register_forward_pre_hook(lambda module, args, form=form: (form.round(args[0]),))
    with torch.no_grad():
        return copy(IDS).logits


@pytest.mark.parametrize("text", ["mxfp4", "int8", "nvfp4"])
@pytest.mark.parametrize("family", PLAIN)
def test_weights_in_a_format(family: str, text: str) -> None:
    model = families.build(family)
    with torch.no_grad():
        clean = model(IDS).logits
        with ns.quantised(model, text):
            rounded = model(IDS).logits
        again = model(IDS).logits
    assert torch.equal(rounded, slowly(model, text))
    assert torch.equal(again, clean)
    assert not torch.equal(rounded, clean)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize(
    ("text", "weights", "activations"),
    [
        ("W8A8", "int8", "int8"),
        ("W4A16", "int4", None),
        ("W4A4", "int4", "int4:channel"),
        ("none/mxfp8", None, "mxfp8"),
        ("nvfp4/fp8_e4m3", "nvfp4", "fp8_e4m3"),
    ],
)
def test_activations_too(family: str, text: str, weights: str | None, activations: str | None) -> None:
    model = families.build(family)
    with torch.no_grad(), ns.quantised(model, text):
        rounded = model(IDS).logits
    assert torch.equal(rounded, slowly(model, weights, activations))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_head_and_embedding_if_they_are_asked_for(family: str) -> None:
    """Also where they are one weight: the head rounds along its input, the embedding its rows, which is the same."""
    model = families.build(family)
    with torch.no_grad(), ns.quantised(model, "int8", include=["head", "embed"]):
        rounded = model(IDS).logits
    assert torch.equal(rounded, slowly(model, "int8", include=("head", "embed")))


def test_patterns_of_which_the_last_counts_and_what_is_kept() -> None:
    model = families.build("llama")
    run = ns.quantised(model, {"*.mlp": "mxfp4", "*.layers.1.mlp.up_proj": "int8"}, keep=["*.layers.2"])
    formats = {path: str(scheme) for path, scheme in run.schemes.items()}
    assert formats == {
        **{f"model.layers.0.mlp.{name}": "mxfp4" for name in ("gate_proj", "up_proj", "down_proj")},
        **{f"model.layers.1.mlp.{name}": "mxfp4" for name in ("gate_proj", "down_proj")},
        "model.layers.1.mlp.up_proj": "int8",
    }


def test_gradients_go_straight_through() -> None:
    """To the weights as if they were the rounded ones."""
    model = families.build("gpt2")
    with ns.quantised(model, "mxfp4"):
        model(IDS).logits.square().mean().backward()
    copy = deepcopy(model)
    copy.zero_grad()
    for weight in find_weights(Layout.of(copy)).values():
        weight.value.data = parse_format("mxfp4").round(weight.value.data, axis=weight.axis)
    copy(IDS).logits.square().mean().backward()
    for one, other in zip(model.parameters(), copy.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_only_this_thread_and_only_inside() -> None:
    model = families.build("llama")
    found: list[Tensor] = []

    def fail_inside() -> None:
        with ns.quantised(model, "mxfp4"):
            thread = threading.Thread(target=lambda: found.append(model(IDS).logits.detach()))
            thread.start()
            thread.join()
            raise RuntimeError("on purpose")

    with torch.no_grad():
        clean = model(IDS).logits
        with pytest.raises(RuntimeError, match="on purpose"):
            fail_inside()
        assert torch.equal(found[0], clean)
        assert torch.equal(model(IDS).logits, clean)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_format_that_had_no_effect_is_told_at_the_exit() -> None:
    """Mamba multiplies with the weight of dt_proj past the module."""
    model = odd_models.build("mamba")

    def run(*formats: object, **options: object) -> None:
        with torch.no_grad(), ns.quantised(model, *formats, **options):
            model(IDS)

    said = r"^formats: backbone.layers.0.mixer.dt_proj \(and 1 more\) was not called .* leave it as it is with keep$"
    for formats in ("mxfp4", {"*.dt_proj": "mxfp4"}):
        with pytest.raises(NothingMatched, match=said):
            run(formats)
    run("mxfp4", keep=["*.dt_proj"])
    with ns.quantised(model, "mxfp4"):
        pass
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_an_expert_that_no_token_is_sent_to_is_no_error() -> None:
    class Routed(nn.Module):
        def __init__(self, expert: nn.Module) -> None:
            super().__init__()
            self.experts = nn.ModuleList([expert, deepcopy(expert)])

        def forward(self, hidden: Tensor) -> Tensor:
            return self.experts[0](hidden)

    model = families.build("llama")
    for layer in model.model.layers:
        layer.mlp = Routed(layer.mlp)
    with torch.no_grad(), ns.quantised(model, "mxfp4"):
        model(IDS)


def test_a_parameter_of_several_modules_is_rounded_in_all_of_them() -> None:
    model = odd_models.build("zamba2")
    copy = deepcopy(model)
    for weight in find_weights(Layout.of(copy)).values():
        weight.value.data = parse_format("mxfp4").round(weight.value.data, axis=weight.axis)
    with torch.no_grad(), ns.quantised(model, "mxfp4"):
        rounded = model(IDS).logits
    assert torch.equal(rounded, copy(IDS).logits)


def test_one_emulation_is_entered_once_at_a_time() -> None:
    model = families.build("llama")
    with torch.no_grad(), ns.quantised(model, "mxfp4") as run:
        before = model(IDS).logits
        with (
            pytest.raises(InputError, match=r"^quantised: is entered already; make another one"),
            run,
        ):
            pass
        assert torch.equal(model(IDS).logits, before)
    with torch.no_grad(), run:
        assert torch.equal(model(IDS).logits, before)


def test_stochastic_rounding_is_keyed() -> None:
    model = families.build("llama")

    def logits(seed: int) -> Tensor:
        with torch.no_grad(), ns.quantised(model, "mxfp4:stochastic/int8:stochastic", seed=seed):
            return model(IDS).logits

    assert torch.equal(logits(0), logits(0))
    assert not torch.equal(logits(0), logits(1))


def test_what_became_of_the_values() -> None:
    model, tokenizer = trained.fixture("llama")
    ids = tokenizer("The yield statement is used when defining a generator", return_tensors="pt")
    seen: list[Tensor] = []
    module = model.model.layers[0].mlp.down_proj
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    with torch.no_grad(), ns.quantised(model, "mxfp4/int8") as run:
        model(**ids)
    handle.remove()
    rows = {(row.path, row.what): row for row in run.rows}
    path = "model.layers.0.mlp.down_proj"
    assert len(rows) == 2 * 8 * 7
    assert rows[path, "weight"].quality == quality(parse_format("mxfp4"), module.weight)
    expected = quality(parse_format("int8"), seen[0])
    found = rows[path, "input"].quality
    assert found.sqnr_db == pytest.approx(expected.sqnr_db, rel=1e-9)
    assert (found.clipped, found.zeroed) == pytest.approx((expected.clipped, expected.zeroed))
    assert str(run).splitlines()[0].split() == ["layer", "place", "format", "SQNR", "clipped", "zeroed"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("mxfp5", 'unknown format "mxfp5"'),
        ("W3A8", 'unknown format "W3A8"'),
        (7, "format: got 7, expected a format"),
        ({"*.nothing": "mxfp4"}, 'formats: "*.nothing" matches no weight'),
    ],
)
def test_what_cannot_be_meant(asked: object, why: str) -> None:
    with pytest.raises((InputError, NothingMatched)) as caught:
        ns.quantised(families.build("llama"), asked)
    assert str(caught.value).startswith(why)


def test_schemes_by_name() -> None:
    assert str(parse_scheme("w8a8")) == "int8/int8"
    assert str(parse_scheme("W4A16")) == "int4"
    assert str(parse_scheme("none/int8")) == "none/int8"
