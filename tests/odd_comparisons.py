"""Comparisons that no run here gives: with everything in them, or with a stranger's text wherever there is one."""

from copy import deepcopy
from math import inf, nan
from typing import Any

Sections = dict[str, Any]


def with_everything_compared(sections: Sections) -> Sections:
    """A copy that has something in every section, sites of every state, and every pass."""
    found = deepcopy(sections)
    sites = found["sites"]
    other_pass = deepcopy(sites[-12:])
    for site in other_pass[:6]:
        site["stage"] = "decode"
    for site in other_pass[6:]:
        site["phase"] = "backward"
    sites += other_pass
    found["traces"]["reference"] |= {"file": "gpu.trace", "data": "prompts"}
    found["traces"]["suspect"] |= {"file": "npu.trace", "checkpoint": None, "bytes_of_all_values": 0}
    found["differences"] = [{"field": "device", "reference": "cuda", "suspect": "npu"}]
    found["missing"] = {name: ["a.linear.0.forward", "b.linear.0.forward"] for name in found["missing"]}
    first = next(row for row in found["layers"] if row["role"] == "source")
    risk = {"divergence": 0.02, "sensitivity_kl": 1e-3, "risk_kl": 0.5, "share": 0.61}
    found["repairs"] = [{"layer": first["layer"], "operator": "linear", "site": first["first"], **risk}]
    sites[3] |= {"layer": None, "floor": None, "tolerance": None}
    sites[5] |= {"non_finite": [0, 7], "excess": None, "beyond": True, "same_bits": False}
    sites[7]["metrics"] = dict.fromkeys(sites[7]["metrics"])
    sites[7] |= {"same_bits": False, "excess": None}
    for at, number in ((9, nan), (11, inf), (13, None)):
        figures = sites[at]["metrics"]
        sites[at] |= {"same_bits": False, "metrics": {name: dict.fromkeys(figures[name], number) for name in figures}}
    sites[15] |= {"floor": 0.0, "tolerance": 0.0, "excess": None, "same_bits": False}
    found["layers"][0] |= {"gain": inf, "mape": nan, "added": None}
    return found


def poisoned_comparison(sections: Sections, text: str) -> Sections:
    """A copy with this text in every place where a comparison has a name or a text that others chose."""
    found = with_everything_compared(sections)
    for trace in found["traces"].values():
        trace |= {"file": text, "model": text, "data": text, "checkpoint": text}
        trace["environment"] |= {"device": text, "dtype": text, "attention": text, "emulated": text, text: text}
    found["differences"] = [{"field": text, "reference": text, "suspect": text}] * 2
    found["missing"] = {name: [text, text] for name in found["missing"]}
    for site in (*found["sites"], *found["fed"]):
        site |= {"name": f"{text}.{site['name']}", "module": text}
        if site["operator"] == "silu":
            site["operator"] = text
    for site in found["sites"][-3:]:
        site |= {"layer": f"{text}2", "stage": text}
    verdict = found["verdict"]
    verdict |= {"first": f"{text}.{verdict['first']}", "sources": [*verdict["sources"], text]}
    for row in found["layers"]:
        row["first"] = row["first"] and f"{text}.{row['first']}"
    found["layers"][-1] |= {"layer": text, "word": text, "first": text, "role": "source"}
    found["repairs"][0] |= {"layer": text, "operator": text, "site": text}
    found["floor"]["of"] = text
    return found
