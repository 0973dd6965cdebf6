"""Optimizers and gradients of tables that consist of rows: the numbers of dense gradients, and nothing else touched."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared.examples import examples

import anabranch as ab
from anabranch import ops, optim
from anabranch.engine.graph import IndexedSlices, VariableRows

ROWS, WIDTH = 6, 3
CLASSES = [
    *("SGD", "Momentum", "RMSprop", "Adam", "AdamW", "Nadam", "Adagrad"),
    *("Adadelta", "Adamax", "Ftrl", "Lamb", "Lion"),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.25},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "weight_decay": {"weight_decay": 0.1},
    "loss_scale": {"loss_scale_factor": 8.0},
    "accumulation": {"gradient_accumulation_steps": 2},
    "averages": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "together": {"gradient_accumulation_steps": 2, "clipnorm": 0.5, "weight_decay": 0.1, "use_ema": True},
}
IDS = [[2, 0, 2], [5], [-1, 1, 2, -1], [], [0, 1, 2, 3, 4, 5]]


class Bounded(ab.Variable):
    constraint = staticmethod(lambda w: ops.clip(w, -0.9, 0.9))


class State:
    """A table, a dense weight and an optimizer."""

    def __init__(self, make: Any, cls: type[ab.Variable] = ab.Variable):
        rng = np.random.default_rng(0)
        self.optimizer = make()
        self.variables = [cls(rng.normal(size=(ROWS, WIDTH))), cls(rng.normal(size=WIDTH))]

    def values(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in (*self.variables, *self.optimizer.variables)]


def compare(first: State, second: State) -> None:
    for one, other in zip(first.values(), second.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def check_steps(make: Any, steps: list[list[int]], cls: type[ab.Variable] = ab.Variable) -> None:
    """Steps by rows and by dense gradients leave the same state behind."""
    sparse, dense, rng = State(make, cls), State(make, cls), np.random.default_rng(1)
    for ids in steps:
        rows = IndexedSlices(rng.normal(size=(len(ids), WIDTH)), np.array(ids, "int32"), np.array([ROWS, WIDTH]))
        other = rng.normal(size=WIDTH)
        assert sparse.optimizer.apply([rows, other], sparse.variables) is None
        dense.optimizer.apply([np.asarray(rows), other], dense.variables)
        compare(sparse, dense)


@pytest.mark.parametrize("name", CLASSES)
def test_every_optimizer_gives_the_numbers_of_dense_gradients(name: str):
    check_steps(getattr(optim, name), IDS)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "Momentum"])
def test_options_give_the_numbers_of_dense_gradients(name: str, option: str):
    check_steps(lambda: getattr(optim, name)(learning_rate=0.5, **OPTIONS[option]), IDS)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_constraints_hold_for_all_rows(name: str):
    check_steps(lambda: getattr(optim, name)(learning_rate=0.5), IDS, Bounded)


@settings(max_examples=examples(5, 15), deadline=None)
@given(
    st.lists(st.lists(st.integers(-ROWS, ROWS - 1), max_size=7), min_size=1, max_size=4),
    st.sampled_from(["SGD", "Adagrad", "Adam"]),
    st.sampled_from(["plain", "clipnorm", "global_clipnorm", "together"]),
)
def test_any_rows(steps: list[list[int]], name: str, option: str):
    check_steps(lambda: getattr(optim, name)(learning_rate=0.5, **OPTIONS[option]), steps)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_minimize_equals_products_with_one_hot_vectors(name: str, option: str):
    by_rows, by_products = (State(lambda: getattr(optim, name)(learning_rate=0.5, **OPTIONS[option])) for _ in "ab")
    with ab.Graph().as_default():
        ids = ab.placeholder((None,), "int32")
        steps: list[Any] = []
        for state in (by_rows, by_products):
            table, weight = state.variables
            hot = ops.one_hot(ops.mod(ids, ROWS), ROWS, dtype="float64")
            rows = ops.take(table, ids, axis=0) if state is by_rows else hot @ table
            loss = ops.sum(ops.square(rows * weight - 1.0))
            steps.append(state.optimizer.minimize(loss, state.variables))
        run = ab.Session().make_callable(steps, [ids])
    for fed in IDS:
        run(np.array(fed, "int32"))
        compare(by_rows, by_products)


def test_table_used_in_a_loop():
    table, optimizer = ab.Variable(np.ones((ROWS, WIDTH)), name="table"), optim.Adagrad(0.5)
    with ab.Graph().as_default():
        ids = ab.placeholder((None,), "int32")
        _, loss = ab.while_loop(
            lambda i, total: i < ops.shape(ids)[0],
            lambda i, total: (i + 1, total + ops.sum(ops.take(table, ids[i], axis=0))),
            (0, ops.zeros((), "float64")),
        )
        step = optimizer.minimize(loss, [table])
        ab.Session().run(step, {ids: [1, 1, 4]})
    changed = np.flatnonzero((table.numpy() != 1).any(axis=1))
    np.testing.assert_array_equal(changed, [1, 4])
    np.testing.assert_allclose(table.numpy()[[1, 4], 0], 1 - 0.5 * np.array([2, 1]) / np.sqrt(0.1 + np.array([4, 1])))


def test_gradients_of_the_wrong_shape():
    table = ab.Variable(np.ones((ROWS, WIDTH), "float32"), name="table")
    rows = IndexedSlices(np.ones((1, 2), "float32"), np.array([0]), np.array([ROWS, 2]))
    with pytest.raises(ValueError, match=r"gradient for variable 'table' has shape \[\?,2\], the variable \[6,3\]"):
        optim.SGD().apply([rows], [table])


def test_which_optimizers_touch_nothing_but_rows():
    found = {name for name in CLASSES if getattr(optim, name)().updates_rows}
    assert found == {"SGD", "Adagrad"}
    assert not optim.SGD(momentum=0.5).updates_rows
    assert optim.SGD.from_config(optim.SGD().get_config()).updates_rows


def test_own_optimizers_get_dense_gradients_unless_they_ask_for_rows():
    seen: list[Any] = []

    class Own(optim.Optimizer):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            seen.append(type(variable))
            variable.assign(variable - learning_rate * gradient)

    class ByRows(Own):
        updates_rows = True

    found: list[np.ndarray] = []
    for cls in (Own, ByRows):
        table = ab.Variable(np.ones((ROWS, WIDTH)), name="table")
        rows = IndexedSlices(np.ones((2, WIDTH)), np.array([1, 1]), np.array([ROWS, WIDTH]))
        cls(learning_rate=0.25).apply([rows], [table])
        found.append(table.numpy())
    assert seen == [ab.Variable, VariableRows]
    np.testing.assert_array_equal(found[0][:2, 0], [1, 0.5])
    np.testing.assert_array_equal(found[0], found[1])


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
@pytest.mark.parametrize("options", [{}, {"clipnorm": 1.0}, {"loss_scale_factor": 2.0}], ids=str)
def test_a_step_allocates_no_second_table(name: str, options: dict[str, Any]):
    table = ab.Variable(np.zeros((200_000, 64), "float32"), name="table")
    optimizer = getattr(optim, name)(**options)
    with ab.Graph().as_default():
        ids = ab.placeholder((32,), "int32")
        loss = ops.sum(ops.square(ops.take(table, ids, axis=0) - 1.0))
        run = ab.Session().make_callable([loss, optimizer.minimize(loss, [table])], [ids])
    fed = np.arange(0, 64_000, 2_000, dtype="int32")
    before, _ = run(fed)
    large = [v for v in (table, *optimizer.variables) if v.nbytes > 1_000_000]
    held = [variable.stored_value() for variable in large]
    tracemalloc.start()
    after, _ = run(fed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after < before
    assert all(variable.stored_value() is value for variable, value in zip(large, held, strict=True))
    assert peak < table.nbytes / 50


# --- models ---------------------------------------------------------------------------------------------------------


def model_of(first: Any) -> Any:
    return ab.Sequential([first, ab.layers.GlobalAveragePooling1D(), ab.layers.Dense(2, activation="softmax")])


class OneHotProduct(ab.layers.Layer):
    def build(self, input_shape: Any = None) -> None:
        self.kernel = self.add_weight(shape=(ROWS, WIDTH), name="kernel")

    def call(self, inputs: Any) -> Any:
        return ops.one_hot(ops.cast(inputs, "int32"), ROWS) @ self.kernel


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_fit_with_an_embedding_equals_one_hot_products(name: str):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, ROWS, (32, 4)).astype("int32"), rng.integers(0, 2, 32)
    models = [model_of(ab.layers.Embedding(ROWS, WIDTH)), model_of(OneHotProduct())]
    histories: list[Any] = []
    for model in models:
        model.compile(optimizer=name, loss="sparse_categorical_crossentropy")
        model.build((None, 4))
        model.set_weights([np.random.default_rng(1).normal(size=w.shape) for w in model.get_weights()])
        histories.append(model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-6)
    for one, other in zip(*[model.get_weights() for model in models], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_training_a_model_writes_into_its_table():
    model = model_of(ab.layers.Embedding(1000, WIDTH))
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    x, y = np.array([[1, 2, 2, 7]]), np.array([1])
    model.train_on_batch(x, y)
    table = model.layers[0].embeddings
    held, before = table.stored_value(), table.numpy()
    model.train_on_batch(x, y)
    assert table.stored_value() is held
    np.testing.assert_array_equal(np.flatnonzero((table.numpy() != before).any(axis=1)), [1, 2, 7])
