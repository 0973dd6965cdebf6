"""Cases of parametrised tests that `make test` leaves to `make test-all`.

The rule is the same for all families, and asks for nothing but the cases' ids. Of a product of parameters so many cases
are taken that each value of each parameter occurs. Where several tests of a file go through the same cases, such as
layers, each case is taken by one of the tests, and each kind of case (the first part of its id) by each of them.
"""

from collections.abc import Hashable, Iterable
from pathlib import Path
from re import split
from typing import Any, TypeVar
from zlib import crc32

import pytest
from _pytest.mark import ParameterSet

# Files in which several tests go through the same cases.
_SAME_CASES = frozenset(
    [
        "engine/test_deep_graphs.py",
        "engine/test_ops_generated.py",
        "framework/test_losses.py",
        "framework/test_metrics.py",
        "layers/test_golden.py",
        "optim/test_conformance.py",
        "optim/test_optimizers.py",
    ]
)

# Tests whose cases are named by what they are a product of, such as op and dtype.
_PRODUCTS = {
    "engine/test_kernel_functions.py": "test_errors",
    "engine/test_kernel_half.py": "test_equals_numpy",
    "engine/test_kernels.py": "test_equals_numpy",
}
# Of those with the same cases the ones that take longest: a kind of case goes through one of three of them.
_LONG = {
    "engine/test_deep_graphs.py": ("test_",),
    "engine/test_ops_generated.py": ("test_control_flow", "test_saving", "test_saving_inside", "test_session"),
    "optim/test_conformance.py": ("test_",),
}

Words = frozenset[Hashable]
Item = TypeVar("Item")


def first_of(values: Iterable[Any], count: int = 1) -> list[ParameterSet]:
    """Return parameters of a test of which `make test` takes the first `count`, for tests that take seconds each."""
    lists = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=[pytest.mark.slow] if at >= count else []) for at, each in enumerate(lists)]


def left_out(items: Iterable[pytest.Item], root: Path) -> list[pytest.Item]:
    """Return the cases that the sample does without: tests that are marked as slow are no part of it.

    Args:
        items: what was collected.
        root: the folder of the tests.
    """
    families: dict[Hashable, list[tuple[str, pytest.Item, Words]]] = {}
    paths: dict[Path, str] = {}  # of a file there are thousands of items
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec") or item.get_closest_marker("slow"):
            continue
        path = paths.get(item.path) or paths.setdefault(item.path, item.path.relative_to(root).as_posix())
        family, words_of = (path, _case) if path in _SAME_CASES else ((item.parent, item.originalname), _values)
        families.setdefault(family, []).append((item.nodeid, item, words_of(item)))
    return [item for family in families.values() for item in rest(family)]


def _values(item: pytest.Function) -> Words:
    """Return what each line of parameters gives, by the line's number."""
    is_product = any(item.path.as_posix().endswith(p) and item.originalname == test for p, test in _PRODUCTS.items())
    return frozenset(enumerate(item.callspec.id.split("-") if is_product else item.callspec._idlist))


def _case(item: pytest.Function) -> Words:
    """Return the case, and its kind together with the test."""
    case, test = item.callspec.id, item.originalname
    kind = split("[-/]", case)[0]
    is_long = any(item.path.as_posix().endswith(path) and test.startswith(long) for path, long in _LONG.items())
    return frozenset([case, test if is_long and crc32(f"{test} {kind}".encode()) % 3 else (test, kind)])


def rest(family: Iterable[tuple[str, Item, Words]]) -> list[Item]:
    """Return the cases of a family that bring no word that others have not brought; those that bring many come first.

    Args:
        family: the name of each case, the case, and its words. Their order does not matter.
    """
    order = sorted(family, key=lambda case: (crc32(case[0].encode()), case[0]))
    seen: set[Hashable] = set()
    for least in range(max(len(words) for _, _, words in order), 0, -1):
        left: list[tuple[str, Item, Words]] = []
        for case in order:
            if len(case[2] - seen) >= least:
                seen |= case[2]
            else:
                left.append(case)
        order = left
    return [item for _, item, _ in order]
