"""`anabranch.tf`: loops, branches and Python functions with TensorFlow's arguments, eagerly, in graphs, and refused."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch.framework import tensorflow_names as tf

X = np.array([1.0, -2.0, 3.0])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("initializer", [None, 0.5])
def test_gradients_of_scan(reverse: bool, initializer: float | None) -> None:
    def accumulate(x: Any) -> Any:
        first = None if initializer is None else tf.constant(initializer, "float64")
        return tf.scan(lambda a, e: tf.sin(a) * e + e, x, initializer=first, reverse=reverse)

    ab.testing.check_gradients(accumulate, [X])
    traced = tf.function(accumulate)
    np.testing.assert_allclose(traced(tf.constant(X)), accumulate(tf.constant(X)), rtol=1e-12)


def test_a_scan_of_no_elements_needs_an_initializer() -> None:
    found: Any = tf.scan(lambda a, e: a + e, np.zeros((0, 2), "float32"), initializer=np.ones(2, "float32"))
    assert found.shape == (0, 2)
    with pytest.raises(IndexError):
        tf.scan(lambda a, e: a + e, np.zeros((0, 2), "float32"))


@pytest.mark.parametrize(
    "loop",
    [
        lambda x, flows: tf.map_fn(lambda e: e * e, x, back_prop=flows),
        lambda x, flows: tf.scan(lambda a, e: a * e, x, back_prop=flows),
        lambda x, flows: tf.foldl(lambda a, e: a * e, x, back_prop=flows),
        lambda x, flows: tf.foldr(lambda a, e: a * e, x, back_prop=flows),
        lambda x, flows: tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v * v), (0, x), back_prop=flows)[1],
    ],
)
def test_back_prop_says_whether_gradients_flow(loop: Callable[..., Any]) -> None:
    for flows in (True, False):
        with tf.GradientTape() as tape:
            x = tf.Variable(X)
            y = tf.reduce_sum(loop(x, flows))
        assert (tape.gradient(y, x) is not None) == flows


def test_results_of_map_fn_have_the_dtypes_that_are_given() -> None:
    with pytest.raises(TypeError, match=r"tf.map_fn: fn returns float64, where int32 is given"):
        tf.map_fn(lambda e: e, X, dtype=tf.int32)
    with pytest.raises(TypeError, match="fn returns 1 tensors, where 2 dtypes are given"):
        tf.map_fn(lambda e: e, X, fn_output_signature=(tf.float64, tf.float64))
    spec = tf.TensorSpec((), tf.float64)
    np.testing.assert_array_equal(tf.map_fn(lambda e: -e, X, fn_output_signature=spec), -X)


@pytest.mark.parametrize("case", [tf.case, ab.case])
def test_predicates_that_exclude_each_other(case: Any) -> None:
    def choose(first: Any, second: Any, exclusive: bool = True) -> Any:
        return case([(first, lambda: 1), (second, lambda: 2)], default=lambda: 3, exclusive=exclusive)

    for function in (choose, tf.function(choose)):
        assert [int(function(*held)) for held in ((True, False), (False, True), (False, False))] == [1, 2, 3]
        with pytest.raises(ab.errors.InvalidArgumentError, match="more than one predicate holds"):
            function(True, True)
    assert int(choose(True, True, exclusive=False)) == 1
    pairs: Any = {True: lambda: 1}
    with pytest.raises(TypeError, match="got a dict"):
        tf.case(pairs)


def test_switch_case_takes_each_index_once() -> None:
    @tf.function
    def choose(index: Any, x: Any) -> Any:
        return tf.switch_case(index, {1: lambda: x * 10, 0: lambda: x}, default=lambda: -x)

    assert [float(choose(index, 2.0)) for index in (0, 1, 2, -1)] == [2.0, 20.0, -2.0, -2.0]
    wrong: Any
    for wrong in ([], {1: lambda: 1}, [(0, lambda: 1), (0, lambda: 2)]):
        with pytest.raises(ValueError, match="one function for each index from 0 on"):
            tf.switch_case(0, wrong)
    wrong = [3]
    with pytest.raises(TypeError, match="functions, or pairs"):
        tf.switch_case(0, wrong)


def test_a_python_function_of_tensors() -> None:
    seen: list[Any] = []

    def cube(x: Any, n: Any) -> Any:
        seen.append((tf.executing_eagerly(), float(tf.reduce_sum(x))))
        return tf.cast(n, tf.float64) * x**3

    def call(x: Any) -> Any:
        return tf.py_function(func=cube, inp=[x, 2], Tout=tf.float64, name="cube")

    for function in (call, tf.function(call)):
        with tf.GradientTape() as tape:
            x = tf.Variable(X)
            y = function(x)
        np.testing.assert_allclose(y, 2 * X**3)
        np.testing.assert_allclose(tape.gradient(y, x), 6 * X**2)
    with ab.Graph().as_default(), ab.Session() as session:
        placed = ab.placeholder((None,), "float64")
        both = [call(placed), *tf.gradients(call(placed), placed)]
        np.testing.assert_allclose(session.run(both, {placed: X}), [2 * X**3, 6 * X**2])
    assert seen
    assert set(seen) == {(True, 2.0)}


def test_python_functions_without_results_and_with_several() -> None:
    seen: list[float] = []

    @tf.function
    def note(x: Any) -> Any:
        tf.py_function(lambda v: seen.append(float(v)), [x], [])
        return tf.py_function(lambda v: (v + 1, tf.cast(v, tf.int32)), [x], [tf.float32, tf.int32])

    more, whole = note(2.5)
    assert (float(more), int(whole), seen) == (3.5, 2, [2.5])


@pytest.mark.parametrize(
    ("function", "dtypes", "expected"),
    [
        (lambda x: (x * x, tf.cast(x, tf.int32)), [tf.float64, tf.int32], 2 * X),
        (lambda x: [x * 2.0, x * 3.0], tf.float64, 5 * np.ones_like(X)),
        (lambda x: [x * 2.0], [tf.float64], 2 * np.ones_like(X)),
        (lambda x: x.numpy() * 2.0, tf.float64, np.zeros_like(X)),
        (lambda x: 2.0, tf.float64, np.zeros_like(X)),
    ],
    ids=["one without a derivative", "a list as a tensor", "a list of one", "an array", "a number"],
)
def test_gradients_of_python_functions(function: Any, dtypes: Any, expected: Any) -> None:
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = tf.py_function(function, [x], dtypes)
        y = tf.reduce_sum(found[0] if isinstance(dtypes, list) else found)
    np.testing.assert_allclose(tape.gradient(y, x), expected)


def test_errors_of_python_functions_name_them() -> None:
    def cube(x: Any) -> Any:
        return tf.cast(x, tf.int32)

    with pytest.raises(TypeError, match="cube returned int32, but Tout says float64"):
        tf.py_function(cube, [X], tf.float64)


def test_lists_of_tensors_become_what_is_hinted() -> None:
    together = tf.function(lambda x: tf.convert_to_tensor([x, 2], dtype_hint=tf.float64))
    assert together(1).dtype == "float64"


def test_gradients_by_name() -> None:
    @tf.function
    def found(x: Any, z: Any) -> Any:
        stopped = x * 2.0
        none = tf.gradients(x * x, [z])[0]
        zero = tf.gradients(x * x, z, unconnected_gradients="zero")[0]
        return tf.gradients([x * stopped], [x], grad_ys=[3.0], stop_gradients=[stopped]), none is None, zero

    (dx,), is_none, zero = found(2.0, 5.0)
    assert (float(dx), bool(is_none), float(zero)) == (12.0, True, 0.0)


def test_gradients_of_all_results_of_a_loop() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        x = ab.placeholder((), "float32")
        results = tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v * v), (0, x))
        assert session.run(tf.gradients(results, x), {x: 2.0}) == [32.0]
        with pytest.raises(TypeError, match="int32, which has no derivative"):
            tf.gradients(results[0], x)


def test_a_shape_that_is_ensured_is_known() -> None:
    with ab.Graph().as_default(), ab.Session() as session:
        x = ab.placeholder(None, "float32")
        ensured = tf.ensure_shape(x, [None, 3])
        assert ensured.shape == (None, 3)
        assert session.run(ensured, {x: np.zeros((2, 3))}).shape == (2, 3)
        with pytest.raises(ab.errors.InvalidArgumentError, match="shape"):
            session.run(ensured, {x: np.zeros((2, 4))})
        assert tf.ensure_shape(x, None).shape is None
    with pytest.raises(ab.errors.InvalidArgumentError, match="shape"):
        tf.ensure_shape(X, [4])


def test_what_is_left_of_a_graph_inside_init_scope() -> None:
    @tf.function
    def twice(x: Any) -> Any:
        with tf.init_scope():
            assert tf.executing_eagerly()
            once = float(tf.constant(2.0) * 3.0)
        assert not tf.executing_eagerly()
        return x * once

    assert tf.executing_eagerly()
    assert float(twice(2.0)) == 12.0


def test_hints_of_dtypes() -> None:
    assert tf.convert_to_tensor([1, 2], dtype_hint=tf.float32).dtype == "float32"
    assert tf.convert_to_tensor([1.5], dtype_hint=tf.int32).dtype == "float32"
    assert tf.convert_to_tensor(tf.constant(1), dtype_hint=tf.float32, name="t").dtype == "int32"


def test_assertions_by_name() -> None:
    with pytest.raises(ab.errors.InvalidArgumentError, match="Too large"):
        tf.debugging.assert_less([1, 2], [2, 2], message="Too large.", summarize=2, name="check")
    with pytest.raises(tf.errors.InvalidArgumentError, match="7"):
        tf.Assert(False, [7])
    with pytest.raises(TypeError, match=r"Labels. Expected a tensor of int32, got float32"):
        tf.debugging.assert_type(1.0, tf.int32, "Labels.")
    tf.debugging.assert_scalar(1.0)
    tf.debugging.assert_rank([1.0], 1, name="r")
    assert [tf.debugging.is_numeric_tensor(x) for x in (tf.constant(1), tf.constant("a"), 1)] == [True, False, False]
    with pytest.raises(ArithmeticError, match="loss"):
        tf.debugging.assert_all_finite([np.nan], "loss")
    assert tf.nest.flatten([1, [2]]) == [1, 2]
    assert tf.queue.FIFOQueue is ab.queues.FIFOQueue
    np.testing.assert_array_equal(tf.ones_initializer()((2,)), [1, 1])


@pytest.mark.parametrize(
    ("function", "numbers", "expected"),
    [
        (lambda x, n: tf.add_n([x for _ in range(n)]), (1, 3), [1.0, 3.0]),
        (lambda x, n: x if n > 2 else 2 * x, (3, 2), [1.0, 2.0]),
        (lambda x, n: tf.reduce_sum(tf.one_hot([1], n)) + x * [10.0, 20.0, 30.0][n - 2], (2, 3), [11.0, 21.0]),
        (lambda x, axis: tf.reduce_sum(ab.ops.sort(x * [[3.0], [5.0]], axis)[0]), (0, 1), [3.0, 3.0]),
        (lambda x, n: x * math.sqrt(n), (4, 9.0), [2.0, 3.0]),
    ],
)
def test_a_function_is_traced_for_each_number_at_which_it_looks(function: Any, numbers: Any, expected: Any) -> None:
    compiled, name = tf.function(function), function.__code__.co_varnames[1]
    assert [float(compiled(tf.constant(1.0), n)) for n in numbers] == expected
    assert [float(compiled(tf.constant(1.0), **{name: n})) for n in numbers] == expected
    counted = compiled.trace_count()
    assert float(compiled(tf.constant(1.0), numbers[1])) == expected[1]
    assert compiled.trace_count() == counted


def test_one_trace_is_for_all_numbers_at_which_a_function_does_not_look() -> None:
    compiled = tf.function(lambda x, n: x * n)
    assert [float(compiled(tf.constant(2.0), n)) for n in (1, 2, 3)] == [2.0, 4.0, 6.0]
    assert compiled.trace_count() == 1
    assert compiled.latest_trace() is not None


def test_a_function_that_looks_at_a_tensor_is_refused() -> None:
    compiled = tf.function(lambda x, n: x if x > n else n)
    for _ in range(2):
        with pytest.raises(TypeError, match="has no truth value"):
            compiled(tf.constant(2.0), 1)


@pytest.mark.parametrize("traced", [False, True])
def test_one_element_serves_for_all_of_a_vectorized_map(traced: bool) -> None:
    one, several = np.array([[2.0, 3.0]]), np.arange(6.0).reshape(3, 2)

    def mapped(one: Any, several: Any) -> Any:
        return tf.vectorized_map(lambda each: each["a"] * each["b"], {"a": one, "b": several})

    np.testing.assert_array_equal((tf.function(mapped) if traced else mapped)(one, several), one * several)
    ab.testing.check_gradients(mapped, [one, several])
    with pytest.raises(ValueError, match="the elements differ in their first axis"):
        tf.vectorized_map(lambda each: each[0], (np.ones(2), several))
