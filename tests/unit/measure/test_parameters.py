"""Every parameter once, under the right layer, in every family; and nothing left behind by differentiating."""

import pytest
import torch
from torch import nn

from families import DECODERS, LAYERS, build
from noisescope.errors import ModelError
from noisescope.measure.parameters import OTHER, Parameters, differentiating
from noisescope.sites import Layout


@pytest.mark.parametrize("family", DECODERS)
def test_every_parameter_has_its_layer(family):
    model = build(family)
    found = Parameters.of(model)
    blocks = Layout.of(model).paths[Layout.of(model).blocks[0]].removesuffix("0")
    assert dict(zip(found.names, found.tensors, strict=True)) == dict(model.named_parameters())
    for name, layer in zip(found.names, found.layers, strict=True):
        if name.startswith(blocks):
            assert layer == int(name.removeprefix(blocks).split(".")[0])
        elif layer == OTHER:
            pytest.fail(f"{name} has no layer")
        else:
            assert layer in ("embed", "final_norm", "head")
    assert set(found.layers) >= {*range(LAYERS), "embed"}


def test_a_tied_weight_is_the_embedding_whichever_comes_first():
    plain, tied = build("llama"), build("gpt2")
    assert {"embed", "head"} <= set(Parameters.of(plain).layers)
    assert "head" not in Parameters.of(tied).layers
    turned = nn.Module()  # the head is registered before the embedding
    turned.lm_head, turned.wte = nn.Linear(4, 9, bias=False), nn.Embedding(9, 4)
    turned.wte.weight = turned.lm_head.weight
    turned.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
    turned.get_output_embeddings = lambda: turned.lm_head
    found = Parameters.of(turned)
    assert dict(zip(found.names, found.layers, strict=True)) == {
        "wte.weight": "embed",
        **{f"blocks.{layer}.0.{part}": layer for layer in range(2) for part in ("weight", "bias")},
    }


def test_a_parameter_of_two_blocks_belongs_to_neither():
    shared = nn.Linear(4, 4)
    model = nn.ModuleList(nn.Sequential(shared, nn.Linear(4, 4)) for _ in range(2))
    layers = dict(zip(Parameters.of(model).names, Parameters.of(model).layers, strict=True))
    assert layers == {
        "0.0.weight": OTHER, "0.0.bias": OTHER, "0.1.weight": 0, "0.1.bias": 0, "1.1.weight": 1, "1.1.bias": 1,
    }  # fmt: skip


def test_names_are_those_of_the_bare_model():
    model = build("llama")
    names = Parameters.of(model).names
    model.model.layers[1] = torch.compile(model.model.layers[1])
    assert Parameters.of(model).names == names


def test_models_without_weights_are_refused():
    with torch.device("meta"):
        unloaded = build("gpt2")
    with pytest.raises(ModelError, match=r"transformer\.wte\.weight: is on the meta device, expected"):
        Parameters.of(unloaded)
    bare = nn.ModuleList(nn.Sequential(nn.Identity()) for _ in range(2))
    with pytest.raises(ModelError, match="ModuleList: no floating-point parameters"):
        Parameters.of(bare)


def test_inside_everything_has_a_gradient_and_afterwards_all_is_as_before():
    model = build("gpt2").train()
    model.transformer.h[1].eval()
    model.transformer.wte.weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    flags = [weight.requires_grad for weight in model.parameters()]
    state = torch.get_rng_state()

    def interrupted() -> None:
        with torch.inference_mode(), differentiating(model, Parameters.of(model)):
            look()
            raise KeyboardInterrupt

    def look() -> None:
        assert not any(module.training for module in model.modules())
        assert all(weight.requires_grad for weight in model.parameters())
        assert (model.transformer.wte.weight * torch.rand(1)).requires_grad

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [module.training for module in model.modules()] == modes
    assert [weight.requires_grad for weight in model.parameters()] == flags
    assert torch.equal(torch.get_rng_state(), state)
