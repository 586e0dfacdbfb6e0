"""Between noisescope and the operating system: something happens at chosen file operations below a directory."""

import os
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "fsync", "replace", "mkdir", "unlink", "rmdir")


def interpose(
    patch: Callable[[Any, str, Any], None],
    home: Path,
    at: Container[int],
    act: Callable[[], None],
    *,
    torn: bool = False,
) -> list[str]:
    """`act` before the operations below home that have these numbers, the first being 1.

    With `torn`, a write has half of its bytes written by then. `patch` is setattr, or monkeypatch.setattr. The list
    that comes back names the operations as they are done.
    """
    seen: list[str] = []

    def interposed(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(what: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_below(what, home):
                return real(what, *args, **kwargs)
            seen.append(name)
            if len(seen) in at:
                if torn and name == "write":
                    real(what, bytes(args[0])[: len(args[0]) // 2])
                act()
            return real(what, *args, **kwargs)

        return call

    for name in CALLS:
        patch(os, name, interposed(name))
    return seen


def _is_below(what: Any, home: Path) -> bool:
    """Whether a path, or the file behind a descriptor, is home or below it."""
    path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.path.abspath(what)
    return Path(os.fsdecode(path)).is_relative_to(home)
