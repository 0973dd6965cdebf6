"""Containers hold variables as long as the process lives, until they are cleared."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops


@pytest.fixture(autouse=True)
def empty():
    yield
    ab.container("kept").clear()
    ab.container("other").clear()


def test_what_is_in_a_container_outlives_its_graph():
    def build() -> weakref.ref[Any]:
        with ab.Graph().as_default() as graph, ab.container("kept"):
            v = ab.Variable(1.0, name="v")
            ab.Session(graph).run(v.assign_add(41.0))
        return weakref.ref(graph)

    graph = build()
    gc.collect()
    assert graph() is None
    assert ab.container("kept")["v"].numpy() == 42


def test_without_a_container_a_variable_lives_as_long_as_it_is_used():
    v = ab.Variable(1.0, name="v")
    alive = weakref.ref(v)
    del v
    gc.collect()
    assert alive() is None


def test_one_name_is_one_variable():
    with ab.container("kept") as kept:
        first, second = ab.Variable(1.0, name="w"), ab.Variable(2.0, name="w")
    assert list(kept) == ["w", "w_1"]
    assert (kept["w"], kept["w_1"]) == (first, second)
    assert second.name == "w_1"


def test_blocks_nest():
    with ab.container("kept"):
        ab.Variable(1.0, name="a")
        with ab.container("other"):
            ab.Variable(1.0, name="b")
        ab.Variable(1.0, name="c")
    assert list(ab.container("kept")) == ["a", "c"]
    assert list(ab.container("other")) == ["b"]


def test_clearing_frees_the_values_of_one_container():
    with ab.container("kept"):
        v = ab.Variable(np.zeros(1000), name="v")
    with ab.container("other"):
        w = ab.Variable(1.0, name="w")
    value = weakref.ref(v.stored_value())
    ab.container("kept").clear()
    assert value() is None
    assert len(ab.container("kept")) == 0
    assert w.numpy() == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda v: v.numpy(),
        lambda v: np.asarray(v),
        lambda v: float(v),
        lambda v: ab.Session().run(v * 2.0),
        lambda v: ab.Session().run(ops.tanh(v.value)),
        lambda v: ab.Session().run(ops.sum(v.value * v.value + 1.0)),
        lambda v: ab.Session().run(v.assign_add([1.0, 1.0])),
    ],
)
def test_a_cleared_variable_says_so(use: Any):
    with ab.Graph().as_default():
        with ab.container("kept"):
            v = ab.Variable([1.0, 2.0], name="v")
        ab.container("kept").clear()
        with pytest.raises(RuntimeError, match="Variable 'v' has no value: its container 'kept' was cleared"):
            use(v)


def test_an_assignment_brings_a_cleared_variable_back():
    with ab.container("kept"):
        v = ab.Variable([1.0, 2.0], name="v")
    ab.container("kept").clear()
    v.assign([3.0, 4.0])
    np.testing.assert_array_equal(v.numpy(), [3, 4])


def test_layers_make_their_weights_in_a_container():
    with ab.container("kept") as kept:
        layers.Dense(2, name="dense").build((None, 3))
    assert len(kept) == 2


def test_unknown_names():
    with ab.container("kept"):
        ab.Variable(1.0, name="v")
    with pytest.raises(KeyError, match=r"Container 'kept' holds no variable 'x'; it holds 'v'\."):
        ab.container("kept")["x"]
