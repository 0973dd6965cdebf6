"""Concrete functions, shapes, searches in rows and split texts of `anabranch.tf`: TensorFlow 2.21's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import tf

Spec = tf.TensorSpec


def scaled(x: Any, y: Any = 2.0, *, n: Any = 3) -> dict[str, Any]:
    return {"a": x * y, "b": x + n}


# --- concrete functions ---------------------------------------------------------------------------------------------


def test_a_concrete_function_takes_tensors_of_its_specs():
    made = tf.function(scaled).get_concrete_function(Spec((None, 3), tf.float32))
    spec = Spec((None, 3), tf.float32)
    assert made.structured_input_signature == ((spec, 2.0), {"n": 3})
    assert made.output_shapes == {"a": (None, 3), "b": (None, 3)}
    assert made.output_dtypes == {"a": "float32", "b": "float32"}
    assert [tensor.shape for tensor in made.inputs] == [(None, 3)]
    assert len(made.outputs) == 2
    for rows in (1, 2):
        found = made(tf.ones((rows, 3)))
        np.testing.assert_array_equal(found["a"], np.full((rows, 3), 2.0))
        np.testing.assert_array_equal(made(x=np.ones((rows, 3), "float32"))["b"], np.full((rows, 3), 4.0))
    np.testing.assert_array_equal(made(np.ones((1, 3), "float32"), 2.0, n=3)["a"], [[2.0, 2.0, 2.0]])
    assert repr(made).startswith("<ConcreteFunction scaled of ((TensorSpec(shape=(None, 3)")


def test_tensors_of_the_call_are_places_for_others():
    made = tf.function(scaled).get_concrete_function(tf.constant([1.0, 2.0]), Spec(()), n=np.float32(2))
    assert made.structured_input_signature == ((Spec((2,)), Spec(())), {"n": Spec(())})
    found = made(tf.constant([1.0, 2.0]), tf.constant(3.0), n=tf.constant(2.0))
    np.testing.assert_array_equal(found["a"], [3.0, 6.0])


def test_structures_of_arguments():
    def first(d: dict[str, Any], parts: list[Any]) -> Any:
        return d["a"] + parts[0] * parts[1]

    made = tf.function(first).get_concrete_function({"a": Spec((2,))}, [Spec((2,)), 2])
    assert made.structured_input_signature == (({"a": Spec((2,))}, [Spec((2,)), 2]), {})
    np.testing.assert_array_equal(made({"a": tf.ones(2)}, [tf.ones(2), 2]), [3.0, 3.0])
    with pytest.raises(TypeError, match=r"first: argument parts\[1\] is 2 here; got 3\."):
        made({"a": tf.ones(2)}, [tf.ones(2), 3])
    with pytest.raises(TypeError, match=r"first: a call needs argument d\['a'\], which is float32\[2\]\."):
        made({}, [tf.ones(2), 2])


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"a call needs argument x, which is float32\[\?,3\]\."),
        ((np.ones((2, 4), "float32"),), {}, r"argument x must be float32\[\?,3\]; got float32\[2,4\]\."),
        ((np.ones((2, 3)),), {}, r"argument x must be float32\[\?,3\]; got float64\[2,3\]\."),
        ((np.ones((2, 3), "float32"), 3.0), {}, r"argument y is 2\.0 here; got 3\.0\."),
        ((np.ones((2, 3), "float32"),), {"n": 4}, r"argument n is 3 here; got 4\."),
        ((np.ones((2, 3), "float32"),), {"m": 4}, "unexpected keyword argument 'm'"),
    ],
)
def test_arguments_that_it_was_not_made_for(args: tuple[Any, ...], kwargs: dict[str, Any], message: str):
    made = tf.function(scaled).get_concrete_function(Spec((None, 3), tf.float32))
    with pytest.raises(TypeError, match=message):
        made(*args, **kwargs)


def test_input_signature_is_what_no_arguments_ask_for():
    @tf.function(input_signature=[Spec((None,))], reduce_retracing=True)
    def doubled(x: Any) -> Any:
        return x * 2

    made = doubled.get_concrete_function()
    assert made.structured_input_signature == ((Spec((None,)),), {})
    np.testing.assert_array_equal(made(tf.constant([1.0, 2.0])), [2.0, 4.0])
    np.testing.assert_array_equal(doubled(tf.constant([3.0])), [6.0])


def test_methods_have_them_too():
    class Scaler:
        def __init__(self) -> None:
            self.factor = tf.Variable(3.0)

        @tf.function
        def __call__(self, x: Any) -> Any:
            return x * self.factor

        @tf.function
        def serve(self, x: Any) -> Any:
            self.factor.assign_add(1.0)
            return x * self.factor

    scaler = Scaler()
    made = scaler.serve.get_concrete_function(Spec(()))
    assert made.structured_input_signature == ((Spec(()),), {})
    assert [variable is scaler.factor for variable in made.variables] == [True]
    assert made.trainable_variables == made.variables
    assert [float(made(1.0)), float(made(2.0)), float(scaler.serve(1.0))] == [4.0, 10.0, 6.0]
    assert float(scaler(tf.constant(2.0))) == 12.0
    assert scaler.serve.trace_count() == 1


def test_concrete_functions_within_functions_and_tapes():
    made = tf.function(lambda x: x * x).get_concrete_function(Spec(()))
    outer = tf.function(lambda x: made(x) + 1.0)
    assert float(outer(tf.constant(3.0))) == 10.0
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = made(x)
    assert float(tape.gradient(y, x)) == 6.0


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [tf.ones((2, 3)), tf.Variable(np.ones((2, 3), "float32"))], ids=["tensor", "variable"])
def test_get_shape(made: Any):
    shape = made.get_shape()
    assert isinstance(shape, tf.TensorShape)
    assert (shape, shape.as_list(), shape.dims) == ((2, 3), [2, 3], [2, 3])
    assert (shape.rank, shape.ndims, shape.num_elements(), shape.is_fully_defined()) == (2, 2, 6, True)


def test_shapes_of_symbols():
    shape = ab.Input((3,)).get_shape()
    assert (shape.as_list(), shape.num_elements(), shape.is_fully_defined()) == ([None, 3], None, False)
    assert ab.placeholder(None).get_shape() is None
    assert shape == [None, 3]
    assert shape != (None, 4)
    assert hash(shape) == hash((None, 3))
    assert (repr(shape), str(shape)) == ("TensorShape([None, 3])", "(None, 3)")
    assert isinstance(shape[1:], tf.TensorShape)
    assert (shape[:1] + (4,)).as_list() == [None, 4]  # noqa: RUF005 - a shape, unlike a tuple of both
    assert shape.concatenate((5,)).as_list() == [None, 3, 5]
    assert shape.merge_with((2, None)).as_list() == [2, 3]
    assert shape.merge_with(None) == shape
    assert [shape.is_compatible_with(other) for other in ((7, 3), (7, 4), None)] == [True, False, True]
    np.testing.assert_array_equal(tf.zeros(tf.TensorShape([1, 2])), [[0.0, 0.0]])
    with pytest.raises(ValueError, match=r"Shapes \(None, 3\) and \(2, 4\) are incompatible"):
        shape.merge_with((2, 4))
    with pytest.raises(ValueError, match=r"Shape \(None, 3\) must have rank 3, but has 2"):
        shape.assert_has_rank(3)


# --- searches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "expected"), [("left", [[1, 3, 0], [1, 1, 1]]), ("right", [[2, 3, 0], [2, 2, 2]])])
def test_each_row_is_searched_for_its_own_values(side: str, expected: list[list[int]]):
    found = tf.searchsorted([[1, 2, 3], [4, 5, 6]], [[2, 7, 0], [5, 5, 5]], side=side)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found, expected)


def test_rows_along_several_axes():
    rng = np.random.default_rng(3)
    rows, values = np.sort(rng.integers(0, 9, (2, 3, 7)), -1), rng.integers(0, 9, (2, 3, 4))
    for side in ("left", "right"):
        found = tf.searchsorted(rows, values, side, out_type=tf.int64)
        expected = [[np.searchsorted(rows[i, j], values[i, j], side) for j in range(3)] for i in range(2)]
        assert found.dtype == "int64"
        np.testing.assert_array_equal(found, expected)
    assert tf.searchsorted(np.zeros((2, 0)), np.ones((2, 3))).numpy().tolist() == [[0] * 3] * 2


def test_searches_that_can_not_be():
    with pytest.raises(ValueError, match=r"all axes but the last must agree; got a sorted_sequence of shape \[2,3\]"):
        tf.searchsorted(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="side must be 'left' or 'right'; got 'up'"):
        tf.searchsorted(np.ones((2, 3)), np.ones((2, 2)), side="up")


# --- split texts ----------------------------------------------------------------------------------------------------


def test_split_texts_as_tensors():
    parts = tf.strings.split(["a b c", "d", "", "e f"])
    assert parts.to_tensor().numpy().tolist() == [["a", "b", "c"], ["d", "", ""], ["", "", ""], ["e", "f", ""]]
    filled = parts.to_tensor("x")
    assert filled.numpy().tolist() == [["a", "b", "c"], ["d", "x", "x"], ["x", "x", "x"], ["e", "f", "x"]]
    narrow, wide = parts.to_tensor(shape=(None, 2)), parts.to_tensor("-", shape=(2, 4))
    assert narrow.numpy().tolist() == [["a", "b"], ["d", ""], ["", ""], ["e", "f"]]
    assert wide.numpy().tolist() == [["a", "b", "c", "-"], ["d", "-", "-", "-"]]
    assert parts.to_tensor("-", shape=(5, 1)).numpy().tolist() == [["a"], ["d"], ["-"], ["e"], ["-"]]
    assert parts.to_list() == [["a", "b", "c"], ["d"], [], ["e", "f"]]
    assert (parts.row_lengths().numpy().tolist(), parts.row_lengths().dtype) == ([3, 1, 0, 2], "int64")
    with pytest.raises(ValueError, match="the rows of parts are along axis 1; got axis=2"):
        parts.row_lengths(axis=2)


def test_numbers_of_the_parts_of_texts():
    numbers = tf.strings.to_number(tf.strings.split(["1.5 2", "", "3"]), tf.float64)
    assert numbers.to_list() == [[1.5, 2.0], [], [3.0]]
    assert numbers.to_tensor().numpy().tolist() == [[1.5, 2], [0, 0], [3, 0]]
    assert numbers.to_tensor(-1).dtype == "float64"
    assert numbers.to_tensor(-1, shape=(2, None)).numpy().tolist() == [[1.5, 2], [-1, -1]]
    with pytest.raises(ValueError, match="'x' at position"):
        tf.strings.to_number(tf.strings.split(["1", "x"], ","))

    @tf.function
    def total(texts):
        return tf.reduce_sum(tf.strings.to_number(tf.strings.split(texts, ","), tf.int32).to_tensor(), axis=1)

    assert total(tf.constant(["1,2", "30"])).numpy().tolist() == [3, 30]


def test_split_texts_of_two_axes_and_their_characters():
    assert tf.strings.split([["a b"], ["c"]]).to_tensor().numpy().tolist() == [[["a", "b"]], [["c", ""]]]
    characters: Any = tf.strings.unicode_split(["ab", "c"], "UTF-8")
    assert characters.to_tensor("-").numpy().tolist() == [["a", "b"], ["c", "-"]]
    assert characters.to_list() == [["a", "b"], ["c"]]


def test_split_texts_in_functions():
    @tf.function
    def words(texts: Any) -> Any:
        return tf.strings.split(texts).to_tensor("-", shape=(None, 2))

    assert words(tf.constant(["a b c", "d"])).numpy().tolist() == [["a", "b"], ["d", "-"]]
    values, lengths = tf.strings.split(["a b"])  # as before
    assert values.numpy().tolist() == [["a", "b"]]
    assert lengths.numpy().tolist() == [2]
