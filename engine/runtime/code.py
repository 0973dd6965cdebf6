"""Compiles what is printed, so that tracebacks show its lines for as long as what it was printed for is there."""

from __future__ import annotations

import linecache
import weakref
from collections import deque
from collections.abc import Mapping
from itertools import count
from types import CodeType
from typing import Any

_FEWEST_RETIRED = 256  # names: a traceback that somebody keeps shows no lines rather than those of another program
_GONE: tuple[int, None, list[str], str] = (0, None, [], "")  # the lines of a program that is gone

_MOST_RECENT = 4  # sources whose code is kept: what is printed again is nearly always printed again soon

_retired: dict[str, deque[str]] = {}
_recent: dict[str, CodeType] = {}  # by source, that of the last use at the end
_numbers = count(1)


class Compiled:
    """A module that is compiled: what runs it in a scope.

    Args:
        source: the text.
        filename: the name by which tracebacks find its lines.
        rare: functions that hardly ever run, by name, with their lines: the first, and that behind the last, from 0.
    """

    def __init__(self, source: str, filename: str, rare: Mapping[str, tuple[int, int]]) -> None:
        self.filename = filename
        self._rare: dict[str, tuple[str, int]] = {}
        self._codes: dict[str, CodeType] = {}  # of those of them that have run
        lines = source.split("\n")
        for name, (first, end) in rare.items():
            self._rare[name] = "\n".join(lines[first:end]), first
            lines[first:end] = [""] * (end - first)  # the others keep their numbers
        self._code = _code("\n".join(lines) if rare else source, filename)

    def run_in(self, scope: dict[str, Any]) -> dict[str, Any]:
        """Run the module in a scope that has the other names that its functions use; return the scope."""
        scope.update({name: _Rare(name, self, scope) for name in self._rare})
        exec(self._code, scope)
        return scope

    def define(self, name: str, scope: dict[str, Any]) -> None:
        """Compile a function that hardly ever runs, and give a scope its name."""
        code = self._codes.get(name)
        if code is None:
            text, first = self._rare[name]
            code = self._codes[name] = _moved(compile(text, self.filename, "exec"), first)
        exec(code, scope)


def compiled(source: str, kind: str, owner: object, rare: Mapping[str, tuple[int, int]] | None = None) -> Compiled:
    """Compile the source of a module.

    `linecache` looks for all its files and then looks them up one by one, so none of them must go meanwhile; but
    programs go at any time, when garbage is collected. Hence a name stays there when its program goes, without lines,
    and is given again to another program much later: there are never many more names than there were programs at once.

    Args:
        source: the text.
        kind: what it is, for its file name: ``<anabranch step 5>`` of a ``"step"``.
        owner: once nobody refers to it, the lines are let go.
        rare: functions that hardly ever run (see `Compiled`): each is compiled once it is called.
    """
    retired = _retired.setdefault(kind, deque())
    filename = retired.popleft() if len(retired) > _FEWEST_RETIRED else f"<anabranch {kind} {next(_numbers)}>"
    found = Compiled(source, filename, rare or {})
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    weakref.finalize(owner, _retire, retired, filename).atexit = False
    return found


def _code(text: str, filename: str) -> CodeType:
    """Compile a module, or take the code of the same text, as where a model is made again with other weights."""
    known = _recent.pop(text, None)
    _recent[text] = code = compile(text, filename, "exec") if known is None else _named(known, filename)
    for old in [*_recent][:-_MOST_RECENT]:  # other threads compile, too
        _recent.pop(old, None)
    return code


def _named(code: CodeType, filename: str) -> CodeType:
    """Return the code with another file name, also for the functions in it."""
    constants = tuple([_named(each, filename) if isinstance(each, CodeType) else each for each in code.co_consts])
    return code.replace(co_filename=filename, co_consts=constants)


def _moved(code: CodeType, lines: int) -> CodeType:
    """Return the code as if it stood so many lines further down, also for the functions in it."""
    constants = tuple([_moved(each, lines) if isinstance(each, CodeType) else each for each in code.co_consts])
    return code.replace(co_firstlineno=code.co_firstlineno + lines, co_consts=constants)


class _Rare:
    """A function that hardly ever runs, such as a stand-in for machine code: it is compiled once it is called."""

    def __init__(self, name: str, module: Compiled, scope: dict[str, Any]) -> None:
        self.__name__, self._module, self._scope = name, module, scope

    def __call__(self, *values: Any) -> Any:
        if self._scope[self.__name__] is self:
            self._module.define(self.__name__, self._scope)
        return self._scope[self.__name__](*values)


def _retire(retired: deque[str], filename: str) -> None:
    if filename in linecache.cache:
        linecache.cache[filename] = _GONE
    retired.append(filename)
