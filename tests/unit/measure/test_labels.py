"""Token data in any form, and labels that the model's own distribution gives."""

import pytest
import torch
from exact_curvature import VOCAB, rows, tiny_llama
from torch.utils.data import DataLoader

from families import build, tokens
from noisescope.errors import InputError, ModelError
from noisescope.keys import Key
from noisescope.measure.batches import EvaluationSet
from noisescope.measure.labels import as_batch, as_batches, log_likelihood, predicted_logits, sample_labels

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def test_what_is_predicted_follows_the_mask_and_padding_goes_to_the_end():
    assert as_batch({"input_ids": IDS}).predicted.all()
    padded = as_batch({"input_ids": IDS, "attention_mask": MASK})
    left = as_batch({"input_ids": torch.tensor([[3, 4, 5, 6], [0, 0, 7, 8]]), "attention_mask": MASK.flip(1)})
    for batch in (padded, left):
        assert batch.input_ids.tolist() == IDS.tolist()
        assert batch.predicted.tolist() == [[True, True, True], [True, False, False]]
        assert batch.targets.tolist() == [4, 5, 6, 8]


def test_one_batch_or_several_in_any_form():
    one = {"input_ids": IDS}
    batch = rows(5, 3)
    loader = DataLoader([{"input_ids": row} for row in IDS], batch_size=1)
    for data, count in [(one, 1), ([one, one], 2), (batch, 1), ((batch, one), 2), (loader, 2), (iter([one]), 1)]:
        assert len(list(as_batches(data))) == count
    assert list(as_batches(EvaluationSet("text", (batch, batch)))) == [batch, batch]


def test_nothing_is_read_ahead():
    def endless():
        while True:
            yield {"input_ids": IDS}

    assert next(as_batches(endless())).rows == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text", "batches: got str, expected dictionaries of tensors with input_ids"),
        (IDS, "batches: got Tensor, expected dictionaries of tensors with input_ids"),
        (["text"], r"batches\[0\]: got str, expected a dictionary of tensors with input_ids"),
        ([{"input_ids": IDS}, {"ids": IDS}], r'batches\[1\]: no "input_ids" \(has: ids\)'),
        ({"input_ids": IDS.float()}, r"batches\[0\]: input_ids: got float32, expected whole numbers"),
        ({"input_ids": IDS, "attention_mask": MASK * 0}, r"batches\[0\]: has no tokens"),
    ],
)
def test_data_that_cannot_be_meant(given, message):
    with pytest.raises(InputError, match=message):
        list(as_batches(given))


def test_predictions_of_padded_rows_are_those_of_the_rows_alone():
    model, batch = tiny_llama(), rows(6, 4)
    together = predicted_logits(model, batch)
    alone = [
        model(input_ids=batch.input_ids[row : row + 1, :length]).logits[0, :-1] for row, length in ((0, 6), (1, 4))
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)
    assert together.dtype == torch.float64
    assert predicted_logits(model.bfloat16(), batch).dtype == torch.float32


def test_models_without_next_token_output_are_refused():
    with pytest.raises(ModelError, match="BertModel: its output has no logits per token, expected a causal language"):
        predicted_logits(build("bert"), as_batch(tokens("bert")))


def test_labels_come_from_the_models_distribution_and_from_the_key():
    logits = tiny_llama()(input_ids=torch.tensor([[3]])).logits[0].detach()
    many = logits.expand(40_000, VOCAB)
    drawn = sample_labels(many, Key(0, "labels"))
    found = torch.bincount(drawn, minlength=VOCAB) / len(many)
    expected = logits.softmax(-1)[0]
    assert ((found - expected).abs() < 4.5 * (expected * (1 - expected) / len(many)).sqrt()).all()
    state = torch.get_rng_state()
    assert torch.equal(drawn, sample_labels(many, Key(0, "labels")))
    assert not torch.equal(drawn, sample_labels(many, Key(1, "labels")))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_output_that_is_not_finite_is_named():
    with pytest.raises(ModelError, match="the model's output is not finite, so that no label can be sampled"):
        sample_labels(torch.tensor([[0.0, float("nan")]]), Key(0, "labels"))
    masked = torch.tensor([[0.0, -float("inf")]])  # a token that can never come is no error
    assert sample_labels(masked, Key(0, "labels")).tolist() == [0]


def test_log_likelihood_is_a_sum():
    logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    expected = logits.log_softmax(-1)[[0, 1], [1, 1]].sum()
    torch.testing.assert_close(log_likelihood(logits, torch.tensor([1, 1])), expected)
