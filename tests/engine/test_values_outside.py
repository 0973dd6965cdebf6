"""What tensors are worth at the top level of a program, where no graph is being built: `float(ops.mean(x))`."""

from __future__ import annotations

import gc
import operator
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import as_dtype
from anabranch.engine.runtime.interpreter import Interpreter
from anabranch.engine.session import outside

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype("float32")


# --- values ---------------------------------------------------------------------------------------------------------


def test_scalars_become_python_numbers():
    assert float(ops.mean([1.0, 2.0, 6.0])) == 3.0
    assert int(ops.sum([1, 2])) == 3
    assert ops.max([1.5, 0.5]).item() == 1.5
    assert f"{ops.mean([1.0, 2.0]):.3f}" == "1.500"
    assert ["a", "b", "c"][ops.argmax([1, 5, 2])] == "b"
    assert list(range(ops.add(1, 2))) == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8", "bool", "complex64", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_arrays_keep_shape_and_dtype(dtype: str, shape: tuple[int, ...]):
    value = RNG.integers(0, 2, size=shape).astype(as_dtype(dtype))
    tensor = ops.convert_to_tensor(value)

    for found in (np.asarray(tensor), tensor.numpy()):
        assert (found.shape, found.dtype) == (value.shape, value.dtype)
        np.testing.assert_array_equal(found, value)
    assert tensor.tolist() == value.tolist()
    assert np.asarray(tensor, "complex128").dtype == "complex128"


def test_numpy_functions_take_tensors():
    total = ops.add(X, 1.0)

    np.testing.assert_array_equal(np.asarray(total), X + 1)
    np.testing.assert_array_equal(np.stack([total, total]), np.stack([X + 1, X + 1]))
    np.testing.assert_allclose(total, X + 1)
    assert np.shape(total) == (3, 4)


def test_strings():
    assert ops.convert_to_tensor(["a", "b"]).tolist() == ["a", "b"]
    assert ops.convert_to_tensor("a").item() == "a"


def test_truth_values_choose_branches():
    assert ops.any([False, True])
    assert not ops.all([False, True])
    assert bool(ops.ones((1, 1)))
    assert [row for row in (-1.0, 2.0) if ops.sign(row) > 0] == [2.0]
    with pytest.raises(ValueError, match="ambiguous"):
        bool(ops.convert_to_tensor([1.0, 2.0]))


def test_nan_and_infinity():
    assert np.isnan(float(ops.log(-1.0)))
    assert float(ops.log(0.0)) == -np.inf


def test_what_is_no_single_number_is_refused_as_by_numpy():
    pair = ops.convert_to_tensor([1.0, 2.0])

    with pytest.raises(TypeError, match=r"0-dimensional arrays|length-1"):
        float(pair)
    with pytest.raises(ValueError, match="size 1"):
        pair.item()
    with pytest.raises(TypeError, match=r"can.* be interpreted as an integer"):
        operator.index(ops.convert_to_tensor(2.0))
    with pytest.raises(ValueError, match="size 1"):
        f"{pair:.2f}"
    assert f"{pair}" == repr(pair)


def test_sizes_that_only_the_value_tells():
    found = ops.nonzero([3, 0, 4])[0]

    assert found.shape == (None,)
    assert len(found) == 2
    assert [int(position) for position in found] == [0, 2]
    assert [float(row[0]) for row in ops.convert_to_tensor(X)] == X[:, 0].tolist()


def test_loops_and_branches():
    product = ab.while_loop(lambda i, p: i < 5, lambda i, p: (i + 1, p * (i + 1)), (0, 1))[1]
    chosen = ab.cond(product > 100, lambda: product, lambda: -product)

    assert (int(product), int(chosen)) == (120, 120)


def test_a_copy_is_handed_out():
    tensor = ops.add([1.0, 2.0], 0.0)
    tensor.numpy()[0] = 7.0
    np.asarray(tensor)[0] = 7.0

    assert tensor.tolist() == [1.0, 2.0]


# --- looked at once -------------------------------------------------------------------------------------------------


def test_no_array_without_a_copy():
    tensor = ops.convert_to_tensor(X)
    np.testing.assert_array_equal(np.array(tensor, copy=True), X)
    with pytest.raises(ValueError, match=r"is handed out as a copy only; leave out copy=False\."):
        np.asarray(tensor, copy=False)


def test_random_numbers_are_drawn_once():
    drawn = ab.random.normal((3,))
    first = drawn.numpy()

    np.testing.assert_array_equal(drawn.numpy(), first)
    np.testing.assert_array_equal((drawn * 2.0).numpy(), first * 2)
    assert not np.array_equal(ab.random.normal((3,)).numpy(), first)


def test_random_numbers_are_drawn_once_whoever_looks_first():
    drawn = ab.random.uniform((3,))
    shifted, doubled = drawn + 1.0, drawn * 2.0
    np.testing.assert_allclose(shifted.numpy() - 1, doubled.numpy() / 2, atol=1e-6)

    summed = ab.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + drawn), (0, ops.zeros(3)))[1]
    np.testing.assert_allclose(summed.numpy(), drawn.numpy() * 3, rtol=1e-6)


def test_seeded_numbers_are_those_of_a_session():
    ab.utils.set_random_seed(4)
    looked_at = ab.random.normal((2,)).tolist()
    ab.utils.set_random_seed(4)

    assert ab.Session().run(ab.random.normal((2,))).tolist() == looked_at


def test_a_value_that_was_looked_at_stays():
    v = ab.Variable(2.0)
    before = v * 10.0
    assert float(before) == 20.0
    v.assign(3.0)
    after = v * 10.0

    assert (float(before), float(after), float(after - before)) == (20.0, 30.0, 10.0)
    assert float(ab.Session().run(before)) == 30.0  # sessions run what the graph says


def test_a_variable_is_read_at_the_first_look():
    v = ab.Variable(2.0)
    product = v * 10.0
    v.assign(3.0)

    assert float(product) == 30.0


def test_an_assignment_of_a_tensor_acts_once():
    v = ab.Variable(1.0)
    changed = v.assign_add(ops.convert_to_tensor(1.0))

    assert (float(changed), float(changed), float(changed + 0.0)) == (2.0, 2.0, 2.0)
    assert float(v) == 2.0


def test_an_assignment_that_others_wait_for_acts_once():
    v = ab.Variable(1.0)
    changed = v.assign_add(ops.convert_to_tensor(1.0))
    with ab.control_dependencies([changed]):
        first, second = v * 10.0, v * 100.0

    assert (float(first), float(changed), float(second)) == (20.0, 2.0, 200.0)
    assert float(v) == 2.0


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types of the operations that run one by one from now on."""
    ran: list[str] = []
    run = Interpreter._run_operation

    def counted(self: Interpreter, operation: Any, *arguments: Any) -> Any:
        ran.append(operation.type)
        return run(self, operation, *arguments)

    monkeypatch.setattr(Interpreter, "_run_operation", counted)
    return ran


def test_a_long_computation_looked_at_step_by_step_is_not_repeated(monkeypatch: pytest.MonkeyPatch):
    ran, x = count_runs(monkeypatch), ops.add(X, 0.0)
    for step in range(10):
        x = x * 0.5
        np.testing.assert_allclose(float(x[0, 0]), X[0, 0] * 0.5 ** (step + 1), rtol=1e-6)
    np.testing.assert_allclose(x.numpy(), X * 0.5**10, rtol=1e-6)
    assert ran.count("multiply") == 10


def test_what_is_passed_on_the_way_is_dropped_when_it_is_much(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outside, "_MOST_PASSED", 3 * X.nbytes)
    x = ops.add(X, 0.0)
    for step in range(10):
        x = x * 0.5
        np.testing.assert_allclose(float(x[0, 0]), X[0, 0] * 0.5 ** (step + 1), rtol=1e-6)
        assert sum(value.nbytes for value in outside._passed.values()) <= 3 * X.nbytes


def test_what_depends_on_a_variable_is_not_kept_on_the_way():
    v = ab.Variable(X)
    doubled = v * 2.0
    assert float(ops.sum(doubled * 0.0)) == 0.0
    v.assign(X + 1.0)
    np.testing.assert_array_equal(doubled.numpy(), (X + 1) * 2)


def test_threads_that_look_at_one_random_number_see_the_same():
    drawn = ab.random.normal((3,))
    views, seen = [drawn * float(k) for k in range(1, 9)], dict[int, float]()
    begin = threading.Barrier(len(views))

    def look(number: int) -> None:
        begin.wait()
        seen[number] = float(views[number][0]) / (number + 1)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(len(views))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose([seen[number] for number in range(len(views))], float(drawn[0]), rtol=1e-6)


def test_clear_session_lets_go():
    ab.utils.clear_session()
    tensor = ops.add(X, 1.0)
    tensor.numpy()
    seen = weakref.ref(tensor)
    del tensor
    ab.utils.clear_session()
    gc.collect()

    assert seen() is None


# --- where there is no value ----------------------------------------------------------------------------------------

USES: list[tuple[Any, str]] = [
    (float, "a float"),
    (int, "an int"),
    (operator.index, "an int"),
    (np.asarray, "a NumPy array"),
    (lambda x: x.numpy(), "a NumPy array"),
    (lambda x: x.item(), "a Python number"),
    (lambda x: x.tolist(), "a list"),
    (lambda x: f"{x:.2f}", "a Python number"),
]


@pytest.mark.parametrize(("use", "wanted"), USES)
def test_what_has_to_be_fed_is_named(use: Any, wanted: str):
    with ab.Graph().as_default():
        x = ab.placeholder((), "float32", "height")
        y = x * 2.0
    with pytest.raises(TypeError, match=rf"can't become {wanted}\. .* depends on the placeholder 'height'"):
        use(y)


def test_the_input_of_a_model_is_named():
    with pytest.raises(TypeError, match="depends on the placeholder 'pixels'"):
        float(ops.mean(ab.Input((2,), name="pixels")))
    with pytest.raises(TypeError, match=r"no truth value while the graph is built\. Use ab\.cond.*placeholder 'more'"):
        bool(ops.any(ab.Input((2,), name="more") > 0))


@pytest.mark.parametrize(("use", "wanted"), USES)
def test_while_a_graph_is_built_there_is_no_value(use: Any, wanted: str):
    constant = ops.convert_to_tensor(1.0)
    constant.numpy()

    def refused(tensor: Any) -> Any:
        with pytest.raises(TypeError, match=rf"no value while the graph is built, so it can't become {wanted}"):
            use(tensor)
        return tensor

    with ab.Graph().as_default():
        refused(ops.convert_to_tensor(2.0))
        refused(constant)
    ab.function(lambda x: refused(x * 1.0))(np.float32(1))
    ab.function(lambda x: refused(ops.ones(())) * x)(np.float32(1))
    ab.while_loop(lambda i: i < 2, lambda i: refused(i) + 1, (0,))
    ab.cond(constant > 0, lambda: refused(constant * 2.0), lambda: constant)


def test_truth_values_inside_are_refused_in_the_words_of_before():
    with pytest.raises(TypeError, match=r"no truth value while the graph is built\. Use ab\.cond"):
        ab.function(lambda x: x if x > 0 else -x)(np.float32(1))


def test_a_value_from_inside_a_loop_has_none():
    leaked: list[Any] = []
    ab.while_loop(lambda i: i < 2, lambda i: leaked.append(i * 2) or i + 1, (0,))

    with pytest.raises(TypeError, match="no value while the graph is built"):
        int(leaked[0])


def test_layers_are_refused_values_while_they_are_traced():
    class Peeking(ab.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * float(ops.mean(x))

    with pytest.raises(TypeError, match="no value while the graph is built"):
        Peeking()(np.ones((2, 2), "float32"))


def test_a_layer_called_on_tensors_has_a_value():
    layer = ab.layers.Dense(2, kernel_initializer="ones")

    np.testing.assert_allclose(layer(ops.convert_to_tensor(X)), X.sum(1, keepdims=True).repeat(2, 1), rtol=1e-5)


def test_the_names_of_tensorflow_follow():
    tf = ab.tf
    total = tf.reduce_sum(tf.constant([1.0, 2.0]))

    assert (float(total), total.numpy()) == (3.0, 3.0)
    assert tf.constant([[1, 2]]).numpy().tolist() == [[1, 2]]
