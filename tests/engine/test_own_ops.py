"""Ops of a user's own: registered by being defined, tested by `check_op`, used in layers, training, loops and files.

Broken ops are found, with messages that say what is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import TensorSpec
from anabranch.engine.graph.axis_maps import Follows
from anabranch.engine.graph.op import _registry
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops.base import apply

SAMPLES = (np.array([[-2, -0.25, 3], [0.75, -1.5, 0.25]], "float32"), np.zeros((0, 2), "float32"), np.float32(1.5))


@pytest.fixture(autouse=True)
def own_ops() -> Iterator[None]:
    """Forget at the end what is registered here: other tests list all ops."""
    before = dict(_registry)
    _registry.update({"softshrink": Softshrink, "sorted_rows": SortedRows})
    yield
    _registry.clear()
    _registry.update(before)


# --- an elementwise op ----------------------------------------------------------------------------------------------


def reference_softshrink(x: Any, threshold: float) -> Any:
    return (np.sign(x) * np.maximum(np.abs(x) - threshold, 0) + 0).astype(x.dtype)  # no negative zeros


@dataclass(frozen=True)
class Softshrink(ab.ops.Op):
    """``sign(x) * max(|x| - threshold, 0)``, by one expression for NumPy and for compiled kernels."""

    threshold: int = 1
    elementwise: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> Any:
        if inputs[0].dtype.kind in "bu":
            raise TypeError(f"softshrink takes signed numbers; got {inputs[0]}.")
        if inputs[0].dtype.kind == "c":
            raise TypeError(f"softshrink takes real numbers; got {inputs[0]}.")
        return inputs[0]

    def expression(self, e: Any, x: Any) -> Any:
        return e.maximum(x - self.threshold, 0) + e.minimum(x + self.threshold, 0)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self.expression(xp, inputs[0])

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * ab.ops.cast(ab.ops.abs(node.inputs[0]) > self.threshold, node.inputs[0].dtype),)

    @classmethod
    def samples(cls) -> Any:
        for x in SAMPLES:
            yield ab.ops.Sample(cls(), [x], reference_softshrink(x, 1))
        yield ab.ops.Sample(cls(0), [SAMPLES[0]], SAMPLES[0], label="no threshold")

    @classmethod
    def error_samples(cls) -> Any:
        yield ab.ops.ErrorSample(lambda: softshrink(ab.constant([True])), TypeError, "signed numbers; got bool")


def softshrink(x: Any, threshold: int = 1) -> Any:
    return apply(Softshrink(threshold), ab.convert_to_tensor(x))


# --- an op with a gradient of its own -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SortedRows(ab.ops.Op):
    """Outputs: each row of the input in order, and from where each element came. Its gradient puts them back."""

    descending: bool = False

    def infer(self, *inputs: Any) -> Any:
        (x,) = inputs
        if x.dtype.kind in "cT":
            raise TypeError(f"sorted_rows takes real numbers; got {x}.")
        if x.shape is not None and not x.shape:
            raise ValueError("sorted_rows takes arrays with at least one axis; got a scalar.")
        return x, TensorSpec(x.shape, np.dtype("int32"))

    def run(self, xp: Any, *inputs: Any) -> Any:
        (x,) = inputs
        order = xp.argsort(x, axis=-1, kind="stable")
        order = order[..., ::-1] if self.descending else order
        return xp.take_along_axis(x, order, -1), order.astype("int32")

    def grad(self, node: Any, *cotangents: Any) -> Any:
        back = ab.ops.argsort(node.outputs[1], axis=-1)
        return (ab.ops.take_along_axis(cotangents[0], back, axis=-1),)

    @classmethod
    def samples(cls) -> Any:
        x = SAMPLES[0]
        order = np.array([[0, 1, 2], [1, 2, 0]], "int32")
        yield ab.ops.Sample(cls(), [x], (np.sort(x), order), label="rows")
        yield ab.ops.Sample(cls(True), [x], (np.sort(x)[:, ::-1], order[:, ::-1]), label="descending")
        yield ab.ops.Sample(cls(), [x[:0]], (x[:0], order[:0]), label="empty")

    @classmethod
    def error_samples(cls) -> Any:
        yield ab.ops.ErrorSample(lambda: sorted_rows(1.0), ValueError, "at least one axis")


def sorted_rows(x: Any, descending: bool = False) -> Any:
    tensor = ab.convert_to_tensor(x)
    return symbol_of(tensor).graph.add(SortedRows(descending), [tensor]).outputs[0]


OWN = [Softshrink, SortedRows]


# --- right ops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OWN)
def test_own_ops_pass_every_check(op: Any, capsys: pytest.CaptureFixture[str]):
    counts = ab.testing.check_op(op)

    assert all(
        counts[name] for name in ("value", "specs", "dtypes", "derivatives", "control flow", "session", "saving")
    )
    assert counts["errors"] == 1
    assert capsys.readouterr().out.startswith(f"{op.type_name}: {sum(counts.values())} cases (")


def test_own_ops_are_registered_under_their_names():
    assert ab.ops.registered_ops()["softshrink"] is Softshrink


def test_elementwise_expressions_are_fused_into_kernels():
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((None,), "float32")
        y = ab.ops.exp(softshrink(x * 2.0)) + 1.0
        value = np.linspace(-2, 2, 64).astype("float32")
        found = ab.Session(graph).run(y, {x: value})

    np.testing.assert_allclose(found, np.exp(reference_softshrink(2 * value, 1)) + 1, rtol=1e-6)


@pytest.mark.parametrize("function", [softshrink, sorted_rows])
def test_derivatives_of_functions_of_own_ops(function: Any):
    x = np.array([[-2, -0.25, 3], [0.75, -1.5, 0.25]])

    assert ab.testing.check_gradients(lambda x: ab.ops.sin(function(x * 1.5)), [x], order=3) == 9


def test_in_a_loop_and_a_branch_with_gradients():
    def repeated(x: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            return i + 1, ab.cond(i % 2 > 0, lambda: softshrink(y) * 1.5 + x, lambda: sorted_rows(y) * x)

        return ab.while_loop(lambda i, _: i < 3, body, (0, x))[1]

    assert ab.testing.check_gradients(repeated, [np.array([[2.5, 1.75, -3.0]])]) == 6


class Shrinking(ab.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return sorted_rows(softshrink(inputs, 0) * 2.0)


def test_in_layers_and_training():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = np.sort(x, axis=-1).sum(axis=1, keepdims=True) * 3
    model = ab.Sequential([ab.Input((4,)), Shrinking(), ab.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    history = model.fit(x, y, epochs=20, batch_size=16, verbose=0).history["loss"]

    assert history[-1] < history[0] / 10


def test_saved_and_loaded(tmp_path: Any):
    with ab.Graph().as_default() as graph:
        y = sorted_rows(softshrink(ab.constant(SAMPLES[0])), descending=True)
        graph.save(tmp_path / "graph.npz")
    again = ab.load_graph(tmp_path / "graph.npz")

    found = ab.Session(again).run(again.get_tensor_by_name(y.name))
    np.testing.assert_array_equal(found, np.sort(reference_softshrink(SAMPLES[0], 1))[:, ::-1])


# --- broken ops -----------------------------------------------------------------------------------------------------


class _Doubled(ab.ops.Op):
    """Right in every way; each of the others is wrong in one."""

    def infer(self, *inputs: Any) -> Any:
        return inputs[0]

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] + inputs[0]

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 2,)

    @classmethod
    def samples(cls) -> Any:
        for x in SAMPLES:
            yield ab.ops.Sample(cls(), [x], x + x)


class _Broken(_Doubled):
    """With one sample, which is quick (and reported as too few)."""

    @classmethod
    def samples(cls) -> Any:
        yield ab.ops.Sample(cls(), [SAMPLES[0]], SAMPLES[0] * 2)


class WrongGradient(_Broken):
    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 2.5,)


class NoExpression(_Broken):
    elementwise = True


class NoGradient(_Broken):
    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (None,)


class WrongShapeOfGradient(_Broken):
    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (ab.ops.sum(cotangents[0] * 2),)


class WrongShape(_Broken):
    def infer(self, *inputs: Any) -> Any:
        (x,) = inputs
        return TensorSpec(None if x.shape is None else (*x.shape, 1), x.dtype)


class NeedsItsRank(_Broken):
    def infer(self, *inputs: Any) -> Any:
        assert inputs[0].shape is not None, "the rank must be known"
        return inputs[0]


class ForgetsTheShape(_Broken):
    def infer(self, *inputs: Any) -> Any:
        return TensorSpec(None, inputs[0].dtype)


class WidensItsInput(_Broken):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return (inputs[0] + inputs[0]).astype("float64")


class HandsItsInputOn(_Broken):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]

    @classmethod
    def samples(cls) -> Any:
        yield ab.ops.Sample(cls(), [SAMPLES[0]], SAMPLES[0])


class WorksInPlace(_Broken):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.multiply(inputs[0], 2, out=inputs[0]) if inputs[0].shape else inputs[0] * 2


class GivesArraysWithoutAxes(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.asarray(inputs[0] + inputs[0])


class WrongValue(_Broken):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] * inputs[0]


class TwoResults(_Broken):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] + inputs[0], inputs[0] + inputs[0]


class WrongSource(_Broken):
    def emit(self, arguments: Any) -> str:
        return f"{arguments[0]} * 2.5"


class MixesRows(_Broken):
    """It says that it treats the axes in front of the last one index by index."""

    last_axes = 1

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] * 2 * xp.arange(len(inputs[0]), dtype=inputs[0].dtype)[:, None]

    @classmethod
    def samples(cls) -> Any:
        yield ab.ops.Sample(cls(), [SAMPLES[0]], SAMPLES[0] * [[0], [2]])


class HasLongerRows(_Broken):
    """It says that the first axis of its result is the last one of its input."""

    def axis_map(self, *inputs: Any) -> Any:
        return ((Follows(0, len(inputs[0].shape) - 1),),)


class IsNotLinear(_Broken):
    """It says that it is linear in its input."""

    linear_in = (0,)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] * 2 + 1


class Falls(_Broken):
    """It says that it falls where its input grows."""

    grows_with = (-1,)


class NoSampleInFront(_Broken):
    last_axes = 2


class TooFewSamples(_Broken):
    pass


class RefusesFloat64(_Broken):
    def infer(self, *inputs: Any) -> Any:
        if inputs[0].dtype == np.dtype("float64"):
            raise TypeError("no")
        return inputs[0]


class FailsForIntegers(_Broken):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return xp.exp(xp.log(inputs[0] + inputs[0]))

    @classmethod
    def samples(cls) -> Any:
        yield ab.ops.Sample(cls(), [np.array([1, 2], "float32")], np.array([2, 4], "float32"))


class AnotherMessage(_Broken):
    @classmethod
    def error_samples(cls) -> Any:
        yield ab.ops.ErrorSample(lambda: int("x"), ValueError, "another", "text")
        yield ab.ops.ErrorSample(lambda: None, ValueError, "anything", "silent")


BROKEN = [
    (WrongGradient, r"sample 0, derivatives: derivative of order 1: the gradient says .*, differences say"),
    (NoGradient, r"sample 0, derivatives: no gradient comes back to x0:0"),
    (WrongShapeOfGradient, r"sample 0, derivatives: the derivative for <Tensor x0:0 float64\[2,3\]> is float64\[\]"),
    (WrongShape, r"sample 0, value: run gives shape \(2, 3\), but infer says float32\[2,3,1\]"),
    (NeedsItsRank, r"sample 0, specs: the rank must be known"),
    (ForgetsTheShape, r"sample 0, value: infer gives float32\[\.\.\.\] although the shapes of the inputs are known"),
    (WidensItsInput, r"sample 0, value: run gives float64, but infer says float32\[2,3\]"),
    (HandsItsInputOn, r"sample 0, value: run returns memory of its input: copy it, or say so with `view = True`"),
    (WorksInPlace, r"sample 0, value: ValueError: output array is read-only"),
    (
        GivesArraysWithoutAxes,
        r"sample 2, value: a result of shape \(\) is a ndarray: results without axes must be NumPy",
    ),
    (WrongValue, r"sample 0, value: Not equal to tolerance"),
    (TwoResults, r"sample 0, value: 2 results, but 1 are expected"),
    (WrongSource, r"sample 0, emission: Arrays are not equal"),
    (NoExpression, r"sample 0, emission: elementwise is True, and there is no expression\(self, e, x\) for kernels"),
    (MixesRows, r"sample 0, axes: axis 0 of the result does not follow .* index by index"),
    (
        HasLongerRows,
        r"sample 0, axes: axis 0 of the result is 2 long, axis 1 of input 0, which it follows by axis_map, 3",
    ),
    (IsNotLinear, r"sample 0, facts: Not equal to tolerance"),
    (Falls, r"sample 0, facts: the result does not fall with input 0, as grows_with says"),
    (NoSampleInFront, r"axes: last_axes = 2 was not checked: no sample has axes in front of these\."),
    (TooFewSamples, r"samples: 1, expected at least 3"),
    (RefusesFloat64, r"sample 0, dtypes: infer refuses float64"),
    (
        FailsForIntegers,
        r"sample 0, dtypes: run gives float16, but infer says bool\[2\] With inputs of dtypes bool, which infer",
    ),
    (AnotherMessage, r"error sample 0 \(text\): the message .*invalid literal.* does not match 'another'"),
    (AnotherMessage, r"error sample 1 \(silent\): nothing was raised, expected ValueError matching 'anything'"),
]


def test_the_op_that_broken_ones_derive_from_is_right():
    @dataclass(frozen=True)
    class Doubled(_Doubled):
        pass

    assert ab.testing.check_op(Doubled, verbose=False)["value"] == 3


@pytest.mark.parametrize(("op", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_wrong_is_found_and_said(op: Any, message: str):
    _registry[op.type_name] = op

    with pytest.raises(AssertionError, match=rf"^{op.type_name}: (\d+ checks|one check) failed\.(?s:.*)- {message}"):
        ab.testing.check_op(op)


def test_only_ops_are_checked():
    with pytest.raises(TypeError, match="check_op takes a class of ops, got Softshrink"):
        ab.testing.check_op(Softshrink())  # type: ignore[arg-type]


# --- functions ------------------------------------------------------------------------------------------------------


def test_wrong_gradients_of_functions_are_found():
    with pytest.raises(AssertionError, match="derivative of order 1: the gradient says"):
        ab.testing.check_gradients(lambda x: ab.ops.stop_gradient(x) * x, [[1.0, 2.0]])
    with pytest.raises(AssertionError, match="no gradient comes back to argument_1:0"):
        ab.testing.check_gradients(lambda x, y: x * 2, [1.0, 2.0])
    with pytest.raises(AssertionError, match="derivative of order 2: the gradient says"):
        ab.testing.check_gradients(lambda x: WrongSecond.applied(x), [[1.0, 2.0]])


class WrongSecond(_Doubled):
    def run(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0] * inputs[0]

    def grad(self, node: Any, *cotangents: Any) -> Any:
        return (cotangents[0] * 2 * ab.ops.stop_gradient(node.inputs[0]),)

    @staticmethod
    def applied(x: Any) -> Any:
        return apply(WrongSecond(), x)


def test_integers_among_arguments_and_structures_of_results():
    def function(x: Any, k: Any) -> Any:
        return {"a": ab.ops.take(x, k) ** 2, "b": [ab.ops.argmax(x), ab.ops.exp(x)]}

    assert ab.testing.check_gradients(function, [np.array([0.5, 1.5]), np.array([1, 1, 0])], directions=2) == 4
    with pytest.raises(ValueError, match="neither arguments nor results may all be integers"):
        ab.testing.check_gradients(ab.ops.argmax, [np.array([0.5, 1.5])])
