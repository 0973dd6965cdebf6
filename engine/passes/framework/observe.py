"""Watching a step while passes change it: the verifier after each change, and what a pass changed as a diff.

``ANABRANCH_VERIFY=1`` verifies every step, ``ANABRANCH_VERIFY=8`` about one of eight, always the same ones.
``ANABRANCH_DUMP=fuse,pack`` prints the step before and after these passes to the standard error, ``ANABRANCH_DUMP=all``
that of every pass, and ``ANABRANCH_DUMP=llvm`` the modules that are compiled.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from ...common.keywords import nearest_name
from ...common.logs import DUMP, names_dumped
from ...graph.dump import dump_operations
from ...graph.op import Op
from . import verify
from .rewriter import Rewriter

VERIFY = "ANABRANCH_VERIFY"
_CONTEXT = 2  # lines around a change that are printed


class Watch:
    """The checks and the dumps of one step while passes change it.

    Args:
        step: the step, before the first pass.
        is_placed: whether its operations get devices.
        verifies: whether it is verified after each change.
        dumped: the names of the passes whose changes are printed.
        stages: where the text of the step after each pass goes.
    """

    def __init__(
        self,
        step: Rewriter,
        is_placed: bool,
        verifies: bool,
        dumped: frozenset[str],
        stages: list[tuple[str, str]] | None,
    ) -> None:
        self._is_placed = is_placed
        self._has_devices = False
        self._verifies = verifies
        self._inferred: verify.Inferred = step.copy.inferred or {}
        self._narrowed: tuple[type[Op], ...] = ()
        self._dumped = dumped
        self._stages = stages
        if verifies:
            self._signature = verify.signature(step.operations)
            self._check("specialise", step)
        if dumped or stages is not None:
            self._text = dump_operations(step.operations)
        if stages is not None:
            stages.append(("specialise", self._text))

    def after(
        self,
        name: str,
        step: Rewriter,
        moves_writes: bool,
        is_changed: bool = True,
        narrows: tuple[type[Op], ...] = (),
    ) -> None:
        """Look at the step after a pass.

        Args:
            name: the pass.
            step: the step.
            moves_writes: whether the pass may let other operations write.
            is_changed: whether the pass may have changed the step, as the `Rewriter` notes.
            narrows: the ops whose results may have narrower specs than `infer` gives from now on.

        Raises:
            BrokenStepError: the pass changed the step, which now breaks a rule, or it did so behind the `Rewriter`.
        """
        self._has_devices = self._has_devices or name == "place"
        self._narrowed += narrows
        if self._verifies:
            self._verify(name, step, moves_writes, is_changed)
        if self._dumped or self._stages is not None:
            before, self._text = self._text, dump_operations(step.operations)
            if before != self._text and (name in self._dumped or "all" in self._dumped):
                sys.stderr.write(diff(name, before, self._text))
        if self._stages is not None:
            self._stages.append((name, self._text))

    def _verify(self, name: str, step: Rewriter, moves_writes: bool, is_changed: bool) -> None:
        before, self._signature = self._signature, verify.signature(step.operations)
        if self._signature == before:
            return
        if not is_changed:
            raise verify.BrokenStepError(
                f"The pass {name!r} changed the step in another way than by the `Rewriter`, though its row in "
                "`PIPELINE` says `by_rules`. This is a bug in anabranch; leave that out, or call `Rewriter.touch`."
            )
        writes = self._writes
        self._check(name, step)
        if not moves_writes:
            self._raise_first(name, step, verify.moved_writes(writes, self._writes))

    def _check(self, name: str, step: Rewriter) -> None:
        is_placed = self._is_placed if self._has_devices else None
        self._raise_first(name, step, verify.verify(step, is_placed, self._inferred, self._narrowed))
        self._writes = verify.writers(step.operations)

    def _raise_first(self, name: str, step: Rewriter, broken: Iterator[str]) -> None:
        message = next(broken, None)
        if message is not None:
            count = 1 + sum(1 for _ in broken)
            more = f" ({count} rules are broken, this is the first.)" if count > 1 else ""
            raise verify.BrokenStepError(
                f"The pass {name!r} left a step behind that breaks a rule: {message}.{more} This is a bug in "
                f"anabranch; {DUMP}={name} prints what the pass did."
            )


def watch(step: Rewriter, is_placed: bool, passes: Sequence[str]) -> Watch | None:
    """Return what looks at a step after each pass, as the environment asks for it; None where it asks for nothing.

    Args:
        step: the step, before the first pass.
        is_placed: whether its operations get devices.
        passes: the names of all passes.

    Raises:
        ValueError: ANABRANCH_DUMP has a name of no pass, or ANABRANCH_VERIFY is not a number.
    """
    dumped, verified, asked = names_dumped(), os.environ.get(VERIFY, ""), _asked.stages
    unknown = sorted(dumped.difference(passes, ("all", "llvm")))
    if unknown:
        meant = nearest_name(unknown[0], passes)
        hint = f" Did you mean {meant!r}?" if meant else ""
        raise ValueError(
            f"{DUMP}: there is no pass {unknown[0]!r}; expected 'all', 'llvm' or some of {', '.join(passes)}.{hint}"
        )
    verifies = bool(verified) and is_verified(step, verified)
    if not dumped and not verifies and asked is None:
        return None
    return Watch(step, is_placed, verifies, dumped, asked)


def is_asked_for() -> bool:
    """Test whether some steps are verified."""
    return bool(os.environ.get(VERIFY))


class _Asked(threading.local):
    stages: list[tuple[str, str]] | None = None


_asked = _Asked()


@contextmanager
def stages() -> Generator[list[tuple[str, str]]]:
    """Keep the text of what this thread prepares inside the block: pairs of a pass that ran and the step after it.

    The first is called "specialise", for the copy of the graph before any pass.
    """
    before, _asked.stages = _asked.stages, []
    try:
        yield _asked.stages
    finally:
        _asked.stages = before


def is_verified(step: Rewriter, text: str) -> bool:
    """Test whether a step is one of those that are verified.

    Args:
        step: the step.
        text: the value of ANABRANCH_VERIFY: one of how many.

    Raises:
        ValueError: it is not a number.
    """
    if not text.isdecimal():
        raise ValueError(f"{VERIFY}={text!r}: expected 1 to verify every step, n to verify one of n, or 0 for none.")
    share = int(text)
    if share < 2:
        return share == 1
    known = [*[tensor.operation for tensor in step.fed], *step.operations[-2:]]
    names = [operation.name for operation in known]
    return zlib.crc32(f"{len(step.operations)} {names}".encode()) % share == 0


def diff(name: str, before: str, after: str) -> str:
    """Return the lines that differ between a step before and after a pass, in the form of `diff -u`."""
    import difflib  # only dumps need it

    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"before {name}", f"after {name}", n=_CONTEXT, lineterm=""
    )
    return "\n".join(lines) + "\n"


__all__ = ["VERIFY", "Watch", "diff", "stages", "watch"]
