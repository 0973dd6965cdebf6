"""Functional models of one op each, by Keras's names: what goes both ways between Keras's files and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

MATRIX = (4, 6)
UNARY = """
    abs absolute arccos arcsin arctan ceil cos cosh exp exp2 expm1 floor isfinite isinf isnan log log10 log1p log2
    negative reciprocal round sign signbit sin sinh sqrt square tan tanh trunc cbrt erf erfc erfinv rsqrt relu
    sigmoid softplus relu6 silu gelu elu selu leaky_relu celu hard_sigmoid hard_silu hard_tanh hard_shrink
    soft_shrink softsign log_sigmoid log_softmax softmax squareplus sparsemax sparse_plus sparse_sigmoid
    tanh_shrink all any amax amin max min mean sum prod std var median argmax argmin logsumexp count_nonzero cumsum
    cumprod sort argsort average ptp norm transpose flip ravel diff deg2rad rad2deg nan_to_num ones_like zeros_like
    copy real imag conj conjugate angle fabs nansum nanmean nanmax nanmin nanstd nanvar nanprod nancumsum isposinf
    isneginf isreal stop_gradient sinc i0
"""
WITH_AXIS = "mean sum max prod std var argmax logsumexp all any amin median"
BINARY = """
    add subtract multiply divide true_divide floor_divide mod maximum minimum power arctan2 hypot logaddexp
    logaddexp2 equal not_equal greater greater_equal less less_equal logical_and logical_or logical_xor fmod
    nextafter heaviside isclose divide_no_nan fmax fmin
"""
INTEGERS = "bitwise_and bitwise_or bitwise_xor left_shift right_shift gcd lcm bitwise_left_shift"


class Sample(NamedTuple):
    """A model of one op: what it does with its inputs, and these without the batch."""

    apply: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = (MATRIX,)
    dtype: str = "float32"

    def inputs(self, rows: int = 3) -> list[np.ndarray]:
        """Numbers for the inputs."""
        draw = np.random.default_rng(0)
        if self.dtype == "int32":
            return [draw.integers(1, 6, (rows, *shape)).astype("int32") for shape in self.shapes]
        return [draw.uniform(-1, 1, (rows, *shape)).astype("float32") for shape in self.shapes]


def samples(ops: Any) -> dict[str, Sample]:
    """All of them, with the functions of `ops`: `keras.ops`, or ours."""
    found = {name: Sample(getattr(ops, name)) for name in UNARY.split()}
    for name in WITH_AXIS.split():
        found[f"{name}_axis"] = Sample(lambda x, name=name: getattr(ops, name)(x, axis=1))
    for name in ("mean", "sum", "max"):
        found[f"{name}_axes"] = Sample(lambda x, name=name: getattr(ops, name)(x, axis=(1, 2), keepdims=True))
    found |= {name: Sample(getattr(ops, name), (MATRIX, MATRIX)) for name in BINARY.split()}
    found |= {name: Sample(getattr(ops, name), (MATRIX, MATRIX), "int32") for name in INTEGERS.split()}
    return found | _products(ops) | _shapes(ops) | _choices(ops) | _networks(ops) | _algebra(ops)


def _products(ops: Any) -> dict[str, Sample]:
    return {
        "logical_not": Sample(lambda x: ops.logical_not(x > 0)),
        "matmul": Sample(ops.matmul, ((4, 6), (6, 5))),
        "matmul_const": Sample(lambda x: ops.matmul(x, np.ones((6, 5), "float32"))),
        "matmul2": Sample(lambda x: ops.matmul(x, np.ones((6, 5), "float32")), ((6,),)),
        "einsum": Sample(lambda x, y: ops.einsum("bij,bjk->bik", x, y), ((4, 6), (6, 5))),
        "einsum2": Sample(lambda x, y: ops.einsum("bij,bkj->bik", x, y), ((4, 6), (5, 6))),
        "einsum3": Sample(lambda x: ops.einsum("bij->bji", x)),
        "einsum4": Sample(lambda x: ops.einsum("bij,jk->bik", x, np.ones((6, 2), "float32"))),
        "dot": Sample(lambda x: ops.dot(x, np.ones((6, 2), "float32"))),
        "tensordot": Sample(lambda x: ops.tensordot(x, np.ones((6, 2), "float32"), axes=1)),
        "inner": Sample(lambda x: ops.inner(x, np.ones((2, 6), "float32"))),
        "vdot": Sample(lambda x, y: ops.vdot(x[0], y[0]), ((4,), (4,))),
    }


def _shapes(ops: Any) -> dict[str, Sample]:
    return {
        "concatenate": Sample(lambda x, y: ops.concatenate([x, y], axis=-1), ((4, 6), (4, 3))),
        "stack": Sample(lambda x, y: ops.stack([x, y], axis=1), ((4,), (4,))),
        "hstack": Sample(lambda x, y: ops.hstack([x, y]), ((4,), (5,))),
        "vstack": Sample(lambda x, y: ops.vstack([x, y]), ((4,), (4,))),
        "append": Sample(lambda x, y: ops.append(x, y, axis=1), ((4,), (5,))),
        "split": Sample(lambda x: ops.split(x, 2, axis=1)),
        "split_at": Sample(lambda x: ops.split(x, [1, 3], axis=1)),
        "unstack": Sample(lambda x: ops.unstack(x, axis=1)),
        "array_split": Sample(lambda x: ops.array_split(x, 3, axis=1)),
        "reshape": Sample(lambda x: ops.reshape(x, (-1, 24))),
        "reshape2": Sample(lambda x: ops.reshape(x, (-1, 2, 12))),
        "expand_dims": Sample(lambda x: ops.expand_dims(x, 1)),
        "moveaxis": Sample(lambda x: ops.moveaxis(x, 1, 2)),
        "transpose_axes": Sample(lambda x: ops.transpose(x, (0, 2, 1))),
        "roll": Sample(lambda x: ops.roll(x, 2, axis=1)),
        "repeat": Sample(lambda x: ops.repeat(x, 2, axis=1)),
        "tile": Sample(lambda x: ops.tile(x, (1, 2, 1))),
        "flip_axis": Sample(lambda x: ops.flip(x, axis=1)),
        "rot90": Sample(lambda x: ops.rot90(x, axes=(1, 2))),
        "squeeze": Sample(lambda x: ops.squeeze(x, 1), ((1, 6),)),
        "swapaxes": Sample(lambda x: ops.swapaxes(x, 1, 2)),
    }


def _choices(ops: Any) -> dict[str, Sample]:
    return {
        "cast": Sample(lambda x: ops.cast(x, "int32")),
        "astype16": Sample(lambda x: ops.cast(x, "float16")),
        "clip": Sample(lambda x: ops.clip(x, -0.5, 0.5)),
        "where": Sample(lambda x, y: ops.where(x > y, x, y), ((4,), (4,))),
        "where_const": Sample(lambda x: ops.where(x > 0, x, 0.0)),
        "take": Sample(lambda x: ops.take(x, [0, 2], axis=1)),
        "take_along": Sample(lambda x: ops.take_along_axis(x, ops.argsort(x, axis=1), axis=1)),
        "getitem": Sample(lambda x: x[:, 1:3, ::2]),
        "getitem2": Sample(lambda x: x[:, -1]),
        "getitem3": Sample(lambda x: x[..., None]),
        "one_hot": Sample(lambda x: ops.one_hot(ops.cast(ops.abs(x) * 3, "int32"), 5), ((4,),)),
        "top_k": Sample(lambda x: ops.top_k(x, 2)),
        "in_top_k": Sample(lambda x: ops.in_top_k(ops.cast(ops.abs(x[:, 0]), "int32"), x, 2), ((6,),)),
        "searchsorted": Sample(lambda x: ops.searchsorted(np.arange(5, dtype="float32"), x), ((4,),)),
        "digitize": Sample(lambda x: ops.digitize(x, np.arange(5, dtype="float32")), ((4,),)),
        "bincount": Sample(lambda x: ops.bincount(ops.cast(ops.abs(x), "int32"), minlength=6), ((4,),)),
        "tril": Sample(ops.tril),
        "triu": Sample(ops.triu),
        "diagonal": Sample(lambda x: ops.diagonal(x, axis1=1, axis2=2)),
        "trace": Sample(lambda x: ops.trace(x, axis1=1, axis2=2)),
        "diag": Sample(lambda x: ops.sum(ops.diag(x[0])), ((4,),)),
        "pad": Sample(lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 1)))),
        "pad_reflect": Sample(lambda x: ops.pad(x, ((0, 0), (1, 2), (0, 1)), mode="reflect")),
        "bitwise_not": Sample(ops.bitwise_not, (MATRIX,), "int32"),
    }


def _networks(ops: Any) -> dict[str, Sample]:
    return {
        "max_pool": Sample(lambda x: ops.max_pool(x, 2), ((8, 8, 3),)),
        "average_pool": Sample(lambda x: ops.average_pool(x, 2, padding="same"), ((8, 8, 3),)),
        "conv": Sample(lambda x: ops.conv(x, np.ones((3, 3, 3, 2), "float32")), ((8, 8, 3),)),
        "conv_same": Sample(
            lambda x: ops.conv(x, np.ones((3, 3, 3, 2), "float32"), strides=2, padding="same"), ((8, 8, 3),)
        ),
        "depthwise": Sample(lambda x: ops.depthwise_conv(x, np.ones((3, 3, 3, 1), "float32")), ((8, 8, 3),)),
        "conv_transpose": Sample(
            lambda x: ops.conv_transpose(x, np.ones((3, 3, 2, 3), "float32"), strides=2), ((8, 8, 3),)
        ),
        "separable": Sample(
            lambda x: ops.separable_conv(x, np.ones((3, 3, 3, 1), "float32"), np.ones((1, 1, 3, 4), "float32")),
            ((8, 8, 3),),
        ),
        "batch_norm": Sample(lambda x: ops.batch_normalization(x, np.zeros(6, "float32"), np.ones(6, "float32"), -1)),
        "layer_norm": Sample(lambda x: ops.layer_normalization(x)),
        "rms_norm": Sample(lambda x: ops.rms_normalization(x)),
        "moments": Sample(lambda x: ops.moments(x, axes=[1])),
        "dpa": Sample(lambda x: ops.dot_product_attention(x, x, x), ((4, 2, 6),)),
        "bce": Sample(lambda x, y: ops.binary_crossentropy(ops.sigmoid(x), ops.sigmoid(y)), ((4,), (4,))),
        "cce": Sample(lambda x, y: ops.categorical_crossentropy(ops.softmax(x), ops.softmax(y)), ((4,), (4,))),
        "scce": Sample(
            lambda x, y: ops.sparse_categorical_crossentropy(ops.cast(ops.abs(x[:, 0]), "int32"), y, from_logits=True),
            ((4,), (4,)),
        ),
        "multi_hot": Sample(lambda x: ops.multi_hot(ops.cast(ops.abs(x) * 2, "int32"), 5), ((4,),)),
        "segment_sum": Sample(lambda x: ops.segment_sum(x[0], np.array([0, 0, 1, 2]), num_segments=3), ((4,),)),
        "slice": Sample(lambda x: ops.slice(x[0], (0, 1), (2, 3))),
        "slice_update": Sample(lambda x: ops.slice_update(x[0], (0, 1), np.zeros((2, 2), "float32"))),
        "scatter_update": Sample(lambda x: ops.scatter_update(x[0], [[0, 1]], [5.0])),
        "glu": Sample(lambda x: ops.glu(x, axis=-1)),
        "normalize": Sample(lambda x: ops.normalize(x, axis=-1)),
        "segment_max": Sample(lambda x: ops.segment_max(x[0], np.array([0, 0, 1, 2]), num_segments=3), ((4,),)),
        "select": Sample(lambda x: ops.select([x > 0.5, x < 0], [x, x * 2], 0.0)),
        "size": Sample(lambda x: ops.size(x[0]) * x),
        "scatter": Sample(lambda x: ops.scatter(np.array([[0], [2]]), x[:2, 0], (4, 6))),
        "percentile": Sample(lambda x: ops.percentile(x, 30, axis=1)),
        "outer": Sample(lambda x: ops.outer(x[0], x[0]), ((4,),)),
        "view": Sample(lambda x: ops.view(x, "int32")),
        "threshold": Sample(lambda x: ops.threshold(x, 0.1, 0.5)),
    }


def _algebra(ops: Any) -> dict[str, Sample]:
    eye = np.eye(4, dtype="float32")
    return {
        "cholesky": Sample(lambda x: ops.cholesky(ops.matmul(x, ops.transpose(x, (0, 2, 1))) + eye)),
        "det": Sample(ops.det, ((4, 4),)),
        "inv": Sample(lambda x: ops.inv(x + 9 * eye), ((4, 4),)),
        "solve": Sample(lambda x: ops.solve(x + 9 * eye, x), ((4, 4),)),
        "svd": Sample(lambda x: ops.svd(x)[1]),
        "qr": Sample(lambda x: ops.abs(ops.qr(x)[1]), ((4, 4),)),
        "eigh": Sample(lambda x: ops.eigh(x + ops.transpose(x, (0, 2, 1)))[0], ((4, 4),)),
        "slogdet": Sample(ops.slogdet, ((4, 4),)),
        "pinv": Sample(ops.pinv),
        "lu": Sample(lambda x: ops.lu_factor(x)[0], ((4, 4),)),
        "fft": Sample(lambda x: ops.fft((x, x * 0))),
        "rfft": Sample(lambda x: ops.rfft(x)),
        "stft": Sample(lambda x: ops.stft(x, 8, 4, 8), ((32,),)),
        "extract_sequences": Sample(lambda x: ops.extract_sequences(x, 8, 4), ((32,),)),
        "resize": Sample(lambda x: ops.image.resize(x, (4, 4)), ((8, 8, 3),)),
        "gray": Sample(lambda x: ops.image.rgb_to_grayscale(x), ((8, 8, 3),)),
        "arange": Sample(lambda x: x + ops.arange(6, dtype="float32")),
        "ones": Sample(lambda x: x + ops.ones((6,))),
        "eye": Sample(lambda x: ops.matmul(x, ops.eye(6))),
        "linspace": Sample(lambda x: x * ops.linspace(0.0, 1.0, 6)),
        "full_like": Sample(lambda x: ops.full_like(x, 2.0)),
        "broadcast_to": Sample(lambda x: ops.broadcast_to(ops.sum(x, axis=0), (3, 6)), ((6,),)),
        "identity_ops": Sample(lambda x: (x * 2 + 1) / 3 - x**2),
        "quantile": Sample(lambda x: ops.quantile(x, 0.5, axis=1)),
        "meshgrid": Sample(lambda x: ops.meshgrid(x[0], x[0]), ((4,),)),
        "kron": Sample(lambda x: ops.kron(x[0], x[0])),
        "vander": Sample(lambda x: ops.vander(x[0]), ((4,),)),
        "unfold": Sample(lambda x: ops.unfold(x, 2), ((3, 8, 8),)),
        "depth_to_space": Sample(lambda x: ops.depth_to_space(x, 2), ((4, 4, 8),)),
        "space_to_depth": Sample(lambda x: ops.space_to_depth(x, 2), ((4, 4, 8),)),
        "logdet": Sample(lambda x: ops.logdet(ops.matmul(x, ops.transpose(x, (0, 2, 1))) + eye)),
        "cross": Sample(ops.cross, ((4, 3), (4, 3))),
        "cdist": Sample(ops.cdist, (MATRIX, (3, 6))),
    }
