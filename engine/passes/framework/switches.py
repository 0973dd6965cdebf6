"""A table of the passes that run, and a switch for each.

The set of what is turned off is part of what a program was made for: a program that is called under another set runs by
way of a second one, as under another memory budget.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from ...common.keywords import nearest_name
from ...common.quick_dataclass import dataclass

VARIABLE = "ANABRANCH_PASSES"


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch of one pass, or of several that serve one purpose.

    Attributes:
        name: the name by which it is switched.
        description: one line that says what the pass does.
        is_exact: whether results keep their very bits; exact programs leave the others out.
    """

    name: str
    description: str
    is_exact: bool = True


_TABLE = (
    Switch("simplify", "rewrite operations by a table of rules: shapes, transposes, casts, arithmetic"),
    Switch("cse", "compute equal pure operations once"),
    Switch("fold", "compute small operations over constants while the step is prepared"),
    Switch("unroll", "replace loops of a few iterations by copies of their bodies"),
    Switch("ragged_batches", "compute the rows of a batch of sequences that have not ended", is_exact=False),
    Switch("slices", "make of slices side by side the parts of one split", is_exact=False),
    Switch("recompute", "compute cheap values again in gradients instead of keeping them", is_exact=False),
    Switch("sink", "move what only one branch needs into that branch"),
    Switch("invariants", "move what is the same in each iteration out of a loop"),
    Switch("fission", "batch, before or after a loop, work that does not depend on its recurrence", is_exact=False),
    Switch("merge_products", "compute matrix products that share an operand as one", is_exact=False),
    Switch("same_shapes", "leave out sums and broadcasts to a shape that is known to be the same already"),
    Switch("row_updates", "add up rows of tables without joining, writing or sorting them first", is_exact=False),
    Switch("materialise_transposes", "copy transposed arrays once whose slices a loop multiplies", is_exact=False),
    Switch("pack", "compute products of few rows by weights that are packed once", is_exact=False),
    Switch("lay_out", "lay int8 and int4 matrices of variables out once, in the order in which kernels read them"),
    Switch("winograd", "compute convolutions with 3 x 3 taps with fewer multiplications", is_exact=False),
    Switch("decompose", "write operations that have no kernel as several that have one", is_exact=False),
    Switch("fuse", "compute chains of elementwise operations in one kernel", is_exact=False),
    Switch("reductions", "take sums, means and maxima into the kernels of what they reduce", is_exact=False),
    Switch("horizontal_fusion", "update variables by one expression in one call, and rows of tables in one pass"),
    Switch("epilogues", "compute elementwise operations on a product while that is in the cache", is_exact=False),
    Switch("late_copies", "copy transposed arrays behind the loops that do not need the copies"),
    Switch("native", "compile whole regions of scalars and small arrays to machine code", is_exact=False),
    Switch("parallel", "run independent loops and long operations that use one core each side by side"),
    Switch("memory", "reuse buffers: results in place of operands that die"),
)
PASSES: dict[str, Switch] = {known.name: known for known in _TABLE}

_interned: dict[frozenset[str], frozenset[str]] = {}


class _Switches:
    """The passes that are turned off; None before the first query, when the environment has not been read yet."""

    off: frozenset[str] | None = None
    changes: int = 0


_switches = _Switches()


def is_on(name: str) -> bool:
    """Test whether a pass runs."""
    return name not in turned_off()


def turned_off() -> frozenset[str]:
    """Return the names of the passes that do not run: always the same object for the same names."""
    off = _switches.off
    return off if off is not None else _turn_off(_of_environment(os.environ.get(VARIABLE, "")))


def _is_bool(given: object) -> bool:
    return isinstance(given, bool)


def set_passes(**passes: bool) -> None:
    """Turn passes of the compiler off, or on again; all are on at first.

    Args:
        passes: for names of passes (`get_passes` lists them, docs/explain.md says what each does) whether they run.

    The environment variable ``ANABRANCH_PASSES`` sets what holds at first: ``ANABRANCH_PASSES=-fission,-fuse`` turns
    two of them off. Steps that were compiled before are compiled again when they are next run.

    Raises:
        ValueError: there is no such pass. TypeError: neither True nor False.

    >>> import anabranch as ab
    >>> ab.config.set_passes(fission=False)
    >>> [name for name, runs in ab.config.get_passes().items() if not runs]
    ['fission']
    >>> ab.config.set_passes(fission=True)
    """
    _check_names("set_passes", passes)
    for name, runs in passes.items():
        if not _is_bool(runs):
            raise TypeError(f"set_passes: {name}={runs!r} ({type(runs).__name__}); expected True or False.")
    _turn_off(frozenset(name for name in PASSES if not passes.get(name, is_on(name))))


def get_passes() -> dict[str, bool]:
    """Return, for each pass of the compiler, whether it runs.

    >>> import anabranch as ab
    >>> ab.config.get_passes()["cse"]
    True
    """
    return {name: is_on(name) for name in PASSES}


@contextmanager
def without(*names: str) -> Generator[None]:
    """Leave these passes out of whatever is compiled inside the block, in the whole process.

    Raises:
        ValueError: there is no such pass.
    """
    _check_names("without", names)
    before = turned_off()
    _turn_off(before | set(names))
    try:
        yield
    finally:
        _turn_off(before)


@contextmanager
def only(*names: str) -> Generator[None]:
    """Rewrite whatever is compiled inside the block, in the whole process, by these passes alone.

    Raises:
        ValueError: there is no such pass.
    """
    _check_names("only", names)
    with without(*[name for name in PASSES if name not in names]):
        yield


def _turn_off(names: frozenset[str]) -> frozenset[str]:
    _switches.changes += 1
    _switches.off = _interned.setdefault(names, names)
    return _switches.off


def changes() -> int:
    """Return how often passes have been turned off or on: what is compiled while that grows may be of several sets."""
    return _switches.changes


def _of_environment(text: str) -> frozenset[str]:
    """Return the passes that ``-name,-name,+name`` turns off; later ones win.

    Raises:
        ValueError: a name is not known, or has no sign.
    """
    items = [item.strip() for item in text.split(",") if item.strip()]
    unsigned = [item for item in items if item[0] not in "+-"]
    if unsigned:
        raise ValueError(
            f"{VARIABLE}={text!r}: {unsigned[0]!r} has no sign; expected '-{unsigned[0]}' to turn that pass off, or "
            f"'+{unsigned[0]}' to turn it on."
        )
    _check_names(VARIABLE, [item[1:] for item in items])
    runs = {item[1:]: item[0] == "+" for item in items}
    return frozenset(name for name, wanted in runs.items() if not wanted)


def _check_names(where: str, names: Iterable[str]) -> None:
    for name in names:
        if name in PASSES:
            continue
        meant = nearest_name(name, PASSES)
        hint = f" (did you mean {meant!r}?)" if meant else ""
        raise ValueError(f"{where}: {name!r} is no pass{hint}; expected some of {', '.join(PASSES)}.")
