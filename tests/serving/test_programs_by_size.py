"""Programs of servables: shapes alone decide which one computes; bits do not depend on what was asked before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.session import programs_by_size
from anabranch.engine.session.programs_by_size import ProgramsBySize

ROWS = [1, 2, 3, 5, 8, 9, 12, 33, 64, 65, 100, 128]


def scaled() -> ProgramsBySize:
    x = ab.placeholder((None, None, 3), "float32", "x")
    return ProgramsBySize(x.graph, [symbol_of(ab.ops.tanh(x) * 2)], [x])


def zeros(*shape: int) -> list[Any]:
    return [np.zeros(shape, "float32")]


@pytest.mark.kernels
@pytest.mark.parametrize("steps", [6, None])
def test_bits_do_not_depend_on_the_order_of_requests(tmp_path: Path, steps: int | None) -> None:
    x = np.random.default_rng(3).standard_normal((128, 6, 20)).astype("float32")
    layers = [ab.layers.Dense(50, activation="tanh"), ab.layers.LayerNormalization(), ab.layers.Dense(1, "sigmoid")]
    ab.Sequential([ab.Input((steps, 20)), *layers]).export(tmp_path, verbose=False)
    first, second = ab.serving.load(tmp_path), ab.serving.load(tmp_path)
    found = {rows: first(x[:rows]) for rows in ROWS}
    for rows in reversed(ROWS):
        np.testing.assert_array_equal(second(x[:rows]), found[rows])


@pytest.mark.kernels
def test_many_rows_give_the_bits_of_predict(tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((64, 20)).astype("float32")
    model = ab.Sequential([ab.Input((20,)), ab.layers.Dense(50, activation="tanh"), ab.layers.LayerNormalization()])
    model.export(tmp_path, verbose=False)
    servable = ab.serving.load(tmp_path)
    for rows in range(1, 20):
        servable(x[:rows])
    for rows in (17, 64, 5):
        np.testing.assert_array_equal(servable(x[:rows]), model.predict_on_batch(x[:rows]))


def test_sizes_that_come_often_have_programs_of_their_own() -> None:
    programs = scaled()
    found = {shape: programs.get(zeros(*shape, 3)) for shape in ((1, 5), (64, 32), (128, 64), (0, 0))}
    assert len(set(map(id, found.values()))) == len(found)
    assert all(programs.get(zeros(*shape, 3)) is program for shape, program in found.items())


def test_others_share_one_and_rows_may_still_be_known() -> None:
    programs = scaled()
    shared = programs.get(zeros(65, 33, 3))
    assert programs.get(zeros(100, 100, 3)) is shared
    few_rows = programs.get(zeros(2, 33, 3))
    assert programs.get(zeros(2, 100, 3)) is few_rows is not shared
    assert programs.get(zeros(65, 8, 3)) is programs.get(zeros(100, 8, 3)) is not shared
    x = np.linspace(-1, 1, 2 * 40 * 3, dtype="float32").reshape(2, 40, 3)
    for program in (shared, few_rows):
        np.testing.assert_allclose(program(x)[0], 2 * np.tanh(x), rtol=1e-6)


def test_the_first_shapes_have_programs_of_their_own_where_that_is_asked_for() -> None:
    programs = scaled()
    found = [programs.get(zeros(rows, 6, 3), first=2) for rows in (100, 5, 101)]
    shared = programs.get(zeros(100, 6, 3))
    assert len({id(shared), *map(id, found)}) == 4
    assert programs.get(zeros(102, 6, 3), first=2) is shared
    assert [programs.get(zeros(rows, 6, 3), first=2) for rows in (100, 5, 101)] == found
    assert programs.get(zeros(5, 6, 3)) is found[1]


def test_the_one_that_was_not_used_for_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_by_size, "_MOST_PROGRAMS", 2)
    programs = scaled()
    first, second = programs.get(zeros(1, 1, 3)), programs.get(zeros(2, 1, 3))
    assert programs.get(zeros(1, 1, 3)) is first
    programs.get(zeros(3, 1, 3))
    assert programs.get(zeros(1, 1, 3)) is first
    assert programs.get(zeros(2, 1, 3)) is not second


def test_devices_that_are_declared_later_count() -> None:
    programs = scaled()
    before = programs.get(zeros(1, 1, 3))
    ab.config.set_devices(cpu=2)
    try:
        assert programs.get(zeros(1, 1, 3)) is not before
    finally:
        ab.config.set_devices()
