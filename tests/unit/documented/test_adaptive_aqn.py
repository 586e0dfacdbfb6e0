"""AdaptiveAQN as the method documents spell it."""

import pytest
import torch

import noisescope as ns
from families import build, tokens
from noisescope import noisy_ops
from noisescope.errors import InputError

PROFILES = {
    "numbers": {0: 0.2, 1: 0.1, 2: 0.01},
    "rows": {0: {"degradation": 0.2}, 1: {"degradation": 0.1}, 2: {"degradation": 0.01}},
    "windows": {
        f"L{layer}": {"start_layer": layer, "end_layer": layer, "degradation": loss}
        for layer, loss in enumerate((0.2, 0.1, 0.01))
    },
}


@pytest.mark.parametrize("profile", PROFILES)
def test_scales_by_the_documented_rule(profile):
    found = ns.AdaptiveAQN(build("llama"), PROFILES[profile])
    assert [found.get_layer_noise_scale(layer) for layer in range(3)] == [0.025, 0.05, 0.1]


def test_noise_is_on_by_layer_until_it_is_switched_off():
    model = build("llama")
    clean = model(**tokens()).logits
    found = ns.AdaptiveAQN(model, PROFILES["numbers"], base_scale=0.1)
    assert found.enable_adaptive_noise() == {0: 0.05, 1: 0.1, 2: 0.2}
    try:
        assert not torch.equal(model(**tokens()).logits, clean)
        layers = noisy_ops.get_layer_injection_stats()
        assert all(layers[layer]["forward"] for layer in range(3))
        assert not layers["head"]["forward"]
        rows = {row.layer: row.dose for row in noisy_ops.here.counts.of(ns.RelativeGaussian(0.1)).rows}
        assert rows == {layer: pytest.approx(scale, rel=0.1) for layer, scale in {0: 0.05, 1: 0.1, 2: 0.2}.items()}
    finally:
        found.disable_adaptive_noise()
    assert torch.equal(model(**tokens()).logits, clean)
    assert noisy_ops.get_selective_layers() is None


def test_what_cannot_be_meant_is_one_line():
    model = build("llama")
    with pytest.raises(InputError, match="layer_id: got 7, expected one of 0 1 2"):
        ns.AdaptiveAQN(model, PROFILES["numbers"]).get_layer_noise_scale(7)
    with pytest.raises(InputError, match="layer 9 is out of range, the model has 0 to 2"):
        ns.AdaptiveAQN(model, {9: 0.1})
    with pytest.raises(InputError, match="base_scale: got -1"):
        ns.AdaptiveAQN(model, PROFILES["numbers"], base_scale=-1)
    with pytest.raises(InputError, match="sensitivity_profile: got"):
        ns.AdaptiveAQN(model, [0.1])
