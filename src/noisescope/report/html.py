"""The report as one HTML page that needs nothing else: no network, no server, no framework.

The page may be opened by anyone and may hold names that a stranger chose, so it is inert: everything is escaped by the
template, the data is a JSON block, and a content security policy lets run only the scripts whose hashes it names.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..errors import InputError
from .escaping import visible
from .page.contents import contents
from .page.data import page_data

__all__ = ["content_security_policy", "environment", "json_block", "page_parts", "render_html", "render_plain"]

ASSETS = Path(__file__).parent / "page" / "assets"
WORDS = ("CRITICAL", "HIGH", "MODERATE", "MEDIUM", "LOW", "ROBUST")
"""readings that have a colour of their own"""
SCRIPTS = ("plots.js", "scrolling.js", "grid.js", "map.js", "panel.js", "windows.js", "charts.js", "controls.js")
PLAIN_SCRIPTS = ("no_plots.js", "scrolling.js", "controls.js")


def render_html(sections: Mapping[str, Any]) -> str:
    """The whole page as text; the same sections give the same text."""
    style, scripts, reserved = page_parts(("page.css",), SCRIPTS)
    page = environment().get_template("page.html")
    return page.render(
        contents(sections),
        policy=content_security_policy(scripts, [style, ""]),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        data=Markup(json_block(page_data(sections))),
        reserved_styles=reserved,
    )


def page_parts(styles: Sequence[str], scripts: Sequence[str]) -> tuple[str, list[str], list[str]]:
    """What a page with plots brings along: its style, plotly and these scripts, and styles that plotly would add."""
    plotly = _plotly()
    return "".join(map(_asset, styles)), [plotly, *map(_asset, scripts)], _style_ids(plotly)


def render_plain(
    template: str, contents: Mapping[str, Any], *, styles: Sequence[str] = (), words: Sequence[str] = ()
) -> str:
    """A page without plots; `words` have colours of their own in these `styles`."""
    style, scripts = "".join(map(_asset, ("page.css", *styles))), [*map(_asset, PLAIN_SCRIPTS)]
    return (
        environment()
        .get_template(template)
        .render(
            contents,
            policy=content_security_policy(scripts, [style]),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            known_words=(*WORDS, *words),
            reserved_styles=(),
        )
    )


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates in which everything is escaped and a name that does not exist is an error."""
    found = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    found.globals["known_words"] = WORDS
    return found


def content_security_policy(scripts: list[str], styles: list[str]) -> str:
    """Nothing is loaded or sent; of inline scripts and styles, those that were written here.

    Plotly adds empty style elements, which it fills rule by rule, and sets one empty style attribute: for these there
    is the hash of nothing at all.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_source, scripts))}",
            f"style-src-elem {' '.join(map(_source, styles))}",
            f"style-src-attr 'unsafe-hashes' {_source('')}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def json_block(value: Any) -> str:
    """JSON that ends no script element, begins no comment and is one line in every language that reads it."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _shown(value: Any) -> Any:
    """What the template writes: text without characters that cannot be seen, for names may have any."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return visible(value)


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _plotly() -> str:
    """The script that the plotly package brings along; importing that package would take longer than all the rest."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise InputError("plotly: not installed; the HTML page draws with it: pip install plotly")
    file = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
    if "</script" in text.lower() or "<!--" in text:
        raise InputError(
            "plotly: this version cannot be put into a page, its script ends itself; expected plotly 6 or 7"
        )
    return text


def _style_ids(script: str) -> list[str]:
    """Styles that plotly adds on loading unless an element of that name is there; those of its maps are not needed."""
    return ["plotly.js-style-global", *sorted(set(re.findall(r'getElementById\("([0-9a-f]{64})"\)', script)))]
