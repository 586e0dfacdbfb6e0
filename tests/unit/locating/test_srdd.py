"""srdd: every probe against a slow and obvious one, and the promises of a run."""

import json
from functools import cache
from math import log

import numpy as np
import pytest
import torch

from families import build, tokens
from noisescope import RelativeGaussian, inject
from noisescope.errors import InputError, ModelError, NonFinite
from noisescope.faults import FaultSimulator
from noisescope.locating import locate
from noisescope.locating.srdd import five_prompts, rank_layers, score_layers
from noisescope.sites import Layout
from trained import fixture

SCALES = [0.01, 0.02, 0.05, 0.10, 0.15]


def run(model, ids, *, simulators=(), seed=0, progress=lambda _stage, _total: lambda: None):
    inputs = {"input_ids": ids, "use_cache": False}
    return rank_layers(
        model, inputs, layout=Layout.of(model), simulators=simulators, seed=seed, progress=progress, name="fixture"
    )


@cache
def llama():
    """The trained fixture, five prompts, and the verdict on them."""
    model, tokenizer = fixture("llama")
    text = "The keeper of the lighthouse wrote down the weather every evening before he lit the lamp. " * 4
    ids = torch.tensor(tokenizer(text)["input_ids"][:60]).reshape(5, 12)
    return model, ids, run(model, ids)


# --- slow and obvious -------------------------------------------------------------------------------------------


def slow_kl(clean, noisy):
    p, q = clean.double().log_softmax(-1), noisy.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


def slow_responses(model, ids, *, seed):
    """[layer][scale][trial][prompt]"""
    with torch.no_grad():
        clean = model(ids, use_cache=False).logits[:, -1]
        found = []
        for layer in range(len(model.model.layers)):
            found.append([])
            for number, scale in enumerate(SCALES):
                found[-1].append([])
                for trial in range(3):
                    noise = inject(
                        model,
                        RelativeGaussian(scale),
                        layers=[layer],
                        operators=["linear", "matmul", "bmm"],
                        seed=seed,
                        trial=3 * number + trial,
                    )
                    with noise:
                        noisy = model(ids, use_cache=False).logits[:, -1]
                    found[-1][-1].append([slow_kl(clean[row], noisy[row]) for row in range(5)])
    return found


def slow_ranks(values):
    return [sum(v < u for v in values) + (sum(v == u for v in values) + 1) / 2 for u in values]


def slow_spearman(x, y):
    x, y = slow_ranks(x), slow_ranks(y)
    x, y = [v - sum(x) / len(x) for v in x], [v - sum(y) / len(y) for v in y]
    size = sum(v * v for v in x) * sum(v * v for v in y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / size**0.5 if size else 0.0


def slow_z(values):
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return [(value - mean) / std if std else 0.0 for value in values]


def slow_probes(responses):
    """A, B, C and D of each layer."""
    means = [[float(np.mean(scale)) for scale in layer] for layer in responses]
    logs = [log(layer[2] + 1e-9) for layer in means]
    last = len(means) - 1
    rows = []
    for i, layer in enumerate(means):
        a = slow_spearman(SCALES, layer) ** 2
        neighbours = [logs[j] for j in (i - 1, i + 1) if 0 <= j <= last]
        b = abs(logs[i] - sum(neighbours) / len(neighbours))
        prompts = [float(np.mean([trial[prompt] for trial in responses[i][2]])) for prompt in range(5)]
        c = float(np.std(prompts)) / float(np.mean(prompts))
        d = float(np.polyfit([0.02, 0.05, 0.10], layer[1:4], 1)[0])
        rows.append((a, b, c, d))
    return rows


def slow_scores(rows):
    a, b, c, d = (slow_z(column) for column in zip(*rows, strict=True))
    return [max(0, -a[i]) + 1.5 * max(0, b[i]) + 1.0 * max(0, c[i]) + 1.5 * max(0, -d[i]) for i in range(len(rows))]


def by_layer(verdict):
    return sorted(verdict.sections["srdd"], key=lambda row: row["layer"])


def test_probes_and_scores_are_those_of_an_obvious_program() -> None:
    model, ids, verdict = llama()
    rows = slow_probes(slow_responses(model, ids, seed=0))
    names = ("monotonicity", "smoothness", "input_variation", "compression")
    for found, due in zip(by_layer(verdict), rows, strict=True):
        assert [found[name] for name in names] == pytest.approx(due, rel=1e-6, abs=1e-12)
    assert [row["score"] for row in by_layer(verdict)] == pytest.approx(slow_scores(rows), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("layers", [2, 3, 9])
def test_probes_of_made_up_answers(layers: int) -> None:
    """Not monotonic, unlike a trained model's, so that all four probes differ from layer to layer."""
    responses = np.random.default_rng(layers).lognormal(-3, 1, (layers, 5, 3, 5))
    found, rows = score_layers(responses), slow_probes(responses)
    for layer, (one, due) in enumerate(zip(found, rows, strict=True)):
        assert one.layer == layer
        assert (one.monotonicity, one.smoothness, one.input_variation, one.compression) == pytest.approx(due)
    assert len({one.monotonicity for one in found}) > 1
    assert [one.score for one in found] == pytest.approx(slow_scores(rows))


def test_the_ends_of_the_stack_have_one_neighbour() -> None:
    responses = np.ones((4, 5, 3, 5)) * np.array([1.0, 10.0, 1000.0, 1e6])[:, None, None, None]
    found = [one.smoothness / np.log(10) for one in score_layers(responses)]
    assert found == pytest.approx([1.0, 0.5, 0.5, 3.0], abs=1e-6)


@pytest.mark.parametrize("answer", [0.0, 0.1, 1.0 / 3])
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_layers_that_answer_alike_score_nothing(layers: int, answer: float) -> None:
    """0.1 has a mean that is not quite 0.1, and so a standard deviation that is not quite 0."""
    for found in score_layers(np.full((layers, 5, 3, 5), answer)):
        assert found.score == 0
        assert found.monotonicity == 0
        assert found.smoothness == 0
        assert found.input_variation == pytest.approx(0, abs=1e-12)
        assert found.compression == pytest.approx(0, abs=1e-12)


def test_one_layer_without_any_answer_stays_a_number() -> None:
    responses = np.random.default_rng(0).lognormal(-3, 1, (6, 5, 3, 5))
    responses[2] = 0
    found = score_layers(responses)
    assert np.isfinite([one.score for one in found]).all()
    assert max(found, key=lambda one: one.score).layer in (1, 2, 3)  # the hole in the stack, or beside it
    assert (found[2].monotonicity, found[2].input_variation, found[2].compression) == (0, 0, 0)


# --- a run ------------------------------------------------------------------------------------------------------


def test_the_verdict_ranks_and_calls_nothing_healthy_or_faulty() -> None:
    _, _, verdict = llama()
    assert (verdict.outcome, verdict.exit_code, verdict.sites) == ("inconclusive", 11, ())
    assert "ranks layers" in verdict.missing[0]
    assert "cannot call a device healthy" in verdict.missing[0]
    assert "INCONCLUSIVE" in str(verdict)
    ranking = verdict.sections["srdd"]
    assert sorted(row["layer"] for row in ranking) == list(range(8))
    assert [row["score"] for row in ranking] == sorted((row["score"] for row in ranking), reverse=True)
    assert f"first {ranking[0]['layer']} ({ranking[0]['score']:.2f})" in verdict.evidence[0].sentence


def test_sections_are_those_of_any_verdict_and_the_ranking() -> None:
    model, ids, verdict = llama()
    other = locate(model, ids, method="repeat").sections
    assert list(verdict.sections) == [*other, "srdd"]
    for name in ("verdict", "coverage", "environment"):
        assert verdict.sections[name].keys() == other[name].keys(), name
    assert verdict.sections["config"].keys() >= other["config"].keys()
    assert verdict.sections["environment"] == other["environment"]


def test_same_seed_same_bytes() -> None:
    model, ids = build("llama"), tokens(rows=5)["input_ids"]
    first, again, other = (run(model, ids, seed=seed).sections for seed in (3, 3, 4))
    assert json.dumps(first) == json.dumps(again)
    assert first["srdd"] != other["srdd"]


def test_the_model_is_left_as_it_was() -> None:
    model, ids = build("llama"), tokens(rows=5)["input_ids"]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        logits = model(ids).logits
    run(model, ids)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, logits)


def test_forward_passes_are_counted() -> None:
    model = build("gpt2")
    made, steps, announced = [], [], []
    handle = model.register_forward_hook(lambda *_: made.append(1))

    def progress(stage, total):
        announced.append((stage, total))
        return lambda: steps.append(len(made))

    verdict = run(model, tokens("gpt2", rows=5)["input_ids"], progress=progress)
    handle.remove()
    assert verdict.sections["cost"] == {
        "forward_pass_equivalents": float(len(made)),
        "by_stage": {"clean": 1.0, "srdd": float(len(made) - 1)},
    }
    assert verdict.evidence[0].forwards == len(made) == 1 + 3 * 5 * 3
    assert announced == [("layers", 3)]
    assert steps == [16, 31, 46]  # one step a layer


# --- on a broken device -----------------------------------------------------------------------------------------


def test_the_rank_of_a_simulated_fault_is_told() -> None:
    model, ids, healthy = llama()
    verdict = locate(model, ids, method="srdd", simulate=["dead_zone:0.3@3", "gain:0.05@6.mlp.down_proj.linear"])
    ranking = [row["layer"] for row in verdict.sections["srdd"]]
    for truth, layer in zip(verdict.sections["truth"], (3, 6), strict=True):
        assert truth["layer"] == layer
        assert truth["srdd_rank"] == ranking.index(layer) + 1
        assert not truth["inert"]
        assert truth["elements"] == 121 * ids.numel() * 64  # the clean run and every noisy one were faulty runs
    assert verdict.sections["srdd"] != healthy.sections["srdd"]
    assert verdict.outcome == "inconclusive"


def test_a_fault_outside_the_layers_has_no_rank() -> None:
    model = build("llama")
    inputs = tokens(rows=5)
    with FaultSimulator(model, "head", "gain", 0.05, inputs=inputs) as fault:
        verdict = run(model, inputs["input_ids"], simulators=[fault])
    assert verdict.sections["truth"][0]["srdd_rank"] is None
    assert verdict.sections["truth"][0]["layer"] == "head"


def test_noise_goes_on_what_the_broken_device_gives() -> None:
    """The obvious program, run inside the fault, finds the same."""
    model, ids = build("llama"), tokens(rows=5)["input_ids"]
    with FaultSimulator(model, "1", "bias", 0.3, inputs={"input_ids": ids}) as fault:
        verdict = run(model, ids, simulators=[fault])
        due = slow_probes(slow_responses(model, ids, seed=0))
    healthy = by_layer(run(model, ids))
    found = [row["compression"] for row in by_layer(verdict)]
    assert found == pytest.approx([row[3] for row in due], rel=1e-6)
    assert found != pytest.approx([row["compression"] for row in healthy], rel=1e-3)


def test_refuses_what_has_no_next_token() -> None:
    model = build("bert")
    with pytest.raises(ModelError, match="expected a causal language model"):
        locate(model, tokens("bert", rows=5), method="srdd")


def test_refuses_logits_that_are_not_finite() -> None:
    model = build("llama")
    with torch.no_grad():
        model.lm_head.weight[0] = torch.inf
    with pytest.raises(NonFinite, match=r"the clean run gives non-finite logits.*use method host"):
        run(model, tokens(rows=5)["input_ids"])


# --- five prompts -----------------------------------------------------------------------------------------------


def prompts_of(inputs):
    found = five_prompts(inputs, build("llama"))
    assert found["use_cache"] is False
    return found["input_ids"].tolist()


def test_the_built_in_text_gives_five_prompts() -> None:
    model, tokenizer = fixture("llama")
    model.model.layers = model.model.layers[:2]  # a few layers are enough for this
    model.config.num_hidden_layers = 2
    model.eval()  # a slice of a list of modules is a new one, in training mode
    seen = []
    model.register_forward_pre_hook(lambda _module, _args, given: seen.append(given["input_ids"]), with_kwargs=True)
    verdict = locate(model, tokenizer=tokenizer, method="srdd")
    assert verdict.sections["config"]["shape"] == [5, 32]
    assert all(torch.equal(ids, seen[0]) for ids in seen)  # all five in every forward pass
    assert len({tuple(row) for row in seen[0].tolist()}) == 5


def test_five_rows_stay_what_they_are() -> None:
    inputs = {"input_ids": torch.arange(35).reshape(5, 7), "position_ids": torch.arange(7).expand(5, 7)}
    assert five_prompts(inputs, build("llama")) is inputs


def test_few_rows_are_cut_into_five_windows() -> None:
    ids = torch.arange(26).reshape(2, 13)
    assert prompts_of({"input_ids": ids}) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [13, 14, 15, 16],
        [17, 18, 19, 20],
    ]


def test_of_many_rows_five_are_taken() -> None:
    ids = torch.arange(42).reshape(7, 6)
    assert prompts_of({"input_ids": ids}) == ids[:5].tolist()


def test_equal_rows_count_once() -> None:
    ids = torch.arange(10).expand(5, 10)
    assert prompts_of({"input_ids": ids}) == ids[0].reshape(5, 2).tolist()


def test_equal_windows_count_once() -> None:
    ids = torch.tensor([[1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
    assert prompts_of({"input_ids": ids}) == [[1, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_part_of_a_prompt(side: str) -> None:
    ids, mask = torch.arange(3, 33).reshape(5, 6), torch.ones(5, 6, dtype=torch.long)
    blank = slice(0, 2) if side == "left" else slice(4, 6)
    ids[3, blank], mask[3, blank] = 0, 0
    found = prompts_of({"input_ids": ids, "attention_mask": mask})
    assert [len(row) for row in found] == [4] * 5
    assert found[0] == ids[0, :4].tolist()
    assert found[3] == ids[3][mask[3].bool()].tolist()


def test_too_few_tokens_for_five_prompts() -> None:
    with pytest.raises(InputError, match="got 9 tokens in 1 rows, expected enough for five different prompts"):
        prompts_of({"input_ids": torch.arange(9).reshape(1, 9)})
    with pytest.raises(InputError, match="without input_ids"):
        prompts_of({"inputs_embeds": torch.zeros(5, 4, 32)})
