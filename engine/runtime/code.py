"""Compiles what is printed, so that tracebacks show its lines for as long as what it was printed for is there."""

from __future__ import annotations

import linecache
import weakref
from collections import deque
from itertools import count
from types import CodeType

_FEWEST_RETIRED = 256  # names: a traceback that somebody keeps shows no lines rather than those of another program
_GONE: tuple[int, None, list[str], str] = (0, None, [], "")  # the lines of a program that is gone

_retired: dict[str, deque[str]] = {}
_numbers = count(1)


def compiled(source: str, kind: str, owner: object) -> tuple[CodeType, str]:
    """Compile the source of a module.

    `linecache` looks for all its files and then looks them up one by one, so none of them must go meanwhile; but
    programs go at any time, when garbage is collected. Hence a name stays there when its program goes, without lines,
    and is given again to another program much later: there are never many more names than there were programs at once.

    Args:
        source: the text.
        kind: what it is, for its file name: ``<anabranch step 5>`` of a ``"step"``.
        owner: once nobody refers to it, the lines are let go.

    Returns:
        The code, and its file name.
    """
    retired = _retired.setdefault(kind, deque())
    filename = retired.popleft() if len(retired) > _FEWEST_RETIRED else f"<anabranch {kind} {next(_numbers)}>"
    code = compile(source, filename, "exec")
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    weakref.finalize(owner, _retire, retired, filename).atexit = False
    return code, filename


def _retire(retired: deque[str], filename: str) -> None:
    if filename in linecache.cache:
        linecache.cache[filename] = _GONE
    retired.append(filename)
