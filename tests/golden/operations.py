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
    shapes: tuple[tuple[int | None, ...], ...] = (MATRIX,)
    dtype: str = "float32"

    def inputs(self, rows: int = 3) -> list[np.ndarray]:
        """Numbers for the inputs."""
        draw = np.random.default_rng(0)
        shapes = [[rows, *(5 if size is None else size for size in shape)] for shape in self.shapes]
        if self.dtype == "int32":
            return [draw.integers(1, 6, shape).astype("int32") for shape in shapes]
        return [draw.uniform(-1, 1, shape).astype("float32") for shape in shapes]


def samples(ops: Any) -> dict[str, Sample]:
    """All of them, with the functions of `ops`: `keras.ops`, or ours."""
    found = {name: Sample(getattr(ops, name)) for name in UNARY.split()}
    for name in WITH_AXIS.split():
        found[f"{name}_axis"] = Sample(lambda x, name=name: getattr(ops, name)(x, axis=1))
    for name in ("mean", "sum", "max"):
        found[f"{name}_axes"] = Sample(lambda x, name=name: getattr(ops, name)(x, axis=(1, 2), keepdims=True))
    found |= {name: Sample(getattr(ops, name), (MATRIX, MATRIX)) for name in BINARY.split()}
    found |= {name: Sample(getattr(ops, name), (MATRIX, MATRIX), "int32") for name in INTEGERS.split()}
    return found | _products(ops) | _shapes(ops) | _choices(ops) | _networks(ops) | _algebra(ops) | _more(ops)


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


def _more(ops: Any) -> dict[str, Sample]:
    return _more_numbers(ops) | _more_images(ops) | _more_networks(ops) | _more_algebra(ops)


def _positive(x: Any) -> Any:
    return x * x + 0.5


def whole(ops: Any, x: Any, most: float = 3.0) -> Any:
    """Integers from 0 on."""
    return ops.cast(ops.abs(x) * most, "int32")


def _more_numbers(ops: Any) -> dict[str, Sample]:
    row = np.arange(6, dtype="float32") / 6
    found = {name: Sample(getattr(ops, name)) for name in ("arcsinh", "arctanh", "fliplr", "flipud")}
    for name in ("nanargmax", "nanargmin", "nancumprod", "nanmedian"):
        found[name] = Sample(lambda x, name=name: getattr(ops, name)(x, axis=1))
    for name in ("nanpercentile", "nanquantile"):
        found[name] = Sample(lambda x, name=name: getattr(ops, name)(x, 0.4, axis=-1, keepdims=True))
    for name in ("dsplit", "hsplit", "vsplit"):
        found[name] = Sample(lambda x, name=name: getattr(ops, name)(x[0], 2), ((4, 6, 2),))
    for name in ("geomspace", "linspace", "logspace"):
        found[f"{name}_of"] = Sample(lambda x, name=name: getattr(ops, name)(_positive(x), 2.0, num=5), ((4,),))
    for name in ("bitwise_right_shift", "ldexp"):
        found[name] = Sample(getattr(ops, name), (MATRIX, MATRIX), "int32")
    for name in ("nonzero", "unique", "histogram"):
        found[name] = Sample(lambda x, name=name: getattr(ops, name)(ops.round(x[0])), ((4,),))
    return found | {
        "allclose": Sample(lambda x, y: ops.allclose(x[0], y[0]), ((4,), (4,))),
        "arccosh": Sample(lambda x: ops.arccosh(1 + x * x)),
        "argpartition": Sample(lambda x: ops.take_along_axis(x, ops.argpartition(x, 2, axis=1), axis=1)[:, 2]),
        "array": Sample(ops.array),
        "bitwise_invert": Sample(ops.bitwise_invert, (MATRIX,), "int32"),
        "conj_of": Sample(lambda x: ops.real(ops.conj(ops.view_as_complex(x))), ((4, 2),)),
        "conjugate_of": Sample(lambda x: ops.imag(ops.conjugate(ops.view_as_complex(x))), ((4, 2),)),
        "convert_to_tensor": Sample(lambda x: ops.convert_to_tensor(x, "float16")),
        "corrcoef": Sample(lambda x: ops.corrcoef(x[0])),
        "correlate": Sample(lambda x: ops.correlate(x[0], row[:3]), ((6,),)),
        "correlate_full": Sample(lambda x, y: ops.correlate(x[0], y[0], mode="full"), ((6,), (3,))),
        "correlate_same": Sample(lambda x, y: ops.correlate(x[0], y[0], mode="same"), ((6,), (3,))),
        "cumsum_axis": Sample(lambda x: ops.cumsum(x, axis=1)),
        "diagflat": Sample(lambda x: ops.diagflat(x[0], k=1)),
        "dstack": Sample(lambda x, y: ops.dstack([x, y]), ((4,), (4,))),
        "full": Sample(lambda x: ops.full((2, 3), ops.sum(x))),
        "empty_like": Sample(lambda x: ops.cast(ops.isnan(ops.empty_like(x)), "float32") * 0),
        "isin": Sample(lambda x: ops.isin(x, np.array([1, 3])), (MATRIX,), "int32"),
        "saturate_cast": Sample(lambda x: ops.saturate_cast(x * 300, "int8")),
        "segment_min": Sample(lambda x: ops.segment_min(x[0], np.array([0, 0, 1, 2]), num_segments=3), ((4,),)),
        "segment_prod": Sample(lambda x: ops.segment_prod(x[0], np.array([0, 0, 1, 2]), num_segments=3), ((4,),)),
        "trapezoid": Sample(lambda x: ops.trapezoid(x, dx=0.5, axis=1)),
        "unravel_index": Sample(lambda x: ops.unravel_index(whole(ops, x), (3, 4)), ((4,),)),
        "view_as_complex": Sample(lambda x: ops.abs(ops.view_as_complex(x)), ((4, 2),)),
        "view_as_real": Sample(lambda x: ops.view_as_real(ops.view_as_complex(x) * 2), ((4, 2),)),
    }


def _more_images(ops: Any) -> dict[str, Sample]:
    image = ops.image
    shape = ((8, 8, 3),)
    moved = np.array([[1.0, 0.1, 1.0, 0.0, 0.9, 0.5, 0.0, 0.0]] * 3, "float32")
    start = np.array([[[0, 0], [0, 7], [7, 0], [7, 7]]] * 3, "float32")
    end = start + np.array([[0, 1], [1, 0], [0, 0], [-1, -1]], "float32")
    places = np.array([[0.5, 1.5, 2.25], [1.0, 0.25, 3.5]], "float32")
    found = {name: Sample(getattr(image, name), shape) for name in ("rgb_to_hsv", "hsv_to_rgb", "sobel_edges")}
    for name in ("rgb_to_hsv", "hsv_to_rgb"):
        found[name] = Sample(lambda x, name=name: getattr(image, name)(ops.abs(x)), shape)
    return found | {
        "affine_transform": Sample(lambda x: image.affine_transform(x, moved), shape),
        "crop_images": Sample(lambda x: image.crop_images(x, 1, 2, target_height=4, target_width=5), shape),
        "extract_patches": Sample(lambda x: image.extract_patches(x, (3, 3), strides=2, padding="same"), shape),
        "gaussian_blur": Sample(lambda x: image.gaussian_blur(x, (3, 3), (1.0, 1.5)), shape),
        "map_coordinates": Sample(lambda x: image.map_coordinates(x[0], places, 1, fill_mode="nearest")),
        "pad_images": Sample(lambda x: image.pad_images(x, 1, 2, target_height=12, target_width=11), shape),
        "perspective_transform": Sample(lambda x: image.perspective_transform(x, start, end), shape),
        "resize_nearest": Sample(lambda x: image.resize(x, (5, 12), interpolation="nearest"), shape),
        "resize_bicubic": Sample(lambda x: image.resize(x, (12, 5), "bicubic", antialias=True), shape),
        "scale_and_translate": Sample(
            lambda x: image.scale_and_translate(
                x, (3, 6, 6, 3), np.array([0.5, 1.5], "float32"), np.array([1.0, 0.0], "float32"), (1, 2), "linear"
            ),
            shape,
        ),
        "ssim": Sample(lambda x, y: image.ssim(ops.abs(x), ops.abs(y), filter_size=5), shape * 2),
        "psnr": Sample(lambda x, y: ops.psnr(ops.abs(x), ops.abs(y), 1.0), shape * 2),
    }


def _more_networks(ops: Any) -> dict[str, Sample]:
    shape = ((8, 8, 4),)
    kernel = np.linspace(-1, 1, 3 * 3 * 2 * 6, dtype="float32").reshape(3, 3, 2, 6)
    rows = np.array([4, 3, 4])
    return {
        "adaptive_average_pool": Sample(lambda x: ops.adaptive_average_pool(x, (3, 4)), shape),
        "adaptive_max_pool": Sample(lambda x: ops.adaptive_max_pool(x, (4, 4)), shape),
        "conv_dilated": Sample(lambda x: ops.conv(x, kernel[..., :2, :], dilation_rate=2), ((8, 8, 2),)),
        "conv_of_two": Sample(lambda x, y: ops.conv(x, y[0]), ((8, 8, 2), (3, 3, 2, 4))),
        "depthwise_two": Sample(lambda x: ops.depthwise_conv(x, kernel[..., :2], padding="same"), ((8, 8, 2),)),
        "max_pool_same": Sample(lambda x: ops.max_pool(x, (2, 3), strides=(1, 2), padding="same"), shape),
        "ctc_decode": Sample(lambda x: ops.ctc_decode(x, rows)),
        "fold": Sample(lambda x: ops.fold(x, (6, 6), 3, stride=3), ((9, 4),)),
        "polar": Sample(lambda x, y: ops.real(ops.polar(ops.abs(x), y)), (MATRIX, MATRIX)),
        "gelu_exact": Sample(lambda x: ops.gelu(x, approximate=False)),
        "dpa_causal": Sample(lambda x: ops.dot_product_attention(x, x, x, is_causal=True), ((4, 2, 6),)),
        "norm_axis": Sample(lambda x: ops.norm(x, ord=1, axis=-1, keepdims=True)),
        "one_hot_axis": Sample(lambda x: ops.one_hot(whole(ops, x), 5, axis=1, dtype="int32"), ((4,),)),
    }


def _more_algebra(ops: Any) -> dict[str, Sample]:
    eye = np.eye(4, dtype="float32")
    return {
        "cholesky_inverse": Sample(lambda x: ops.cholesky_inverse(ops.tril(x) + 2 * eye), ((4, 4),)),
        "eig": Sample(lambda x: ops.sum(ops.abs(ops.eig(x)[0]), axis=-1), ((4, 4),)),
        "lstsq": Sample(lambda x, y: ops.lstsq(x[0], y[0]), (MATRIX, (4, 2))),
        "matrix_rank": Sample(ops.matrix_rank),
        "solve_triangular": Sample(lambda x, y: ops.solve_triangular(x + 3 * eye, y), ((4, 4), (4, 2))),
        "fft2": Sample(lambda x: ops.fft2((x, x * 0))),
        "ifft2": Sample(lambda x, y: ops.ifft2((x, y)), (MATRIX, MATRIX)),
        "irfft": Sample(lambda x: ops.irfft(ops.rfft(x, 8), 8)),
        "istft": Sample(lambda x: ops.istft(ops.stft(x, 8, 4, 8), 8, 4, 8), ((32,),)),
    }
