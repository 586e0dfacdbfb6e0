"""Between noisescope and the operating system: file operations below a directory are counted, and one is not done."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "fsync", "replace", "mkdir", "unlink", "rmdir")


def interpose(
    patch: Callable[[Any, str, Any], None],
    home: Path,
    number: int,
    act: Callable[[], None],
    *,
    torn: bool = False,
    lasting: bool = False,
) -> list[str]:
    """In place of the number-th operation below home, `act`; with `lasting`, in place of all later ones too.

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
            if len(seen) == number or (lasting and len(seen) > number):
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
