"""Options of trace() and tracing(): each does what it says, or is refused in one line."""

import copy
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import noisescope as ns
from families import build, tokens

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
