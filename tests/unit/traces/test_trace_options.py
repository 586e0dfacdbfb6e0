"""Options of trace() and tracing(): each does what it says, or is refused in one line."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import noisescope as ns
from families import build, tokens
from noisescope.errors import InputError, NoisescopeError

# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_predicts_nothing(side: str) -> None:
    model, ids = build("llama"), tokens("llama", rows=3, length=16)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    mask = mask if side == "left" else mask.flip(1)
    found = ns.trace(model, {"input_ids": ids, "attention_mask": mask}, backward=True, full=True, floor=False)
    at = next(n for n, site in enumerate(found.sites) if site.name.startswith("lm_head.linear.0.backward"))
    gradient = found.full[at]()[0]
    assert not gradient[mask == 0].any()
    ends = mask.bool() & ~torch.cat([mask[:, 1:], torch.zeros(3, 1)], dim=1).bool()
    assert bool((gradient.abs().sum(-1) > 0).eq(mask.bool() & ~ends).all())


def test_attention_in_steps_has_the_gradients_of_a_kernel_beside_padding() -> None:
    fused, ids = build("llama", attn="sdpa"), tokens("llama", rows=3, length=16)["input_ids"]
    stepwise = copy.deepcopy(fused)
    stepwise.set_attn_implementation("eager")
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    found = ns.compare(ns.trace(fused, given, backward=True), ns.trace(stepwise, given, backward=True, floor=False))
    assert not [row.site.name for row in found.sites if row.beyond and "attention" not in row.site.name]


@pytest.mark.parametrize("family", ["llama", "cohere", "bloom"])
def test_gradients_of_a_float16_suspect_do_not_vanish(family: str) -> None:
    model, given = build(family), tokens(family, rows=3, length=20)
    reference = ns.trace(model, given, backward=True, checkpoint="c")
    narrow: Any = copy.deepcopy(model).half()
    found = ns.compare(reference, ns.trace(narrow, given, backward=True, checkpoint="c", floor=False))
    assert found.outcome == "within the noise floor"


# --- the file ---------------------------------------------------------------------------------------------------


def test_the_digest_can_be_recomputed_from_the_page_of_the_format(tmp_path: Path) -> None:
    """With ids and hidden states, by numpy, json and hashlib alone."""
    given = [{"input_ids": tokens("llama", seed=seed)["input_ids"]} for seed in range(12)]
    ns.trace(build("llama"), given, inputs=True, floor=False, sites="*.mlp.*").save(tmp_path / "a.trace")
    with safe_open(str(tmp_path / "a.trace"), framework="np") as file:
        text = file.metadata()["noisescope.trace"]
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    written = json.loads(text)["digest"]
    digest = blake2b(text.replace(f'"digest":"{written}",', "", 1).encode(), digest_size=8)
    for key in ("sketch", "sample", *numbered(tensors, "positions")):
        digest.update(tensors[key].tobytes())
    for key in (*numbered(tensors, "ids"), *numbered(tensors, "hidden")):
        value = tensors[key]
        digest.update(f"{key.split('/')[2]} torch.{value.dtype} {value.shape}".encode() + value.tobytes())
    assert len(numbered(tensors, "hidden")) > 12
    assert digest.hexdigest() == written


def numbered(tensors: dict[str, Any], kind: str) -> list[str]:
    keys = [key for key in tensors if key.startswith(f"{kind}/")]
    return sorted(keys, key=lambda key: (int(key.split("/")[1]), key.split("/")[2:]))


# --- own code ---------------------------------------------------------------------------------------------------


def own() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).eval(), torch.randn(4, 8)


class Drawing(nn.Module):
    """Draws inside, so that its inputs tell nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + torch.randn_like(x))


def test_a_run_that_does_something_else_every_time_has_no_floor() -> None:
    model, x = own()
    drawing, sizes = Drawing().eval(), iter(range(1, 100))
    runs: list[tuple[nn.Module, Callable[[], object]]] = [
        (model, lambda: model(torch.randn(4, 8))),
        (model, lambda: model(x + 1e-6 * torch.randn(4, 8))),
        (model, lambda: model(x[: next(sizes) % 4 + 1])),
        (model, lambda: [model(x) for _ in range(next(sizes))]),
        (drawing, lambda: drawing(x)),
    ]
    for module, run in runs:
        with pytest.raises(InputError, match="run: did not do the same"):
            ns.trace(module, run=run)
        assert ns.trace(module, run=run, floor=False).head.floor is None


def test_a_run_that_seeds_what_it_draws_has_one() -> None:
    model, _ = own()

    def seeded() -> None:
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))

    assert max(ns.trace(model, run=seeded).sites[0].tolerances) < 0.1
    assert ns.trace(model, run=seeded, emulate="racing_sums").head.floor is not None


def test_other_numbers_that_a_model_is_given_are_noted(tmp_path: Path) -> None:
    model, x = own()
    heads = []
    for given in (x, x + 1, x.double().float()):
        with ns.tracing(model, tmp_path / f"{len(heads)}.trace"):
            model(given)
            model(given[:2])
        heads.append(ns.load_trace(tmp_path / f"{len(heads)}.trace").head)
    assert [(one.call, one.dtype, one.shape) for one in heads[0].inputs] == [
        (0, "float32", (4, 8)),
        (1, "float32", (2, 8)),
    ]
    assert heads[0].inputs == heads[2].inputs
    assert [one.bits for one in heads[0].inputs] != [one.bits for one in heads[1].inputs]
    assert heads[0].tokens == heads[1].tokens  # another device may have rounded them
    assert ns.trace(build("llama"), tokens("llama"), floor=False).head.inputs == ()


# --- tokens of another trace ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("use_cache", lambda ids: ids, 'got "use_cache" beside its tokens'),
        ("self", lambda ids: ids, 'got "self" beside its tokens'),
        ("labels", lambda ids: ids, 'got "labels" beside its tokens'),
        ("decoder_input_ids", lambda ids: ids, 'got "decoder_input_ids" beside its tokens'),
        ("attention_mask", lambda ids: ids.to(torch.complex64), "its attention_mask are not"),
        ("attention_mask", lambda ids: ids + 7, "its attention_mask are not"),
        ("position_ids", lambda ids: ids + 10**9, "its position_ids are not"),
        ("token_type_ids", lambda ids: -ids, "its token_type_ids are not"),
        ("input_ids", lambda ids: ids.to(torch.uint8), "its input_ids are not"),
        ("input_ids", lambda ids: ids + 10**6, "its input_ids are not"),
        ("input_ids", lambda ids: ids[0], "does not hold rows of token ids"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_tokens_go_from_a_trace_into_a_model(family: str, name: str, change: Any, said: str) -> None:
    model, given = build(family), tokens(family)
    reference = ns.trace(model, given, inputs=True, floor=False, sites="*mlp*")
    hostile = replace(reference, ids=({**reference.ids[0], name: change(given["input_ids"])},))
    with pytest.raises(InputError, match=said):
        ns.trace(model, inputs_from=hostile, floor=False)


def test_masks_of_a_trace_go_into_a_model() -> None:
    model, ids = build("llama"), tokens("llama")["input_ids"]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": torch.arange(12).expand(2, 12)}
    reference = ns.trace(model, given, inputs=True, floor=False)
    again = ns.trace(model, inputs_from=reference, floor=False)
    assert again.head.tokens == reference.head.tokens


# --- what does not go together ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run": 3}, "run: got int, expected a function"),
        ({"prompts": torch.ones(1, 4).long()}, "run: runs the model in place of prompts"),
        ({"decode": 3}, "decode: a run brings its own data"),
        ({"n_samples": 3}, "n_samples: a run brings its own data"),
        ({"outputs_only": True}, "outputs_only: nobody knows which outputs"),
        ({"backward": True}, "backward: no gradient was computed"),
        ({"inputs": True}, "inputs: the model has no blocks"),
    ],
)
def test_options_that_a_run_cannot_have(options: dict[str, Any], said: str) -> None:
    model, x = own()
    with pytest.raises(InputError, match=said):
        ns.trace(model, **({"run": lambda: model(x)} | options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decode": -1}, "decode: got -1, expected a whole number of at least 0"),
        ({"n_samples": 0}, "n_samples: got 0, expected a whole number of at least 1"),
        ({"max_length": -3}, "max_length: got -3, expected a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size: got 0, expected a whole number of at least 1"),
        ({"inputs": True, "outputs_only": True}, "inputs: a trace of logits alone has no hidden states"),
    ],
)
def test_options_that_nobody_can_have(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ns.trace(build("llama"), tokens("llama"), **options)


def test_the_rows_of_another_trace_are_what_they_are() -> None:
    model = build("llama")
    reference = ns.trace(model, tokens("llama"), inputs=True, floor=False, sites="*.mlp.*")
    for option in ("decode", "n_samples", "max_length"):
        with pytest.raises(InputError, match=f"{option}: tokens and stages are those of inputs_from"):
            ns.trace(model, inputs_from=reference, **{option: 2})  # type: ignore[arg-type]


def test_gradients_of_a_run_that_computes_some() -> None:
    model, x = own()
    found = ns.trace(model, run=lambda: model(x).sum().backward(), backward=True)
    assert {site.phase for site in found.sites} == {"forward", "backward"}
    with ns.tracing(model, backward=True) as given:
        model(x).sum().backward()
    assert [site.name for site in given.trace.sites] == [site.name for site in found.sites]
    with pytest.raises(InputError, match="backward: no gradient"), ns.tracing(model, backward=True):
        model(x)


class Block(nn.Module):
    """A residual block of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.linear(x))


class Stack(nn.Module):
    """Four of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.stack:
            x = block(x)
        return x


@pytest.mark.parametrize("backward", [False, True])
def test_a_fault_has_its_place_in_own_code(backward: bool) -> None:
    torch.manual_seed(0)
    model, x = Stack().eval(), torch.randn(4, 8)

    def run() -> None:
        out = model(x)
        if backward:
            out.sum().backward()

    reference = ns.trace(model, run=run, backward=backward)
    suspect = ns.trace(model, run=run, backward=backward, floor=False, emulate="gain:0.2@2.linear")
    first = ns.compare(reference, suspect).first
    assert first is not None
    assert first.site.name.startswith("stack.2.linear.linear.0")
    other = ns.trace(model, run=run, backward=backward, floor=False, emulate="tf32@1.linear")
    assert other.head.environment.emulated == ("tf32@1.linear",)


def test_tracing_asks_before_anything_runs(tmp_path: Path) -> None:
    model, x = own()
    seen = []

    def work(path: Path, **options: Any) -> None:
        with ns.tracing(model, path, **options):
            seen.append(model(x))

    work(tmp_path / "new" / "a.trace")
    first = (tmp_path / "new" / "a.trace").read_bytes()
    for path, said in (
        (tmp_path / "new" / "a.trace", "is there already; use another path, or overwrite=True"),
        (tmp_path / "new", "cannot write .*: it is a directory"),
        (tmp_path / "new" / "a.trace" / "b.trace", "a.trace"),
        (Path("/proc/nope/x.trace"), "/proc/nope"),
    ):
        with pytest.raises(NoisescopeError, match=said):
            work(path)
    assert len(seen) == 1
    x = x + 1
    work(tmp_path / "new" / "a.trace", overwrite=True)
    assert (tmp_path / "new" / "a.trace").read_bytes() != first


def test_tracing_is_of_models_in_eval_mode() -> None:
    model, x = own()
    with pytest.raises(InputError, match="training mode"), ns.tracing(model.train()):
        model(x)
