"""Dependencies in a topological order that is kept up to date."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shared.fusion_checks import Check, X, groups

import anabranch as ab
from anabranch.engine.graph import Tensor
from anabranch.engine.passes.framework.acyclic import Dependent


def reachable(item: Dependent) -> set[Dependent]:
    found: set[Dependent] = set()
    pending = [item]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending.extend(current.needs)
    return found


def is_in_order(items: list[Dependent]) -> bool:
    numbers = {item.order for item in items}
    return len(numbers) == len(items) and all(need.order < item.order for item in items for need in item.needs)


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40), st.permutations(range(12)))
def test_order_holds_whatever_is_added(pairs: list[tuple[int, int]], numbers: list[int]):
    items = [Dependent(number) for number in numbers]
    for user, need in pairs:
        if items[user] not in reachable(items[need]):
            items[user].add_need(items[need])
        assert is_in_order(items)
        for a in items:
            behind = reachable(a)
            assert [a.may_depend_on(b) for b in items] == [b in behind for b in items]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_order_holds_where_one_takes_over_another(steps: list[tuple[int, int, bool]]):
    items = [Dependent(number) for number in range(10)]
    gone: set[Dependent] = set()
    for first, second, merges in steps:
        a, b = items[first], items[second]
        if a in gone or b in gone or a is b or a in reachable(b):
            continue
        between = any(b in reachable(need) for need in a.needs if need is not b)
        if merges and not between:
            before = {item: reachable(item) for item in items}
            a.take_over(b)
            gone.add(b)
            for item, behind in before.items():
                assert behind - {b} <= reachable(item) | ({a} if item is a else set())
                assert b not in behind or item is a or a in reachable(item)
        elif not merges:
            a.add_need(b)
        assert is_in_order(items)


def test_what_lies_far_apart_is_taken_to_depend():
    first, near, far = Dependent(0), Dependent(500), Dependent(501)
    assert not near.may_depend_on(first)
    assert far.may_depend_on(first)
    assert not first.may_depend_on(far)


# --- fusion over long distances -------------------------------------------------------------------------------------


def joined_after(steps: int) -> tuple[Tensor, Tensor]:
    """A value used at once and again after `steps` fused operations that do not depend on it."""
    x = ab.placeholder((3, 4), "float32", "x")
    early, late = ab.ops.relu(x + 1), x
    weights = ab.constant(np.eye(4, dtype="float32"))
    for _ in range(steps):
        late = ab.ops.relu(late @ weights - 0.5)
    return x, early + late


def test_neighbours_are_fused():
    with ab.Graph().as_default():
        x, y = joined_after(2)
        assert "add relu subtract relu add" in groups([y], [x])
        Check([y], {x: X})


def test_what_lies_far_apart_is_not_fused():
    with ab.Graph().as_default():
        x, y = joined_after(600)
        found = groups([y], [x])
        assert "add relu" in found
        assert found[-1] == "subtract relu add"
        Check([y], {x: X})
