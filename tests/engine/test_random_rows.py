"""Draws of some rows of a batch are the rows of the draw of the whole, whatever is drawn, and along which axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch.engine.ops.random.keys import SeedGenerator, like, noting_keys, standing_in, take_key
from anabranch.engine.ops.random.rows import RandomRows, Window, drawing_rows, finding_axes
from anabranch.engine.ops.random.samplers import (
    RandomIntegers,
    RandomKeep,
    RandomNormal,
    RandomTruncatedNormal,
    RandomUniform,
)

KEY = np.array([3, 4], "int64")
DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda shape, dtype: RandomUniform(shape, dtype, -1.0, 2.0),
    "normal": lambda shape, dtype: RandomNormal(shape, dtype, 1.0, 2.0),
    "truncated": lambda shape, dtype: RandomTruncatedNormal(shape, dtype, 1.0, 2.0),
    "keep": lambda shape, dtype: RandomKeep(shape, dtype, 0.3),
    "integers": lambda shape, _: RandomIntegers(shape, np.dtype("int32"), -5, 5),
}


@settings(max_examples=examples(40, 200), deadline=None)
@given(
    kind=st.sampled_from([*DRAWS]),
    dtype=st.sampled_from([np.dtype("float32"), np.dtype("float64"), np.dtype(ml_dtypes.bfloat16)]),
    total=st.integers(0, 9),
    each=st.integers(1, 3),
    rest=st.sampled_from([(), (1,), (3,), (2, 5), (0,)]),
    data=st.data(),
)
def test_rows_are_those_of_the_whole(kind: str, dtype: Any, total: int, each: int, rest: Any, data: Any) -> None:
    axis = data.draw(st.integers(0, len(rest)))
    first = data.draw(st.integers(0, total))
    count = data.draw(st.integers(0, total - first))
    whole, part = [*rest], [*rest]
    whole.insert(axis, each * total)
    part.insert(axis, each * count)
    expected = DRAWS[kind](tuple(whole), dtype).run(np, KEY)
    found = RandomRows.of(DRAWS[kind](tuple(part), dtype), axis).run(np, KEY, first, count, total)
    rows = (slice(None),) * axis + (slice(each * first, each * (first + count)),)
    assert np.asarray(found).tobytes() == np.ascontiguousarray(expected[rows]).tobytes()


def test_what_has_no_whole_number_of_entries_a_row_is_drawn_by_each_replica_for_itself() -> None:
    op = RandomUniform((3,), np.dtype("float32"))
    first, second = [RandomRows.of(op, 0).run(np, KEY, begin, 2, 6) for begin in (0, 2)]
    np.testing.assert_array_equal(first, op.run(np, KEY))
    assert not np.isin(first, second).any()


@pytest.mark.parametrize("name", ["gamma", "beta", "binomial", "categorical", "shuffle"])
def test_draws_that_do_not_go_by_row_differ_between_replicas(name: str) -> None:
    random = ab.random

    def drawn(axes: Any, begin: int) -> Any:
        with ab.Graph().as_default(), drawing_rows(axes, Window(begin, 4, 8)):
            result = {
                "gamma": lambda: random.gamma((50,), 2.0, seed=5),
                "beta": lambda: random.beta((50,), 2.0, 3.0, seed=5),
                "binomial": lambda: random.binomial((50,), 1000.0, 0.5, seed=5),
                "categorical": lambda: random.categorical(np.zeros((50, 100), "float32"), 1, seed=5),
                "shuffle": lambda: random.shuffle(np.arange(50), seed=5),
            }[name]()
            return ab.Session().run(result)

    plain = drawn([], 4)
    np.testing.assert_array_equal(drawn([0], 0), plain)  # the replica of the first row: as one process
    assert np.mean(drawn([0], 4) == plain) < 0.3
    np.testing.assert_array_equal(drawn([0], 4), drawn([0], 4))


def placeholder(*shape: int | None) -> Any:
    return ab.placeholder(shape, "float64", "x")


def drawn(x: Any, seed: int) -> list[Any]:
    """Draws by row, by row behind another axis, for all rows, and of a table; in a loop, too."""
    keys = ab.random.SeedGenerator(seed)
    size = ab.ops.shape(x)[0]
    _, summed = ab.while_loop(
        lambda k, y: k < 3, lambda k, y: (k + 1, y + ab.random.dropout(x, 0.5, seed=keys)), [0, ab.ops.zeros_like(x)]
    )
    return [
        ab.random.dropout(x, 0.5, seed=keys),
        ab.random.normal((2, size), seed=keys),
        ab.random.dropout(x, 0.5, noise_shape=(1, None), seed=keys),
        ab.random.uniform((4, 3), seed=keys),
        ab.random.uniform((size * 2, 3), seed=keys),
        summed,
    ]


def test_steps_draw_the_numbers_of_their_rows() -> None:
    """Also where batches have as many rows as a table, or one."""
    rows = np.arange(1.0, 22.0).reshape(7, 3)
    with ab.Graph().as_default() as graph:
        expected = ab.Session(graph).run(drawn(ab.constant(rows), 5))
    with ab.Graph().as_default(), finding_axes() as axes:
        drawn(placeholder(None, 3), 5)
    assert axes == [0, 0, 1, None, None, 0]
    for first, last in ((0, 4), (4, 5), (5, 7)):
        with ab.Graph().as_default() as graph:
            x = placeholder(last - first, 3)
            window = Window(*[ab.placeholder((), "int64", name) for name in ("first", "count", "total")])
            with drawing_rows(axes, window):
                found = drawn(x, 5)
            given = dict(zip(window, (first, last - first, 7), strict=True))
            masks = ab.Session(graph).run(found, {x: rows[first:last], **given})
        wanted = [each[first:last] for each in expected]
        wanted[1] = expected[1][:, first:last]
        wanted[2] = rows[first:last] * (expected[2] / rows)[:1]
        wanted[3] = expected[3]
        wanted[4] = expected[4][2 * first : 2 * last]
        for one, other in zip(masks, wanted, strict=True):
            np.testing.assert_allclose(one, other, 1e-12)


def test_a_step_that_draws_otherwise_than_it_did_draws_for_all_rows() -> None:
    with ab.Graph().as_default() as graph:
        window = Window(*[ab.constant(number, "int64") for number in (1, 2, 7)])
        with drawing_rows([], window):
            found = ab.random.uniform((2, 3), seed=4)
        value = ab.Session(graph).run(found)
    np.testing.assert_array_equal(value, ab.random.uniform((2, 3), seed=4))


def test_generators_that_stand_in_begin_each_run_where_others_are() -> None:
    generator = SeedGenerator(7)
    with ab.Graph().as_default() as graph, noting_keys() as noted:
        stand_ins = like([generator])
        first = [take_key(generator), take_key(generator)]
        with standing_in(stand_ins):
            others = [take_key(generator), take_key(3), take_key(generator)]
    assert [each for each, _ in noted] == [generator] * 4, "whoever stands in for it"
    session, effects = ab.Session(graph), [each for each in graph.operations if each.writes]
    for begin in (0, 2):
        one, other, _ = session.run([first, others, effects])
        assert np.array(one).tolist() == [[7, begin], [7, begin + 1]]
        assert np.array(other).tolist() == [[7, begin], [3, 0], [7, begin + 1]]
