"""A healthy device is called healthy, of whatever make it is, whatever model and prompt it runs."""

import pytest

from foreign import FOREIGN
from healthy_settings import Setting, run

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = (
    Setting("trained llama", "float32", "text", (2, 32), "sdpa"),
    Setting("trained llama", "bfloat16", "padded", (8, 3), "eager"),
    Setting("trained llama", "float32", "repeated", (1, 17), "eager"),
    Setting("trained llama", "bfloat16", "random", (1, 1), "sdpa"),
    Setting("trained llama", "float32", "text", (1, 17), "sdpa", stress="int4"),
    Setting("trained gpt2", "float32", "padded", (2, 32), "eager"),
    Setting("trained gpt2", "bfloat16", "text", (1, 17), "sdpa"),
    Setting("trained gpt2", "float32", "random", (1, 1), "sdpa", stress="int8"),
    Setting("trained gpt2", "bfloat16", "repeated", (8, 3), "eager", stress="int8"),
    Setting("qwen2", "float32", "padded", (2, 9), "sdpa"),
    Setting("qwen3", "bfloat16", "random", (2, 9), "eager"),
    Setting("gemma3", "bfloat16", "padded", (2, 9), "sdpa"),
    Setting("mixtral", "float32", "random", (2, 32), "sdpa"),
    Setting("mixtral", "bfloat16", "padded", (8, 3), "eager"),
    Setting("olmo", "float32", "repeated", (1, 17)),
    Setting("cohere", "bfloat16", "padded", (2, 9), "sdpa"),
    Setting("gptj", "float32", "padded", (8, 3)),
    Setting("gpt_neox", "bfloat16", "random", (1, 1), "eager"),
    Setting("bloom", "bfloat16", "padded", (2, 9)),
    Setting("falcon", "float32", "random", (1, 17), "sdpa"),
    Setting("dropout", "float32", "padded", (2, 9), "sdpa"),
    Setting("plain", "float16", "random", (2, 9)),
    Setting("plain", "float32", "random", (2, 32), threads=2),
    Setting("plain", "bfloat16", "random", (8, 3), threads=2),
    Setting("qwen2", "float64", "random", (2, 9), "sdpa"),
    Setting("trained gpt2", "bfloat16", "random", (2, 5), "eager", stress="sharp"),
    Setting("trained llama", "float32", "random", (2, 5), "sdpa", stress="outliers"),
)
"""on this machine's own arithmetic"""


def _model(name: str) -> str:
    """A model that has what the row computes otherwise."""
    wanted = {
        "softmax": "gptj",
        "silu": "cohere",
        "gelu": "gpt_neox",
        "layer_norm": "cohere",
        "attention": "qwen2",
        "sin": "qwen2",
        "cos": "qwen2",
        "bias": "gpt_neox",
    }
    operators = FOREIGN[name].operators
    return next((wanted[operator] for operator in operators if operator in wanted), "plain" if operators else "mixtral")


def _once(at: int, name: str) -> Setting:
    model = _model(name)
    dtype = "bfloat16" if at % 2 or "truncated" in name or "cast" in name else "float32"
    return Setting(model, dtype, "random" if model == "plain" else "padded", (2, 6), arithmetic=(name,))


ABROAD = (
    *(_once(at, name) for at, name in enumerate(FOREIGN)),
    Setting("gpt_neox", "float32", arithmetic=("norm by moments",), stress="offset"),
    Setting("trained gpt2", "float32", arithmetic=("norm multiplied out",)),
    Setting("trained gpt2", "float32", attention="sdpa", arithmetic=("attention online",)),
    Setting("trained gpt2", "float32", arithmetic=("split K now and then",)),
    Setting("mixtral", "float32", arithmetic=("denormals flushed",), stress="small"),
    Setting("gptj", "bfloat16", arithmetic=("softmax by fused exp2", "gelu by erfc and sigmoid", "norm by Welford")),
    Setting("bloom", "bfloat16", arithmetic=("reversed sums", "softmax, exp two ulps off", "gelu written out")),
)
"""on devices of another make"""


@pytest.mark.parametrize("setting", [*OWN, *ABROAD], ids=str)
def test_a_healthy_device_is_healthy(setting: Setting) -> None:
    verdict = run(setting)
    assert not verdict.sites, "\n".join(f"{suspect.name}: {suspect.evidence}" for suspect in verdict.sites)
    assert verdict.healthy, verdict.missing
    assert verdict.sections["verdict"]["worst_ratio"] <= 1


def test_no_two_settings_are_the_same() -> None:
    assert len({*OWN, *ABROAD}) == len(OWN) + len(ABROAD)


def test_tf32_is_a_mode_of_precision_and_no_fault() -> None:
    verdict = run(Setting("qwen2", "float32", "padded", (2, 6), arithmetic=("tf32",)))
    assert verdict.healthy
    assert verdict.precision_modes[0].startswith("tf32")
