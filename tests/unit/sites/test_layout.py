"""Finding blocks and roles by structure, and selecting among them."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import noisescope as ns
from families import DECODERS, LAYERS, build
from noisescope.errors import InputError, ModelError, NothingMatched
from noisescope.sites import Layout, Selector, Site
from noisescope.specs import Selection


@pytest.mark.parametrize("family", DECODERS)
def test_blocks_and_roles(family: str) -> None:
    model = build(family)
    layout = Layout.of(model)
    assert len(layout.blocks) == LAYERS
    roles = {
        role: [m for m, found in layout.layer.items() if found == role] for role in ("embed", "final_norm", "head")
    }
    assert roles["head"] == [model.get_output_embeddings()]
    assert model.get_input_embeddings() in roles["embed"]
    assert len(roles["final_norm"]) == 1
    assert not any(
        layout.paths[m].startswith(layout.paths[b]) for ms in roles.values() for m in ms for b in layout.blocks
    )


def test_both_stacks_of_an_encoder_decoder() -> None:
    layout = Layout.of(build("t5"))
    assert [layout.paths[block] for block in layout.blocks] == [
        "encoder.block.0",
        "encoder.block.1",
        "decoder.block.0",
        "decoder.block.1",
    ]


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "rms_norm"),
        ("gemma3", "rms_norm"),
        ("t5", "rms_norm"),
        ("cohere", "layer_norm"),
        ("olmo", "layer_norm"),
    ],
)
def test_norms_are_told_apart_by_what_they_do(family: str, kind: str) -> None:
    layout = Layout.of(build(family))
    assert {found for found in layout.operator.values() if "norm" in found} == {kind}


def test_finding_the_layout_touches_nothing() -> None:
    model = build("llama")
    calls = []
    model.model.norm.register_forward_hook(lambda *_: calls.append(1))
    state = torch.get_rng_state()
    Layout.of(model)
    assert calls == []
    assert torch.equal(state, torch.get_rng_state())


class Strange(nn.Module):
    """Blocks kept in attributes, not in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))

    def forward(self, x):
        return self.second(self.first(x))


def test_an_unknown_structure_says_what_was_looked_for_and_how_to_name_it() -> None:
    with pytest.raises(ModelError, match=r'no decoder blocks found; looked for .* blocks="path'):
        Layout.of(Strange())
    layout = Layout.of(Strange(), blocks="re:first|second")
    assert [layout.paths[block] for block in layout.blocks] == ["first", "second"]
    with pytest.raises(ModelError, match='"third" names neither'):
        Layout.of(Strange(), blocks="third")
    with ns.inject(Strange(), ns.RelativeGaussian(0.1), blocks="re:first|second") as run:
        Strange.forward(run._watch.layout.root, torch.ones(1, 4))
    assert set(run.stats.by_layer) == {0, 1}


def test_named_blocks_by_list_and_by_pattern() -> None:
    model = build("bert")
    for name in ("encoder.layer", "encoder.layer.*"):
        assert Layout.of(model, blocks=name).blocks == Layout.of(model).blocks


def test_a_selector_answers_for_each_place() -> None:
    layout = Layout.of(build("llama"))
    meant = Selector(Selection(layers=(1, "head"), operators=("linear",), modules=("*.mlp", "lm_head")), layout)
    assert meant(1, "linear", "model.layers.1.mlp.down_proj")
    assert meant("head", "linear", "lm_head")
    assert not meant(1, "linear", "model.layers.1.self_attn.q_proj")
    assert not meant(0, "linear", "model.layers.0.mlp.down_proj")
    assert not meant(1, "silu", "model.layers.1.mlp.act_fn")


@pytest.mark.parametrize(
    ("selection", "error", "message"),
    [
        (Selection(layers=(3,)), NothingMatched, "layers: 3 is out of range, the model has 0 to 2"),
        (Selection(modules=("*.nope",)), NothingMatched, r'modules: "\*\.nope" matches no module'),
        (Selection(modules=("re:(",)), InputError, "is not a regular expression"),
    ],
)
def test_a_selection_that_cannot_match_is_refused(selection, error, message) -> None:
    with pytest.raises(error, match=message):
        Selector(selection, Layout.of(build("llama")))


def test_a_wrapper_is_no_part_of_the_names() -> None:
    model = build("llama")
    bare = Layout.of(model)
    model.model.layers[1] = checkpoint_wrapper(model.model.layers[1])
    wrapped = Layout.of(torch.compile(model))
    assert set(wrapped.paths.values()) == set(bare.paths.values())
    assert wrapped.blocks == bare.blocks
    assert wrapped.stacks == bare.stacks


def test_site_names() -> None:
    assert Site(7, "softmax", "model.layers.7.self_attn").name == "model.layers.7.self_attn.softmax.0.forward"
    assert str(Site(None, "matmul", "", 3, "backward")) == "matmul.3.backward"
