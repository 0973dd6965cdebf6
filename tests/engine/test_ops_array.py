"""Shapes, axes, joining, creation, indexing, gathering: values, static and run-time shapes, gradients, errors."""

from typing import Any

import numpy as np
import pytest

from anabranch.engine.autodiff import gradients
from anabranch.engine.control_flow import while_loop
from anabranch.engine.graph import Graph, Variable
from anabranch.engine.graph.spec import shape_accepts
from anabranch.engine.graph.tensor import symbol_of
from anabranch.engine.ops import base, run_time_shapes
from anabranch.engine.ops.arrays import (
    axes,
    constants,
    creation,
    gathering,
    indexing,
    joining,
    padding,
    positions,
    scattering,
    shaping,
    spacing,
)
from anabranch.engine.ops.math import reduction
from anabranch.engine.ops.signal import windows
from anabranch.engine.session import Session
from anabranch.engine.session.placeholder import placeholder

NO_SHAPE: Any = (2.5, 2)


@pytest.fixture(autouse=True)
def graph():
    with Graph().as_default() as graph:
        yield graph


def run(*fetches: Any, feeds: dict[Any, Any] | None = None) -> Any:
    values = Session().run(list(fetches), feeds or {})
    return values[0] if len(fetches) == 1 else values


def floats(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


# --- functions against NumPy, with all, some or none of the shape known ---------------------------------------------

X = np.arange(24, dtype="float32").reshape(2, 3, 4)
ROWS = np.array([1, 0, 1], "int32")
MASK = X[..., 0] > 4
CASES: dict[str, tuple[Any, Any]] = {
    "reshape": (lambda x: shaping.reshape(x, (4, -1)), X.reshape(4, -1)),
    "reshape by shape": (lambda x: shaping.reshape(x, (shaping.shape(x)[0], -1)), X.reshape(2, -1)),
    "reshape by vector": (lambda x: shaping.reshape(x, run_time_shapes.runtime_shape(x)), X),
    "ravel": (shaping.ravel, X.ravel()),
    "expand_dims": (lambda x: shaping.expand_dims(x, 1), X[:, None]),
    "expand_dims twice": (lambda x: shaping.expand_dims(x, (0, -1)), X[None, ..., None]),
    "squeeze": (lambda x: shaping.squeeze(x[:, :1], 1), X[:, 0]),
    "squeeze all": (lambda x: shaping.squeeze(x[:1, :, :1]), X[0, :, 0]),
    "broadcast_to": (lambda x: shaping.broadcast_to(x, (2, 2, 3, 4)), np.stack([X, X])),
    "atleast_2d": (lambda x: axes.atleast_2d(x[0, 0]), X[0, :1]),
    "atleast_3d": (lambda x: axes.atleast_3d(x[0]), X[0][..., None]),
    "transpose": (axes.transpose, X.T),
    "transpose axes": (lambda x: axes.transpose(x, (1, -1, 0)), X.transpose(1, 2, 0)),
    "swapaxes": (lambda x: axes.swapaxes(x, 0, -1), X.swapaxes(0, -1)),
    "moveaxis": (lambda x: axes.moveaxis(x, 0, -1), np.moveaxis(X, 0, -1)),
    "moveaxis two": (lambda x: axes.moveaxis(x, (0, 1), (-1, 0)), np.moveaxis(X, (0, 1), (-1, 0))),
    "flip": (axes.flip, X[::-1, ::-1, ::-1]),
    "flip axis": (lambda x: axes.flip(x, 1), X[:, ::-1]),
    "reverse": (lambda x: axes.reverse(x, [0, 2]), X[::-1, :, ::-1]),
    "roll": (lambda x: axes.roll(x, 2), np.roll(X, 2)),
    "roll axes": (lambda x: axes.roll(x, (1, -1), (0, 2)), np.roll(X, (1, -1), (0, 2))),
    "roll by tensor": (lambda x: axes.roll(x, shaping.dim(x, 0) - 1, 1), np.roll(X, 1, 1)),
    "rot90": (axes.rot90, np.rot90(X)),
    "rot90 thrice": (lambda x: axes.rot90(x, 3, (1, 2)), np.rot90(X, 3, (1, 2))),
    "rot90 twice": (lambda x: axes.rot90(x, 2), np.rot90(X, 2)),
    "concatenate": (lambda x: joining.concatenate([x, x * 2], 1), np.concatenate([X, X * 2], 1)),
    "concatenate last": (lambda x: joining.concatenate([x, X], -1), np.concatenate([X, X], -1)),
    "append": (lambda x: joining.append(x, 7.0), np.append(X, np.float32(7))),
    "append axis": (lambda x: joining.append(x, x, 0), np.append(X, X, 0)),
    "hstack": (lambda x: joining.hstack([x, x]), np.hstack([X, X])),
    "hstack vectors": (lambda x: joining.hstack([x[0, 0], 1.0]), np.hstack([X[0, 0], np.float32(1)])),
    "vstack": (lambda x: joining.vstack([x[0, 0], x[0, 1]]), X[0, :2]),
    "stack": (lambda x: joining.stack([x, -x], -1), np.stack([X, -X], -1)),
    "stack scalars": (lambda x: joining.stack([x[0, 0, 1], 5.0]), np.array([1, 5], "float32")),
    "stack of a tensor": (lambda x: joining.stack(x, 1), np.stack(list(X), 1)),
    "split": (lambda x: joining.split(x, 2, -1)[1], X[..., 2:]),
    "split at": (lambda x: joining.split(x, [1, -1], 2)[1], X[..., 1:-1]),
    "split at tensors": (lambda x: joining.split(x, [shaping.dim(x, 0)], 2)[1], X[..., 2:]),
    "unstack": (lambda x: joining.unstack(x, 3, 1)[-1], X[:, -1]),
    "repeat": (lambda x: padding.repeat(x, 2), np.repeat(X, 2)),
    "repeat axis": (lambda x: padding.repeat(x, 3, 1), np.repeat(X, 3, 1)),
    "repeat each": (lambda x: padding.repeat(x, [1, 0, 2], 1), np.repeat(X, [1, 0, 2], 1)),
    "repeat by tensor": (lambda x: padding.repeat(x, shaping.dim(x, 0), 0), np.repeat(X, 2, 0)),
    "tile": (lambda x: padding.tile(x, 2), np.tile(X, 2)),
    "tile axes": (lambda x: padding.tile(x, (2, 1, 3)), np.tile(X, (2, 1, 3))),
    "tile more": (lambda x: padding.tile(x, (2, 1, 1, 2)), np.tile(X, (2, 1, 1, 2))),
    "tile by tensor": (lambda x: padding.tile(x, (shaping.dim(x, 0), 1, 1)), np.tile(X, (2, 1, 1))),
    "pad": (lambda x: padding.pad(x, 1), np.pad(X, 1)),
    "pad value": (lambda x: padding.pad(x, (1, 2), constant_values=3), np.pad(X, (1, 2), constant_values=3)),
    "pad axes": (lambda x: padding.pad(x, ((0, 1), (2, 0), (1, 1))), np.pad(X, ((0, 1), (2, 0), (1, 1)))),
    "pad by tensor": (
        lambda x: padding.pad(x, ((0, shaping.dim(x, 0)), (0, 0), (0, 0))),
        np.pad(X, ((0, 2), (0, 0), (0, 0))),
    ),
    "pad reflect": (
        lambda x: padding.pad(x, ((1, 1), (0, 2), (3, 0)), "reflect"),
        np.pad(X, ((1, 1), (0, 2), (3, 0)), "reflect"),
    ),
    "pad symmetric": (lambda x: padding.pad(x, 2, "symmetric"), np.pad(X, 2, "symmetric")),
    "pad edge": (lambda x: padding.pad(x, 1, "edge"), np.pad(X, 1, "edge")),
    "zeros_like": (creation.zeros_like, X * 0),
    "ones_like": (lambda x: creation.ones_like(x, "int32"), np.ones_like(X, "int32")),
    "full_like": (lambda x: creation.full_like(x, 3), np.full_like(X, 3)),
    "zeros of a shape": (lambda x: creation.zeros(shaping.shape(x)), X * 0),
    "full of a shape": (lambda x: creation.full((shaping.dim(x, 1), 2), 7, "int32"), np.full((3, 2), 7, "int32")),
    "eye of a size": (lambda x: creation.eye(shaping.dim(x, 1), 4, 1), np.eye(3, 4, 1, "float32")),
    "tri of a size": (lambda x: creation.tri(shaping.dim(x, 1)), np.tri(3, dtype="float32")),
    "arange of a size": (lambda x: creation.arange(shaping.size(x), 0, -5), np.arange(24, 0, -5, dtype="int32")),
    "arange of floats": (lambda x: creation.arange(x[0, 0, 0], x[0, 1, 3], 0.5), np.arange(0, 7, 0.5, dtype="float32")),
    "linspace": (lambda x: spacing.linspace(x, x + 4, 5, axis=1), np.linspace(X, X + 4, 5, axis=1)),
    "tril": (lambda x: creation.tril(x, -1), np.tril(X, -1)),
    "triu": (creation.triu, np.triu(X)),
    "diagonal": (lambda x: creation.diagonal(x, 1, 1, -1), np.diagonal(X, 1, 1, -1)),
    "diag of a matrix": (lambda x: creation.diag(x[0], -1), np.diag(X[0], -1)),
    "diag of a vector": (lambda x: creation.diag(x[0, 0], -1), np.diag(X[0, 0], -1)),
    "meshgrid": (lambda x: creation.meshgrid(x[0, 0], x[0, :, 0])[1], np.meshgrid(X[0, 0], X[0, :, 0])[1]),
    "meshgrid ij": (
        lambda x: creation.meshgrid(x[0, 0], x[0, :, 0], 1.0, indexing="ij")[0],
        np.meshgrid(X[0, 0], X[0, :, 0], 1.0, indexing="ij")[0],
    ),
    "x[1]": (lambda x: x[1], X[1]),
    "x[-1, 2, 3]": (lambda x: x[-1, 2, 3], X[-1, 2, 3]),
    "x[..., 1]": (lambda x: x[..., 1], X[..., 1]),
    "x[:, None]": (lambda x: x[:, None, 1:, ::-2], X[:, None, 1:, ::-2]),
    "x[i]": (lambda x: x[shaping.dim(x, 0) - 1], X[1]),
    "x[:n]": (lambda x: x[:, : shaping.dim(x, 0)], X[:, :2]),
    "x[n::-1]": (lambda x: x[0, 0, shaping.dim(x, 0) :: -1], X[0, 0, 2::-1]),
    "x[rows]": (lambda x: x[ROWS], X[ROWS]),
    "x[:, list]": (lambda x: x[:, [2, -1]], X[:, [2, -1]]),
    "x[[]]": (lambda x: x[[]], X[:0]),
    "x[rows, list]": (lambda x: x[ROWS, [2, 1, 0]], X[ROWS, [2, 1, 0]]),
    "x[outer]": (lambda x: x[ROWS[:, None], [2, 1]], X[ROWS[:, None], [2, 1]]),
    "x[rows, :, list]": (lambda x: x[ROWS, :, [2, 1, 0]], X[ROWS, :, [2, 1, 0]]),
    "x[0, :, rows]": (lambda x: x[0, :, ROWS], X[0, :, ROWS]),
    "x[..., i, rows]": (lambda x: x[..., shaping.dim(x, 0), ROWS], X[..., 2, ROWS]),
    "x[mask]": (lambda x: x[x > 5], X[X > 5]),
    "x[known mask]": (lambda x: x[MASK], X[MASK]),
    "x[mask, 1]": (lambda x: x[x[..., 0] > 4, 1], X[MASK, 1]),
    "take": (lambda x: gathering.take(x, [[5, -1]]), X.take([[5, -1]])),
    "take axis": (lambda x: gathering.take(x, [[2, 0], [-1, 1]], 1), X.take([[2, 0], [-1, 1]], 1)),
    "take scalar": (lambda x: gathering.take(x, 2, -1), X.take(2, -1)),
    "gather": (lambda x: scattering.gather(x, [2, 0], 1), X[:, [2, 0]]),
    "take_along_axis": (
        lambda x: gathering.take_along_axis(x, np.array([[[1], [0], [-1]]]), 2),
        np.take_along_axis(X, np.array([[[1], [0], [-1]]]), 2),
    ),
    "take_along_axis flat": (lambda x: gathering.take_along_axis(x, [[3, 5]]), X.ravel()[[3, 5]]),
    "gather_nd": (lambda x: scattering.gather_nd(x, [[[0, 1]], [[1, 2]]]), X[[[0], [1]], [[1], [2]]]),
    "scatter": (
        lambda x: scattering.scatter([[1], [1]], x, (shaping.dim(x, 1), 3, 4)),
        np.stack([X[0] * 0, X[0] + X[1], X[0] * 0]),
    ),
    "scatter_update": (
        lambda x: scattering.scatter_update(x, [[0, 1], [0, 1]], [[1, 1, 1, 1], [5, 5, 5, 5]]),
        np.concatenate([X[:1], X[1:]]) * (np.arange(6).reshape(2, 3, 1) != 1)
        + 5 * (np.arange(6).reshape(2, 3, 1) == 1),
    ),
    "slice": (lambda x: windows.slice(x, (0, 1, 1), (2, 2, -1)), X[:, 1:3, 1:]),
    "slice at tensors": (lambda x: windows.slice(x, (0, shaping.dim(x, 0), 0), (2, 1, 2)), X[:, 2:, :2]),
    "slice to the end": (lambda x: windows.slice(x, (0, shaping.dim(x, 0), 0), (-1, 1, -1)), X[:, 2:]),
    "slice_update": (
        lambda x: windows.slice_update(x, (0, 2, 0), x[:, :1]),
        np.concatenate([X[:, :2], X[:, :1]], 1),
    ),
    "one_hot": (lambda x: positions.one_hot(base.cast(x, "int32"), 4, 1), np.moveaxis(X[..., None] == range(4), -1, 1)),
    "nonzero": (lambda x: positions.nonzero(x > 20)[2], np.nonzero(X > 20)[2]),
    "argwhere": (lambda x: positions.argwhere(x > 20), np.argwhere(X > 20)),
    "boolean_mask": (lambda x: positions.boolean_mask(x, x[0, :, 0] > 0, 1), X[:, 1:]),
    "size": (lambda x: base.convert_to_tensor(shaping.size(x)), np.int32(24)),
    "ndim": (lambda x: base.convert_to_tensor(shaping.ndim(x)), np.int32(3)),
    "shape": (lambda x: base.convert_to_tensor(shaping.shape(x)), np.array([2, 3, 4], "int32")),
}
NEED_RANK = {
    *("expand_dims twice", "append axis", "transpose axes", "rot90", "rot90 thrice", "rot90 twice", "tile", "linspace"),
    *("tile axes", "tile more", "tile by tensor", "repeat axis", "repeat each", "repeat by tensor", "pad", "pad value"),
    *("pad symmetric", "pad edge", "take axis", "nonzero", "boolean_mask", "atleast_2d", "atleast_3d", "hstack"),
    *("hstack vectors", "vstack", "diag of a matrix", "diag of a vector", "meshgrid", "meshgrid ij", "slice"),
    *("slice to the end", "split at", "slice_update", "reshape by shape", "zeros of a shape", "slice at tensors"),
    *("x[mask]", "x[mask, 1]"),
}


@pytest.mark.parametrize("known", ["static", "dims", "rank"])
@pytest.mark.parametrize("name", CASES)
def test_function(name: str, known: str):
    function, expected = CASES[name]
    if (known == "rank" and name in NEED_RANK) or (known, name) == ("dims", "squeeze all"):  # axes of open size stay
        return
    shape = {"static": X.shape, "dims": (None, None, None), "rank": None}[known]
    x = placeholder(shape, "float32")
    y = function(x)

    value = run(y, feeds={x: X})

    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert value.dtype == y.dtype
    assert shape_accepts(y.shape, value.shape)
    if known == "static" and name not in (
        "x[mask]",
        "x[mask, 1]",
        "nonzero",
        "argwhere",
        "boolean_mask",
        "arange of floats",
    ):
        assert y.shape == value.shape
    assert y.dtype == (expected.dtype if expected.dtype.name in ("int32", "float32") else y.dtype)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("one_hot",)])
def test_function_gradient_does_not_depend_on_what_is_known(name: str):
    function, _ = CASES[name]
    found: list[Any] = []
    for shape in (X.shape, (None, None, None)):
        x = placeholder(shape, "float32")
        y = function(x)
        if y.dtype != "float32":
            return
        (dx,) = gradients(reduction.sum(y * y), [x], unconnected_gradients="zero")
        assert shape_accepts(dx.shape, X.shape)
        found.append(run(dx, feeds={x: X}))

    assert found[0].shape == X.shape
    np.testing.assert_allclose(*found, rtol=1e-6)


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((2, 3), (-1,), (6,)),
        ((None, 3), (-1, 3), (None, 3)),
        ((4, 6), (2, -1, 3), (2, 4, 3)),
        ((0, 3), (3, 0), (3, 0)),
        (None, (2, -1), (2, None)),
        ((None, 0), (0, 5), (0, 5)),
    ],
)
def test_reshape_infers(source: Any, target: Any, expected: Any):
    assert shaping.reshape(placeholder(source, "float32"), target).shape == expected


def test_reshape_keeps_what_is_known_beside_its_own_batch_size():
    x = placeholder((None, 3, 4), "float32")
    y = shaping.reshape(x, (shaping.shape(x)[0], -1))

    assert y.shape == (None, 12)
    assert run(y, feeds={x: np.zeros((0, 3, 4), "float32")}).shape == (0, 12)


def test_reshape_one_tensor_size_of_a_known_whole():
    n = placeholder((), "int32")

    assert shaping.reshape(placeholder((2, 6), "float32"), (n, 4)).shape == (3, 4)


def test_reshape_to_the_same_shape_is_no_operation():
    x = placeholder((2, 3), "float32")

    assert shaping.reshape(x, (2, 3)) is x
    assert axes.transpose(x, (0, 1)) is x
    assert shaping.broadcast_to(x, (2, 3)) is x
    assert x[:] is x
    assert x[...] is x


def test_shape_of_unknown_rank_is_a_vector():
    x = placeholder(None, "float32")

    np.testing.assert_array_equal(run(shaping.shape(x), feeds={x: X}), [2, 3, 4])


def test_sizes_are_asked_once():
    x = placeholder((None, 3), "float32")

    assert shaping.shape(x)[0] is shaping.shape(x)[0]
    assert shaping.shape(x)[1] == 3


def test_a_constant_size_is_static():
    assert shaping.reshape(floats(2, 3), (constants.constant(3), 2)).shape == (3, 2)
    assert creation.zeros(constants.constant([2, 3])).shape == (2, 3)


def test_broadcast_to_runtime_shape_of_another_tensor_keeps_its_shape():
    other = placeholder((None, 3), "float32")

    assert shaping.broadcast_to(1.0, run_time_shapes.runtime_shape(other)).shape == (None, 3)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: shaping.reshape(x, (5, -1)), ValueError, "6 elements"),
        (lambda x: shaping.reshape(x, NO_SHAPE), TypeError, "2.5"),
        (lambda x: shaping.expand_dims(x, (0, 0)), ValueError, "twice"),
        (lambda x: shaping.expand_dims(x, 4), ValueError, "out of range"),
        (lambda x: shaping.squeeze(x, 1), ValueError, "size is 3"),
        (lambda x: axes.transpose(x, (0, 0)), ValueError, "no permutation"),
        (lambda x: axes.moveaxis(x, (0, 1), 0), ValueError, "as many different"),
        (lambda x: axes.roll(x, (1, 2, 3), (0, 1)), ValueError, "as many entries"),
        (lambda x: axes.rot90(x, 1, (0, -2)), ValueError, "different axes"),
        (lambda x: axes.rot90(x, 1, (0,)), ValueError, "two different axes"),
        (lambda x: joining.concatenate([]), ValueError, "at least one"),
        (lambda x: joining.concatenate([x, x[0]]), ValueError, "as many axes"),
        (lambda x: joining.stack([x, x[0]]), ValueError, "same shape"),
        (lambda x: joining.split(x, 2, 1), ValueError, "2 equal parts"),
        (lambda x: joining.split(x, 0), ValueError, "positive"),
        (lambda x: joining.unstack(placeholder((None,), "float32")), ValueError, "`num`"),
        (lambda x: padding.repeat(x, [1, 2, 3], 0), ValueError, "size 2 .* got 3"),
        (lambda x: padding.pad(x, 1, "mirror"), ValueError, "mode='mirror'"),
        (lambda x: padding.pad(x, ((1, 1),) * 3), ValueError, "each of 2 axes"),
        (lambda x: padding.pad(x, 1, "reflect", constant_values=1), ValueError, "constant_values"),
        (lambda x: creation.zeros((2, -1)), ValueError, "negative"),
        (lambda x: creation.arange(0, 3, 0), ValueError, "step must not be zero"),
        (lambda x: spacing.linspace(0, 1, -1), ValueError, "negative"),
        (lambda x: creation.diag(placeholder((2, 2, 2), "float32")), ValueError, "vector or a matrix"),
        (lambda x: creation.meshgrid(x, indexing="yx"), ValueError, "must be 'xy' or 'ij'"),
        (lambda x: creation.meshgrid(indexing="yx"), ValueError, "'xy' or 'ij'"),
        (lambda x: x[2], IndexError, "size is 2"),
        (lambda x: x[0, 0, 0], IndexError, "3 were indexed"),
        (lambda x: x[..., 0, ...], IndexError, "one ellipsis"),
        (lambda x: x[1.5], TypeError, "float32"),
        (lambda x: x[True], TypeError, "boolean mask"),
        (lambda x: x["a"], TypeError, "dtype|no numbers"),
        (lambda x: x[: x[0, 0]], TypeError, "slice bound"),
        (lambda x: x[:1.5], TypeError, "slice bound"),
        (lambda x: x[x[:, 0] > 0, x > 0], IndexError, "3 were indexed"),
        (lambda x: x[placeholder((3,), "bool")], IndexError, "the mask 3"),
        (lambda x: gathering.take(x, [0.5]), TypeError, "must be integers"),
        (lambda x: gathering.take(x, [0], 2), ValueError, "out of range"),
        (lambda x: gathering.take_along_axis(x, [0], 0), ValueError, "as many axes"),
        (lambda x: scattering.gather_nd(x, [[0, 0, 0]]), ValueError, "last axis"),
        (lambda x: scattering.scatter([[0]], [1.0, 2.0], (3,)), ValueError, r"shape \[1\]"),
        (lambda x: windows.slice(x, (0, 0), (3, 1)), IndexError, "leaves axis 0"),
        (lambda x: windows.slice_update(x, (0, 0), np.zeros((3, 3))), ValueError, "does not fit"),
        (lambda x: positions.one_hot([True], 3), TypeError, "needs integers"),
        (lambda x: positions.one_hot([0], 3, sparse=True), ValueError, "sparse"),
        (lambda x: positions.nonzero(constants.constant(1)), ValueError, "number of axes"),
        (lambda x: positions.boolean_mask(x, [1, 0]), TypeError, "of bools"),
    ],
)
def test_refused_when_built(call: Any, error: Any, match: str):
    x = placeholder((2, 3), "float32")
    with pytest.raises(error, match=match):
        call(x)


# --- when the graph runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x, i: x[i], IndexError, "7 .* size 3"),
        (lambda x, i: x[joining.stack([i, i])], IndexError, "7 .* size 3"),
        (lambda x, i: gathering.take(x, [i], 0), IndexError, "7 .* size 3"),
        (lambda x, i: scattering.gather(x, i - 8), IndexError, "-1 .* size 3"),
        (lambda x, i: gradients(reduction.sum(gathering.take(x, [i], 0)), [x])[0], IndexError, "7 .* size 3"),
        (lambda x, i: gathering.take_along_axis(x, [i], 0), IndexError, "7 .* size 3"),
        (lambda x, i: scattering.gather_nd(x, [[i]]), IndexError, "7 .* size 3"),
        (lambda x, i: scattering.scatter([[i]], [1.0], shaping.shape(x)), IndexError, "7 .* size 3"),
        (lambda x, i: windows.slice(x, [i], (1,)), IndexError, "from 7 .* size is 3"),
        (lambda x, i: shaping.reshape(x, (i, -1)), ValueError, "reshape"),
        (lambda x, i: joining.split(x, 2), ValueError, "2 equal parts"),
        (lambda x, i: joining.unstack(x, 2), ValueError, "size 3, not 2"),
        (lambda x, i: shaping.squeeze(x, 0), ValueError, "squeeze"),
        (lambda x, i: padding.repeat(x, [1, 2], 0), ValueError, "size 3 .* got 2"),
        (lambda x, i: creation.arange(0, i, i - 7), ValueError, "not be zero"),
    ],
)
def test_refused_by_the_run(call: Any, error: Any, match: str):
    x, i = placeholder((None,), "float32"), placeholder((), "int32")
    y = call(x, i)

    with pytest.raises(error, match=match):
        run(*(y if isinstance(y, list) else [y]), feeds={x: floats(3), i: 7})


def test_split_at_places_past_the_end_gives_empty_parts():
    parts = joining.split(constants.constant([1, 2, 3]), [2, 5])

    assert [part.shape for part in parts] == [(2,), (1,), (0,)]


def test_scalars_stay_scalars():
    x = placeholder((None, None), "float32")
    i = placeholder((), "int32")
    results = run(
        *(x[i, i], x[..., i, i], shaping.squeeze(x, (0, 1)), shaping.reshape(x, ()), gathering.take(x, i), x[0, 0]),
        *(joining.unstack(x[0], 1)[0], scattering.gather_nd(x, [0, 0]), windows.slice(x[0, 0], (), ())),
        feeds={x: np.ones((1, 1), "float32"), i: 0},
    )

    assert [type(value) for value in results] == [np.float32] * 9


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64", "uint32"])
def test_indices_of_any_integer_type(dtype: str):
    indices = np.array([2, 0], dtype)
    x = constants.constant([1, 2, 3])

    for y in (gathering.take(x, indices, 0), x[indices], x[constants.constant(indices)], scattering.gather(x, indices)):
        np.testing.assert_array_equal(run(y), [3, 1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_gradients_in_any_floating_type(dtype: str):
    x = placeholder((3,), dtype)
    y = gathering.take(x, [0, 0, 2], 0) + x[np.array([1, 1, 1])]
    (dx,) = gradients(reduction.sum(y), [x])

    value = run(dx, feeds={x: np.ones(3).astype(x.dtype)})

    assert value.dtype == x.dtype
    np.testing.assert_array_equal(value.astype("complex128").real, [2, 3, 1])


# --- indexing -------------------------------------------------------------------------------------------------------


def test_variables_and_sequences_can_be_indexed():
    v = Variable([1.0, 2.0, 3.0])
    i = Variable(1)

    assert run(v[i]) == 2
    np.testing.assert_array_equal(run(v[: i + 1]), [1, 2])
    np.testing.assert_array_equal(run(indexing.getitem([1, 2, 3], [i, 0])), [2, 1])


def test_constant_bounds_and_indices_are_static():
    x = placeholder((4, 3), "float32")

    assert x[: constants.constant(2)].shape == (2, 3)
    assert symbol_of(x[constants.constant(1)]).operation.op == indexing.GetItem((1,))


def test_index_of_unknown_rank():
    x, i = placeholder((3, 2), "float32"), placeholder(None, "int32")
    values = floats(3, 2)
    y = x[i]
    (dx,) = gradients(reduction.sum(y), [x])

    assert y.shape is None
    for index in (np.int32(1), np.array([1, 1], "int32")):
        np.testing.assert_array_equal(run(y, feeds={x: values, i: index}), values[index])
        expected = np.zeros((3, 2))
        np.add.at(expected, index, 1)
        np.testing.assert_array_equal(run(dx, feeds={x: values, i: index}), expected)


def test_several_parts_of_one_tensor_add_up_without_zeros_of_the_whole():
    x = placeholder((3,), "float32")
    loss = x[0] * 2 + x[0] * 3 + reduction.sum(x[1:] * 4) + gathering.take(x, 2, 0)
    (dx,) = gradients(loss, [x])

    np.testing.assert_array_equal(run(dx, feeds={x: floats(3)}), [5, 4, 5])
    made = [operation.type for operation in dx.graph.operations]
    assert made.count("put_item") + made.count("put_rows") == 1


@pytest.mark.parametrize("size", [6, 600])
def test_adding_at_repeated_positions(size: int):
    out = np.zeros((size, 3), "float32")
    indexing.add_at(np, out, (np.array([1, 1, -1]), slice(None)), np.ones((3, 3), "float32"))

    np.testing.assert_array_equal(out.sum(1)[[0, 1, -1]], [0, 6, 3])


def test_scatter_update_gives_no_gradient_to_what_was_overwritten():
    updates = placeholder((2,), "float32")
    y = scattering.scatter_update(np.zeros(3, "float32"), [[1], [1]], updates)
    (du,) = gradients(reduction.sum(y), [updates])

    value, slope = run(y, du, feeds={updates: np.array([5, 7], "float32")})

    np.testing.assert_array_equal(value, [0, 7, 0])
    np.testing.assert_array_equal(slope, [0, 1])


@pytest.mark.parametrize(
    "part",
    [lambda x, i: x[i], lambda x, i: gathering.take(x, i, 0), lambda x, i: gathering.take(x, array_of(i), 0)[0]],
    ids=["x[i]", "take scalar", "take vector"],
)
def test_gradients_through_a_loop_over_the_parts_of_a_tensor(part: Any):
    x, n = placeholder((None, 2), "float32"), placeholder((), "int32")
    values = floats(4, 2)
    _, total = while_loop(lambda i, s: i < n, lambda i, s: (i + 1, s + part(x, i) * part(x, i)), (0, part(x, 0) * 0))
    loss = reduction.sum(total * total)
    (dx,) = gradients(loss, [x])
    (ddx,) = gradients(reduction.sum(dx), [x])

    slope, curvature = run(dx, ddx, feeds={x: values, n: 3})

    used, sums = values[:3].astype("float64"), (values[:3].astype("float64") ** 2).sum(0)
    expected = np.concatenate([4 * sums * used, np.zeros((1, 2))])
    np.testing.assert_allclose(slope, expected, rtol=1e-5)
    expected = np.concatenate([4 * sums + 8 * used * used.sum(0), np.zeros((1, 2))])
    np.testing.assert_allclose(curvature, expected, rtol=1e-5)


def array_of(i: Any) -> Any:
    return joining.stack([i])


# --- creation -------------------------------------------------------------------------------------------------------


def test_creation_of_known_size_is_one_constant(graph: Graph):
    made = [creation.zeros((2, 3)), creation.eye(3), creation.arange(5), creation.tri(2, 3), creation.ones(4)]

    assert all(isinstance(symbol_of(tensor).operation.op, base.Constant) for tensor in made)
    assert [tensor.shape for tensor in made] == [(2, 3), (3, 3), (5,), (2, 3), (4,)]


def test_large_creations_are_computed_by_the_run():
    made = [
        creation.zeros((300, 300)),
        creation.ones(10**6),
        creation.eye(500),
        creation.arange(10**6, dtype="float32"),
    ]
    values = run(*made)

    assert not any(isinstance(symbol_of(tensor).operation.op, base.Constant) for tensor in made)
    assert [tensor.shape for tensor in made] == [value.shape for value in values]
    assert [value.dtype.name for value in values] == ["float32"] * 4
    assert [float(value.sum()) for value in values[:3]] == [0, 10**6, 500]
    assert values[3][-1] == 10**6 - 1


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (lambda: creation.zeros(2), "float32"),
        (lambda: creation.full(2, 1), "float32"),
        (lambda: creation.full(2, True, "bool"), "bool"),
        (lambda: creation.full(2, np.float64(1)), "float32"),
        (lambda: creation.full(2, 1, "float16"), "float16"),
        (lambda: creation.full((2, 3), [1, 2, 3]), "float32"),
        (lambda: creation.arange(3), "int32"),
        (lambda: creation.arange(0.0, 1, 0.25), "float32"),
        (lambda: creation.arange(3, dtype="float64"), "float64"),
        (lambda: spacing.linspace(0, 1, 3), "float32"),
        (lambda: spacing.linspace(0, 1, 3, dtype="float64"), "float64"),
        (lambda: creation.identity(2), "float32"),
        (lambda: creation.eye(2, dtype="int32"), "int32"),
        (lambda: creation.zeros_like([1, 2]), "int32"),
        (lambda: joining.array([1.5]), "float32"),
    ],
)
def test_dtype(tensor: Any, dtype: str):
    made = tensor()

    assert made.dtype == dtype
    assert run(made).dtype == dtype


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("num", [0, 1, 2, 7])
def test_linspace(num: int, endpoint: bool):
    values, step = spacing.linspace(-1.0, 2.0, num, endpoint, retstep=True)
    expected, expected_step = np.linspace(-1, 2, num, endpoint, retstep=True)

    np.testing.assert_allclose(run(values), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(run(step), expected_step, rtol=1e-6)


@pytest.mark.parametrize("start", [1, np.float32(0.3)])
def test_arange_from_tensors_equals_arange_from_numbers(start: Any):
    n = placeholder((), "int32")
    known, later = creation.arange(start, 9, 2), creation.arange(start, n, 2)

    known_value, later_value = run(known, later, feeds={n: 9})

    assert known.dtype == later.dtype
    np.testing.assert_array_equal(known_value, later_value)


def test_gradient_of_linspace_and_arange():
    a, b = placeholder((), "float32"), placeholder((), "float32")
    slopes = gradients(reduction.sum(spacing.linspace(a, b, 5)), [a, b])
    steps = gradients(reduction.sum(creation.arange(a, 10.0, b)), [a, b])

    np.testing.assert_allclose(run(*slopes, feeds={a: 1.0, b: 2.0}), [2.5, 2.5])
    np.testing.assert_allclose(run(*steps, feeds={a: 1.0, b: 4.0}), [3, 3])
