"""Sixty strings that a stranger may have put into a name, and a report with them in every place that holds one."""

import re
from copy import deepcopy
from typing import Any

import pytest

from odd_reports import failed_row, module_row

CANARY = "window.canary=1"

HOSTILE = (
    # elements and attributes
    f"<script>{CANARY}</script>",
    f"</script><script>{CANARY}</script>",
    f"<img src=x onerror={CANARY}>",
    f"\"><img src=x onerror='{CANARY}'>",
    f"'><svg/onload={CANARY}>",
    f"</title><script>{CANARY}</script>",
    f"</style><script>{CANARY}</script>",
    f"</textarea></noscript></select><script>{CANARY}</script>",
    f"--><script>{CANARY}</script><!--",
    f"]]><script>{CANARY}</script>",
    f'" autofocus onfocus="{CANARY}" x="',
    f"' onmouseover='{CANARY}",
    f"` onmouseover=`{CANARY}",
    "<iframe srcdoc='<script>parent.canary=1</script>'>",
    f"<details open ontoggle={CANARY}>",
    f"<math><mtext></mtext><script>{CANARY}</script></math>",
    "<base href='https://example.org/'>",
    "<meta http-equiv=refresh content='0;url=https://example.org/'>",
    "<link rel=stylesheet href=https://example.org/x.css>",
    "<style>*{display:none}</style>",
    "<form action=https://example.org><button>go</button></form>",
    '<a href="javascript:window.canary=1">x</a>',
    "<object data='https://example.org'></object><embed src=x>",
    "<template><img src=https://example.org/t.png></template>",
    "<!--",
    "<![CDATA[",
    "<?xml version='1.0'?>",
    "</main></body></html>",
    "<plaintext>",
    "<",
    # entities and escapes
    "&lt;b&gt;not bold&lt;/b&gt;",
    "&amp;&#60;script&#62;&quot;",
    "\\u003cscript\\u003e\\x3cb\\x3e",
    "%3Cscript%3E%00",
    '\\"];window.canary=1;//',
    "\\",
    # what plots and templates read
    f"<b>bold</b><br><i>it</i><a href='javascript:{CANARY}'>link</a>",
    "<span style='font-size:900px'>x</span><sup>2</sup>",
    "%{customdata[0]}%{x:.99f}<extra></extra>",
    "$\\alpha \\href{javascript:window.canary=1}{x}$",
    "{{ 7 * 7 }}{% include 'page.html' %}{# x #}",
    "{{ self.__init__.__globals__ }}",
    "${window.canary=1}",
    "__proto__",
    "constructor.prototype",
    "toString",
    # addresses
    "https://example.org/beacon?x=1",
    "//example.org/x.js",
    "javascript:window.canary=1",
    "data:text/html,<script>parent.canary=1</script>",
    "url(https://example.org/x.png);@import 'https://example.org/x.css'",
    # characters
    "line one\nline two\r\nline three\ttab",
    "separators\u2028and\u2029more",
    "nothing\x00 bell\x07 escape\x1b[31m",
    "reversed \u202e<gnirts\u202c end",
    "zero\u200bwidth\ufeffmarks\u00ad",
    "half \udce9 a character \ud83d",
    "ﬀ\u0301\u0301\u0301\u0301 \U0001d54f 🙈 中文 عربى",
    "| a | b |\n|---|---|\n`x` **y** [z](javascript:window.canary=1)",
    "x" * 5000 + "<",
)


def harmless(text: str) -> str:
    """A string of the same kind: as long, with the same spaces, commas, digits and dots, and no other sign."""
    return re.sub(r"[^ ,.0-9]", "x", text)


def poisoned(sections: dict[str, Any], text: str) -> dict[str, Any]:
    """A copy with this text in every place where a report has a name or a text that others chose."""
    found = deepcopy(sections)
    found["config"] |= {"model": text, "error_type": text}
    found["config"]["data"] |= {"name": text, "task": text, "fingerprint": text}
    found["environment"] |= {"device": text, "dtype": text, "attention": text, text: text}
    found["executive_summary"] |= {"avalanche_points": [{"layer_range": text, "degradation": 0.3, "severity": text}]}
    _poison_rows(found, text)
    _poison_map(found["map"], text)
    found["recommendations"] = [
        dict.fromkeys(("priority", "component", "issue", "action", "evidence", "command"), text)
    ]
    found["next_steps"] = [{"command": text or "without one there is no step", "why": text}]
    found["readings"] = {text: {"formula": text, "unit": text, "bands": [text], "source": text, "note": text}}
    found["coverage"] |= {"sites": {text: 3}, "hidden": {f"{text}2": 1}}
    found["cost"]["by_stage"][text] = 1.0
    return found


def _poison_rows(found: dict[str, Any], text: str) -> None:
    failed = failed_row(text)
    operators = list(found["operator_analysis"].values())
    found["operator_analysis"] = {f"{text}{at}": row for at, row in enumerate(operators)} | {f"{text}f": failed}
    windows = list(found["layer_analysis"].values())
    windows[1] = {**failed, "start_layer": 1, "end_layer": 3}
    found["layer_analysis"] = {text if at == 0 else f"{text}{at}": row for at, row in enumerate(windows)}
    for row in (operators[0], windows[0]):
        row["severity"] = text
    metrics = found["metrics"]
    metrics["together"] = {text: failed}
    metrics["order"] = {"operators": [text], "found": [text, text], "expected": [text], "as_expected": False}
    metrics["layers"] |= {"1": failed}
    metrics["critical_thresholds"][text] = {
        **next(iter(metrics["critical_thresholds"].values())),
        "how": text,
        "risk": text,
    }
    for proxy in (metrics["agreement"] or {}).get("proxies", ()):
        proxy |= {"name": text, "expected": text, "verdict": text, "reason": text}
    modules = found["channel_analysis"]["per_layer"]
    module = module_row(77.0, kind=text, severity=text)
    found["channel_analysis"]["per_layer"] = {**modules, f"model.layers.2.{text}": module, text: module}


def _poison_map(found: dict[str, Any], text: str) -> None:
    for cell in found["cells"]:
        cell["how"] = text
        if cell["operator"] == "softmax":
            cell["operator"] = text
    found["cells"][-1]["layer"] = text
    found["channels"][f"model.layers.2.{text}.{text}.0.forward"] = next(iter(found["channels"].values()))
    found["corrections"] = {text: 1.5}


def one_in(every: int) -> list[Any]:
    """All of them as parameters; by default one in so many."""
    return [
        pytest.param(text, marks=[] if at % every == 0 else [pytest.mark.slow], id=str(at))
        for at, text in enumerate(HOSTILE)
    ]
