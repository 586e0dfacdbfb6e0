"""Keys draw the same for the same place and differ elsewhere; fingerprints tell models and tokenizers apart."""

from copy import deepcopy

import pytest
import torch

from families import build
from noisescope.keys import Key, fingerprint_config, fingerprint_model, fingerprint_tokenizer
from trained import tokenizer

KEY = Key(seed=1, site="model.layers.0.linear.0.forward")


def draw(key: Key) -> torch.Tensor:
    return torch.randn(8, generator=key.generator())


def test_a_key_draws_the_same_whatever_was_drawn_before() -> None:
    first = draw(KEY)
    torch.randn(100)
    assert torch.equal(draw(Key(1, KEY.site)), first)


def test_a_draw_moves_no_other_generator() -> None:
    before = torch.get_rng_state()
    draw(KEY)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "other", [Key(2, KEY.site), Key(1, "elsewhere"), Key(1, KEY.site, trial=1), Key(1, KEY.site, step=1)]
)
def test_another_seed_site_trial_or_step_draws_something_else(other: Key) -> None:
    assert other.digest != KEY.digest
    assert not torch.equal(draw(other), draw(KEY))


def test_parts_are_independent_and_what_is_fixed_stays_for_every_step() -> None:
    assert len({KEY.digest, KEY.part("left").digest, KEY.part("right").digest}) == 3
    assert KEY.fixed() == Key(1, KEY.site, step=7).fixed() != KEY


def test_a_name_that_is_no_valid_text_has_a_key_too() -> None:
    assert 0 <= Key(0, "model.\udc80").digest < 2**63


def test_a_bit_of_a_weight_is_another_model() -> None:
    model = build("llama")
    before = fingerprint_model(model)
    assert fingerprint_model(deepcopy(model)) == before
    with torch.no_grad():
        next(model.parameters()).view(torch.int32).view(-1)[0] ^= 1
    assert fingerprint_model(model) != before


def test_where_a_configuration_lies_is_no_part_of_it() -> None:
    model = build("llama")
    before = fingerprint_config(model)
    model.config._name_or_path = "/somewhere/else"
    assert fingerprint_config(model) == before
    model.config.rms_norm_eps = 1e-3
    assert fingerprint_config(model) != before


def test_the_chat_template_is_a_part_of_the_tokenizer() -> None:
    words = deepcopy(tokenizer("llama"))
    before = fingerprint_tokenizer(words)
    assert fingerprint_tokenizer(deepcopy(words)) == before
    words.chat_template = "{{ messages }}"
    assert fingerprint_tokenizer(words) != before
    assert fingerprint_tokenizer(None) is None
