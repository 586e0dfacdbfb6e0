"""Which traces may be compared, names, votes, the gate, what to fix first, and how it reads."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from trials import IDS, healthy

import noisescope as ns
from families import build, tokens
from noisescope.comparing.names import read_names, renaming
from noisescope.comparing.voting import FALSE_ALARM, MISSED
from noisescope.errors import InputError, NothingMatched
from noisescope.traces import Trace
from trained import fixture

GOLDEN = Path(__file__).parents[2] / "golden" / "report-v1.json"


@pytest.fixture(scope="module")
def reference() -> Trace:
    return healthy("llama", "float32")[1]


def broken(what: str, **options: Any) -> Trace:
    return ns.trace(healthy("llama", "float32")[0], IDS, floor=False, emulate=what, **options)


def with_head(trace: Trace, **changes: Any) -> Trace:
    return replace(trace, head=replace(trace.head, **changes))


# --- which may be compared --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", "another"), ("layers", 9), ("structure", "another"), ("seed", 5), ("weights", "another")],
)
def test_what_makes_it_another_question_is_refused_by_name(reference: Trace, field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"different {field}"):
        ns.compare(reference, with_head(reference, **{field: value}))


def test_another_checkpoint_is_refused(reference: Trace) -> None:
    one, other = (with_head(reference, checkpoint=name, weights=None) for name in ("one", "other"))
    with pytest.raises(InputError, match=r"different checkpoint \(one, other\)"):
        ns.compare(one, other)
    assert not ns.compare(one, one).diverges


def test_real_differences_are_refused() -> None:
    model, _ = fixture("llama")
    one = ns.trace(model, IDS, floor=False)
    with pytest.raises(InputError, match=r"different tokens \(2x24, 2x12\)"):
        ns.compare(one, ns.trace(model, IDS[:, :12], floor=False))
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(InputError, match="different weights"):
        ns.compare(one, ns.trace(model, IDS, floor=False))


@pytest.mark.parametrize("field", ["device", "dtype", "attention", "torch", "python", "machine", "threads"])
def test_what_is_being_compared_is_printed_and_not_refused(reference: Trace, field: str) -> None:
    where = reference.head.environment
    other = with_head(
        reference, environment=replace(where, **{field: 7 if field == "threads" else "other"}), weights=None
    )
    found = ns.compare(reference, other)
    assert [row["field"] for row in found.sections["differences"]] == [field]
    assert f"differs: {field} (" in str(found).splitlines()[0]


def test_sites_on_one_side_are_listed_and_no_error(reference: Trace) -> None:
    less = ns.trace(healthy("llama", "float32")[0], IDS, sites="*.mlp.*", floor=False)
    found = ns.compare(reference, less)
    assert found.outcome == "within the noise floor"
    assert len(found.sections["missing"]["only_reference"]) == 107 - 32
    assert "only in the reference: model.embed_tokens.embedding.0.forward" in str(found)
    with pytest.raises(InputError, match="no site in common"):
        ns.compare(less, ns.trace(healthy("llama", "float32")[0], IDS, sites="re:.*norm", floor=False))


def test_nan_on_one_side_is_a_divergence() -> None:
    model, _ = fixture("gpt2")
    reference = ns.trace(model, IDS)
    hook = model.transformer.h[2].mlp.register_forward_hook(
        lambda _m, _a, out: out.index_fill(-1, torch.tensor([3]), torch.nan)
    )
    found = ns.compare(reference, ns.trace(model, IDS, floor=False))
    hook.remove()
    assert found.first is not None
    assert found.first.site.layer == 2
    assert "values are not finite, 0 in the reference" in str(found)
    assert json.loads(found.to_json())


def test_without_a_floor_nothing_is_claimed(reference: Trace) -> None:
    bare = ns.trace(healthy("llama", "float32")[0], IDS, floor=False)
    found = ns.compare(bare, broken("gain:0.1@3.linear"))
    assert (found.outcome, found.exit_code) == ("inconclusive", 11)
    assert "no noise floor" in str(found)
    assert ns.compare(bare, reference).outcome == "within the noise floor"  # all bits are equal


def test_of_a_suspect_that_another_trace_fed_the_free_run_is_compared(reference: Trace) -> None:
    model = healthy("llama", "float32")[0]
    other = ns.trace(model, IDS, inputs=True, full=True, floor=False)
    fed = ns.trace(model, inputs_from=other, floor=False, emulate="gain:0.1@2.linear")
    found = ns.compare(reference, fed)
    assert (found.sources, found.fed, found.diverges) == ((2,), (), True)
    assert "was fed by another trace" in str(found)
    assert not ns.validate_migration(reference, fed, limits={"mape": 0.001}).passed


# --- names ------------------------------------------------------------------------------------------------------


def test_names_of_another_framework(tmp_path: Path) -> None:
    model = build("llama")
    reference = ns.trace(model, tokens("llama"), checkpoint="one")

    class Other(torch.nn.Module):
        """The same, under other names."""

        def __init__(self) -> None:
            super().__init__()
            self.net = copy.deepcopy(model)

        @property
        def config(self) -> Any:
            return self.net.config

        def forward(self, **given: Any) -> Any:
            return self.net(**given)

    suspect = ns.trace(Other().eval(), tokens("llama"), checkpoint="one", floor=False)
    with pytest.raises(InputError, match=r"different structure.*--map"):
        ns.compare(reference, suspect)
    (tmp_path / "names.json").write_text('{"net.model.layers.*": "model.layers.*", "net.*": "*"}')
    found = ns.compare(reference, suspect, names=tmp_path / "names.json")
    assert found.outcome == "within the noise floor"
    assert all(site.same_bits for site in found.sites)
    assert not found.sections["missing"]["only_suspect"]


def test_renaming_takes_the_longest_rule_and_moves_what_is_inside() -> None:
    rename = renaming({"h.*.attn": "layers.*.self_attn", "h.*.attn.c_proj": "layers.*.self_attn.o_proj", "h.*": "L.*"})
    assert rename("h.3.attn.c_proj") == "layers.3.self_attn.o_proj"
    assert rename("h.3.attn.c_attn") == "layers.3.self_attn.c_attn"
    assert rename("h.12.ln_1") == "L.12.ln_1"
    assert rename("hh.3") == "hh.3"


@pytest.mark.parametrize("text", ["[1]", '{"a": 1}', "{", '{"a": "b.*"}'])
def test_bad_names_are_refused_with_their_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(InputError, match=r"names\.json"):
        read_names(tmp_path / "names.json")


# --- votes ------------------------------------------------------------------------------------------------------


def test_the_odd_one_out(reference: Trace) -> None:
    model = healthy("llama", "float32")[0]
    narrow = ns.trace(fixture("llama")[0].bfloat16(), IDS)
    same = ns.trace(model, IDS)
    vote = ns.compare_many([same, reference, broken("gain:0.1@2.linear"), ns.trace(model, IDS)])
    assert (vote.odd, vote.exit_code) == ("trace 3", 10)
    assert vote.confidence == pytest.approx(posterior(4))
    assert "trace 3 is the odd one out: it diverges from all others" in str(vote)
    fine = ns.compare_many([same, reference, narrow])
    assert (fine.odd, fine.confidence, fine.exit_code) == (None, None, 0)
    assert "All 3 agree" in str(fine)


def posterior(devices: int) -> float:
    """By the table: healthy or one of them off, what is seen under each, and Bayes' rule."""
    prior = {"nobody": 0.5} | {f"device {n}": 0.5 / devices for n in range(devices)}
    seen = {"nobody": FALSE_ALARM, "device 0": 1 - MISSED}  # the others off: never this pattern
    return prior["device 0"] * seen["device 0"] / sum(prior[name] * seen.get(name, 0.0) for name in prior)


def test_two_odd_ones_cannot_be_told_apart(reference: Trace) -> None:
    vote = ns.compare_many([reference, broken("gain:0.1@2.linear"), broken("gain:0.2@5.linear")])
    assert (vote.odd, vote.exit_code) == (None, 11)
    assert "It cannot be told: 3 of 3 pairs diverge" in str(vote)
    assert "More than one of them is off" in str(vote)
    coarse = ns.trace(fixture("llama")[0].bfloat16(), IDS, floor=False)
    assert "vote among traces of one dtype" in str(ns.compare_many([reference, coarse, broken("gain:0.01@2.linear")]))
    with pytest.raises(InputError, match="at least three"):
        ns.compare_many([reference, reference])
    with pytest.raises(InputError, match="the same trace is given twice"):
        ns.compare_many([reference, broken("gain:0.1@2.linear"), reference])


# --- the gate ---------------------------------------------------------------------------------------------------


def test_the_gate_passes_and_fails_by_its_limits(reference: Trace) -> None:
    suspect = broken("gain:0.1@3.linear")
    assert ns.validate_migration(reference, suspect, layers="0-2").exit_code == 0
    gate = ns.validate_migration(reference, suspect, layers="2-4", limits={"mape": 0.001, "cosine": 0.5})
    assert [row.passed for row in gate.rows] == [True, True, False, True, False, True]
    assert gate.exit_code == 1
    assert "2 of 6 limits exceeded" in str(gate)


def test_the_gate_decides_by_the_interval(reference: Trace) -> None:
    suspect = broken("gain:0.1@3.linear")
    row = ns.validate_migration(reference, suspect, layers="3", limits={"mape": 1}).rows[0]
    middle = (row.figure.value + row.figure.high) / 2
    assert not ns.validate_migration(reference, suspect, layers="3", limits={"mape": middle}).passed


def test_junit_is_read_by_others(reference: Trace) -> None:
    gate = ns.validate_migration(reference, broken("gain:0.1@3.linear"), limits={"mape": 0.001})
    suite = ElementTree.fromstring(gate.to_junit()).find("testsuite")
    assert suite is not None
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase")) == len(gate.rows)
    assert (
        int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) == sum(not r.passed for r in gate.rows)
    )


def test_what_the_gate_cannot_check_is_refused(reference: Trace) -> None:
    with pytest.raises(
        NothingMatched, match="layers: 12 is not in the reference's trace; there are 0-7 embed final_norm head"
    ):
        ns.validate_migration(reference, reference, layers="12")
    with pytest.raises(InputError, match="limits"):
        ns.validate_migration(reference, reference, limits={"mappe": 1})


# --- what to fix first ------------------------------------------------------------------------------------------


def test_divergence_times_sensitivity_ranks_the_sources() -> None:
    model, reference = healthy("gpt2", "float32")
    suspect = ns.trace(model, inputs_from=reference, floor=False, emulate=["gain:0.05@2.linear", "gain:0.01@1.linear"])
    report = ns.Report.load(GOLDEN)
    found = ns.compare(reference, suspect, report=report)
    repairs = found.sections["repairs"]
    cells = {(cell["layer"], cell["operator"]): cell["kl"]["value"] for cell in report.sections["map"]["cells"]}
    assert [repair["layer"] for repair in repairs] == [2, 1]
    for repair in repairs:
        expected = cells[repair["layer"], "linear"] * (repair["divergence"] / 0.05) ** 2
        assert repair["risk_kl"] == pytest.approx(expected)
    assert sum(repair["share"] for repair in repairs) == pytest.approx(1.0)
    assert "fix first: L2 linear (divergence x sensitivity is" in str(found)


# --- the reference of locate ------------------------------------------------------------------------------------


def test_locate_uses_a_reference(reference: Trace, tmp_path: Path) -> None:
    model = healthy("llama", "float32")[0]
    file = reference.save(tmp_path / "good.trace")
    fine = ns.locate(model, reference=file)
    assert fine.healthy
    assert any(row.method == "reference" and "no divergence" in row.sentence for row in fine.evidence)
    found = ns.locate(model, reference=file, simulate="gain:0.001@3.mlp.up_proj.linear", method="host", runs=1)
    assert found.sites[0].name == "model.layers.3.mlp.up_proj.linear.0.forward"
    assert any(
        row.method == "reference" and "first divergence model.layers.3.mlp.up_proj" in row.sentence
        for row in found.evidence
    )


def test_locate_by_fingerprint(tmp_path: Path) -> None:
    model = healthy("llama", "float32")[0]
    good = ns.trace(model, IDS, outputs_only=True).save(tmp_path / "good.trace")
    assert ns.locate(model, method="fingerprint", reference=good).outcome == "healthy"
    found = ns.locate(model, method="fingerprint", reference=good, simulate="gain:0.02@4")
    assert (found.outcome, found.sites[0].layer) == ("faulty", 4)
    assert sum(row["posterior"] for row in found.sections["fingerprint"]) == pytest.approx(1.0)
    assert found.to_html()
    with pytest.raises(InputError, match="reference: the fingerprint method needs"):
        ns.locate(model, method="fingerprint")
    whole = ns.trace(model, IDS, floor=False).save(tmp_path / "whole.trace")
    with pytest.raises(InputError, match="does not hold logits"):
        ns.locate(model, method="fingerprint", reference=whole)
