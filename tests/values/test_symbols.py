"""Symbols beside values: graphs, sessions, functions. Each holds for Keras, too, where it has the names."""

import re
from typing import Any

import numpy as np
import pytest
from shared.values import is_symbolic, refused, same

import anabranch as k

X = np.ones((2, 3), "float32")


def test_values_in_functional_models() -> None:
    x = k.Input((2,))
    y = x * k.ops.array([2.0, 3.0]) + k.ops.ones((2,))
    assert is_symbolic(y)
    model = k.Model(x, y)
    same(model.predict(np.ones((1, 2), "float32"), verbose=0), [[3.0, 4.0]])
    same(model(k.ops.ones((1, 2))), [[3.0, 4.0]])


def test_symbols_refuse_what_values_do() -> None:
    x = k.Input((2,))
    refused(lambda: float(k.ops.sum(x)))
    refused(lambda: bool(k.ops.sum(x) > 0))
    refused(lambda: np.asarray(x * 2))
    refused(lambda: list(x), saying=("symbolic", "iterat"))
    refused(lambda: range(k.ops.cast(k.ops.sum(x), "int32")))


def test_placeholders_make_symbols() -> None:
    with k.Graph().as_default():
        assert is_symbolic(k.constant(1.0) + 1)
    p = k.placeholder((2,), "float32")
    y = p * k.ops.array([2.0, 3.0])
    assert is_symbolic(y)
    assert not is_symbolic(k.ops.array([1.0]) + 1)
    same(k.Session().run(y, {p: [1.0, 1.0]}), [2.0, 3.0])


def test_variables_beside_placeholders() -> None:
    p, v = k.placeholder((), "float32"), k.Variable(2.0)
    y = p * v
    v.assign(5.0)
    same(k.Session().run(y, {p: 2.0}), 10.0)
    update = v.assign(p + v)
    assert float(v) == 5.0
    k.Session().run(update, {p: 1.0})
    assert float(v) == 6.0


def test_values_captured_by_graphs() -> None:
    c = k.ops.array([1.0, 2.0]) * 2
    with k.Graph().as_default():
        y = c + k.constant(1.0)
        z = k.cond(k.ops.sum(y) > 0, lambda: y * c, lambda: y)
        (last,) = k.while_loop(lambda x: k.ops.sum(x) < 100, lambda x: (x + c,), (z,))
        got = k.Session().run([y, z, last])
    same(got[0], [3.0, 5.0])
    same(got[1], [6.0, 20.0])
    same(got[2], [32.0, 72.0])


def test_sessions_hand_out_values() -> None:
    same(k.Session().run(k.ops.array([1.0]) + 1), [2.0])
    got = k.Session().run({"a": k.ops.sum(k.ops.array([1, 2])), "b": [k.constant(2.0)]})
    assert int(got["a"]) == 3
    assert float(got["b"][0]) == 2.0
    c, p = k.constant(1.0), k.placeholder((), "float32")
    refused(lambda: k.Session().run(p + c, {p: 1.0, c: 2.0}))


def test_session_blocks_build() -> None:
    with k.Graph().as_default(), k.Session() as session:
        v = k.Variable(1.0)
        update = v.assign(v + 1)
        assert float(v) == 1.0
        session.run(update)
    assert float(v) == 2.0


def test_scopes_around_values() -> None:
    with k.device("cpu:0"), k.name_scope("part"):
        same(k.ops.array([1.0]) + 1, [2.0])
    x = k.ops.array([1.0])
    with k.control_dependencies([x]):
        same(x + 1, [2.0])


def test_functions_over_values() -> None:
    v, c = k.Variable(1.0), k.ops.array(10.0)

    @k.function
    def step(x):
        v.assign(v + x)
        return v * c

    same(step(k.ops.array(2.0)), 30.0)
    assert float(v) == 3.0
    v.assign(v + 1)
    same(step(k.ops.array(1.0)) + 1, 51.0)
    assert float(v) == 5.0


def test_functions_that_return_what_they_use() -> None:
    c = k.ops.array([1.0, 2.0])

    @k.function
    def step(x):
        return x + 1, c

    one, other = step(k.ops.array(1.0))
    same(one, 2.0)
    same(other, [1.0, 2.0])


def test_values_computed_from_weights_warn_where_a_graph_captures_them() -> None:
    w, fixed = k.Variable([2.0]), k.Variable([2.0], trainable=False)
    penalty = k.ops.sum(w * w)
    p = k.placeholder((), "float32")
    with pytest.warns(UserWarning, match="computed from trainable variables is captured by a graph"):
        y = p + penalty
    same(k.Session().run(y, {p: 1.0}), 5.0)
    frozen = [k.ops.stop_gradient(penalty), k.ops.sum(fixed * fixed), k.ops.convert_to_tensor(w.numpy())]
    same(k.Session().run(p + sum(frozen[1:], frozen[0]), {p: 1.0}), [11.0])  # no warning: they are errors in tests


def test_loops_over_values_with_a_symbol_inside_warn_only_of_what_they_capture() -> None:
    w, p = k.Variable(np.full((2, 2), 0.5, "float32")), k.placeholder((1, 2), "float32")
    zeros = np.zeros((1, 2), "float32")

    def looped(i: Any, h: Any) -> Any:
        return i + 1, h @ w + p @ w  # the first iteration runs on values: h @ w is one, p @ w is none

    _, h = k.while_loop(lambda i, h: i < 3, looped, (0, zeros))
    last, _ = k.scan(lambda h, x: (h @ w + p @ w + x, x), zeros, np.zeros((3, 1, 2), "float32"))
    session, at = k.Session(), {p: [[1.0, 1.0]]}
    (gradient,) = k.gradients(k.ops.sum(h), [w])
    for each in (h, last):
        same(session.run(each, at), [[3.0, 3.0]])
    same(session.run(gradient, at), [[6.0, 6.0], [6.0, 6.0]])

    penalty = k.ops.sum(w * w)
    with pytest.warns(UserWarning, match="computed from trainable variables is captured by a graph") as warned:
        k.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h + p * penalty), (0, zeros))
    assert len(warned) == 1
    other = k.ops.sum(w)
    with pytest.warns(UserWarning, match="computed from trainable variables is captured by a graph") as warned:
        k.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h if (p * other).shape else h + 1), (0, zeros))
    assert len(warned) == 1  # the loop stays one over values: the symbol is not among its results


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.sin(x), r"np.sin can't be applied to the symbolic tensor.*Use ab.ops.sin"),
        (lambda x: np.maximum(x, 0.0), "np.maximum can't be applied"),
        (
            lambda x: x * len(range(k.ops.cast(k.ops.sum(x), "int32"))),
            r"become an int .as range.*Use x.shape for sizes .*ab.fori_loop",
        ),
        (lambda x: x * float(k.ops.sum(x)), r"can't become a float\. Use ops.cast\(x, 'float32'\)\.\n"),
        (lambda x: f"{x:.2f}", "can't become text .*Use ab.ops in place of"),
        (lambda x: x if k.ops.sum(x) > 0 else -x, r"no truth value.*Use ab.cond\(...\) or ops.where"),
    ],
)
def test_errors_in_call_name_the_layer_and_a_remedy(function: Any, message: str) -> None:
    class Mine(k.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return function(inputs)

    for make in (
        lambda: Mine(name="mine")(k.Input((3,))),
        lambda: k.Sequential([Mine(name="mine")]).predict(X, verbose=0),
    ):
        with pytest.raises(TypeError, match=message) as caught:
            make()
        assert re.search(r"the graph is built, in call\(\) of layer '(.*/)?mine'", str(caught.value))
        assert any("In the call of layer 'mine' (Mine)" in note for note in caught.value.__notes__)
