"""Names of one framework in terms of another's: a file for two models that call the same modules differently.

    {"transformer.h.*.attn.c_proj": "model.layers.*.self_attn.o_proj",
     "transformer.h.*.mlp": "model.layers.*.mlp"}

The left is a module of the second trace, the right the same in the first. A `*` stands for one part between dots, and
the stars of the right are those of the left, in their order. What is inside a module moves with it; the longest left
side that fits is taken.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from ..errors import InputError, quoted
from ..store import read_whole
from ..store.encoding import decode
from ..store.files import store_errors
from ..traces import SiteHead, Trace

__all__ = ["Names", "Rename", "read_names", "renamed", "renaming"]

Names: TypeAlias = Mapping[str, str] | str | Path
"""modules of one trace -> what another calls them, or a JSON file of these"""
Rename = Callable[[str], str]
_LARGEST = 16 << 20


def read_names(path: str | Path) -> Rename:
    """The renaming of a JSON file."""
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file}: no such file")
    with store_errors(file, "read"):
        data = read_whole(file, _LARGEST)
    try:
        found = decode(data.decode())
    except ValueError as error:
        raise InputError(f"{file}: is no JSON ({error})") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InputError(f'{file}: expected an object of names, such as {{"h.*.attn": "layers.*.self_attn"}}')
    try:
        return renaming(found)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def renaming(names: Mapping[str, str]) -> Rename:
    """The renaming of such a mapping.

    >>> renaming({"h.*.attn": "layers.*.self_attn"})("h.3.attn.c_proj")
    'layers.3.self_attn.c_proj'
    """
    for theirs, ours in names.items():
        if theirs.count("*") < ours.count("*"):
            raise InputError(f"{quoted(ours)} has more stars than {quoted(theirs)}")
    rules = [(_expression(theirs), ours) for theirs, ours in sorted(names.items(), key=lambda pair: -len(pair[0]))]

    def rename(module: str) -> str:
        for expression, ours in rules:
            if found := expression.match(module):
                head, *parts = ours.split("*")
                stars = zip(found.groups(), parts, strict=False)
                return head + "".join(star + part for star, part in stars) + module[found.end() :]
        return module

    return rename


def renamed(trace: Trace, names: Names) -> Trace:
    """A trace with the names of another; raises if none of them is new, or two become one."""
    rename = renaming(names) if isinstance(names, Mapping) else read_names(names)
    sites = tuple(_site(site, rename(site.module)) for site in trace.sites)
    name = trace.name or "the trace"
    if all(new is old for new, old in zip(sites, trace.sites, strict=True)):
        raise InputError(
            f"{name}: no module has a name of the map; it is for {quoted(trace.sites[0].module)} and others"
        )
    seen: dict[tuple[str, str, str], str] = {}
    for new, old in zip(sites, trace.sites, strict=True):
        if (before := seen.setdefault((new.run, new.stage, new.name), old.module)) != old.module:
            raise InputError(f"{name}: the map makes one of {quoted(before)} and {quoted(old.module)}")
    return replace(trace, head=replace(trace.head, sites=sites))


def _site(site: SiteHead, module: str) -> SiteHead:
    if module == site.module:
        return site
    return replace(site, module=module, name=f"{module}{site.name.removeprefix(site.module)}")


def _expression(theirs: str) -> re.Pattern[str]:
    parts = (re.escape(part) if part != "*" else r"([^.]+)" for part in theirs.split("."))
    return re.compile(r"\.".join(parts) + r"(?=\.|$)")
