"""Outlier channels: planted ones are found, with their size, persistence and kind, and no others; else by hand."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from transformers import AutoModelForCausalLM

import noisescope as ns
from families import build, tokens
from noisescope.capturing import capture
from noisescope.diagnosis.channel_report import OutlierChannel
from noisescope.diagnosis.channels import detect
from noisescope.diagnosis.outlier_names import ActivationCapture
from noisescope.documented import ChannelOutlierDetector
from noisescope.errors import InputError, NothingMatched
from noisescope.measure.batches import Batch, EvaluationSet

FIXTURES = Path(__file__).parents[2] / "fixtures"
LAST = {"llama": "model.layers.7.mlp.down_proj", "gpt2": "transformer.h.7.mlp.c_proj"}
MIDDLE = {"llama": "model.layers.3.self_attn.o_proj", "gpt2": "transformer.h.3.attn.c_proj"}
KEYS = [
    "outlier_indices",
    "num_outliers",
    "total_channels",
    "outlier_percentage",
    "outlier_ratios",
    "max_ratio",
    "median_max",
    "global_max",
]
ROWS, LENGTH = 8, 24

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def _trained():
    return {name: AutoModelForCausalLM.from_pretrained(FIXTURES / name).eval() for name in LAST}


@pytest.fixture(params=list(LAST))
def name(request):
    return request.param


@pytest.fixture
def model(name, _trained):
    """A trained model that a test may treat as it likes."""
    return copy.deepcopy(_trained[name])


def batches(*, rows=ROWS, seed=0):
    ids = torch.randint(3, 512, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": part} for part in ids.split(5)]


def run(model, data, **options):
    with capture(model, persistence=10.0, **options) as captured, torch.no_grad():
        for batch in data:
            model(**batch)
    return detect(captured)


# --- by hand ----------------------------------------------------------------------------------------------------


def look(model, paths, data):
    """Every activation of every module, stored: path -> samples x tokens x channels, by ordinary hooks."""
    seen = {path: [] for path in paths}
    handles = [
        model.get_submodule(path).register_forward_hook(lambda _, __, out, path=path: seen[path].append(out.double()))
        for path in paths
    ]
    with torch.no_grad():
        for batch in data:
            model(**batch)
    for handle in handles:
        handle.remove()
    return {path: torch.cat(found) for path, found in seen.items()}


def by_hand(value, threshold=10.0):
    """Ratios, samples in which each channel is an outlier, and those in which it is one by a single token."""
    peaks, next_largest = value.abs().sort(1, descending=True).values[:, :2].unbind(1)
    bar = threshold * peaks.median(1, keepdim=True).values
    over = peaks > bar
    single = over & (next_largest <= bar) & (next_largest <= peaks / 2)
    return peaks.amax(0) / peaks.amax(0).median(), over.sum(0).tolist(), single.sum(0).tolist()


def assert_as_by_hand(report, model, data):
    for path, value in look(model, report.modules, data).items():
        found, (ratios, over, single) = report.modules[path], by_hand(value)
        assert [outlier.channel for outlier in found.outliers] == (ratios > 10).nonzero().flatten().tolist()
        assert found.max_ratio == pytest.approx(float(ratios.max()))
        assert found.global_max == pytest.approx(float(value.abs().max()))
        for outlier in found.outliers:
            assert outlier.ratio == pytest.approx(float(ratios[outlier.channel]))
            often, alone = over[outlier.channel], single[outlier.channel]
            assert outlier.persistence == often / len(value)
            usual = "persistent" if 2 * often >= len(value) else "occasional"
            assert outlier.kind == ("massive" if 2 * alone > often else usual)


# --- planting ---------------------------------------------------------------------------------------------------


def loud_channels(model, path, data, count):
    """Channels above the median, which does not change when they grow, and their ratios."""
    ratios, _, _ = by_hand(look(model, [path], data)[path])
    return [(int(c), float(ratios[c])) for c in (ratios > 1).nonzero().flatten()[:count]]


def scale_output(module, channel, factor):
    with torch.no_grad():
        (module.weight[channel] if isinstance(module, nn.Linear) else module.weight[:, channel]).mul_(factor)
        if module.bias is not None:
            module.bias[channel] *= factor


def plant(model, path, data, ratios):
    """Makes channels of a module have these ratios; channel -> ratio."""
    planted = {}
    for (channel, now), ratio in zip(loud_channels(model, path, data, len(ratios)), ratios, strict=True):
        scale_output(model.get_submodule(path), channel, ratio / now)
        planted[channel] = ratio
    return planted


def bump(model, path, channel, where, size):
    """Adds `size` to one channel of what a module gives where `where(samples, tokens)` is True, by its input alone."""
    module = model.get_submodule(path)
    weight = module.weight if isinstance(module, nn.Linear) else module.weight.t()
    direction = torch.linalg.pinv(weight.detach().double())[:, channel]
    seen = 0

    def before(_, args):
        nonlocal seen
        (hidden,) = args
        chosen = where(torch.arange(seen, seen + len(hidden)).unsqueeze(1), torch.arange(hidden.shape[1]))
        seen += len(hidden)
        return (hidden + (size * chosen.unsqueeze(2) * direction).to(hidden.dtype),)

    return module.register_forward_pre_hook(before)


def test_the_trained_models_have_no_outliers_of_their_own(model, name):
    data = batches()
    report = run(model, data)
    assert_as_by_hand(report, model, data)
    assert report.total_outlier_channels == 0
    assert len(report.modules) == {"llama": 24, "gpt2": 16}[name]
    assert max(found.max_ratio for found in report.modules.values()) < 5
    assert str(report) == f"no channel above 10 times the median, in {len(report.modules)} modules"


def test_planted_channels_are_found_with_their_ratios_and_no_others(model, name):
    data = batches()
    planted = plant(model, LAST[name], data, [12.0, 30.0, 80.0, 5.0])
    report = run(model, data)
    outliers = {path: found.outliers for path, found in report.modules.items() if found.outliers}
    assert outliers.keys() == {LAST[name]}
    assert {outlier.channel: outlier.ratio for outlier in outliers[LAST[name]]} == pytest.approx(
        {channel: ratio for channel, ratio in planted.items() if ratio > 10}, rel=1e-4
    )
    assert max(outliers[LAST[name]], key=lambda outlier: outlier.ratio).kind == "persistent"
    assert sorted(outlier.severity for outlier in outliers[LAST[name]]) == ["CRITICAL", "HIGH", "MODERATE"]
    assert_as_by_hand(report, model, data)


def test_what_a_plant_does_to_later_layers_is_seen_as_by_hand(model, name):
    data = batches()
    planted = plant(model, MIDDLE[name], data, [12.0, 30.0, 300.0])
    report = run(model, data)
    assert {outlier.channel for outlier in report.modules[MIDDLE[name]].outliers} == planted.keys()
    assert_as_by_hand(report, model, data)


@pytest.mark.parametrize("size", [15.0, 200.0])
@pytest.mark.parametrize(("samples", "persistence"), [(range(8), 1.0), (range(0, 8, 2), 0.5), ([5], 0.125)])
def test_single_tokens_are_massive_however_few_samples_have_one(model, name, samples, persistence, size):
    data = batches()
    usual = run(model, data, modules=LAST[name]).modules[LAST[name]].median_max
    chosen = torch.tensor(list(samples))
    handle = bump(model, LAST[name], 11, lambda row, token: torch.isin(row, chosen) & (token == row % 5), size * usual)
    report = run(model, data)
    handle.remove()
    assert report.total_outlier_channels == 1
    (outlier,) = report.modules[LAST[name]].outliers
    assert (outlier.channel, outlier.kind, outlier.persistence) == (11, "massive", persistence)
    assert outlier.ratio == pytest.approx(size, rel=0.2)


def test_persistent_occasional_and_massive_channels_are_told_apart(model, name):
    data = batches()
    usual = run(model, data, modules=LAST[name]).modules[LAST[name]].median_max
    handles = [
        bump(model, LAST[name], 3, lambda row, token: (row >= 4) & (token >= 0), 20 * usual),
        bump(model, LAST[name], 17, lambda row, token: (row == 6) & (token >= 0), 40 * usual),
        bump(model, LAST[name], 29, lambda row, token: (row >= 0) & (token == 0), 60 * usual),
        bump(model, LAST[name], 41, lambda row, token: (row >= 2) & (token < 2), 60 * usual),
    ]
    report = run(model, data)
    for handle in handles:
        handle.remove()
    found = {outlier.channel: (outlier.kind, outlier.persistence) for outlier in report.modules[LAST[name]].outliers}
    assert found == {3: ("persistent", 0.5), 17: ("occasional", 0.125), 29: ("massive", 1), 41: ("persistent", 0.75)}
    assert report.total_outlier_channels == 4


def test_what_padding_does_is_nobody_s_outlier(model, name):
    (batch,) = [{"input_ids": torch.cat([part["input_ids"] for part in batches()])}]
    mask = torch.arange(LENGTH) < torch.tensor([24, 20, 16, 12, 8, 6, 4, 2]).unsqueeze(1)
    usual = run(model, [batch]).modules[LAST[name]].median_max
    for where, found in ((lambda row, token: ~mask[row[:, 0]] & (token >= 0), 0), (lambda row, token: mask, 1)):
        handle = bump(model, LAST[name], 7, where, 50 * usual)
        report = run(model, [batch | {"attention_mask": mask.long()}])
        handle.remove()
        assert report.total_outlier_channels == found
    assert report.modules[LAST[name]].outliers[0].persistence == 1


def test_bfloat16_and_noise(model, name):
    data = batches()
    planted = plant(model, LAST[name], data, [14.0, 30.0, 80.0])
    model.to(torch.bfloat16)
    report = run(model, data)
    assert_as_by_hand(report, model, data)
    with ns.inject(model, ns.RelativeGaussian(0.01), operators="linear"):
        noisy = run(model, data)
    for found in (report, noisy):
        assert {outlier.channel for outlier in found.modules[LAST[name]].outliers} == planted.keys()
        assert found.total_outlier_channels == 3
    assert report.modules[LAST[name]].max_ratio != noisy.modules[LAST[name]].max_ratio


# --- the other rules --------------------------------------------------------------------------------------------


class Blocks(nn.Module):
    """Two blocks that hand on what they are given: what goes in is what is seen."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.down_proj = nn.Linear(width, width, bias=False)
            self.down_proj.weight.data.copy_(torch.eye(width))

        def forward(self, hidden):
            return self.down_proj(hidden)

    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(self.Block(width) for _ in range(2))

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def seen(value, **options):
    """What is found in the first module of a model that computes this value there."""
    model = Blocks(value.shape[-1])
    with capture(model, persistence=10.0) as captured, torch.no_grad():
        model(value)
    return detect(captured, **options).modules["layers.0.down_proj"]


def test_the_quantile_rule():
    value = torch.ones(4, 50, 6)
    value[:, ::10, 1] = 40.0  # a tenth of all tokens
    value[:, ::10, 2] = 4.0  # not enough
    value[1, 7, 3] = 100.0  # half a percent
    value[:, :, 4] = 0.0
    value[:, ::10, 5], value[:, 1::2, 5] = 3.0, 0.0
    value[:, ::2, 5] *= (torch.arange(25) % 5 == 0).float()
    found = seen(value)
    assert found.heavy_tailed == (1, 5)
    assert seen(value, tail_threshold=2.0).heavy_tailed == (1, 2, 5)
    assert [outlier.channel for outlier in found.outliers] == [1, 3]


@pytest.mark.parametrize(("single", "several", "kind"), [(3, 1, "massive"), (2, 2, "persistent"), (1, 2, "occasional")])
def test_a_channel_is_massive_if_most_of_its_samples_are_by_a_single_token(single, several, kind):
    value = torch.ones(8, 5, 10)
    value[:single, 0, 6] = 30.0
    value[single : single + several, :2, 6] = 30.0
    (outlier,) = seen(value).outliers
    assert (outlier.channel, outlier.kind, outlier.persistence) == (6, kind, (single + several) / 8)


def test_channels_of_high_fisher_information():
    value = torch.ones(1, 3, 40)
    diagonal = torch.linspace(0, 1, 40).flip(0)
    for key in ("layers.0.down_proj", "layers.0.down_proj.linear.0.forward"):
        assert seen(value, fisher={key: diagonal, "other": diagonal}).fisher == (0, 1)
    assert seen(value).fisher is None
    assert seen(value, fisher={"layers.1.down_proj": diagonal}).fisher is None
    with pytest.raises(NothingMatched, match=r"fisher: none of its 1 entries is named like a captured site"):
        seen(value, fisher={"lm_head": diagonal})
    with pytest.raises(InputError, match=r"fisher: layers\.0\.down_proj\S+ got shape \(39,\), expected one number"):
        seen(value, fisher={"layers.0.down_proj": diagonal[1:]})


def test_dead_channels():
    value = torch.zeros(2, 4, 10)
    found = seen(value)
    assert (found.outliers, found.max_ratio, found.median_max, found.global_max) == ((), 0.0, 0.0, 0.0)
    value[..., 7], value[..., 8], value[..., 9] = 1.0, 2.0, -60.0
    found = seen(value)
    assert [(outlier.channel, outlier.ratio) for outlier in found.outliers] == [(9, 30.0)]
    assert (found.median_max, found.global_max) == (2.0, 60.0)


def test_values_that_are_not_finite_leave_the_report_finite():
    value = torch.ones(2, 4, 10)
    value[0, 0, 0], value[:, :, 1], value[0, 1, 2] = math.inf, math.nan, 30.0
    found = looked_up(value)
    assert [(outlier.channel, outlier.ratio) for outlier in found.outliers] == [(2, 30.0)]
    assert found.non_finite == 9
    assert json.dumps(found.as_json(details=True), allow_nan=False)


def looked_up(value):
    """What is found where a table holds these values: a product would spread what is not a number."""
    rows, length, width = value.shape

    class Tables(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.ModuleDict({"table": nn.Embedding(rows * length, width)}) for _ in range(2))

        def forward(self, ids):
            for layer in self.layers:
                value = layer["table"](ids)
            return value

    model = Tables()
    for layer in model.layers:
        layer["table"].weight.data.copy_(value.reshape(-1, width))
    with capture(model, operators="embedding", persistence=10.0) as captured, torch.no_grad():
        model(torch.arange(rows * length).view(rows, length))
    return next(iter(detect(captured).modules.values()))


@pytest.mark.parametrize(
    ("ratio", "reading"),
    [
        (7, "no outlier"),
        (10.01, "MODERATE"),
        (19.9, "MODERATE"),
        (20.1, "HIGH"),
        (49.9, "HIGH"),
        (50.1, "CRITICAL"),
    ],
)
def test_severity(ratio, reading):
    assert OutlierChannel(0, ratio, None, None).severity == reading


# --- the report -------------------------------------------------------------------------------------------------


def test_the_documented_keys_in_plain_values(model, name):
    data = batches()
    planted = plant(model, LAST[name], data, [80.0, 35.0])
    report = run(model, data)
    plain = report.as_json()
    assert list(plain) == ["summary", "per_layer"]
    assert plain["summary"] == {"layers_with_outliers": 1, "total_outlier_channels": 2}
    assert all(list(found) == KEYS for found in plain["per_layer"].values())
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    found = plain["per_layer"][LAST[name]]
    assert found["outlier_indices"] == sorted(planted)
    assert found["outlier_ratios"] == pytest.approx([planted[channel] for channel in sorted(planted)])
    assert (found["num_outliers"], found["total_channels"]) == (2, 64)
    assert found["outlier_percentage"] == pytest.approx(100 * 2 / 64)
    assert found["max_ratio"] == max(found["outlier_ratios"]) == found["global_max"] / found["median_max"]
    looked_at = sum(layer["total_channels"] for layer in plain["per_layer"].values())
    assert report.outlier_percentage == pytest.approx(100 * 2 / looked_at)
    details = report.as_json(details=True)["per_layer"][LAST[name]]
    assert list(details)[: len(KEYS)] == KEYS
    assert details["kinds"] == ["persistent"] * 2
    assert sorted(details["severities"]) == ["CRITICAL", "HIGH"]
    assert details["samples"] == ROWS
    assert json.dumps(run(model, data).as_json(details=True)) == json.dumps(report.as_json(details=True))


def test_modules_come_in_the_order_of_their_numbers():
    model = nn.Sequential(*(nn.ModuleDict({"down_proj": nn.Linear(4, 4)}) for _ in range(12)))
    with capture(nn.ModuleList([model]), operators="linear", blocks="0.*") as captured:
        for block in reversed(model):
            block["down_proj"](torch.ones(1, 2, 4))
    assert [int(path.split(".")[1]) for path in detect(captured).modules] == list(range(12))


def test_the_printed_table():
    value = torch.ones(3, 4, 10)
    value[..., 4], value[0, 0, 7] = 25.0, -60.0
    model = Blocks(10)
    with capture(model, layers=0, persistence=10.0) as captured, torch.no_grad():
        model(value)
    assert str(detect(captured)).splitlines() == [
        "module              channel  ratio  severity  kind        persistence",
        "layers.0.down_proj        4   25.0  HIGH      persistent  3 of 3 samples",
        "layers.0.down_proj        7   60.0  CRITICAL  massive     1 of 3 samples",
    ]
    assert str(detect(captured, threshold=30)).splitlines()[1].split()[3:] == ["CRITICAL", "-", "-"]


def test_a_module_with_several_sites_is_named_by_site():
    model = build("mixtral")
    with capture(model, persistence=10.0) as captured, torch.no_grad():
        model(**tokens())
    report = detect(captured, threshold=1.1)
    first = [path for path in report.modules if ".0." in path]
    at = "model.layers.0."
    assert first == [f"{at}mlp.experts.linear.0", f"{at}mlp.experts.linear.1", f"{at}self_attn.o_proj"]
    experts = report.modules[first[0]]
    assert experts.samples is None
    assert experts.outliers
    assert {outlier.persistence for outlier in experts.outliers} == {None}
    assert {outlier.kind for outlier in experts.outliers} == {None}


def test_another_threshold_has_other_outliers_but_no_persistence():
    value = torch.ones(3, 4, 10)
    value[..., 4] = 7.0
    assert not seen(value).outliers
    (outlier,) = seen(value, threshold=5).outliers
    assert (outlier.ratio, outlier.severity, outlier.persistence, outlier.kind) == (7.0, "no outlier", None, None)
    model = Blocks(10)
    with capture(model, persistence=5.0) as captured, torch.no_grad():
        model(value)
    (outlier,) = detect(captured).modules["layers.1.down_proj"].outliers
    assert (outlier.persistence, outlier.kind) == (1.0, "persistent")


@pytest.mark.parametrize("bad", [0, -1, True, math.nan, math.inf, "10"])
def test_thresholds_that_cannot_be_meant(bad):
    for which in ("threshold", "tail_threshold"):
        with pytest.raises(InputError, match=rf"^{which}: got .*, expected a number > 0"):
            seen(torch.ones(1, 2, 3), **{which: bad})


def test_a_capture_that_saw_nothing():
    with pytest.raises(NothingMatched, match="no statistics; run the model inside it"):
        detect(capture(build("llama")))


# --- the documented names ---------------------------------------------------------------------------------------


def test_activation_capture_by_hooks_and_as_a_context(model, name):
    data = batches()
    planted = plant(model, LAST[name], data, [15.0, 80.0])
    before = {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
    activations = ActivationCapture(model, [LAST[name].split(".", 3)[-1]])
    activations.register_hooks()
    with torch.no_grad():
        for batch in data:
            model(**batch)
    assert before == {path: (len(m._forward_hooks), len(m._forward_pre_hooks)) for path, m in model.named_modules()}
    activations.remove_hooks()
    activations.remove_hooks()
    model(**data[0])
    assert not torch_module._global_forward_hooks
    found = activations.detect_outliers(threshold=10.0)
    assert len(found) == 8
    assert found[LAST[name]]["outlier_indices"] == sorted(planted)
    assert [list(layer) for layer in found.values()] == [KEYS] * 8
    assert len(activations.detect_outliers(20.0)[LAST[name]]["outlier_indices"]) == 1
    with ActivationCapture(model, [LAST[name].split(".", 3)[-1]]) as again, torch.no_grad():
        for batch in data:
            model(**batch)
    assert again.detect_outliers(10.0) == found
    assert {outlier.kind for outlier in again.report().modules[LAST[name]].outliers} == {"persistent"}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (None, {"self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"}),
        ("mlp.up", {"mlp.up_proj"}),
        (["self_attn.o_proj", "down"], {"self_attn.o_proj", "mlp.down_proj"}),
        (["*.mlp.down_proj"], {"mlp.down_proj"}),
        (["re:.*(up|down)_proj"], {"mlp.up_proj", "mlp.down_proj"}),
        (["mlp"], {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.act_fn"}),
        (["self_attn"], {f"self_attn.{part}_proj" for part in "qkvo"}),
        (["input_layernorm"], {"input_layernorm"}),
    ],
)
def test_layer_patterns(patterns, expected):
    model = build("llama")
    with ActivationCapture(model, patterns) as activations:
        model(**tokens())
    found = activations.detect_outliers()
    assert found.keys() == {f"model.layers.{layer}.{part}" for layer in range(3) for part in expected}


def test_refusals_of_activation_capture():
    model = build("llama")
    with pytest.raises(NothingMatched, match='layer_patterns: "no_such" matches no module'):
        ActivationCapture(model, ["mlp.down_proj", "no_such"])
    with pytest.raises(InputError, match="layer_patterns: got 3"):
        ActivationCapture(model, [3])
    with pytest.raises(NothingMatched, match="nothing matched in 1 forward passes"), ActivationCapture(model, "rotary"):
        model(**tokens())
    with pytest.raises(NothingMatched, match="run the model inside"):
        ActivationCapture(model).detect_outliers()
    with pytest.raises(ZeroDivisionError), ActivationCapture(model, "rotary"):
        1 / 0  # noqa: B018 - the error must come through
    assert not torch_module._global_forward_hooks


def evaluation_set(data):
    made = [
        Batch(ids, torch.ones_like(ids), torch.ones_like(ids[:, 1:]).bool(), tuple(range(len(ids))))
        for ids in (batch["input_ids"] for batch in data)
    ]
    return EvaluationSet("random", tuple(made))


def test_the_detector_on_all_kinds_of_data(model, name):
    data = batches()
    planted = plant(model, LAST[name], data, [15.0, 80.0])
    expected = run(model, data).as_json()
    calls = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((kwargs["use_cache"], torch.is_grad_enabled())), with_kwargs=True
    )
    for given in (data, iter(data), tuple(data), evaluation_set(data)):
        detector = ChannelOutlierDetector(model, given)
        detector.collect_statistics()
        assert detector.get_report() == expected
    assert set(calls) == {(False, False)}
    assert expected["per_layer"][LAST[name]]["outlier_indices"] == sorted(planted)
    lone = ChannelOutlierDetector(model, data, 20.0, layer_patterns=LAST[name].rpartition(".")[2])
    report = lone.report()
    assert report.total_outlier_channels == 1
    assert report.threshold == 20
    assert report.modules[LAST[name]].outliers[0].kind == "persistent"
    before = len(calls)
    assert lone.get_report() == report.as_json()
    assert len(calls) == before
    lone.collect_statistics()
    assert lone.report() == report


def test_refusals_of_the_detector():
    model = build("llama")
    for data, got in (("text", "str"), (tokens(), "dict"), (3, "int")):
        with pytest.raises(InputError, match=f"calibration_data: got {got}, expected an evaluation set"):
            ChannelOutlierDetector(model, data).collect_statistics()
    with pytest.raises(InputError, match="calibration_data: got Tensor as a batch"):
        ChannelOutlierDetector(model, [torch.ones(1, 2)]).get_report()
    with pytest.raises(InputError, match="calibration_data: no batches"):
        ChannelOutlierDetector(model, []).get_report()
