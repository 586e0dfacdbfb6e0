"""Verdicts that no run here gives: with everything in them, or with a stranger's text in every place that has one."""

from copy import deepcopy
from math import inf
from typing import Any

Sections = dict[str, Any]


def with_everything(sections: Sections) -> Sections:
    """A copy that has something in every section, and cells of every state."""
    found = deepcopy(sections)
    sites = found["sites"]
    sites[5] |= {"rule": "product", "ratio": 0.25}
    sites[15] |= {"rule": "product", "ratio": inf, "bad": 7, "faulty": True}
    sites[25] |= {"rule": "unknown", "ratio": None}
    sites[35] |= {"rule": None, "ratio": None, "differing": None, "identities": []}
    sites[45]["differing"] = 3
    sites[55]["layer"] = None
    found["verdict"]["missing"] = ["one kernel could not be looked into"]
    found["verdict"]["not_covered"] = ["the weights were not compared with a file"]
    found["non_deterministic"] = [sites[45]["site"]]
    found["coverage"] |= {"unjudged": [sites[25]["site"]], "hidden": ["model.layers.1 (a_kernel)"]}
    found["precision_modes"] = ["tf32: products round to 10 bits"]
    weight = {"rank": 2, "name": "lm_head.weight", "layer": "head", "operator": "weight", "module": "lm_head"}
    weight |= {"kind": "corrupted memory", "stochastic": False, "calls": 1, "where": "head, weight (lm_head)"}
    found["suspects"].append({**weight, "evidence": ["weights: 1 of 32768 elements are not those of the file"]})
    probes = {"monotonicity": 1.0, "smoothness": 0.25, "input_variation": 0.5, "compression": 3.5}
    found["srdd"] = [{"layer": layer, "score": 2.5 - layer, **probes} for layer in (1, 0)]
    inert = {"fault": "noise:0.1@1", "site": "model.layers.1.residual.1", "layer": 1, "operator": "residual"}
    fate = {"inert": True, "changed": 0, "elements": 64, "rank": None, "layer_rank": None}
    found["truth"].append({**inert, **fate})
    return found


def poisoned_verdict(sections: Sections, text: str) -> Sections:
    """A copy with this text in every place where a verdict has a name or a text that others chose."""
    found = with_everything(sections)
    found["config"] |= {"model": text, "method": text, "precision_mode": text}
    found["environment"] |= {"device": text, "dtype": text, text: text}
    found["verdict"]["missing"] = found["verdict"]["not_covered"] = [text, text]
    found["coverage"] |= {"unjudged": [text], "hidden": [text]}
    found["cost"]["by_stage"][text] = 1.0
    found["non_deterministic"] = [text]
    found["precision_modes"] = [text]
    found["evidence"] = [{"method": text, "sentence": text, "forwards": 1.0}]
    for suspect in found["suspects"]:
        suspect.update(dict.fromkeys(("name", "module", "where", "kind"), text), evidence=[text, text])
    found["suspects"][1] |= {"layer": text, "operator": text}
    for row in found["truth"]:
        row.update(fault=text, site=f"{text}.{text}.0", operator=text)
    found["truth"][1]["layer"] = text
    for site in found["sites"]:
        rule = None if site["rule"] is None else text
        site.update(site=text, module=text, rule=rule, identities=[text] * len(site["identities"]))
        if site["operator"] == "silu":
            site["operator"] = text
    found["sites"][-1] |= {"layer": f"{text}2", "failed": [text]}
    return found
