"""Functional models of one op each that `keras.ops` lacks, or of sizes known at run time: written by Keras's ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from golden.operations import MATRIX, Sample, whole

ROW, PLANE = (4,), (8, 8, 4)


def own_samples(ops: Any) -> dict[str, Sample]:
    """All of them, with the functions of `ops`."""
    return _sizes(ops) | _places(ops) | _numbers(ops) | _convolutions(ops)


def _sizes(ops: Any) -> dict[str, Sample]:
    open_rows = ((None, 6),)
    return {
        "arange_of_steps": Sample(lambda x: ops.arange(ops.shape(x)[1]), open_rows),
        "broadcast_to_batch": Sample(lambda x: ops.broadcast_to(ops.arange(4), (ops.shape(x)[0], 4)), (ROW,)),
        "full_of_batch": Sample(lambda x: ops.full((ops.shape(x)[0], 2), ops.sum(x)), (ROW,)),
        "mean_by_hand": Sample(lambda x: ops.sum(x, 1) / ops.cast(ops.shape(x)[1], "float32"), open_rows),
        "ones_before": Sample(lambda x: ops.concatenate([ops.ones((ops.shape(x)[0], 1)), x], axis=-1), (ROW,)),
        "positions": Sample(lambda x: x + ops.cast(ops.arange(ops.shape(x)[1]), "float32")[:, None], open_rows),
        "reshape_batch": Sample(lambda x: ops.reshape(x, (ops.shape(x)[0], -1))),
        "tile_batch": Sample(lambda x: ops.tile(ops.reshape(ops.arange(4), (1, 4)), (ops.shape(x)[0], 1)), (ROW,)),
        "zeros_of_batch": Sample(lambda x: ops.zeros((ops.shape(x)[0], 3)), (ROW,)),
    }


def _places(ops: Any) -> dict[str, Sample]:
    pairs = np.array([[0, 1], [1, 2]])
    updates = np.ones((1, 4, 6), "float32") / 4
    found = {
        f"tensor_scatter_nd_{name}": Sample(
            lambda x, name=name: getattr(ops, f"tensor_scatter_nd_{name}")(x, np.array([[0]]), updates)
        )
        for name in ("add", "max", "min", "sub", "update")
    }
    return found | {
        "gather": Sample(lambda x: ops.gather(x, np.array([0, 1]), axis=1)),
        "gather_nd": Sample(lambda x: ops.gather_nd(x, pairs)),
        "gather_nd_rows": Sample(lambda x: ops.gather_nd(x, np.array([[2], [0]]))),
        "gather_nd_batch": Sample(
            lambda x, y: ops.gather_nd(x, ops.minimum(y, 3), batch_dims=1), (MATRIX, (2, 1)), "int32"
        ),
        "getitem_at": Sample(lambda x: x[:, whole(ops, x[0, 0, 0])]),
        "getitem_at_last": Sample(lambda x: x[..., whole(ops, x[0, 0, 0]), None]),
        "getitem_array": Sample(lambda x: x[:, np.array([0, 2])]),
        "getitem_array_last": Sample(lambda x: x[:, ::2, np.array([[0, 2], [1, 1]])]),
        "invert_permutation": Sample(lambda x: ops.invert_permutation(ops.argsort(x[:, 0])), (ROW,)),
        "reverse": Sample(lambda x: ops.reverse(x, axis=[1])),
        "reverse_sequence": Sample(lambda x: ops.reverse_sequence(x, np.array([2, 4, 1]), seq_axis=1, batch_axis=0)),
        "get_item": Sample(lambda x: ops.get_item(x, (slice(None), 1))),
        "getitem_by_name": Sample(lambda x: ops.getitem(x, (slice(None), slice(0, 4, 2)))),
        "scatter_add": Sample(lambda x: ops.scatter_add(x, pairs, np.ones((2, 6), "float32"))),
        "scatter_nd": Sample(lambda x: ops.scatter_nd(np.array([[0], [2]]), x[:2], (5, 4, 6))),
        "dynamic_stitch": Sample(lambda x: ops.dynamic_stitch([np.array([0, 2]), np.array([1])], [x[:2], x[:1]])),
    }


def _numbers(ops: Any) -> dict[str, Sample]:
    return {
        "atleast_1d": Sample(ops.atleast_1d),
        "atleast_2d": Sample(ops.atleast_2d, ((),)),
        "column_stack": Sample(lambda x, y: ops.column_stack([x[:, 0], y]), (ROW, ROW)),
        "gammainc": Sample(lambda x, y: ops.gammainc(ops.abs(x) + 1, ops.abs(y)), (MATRIX, MATRIX)),
        "hard_swish": Sample(ops.hard_swish),
        "matrix_power": Sample(lambda x: ops.matrix_power(x, 3), ((4, 4),)),
        "matrix_power_of_0": Sample(lambda x: ops.matrix_power(x, 0), ((4, 4),)),
        "matrix_power_of_inverses": Sample(
            lambda x: ops.matrix_power(x + 3 * np.eye(4, dtype="float32"), -2), ((4, 4),)
        ),
        "median_of_open_axis": Sample(lambda x: ops.median(x, axis=1), ((None, 6),)),
        "swish": Sample(ops.swish),
        "atleast_3d": Sample(ops.atleast_3d, (ROW,)),
        "bartlett": Sample(lambda x: x * ops.bartlett(6)),
        "bitwise_of_bool": Sample(lambda x: ops.bitwise_and(x > 0, x < 0.5)),
        "complex": Sample(lambda x, y: ops.abs(ops.complex(x, y)), (MATRIX, MATRIX)),
        "embedding_lookup": Sample(lambda x: ops.embedding_lookup(np.eye(7, dtype="float32"), x), (ROW,), "int32"),
        "ifft": Sample(lambda x, y: ops.ifft((x, y)), (MATRIX, MATRIX)),
        "l2_normalize": Sample(lambda x: ops.l2_normalize(x, axis=-1)),
        "mean_of_method": Sample(lambda x: x.std(axis=1)),
        "rearrange": Sample(lambda x: ops.rearrange(x, "b (h w) c -> b h w c", h=2)),
        "segment_mean": Sample(lambda x: ops.segment_mean(x[:3], np.array([0, 0, 1]), num_segments=2)),
        "sequence_mask": Sample(lambda x: ops.sequence_mask(x, 8), (ROW,), "int32"),
        "squared_difference": Sample(ops.squared_difference, (MATRIX, MATRIX)),
    }


def _convolutions(ops: Any) -> dict[str, Sample]:
    kernel = np.linspace(-1, 1, 3 * 3 * 2 * 6, dtype="float32").reshape(3, 3, 2, 6)
    volume = ((4, 4, 4, 2),)
    line = kernel.reshape(3, 3 * 2, 6)[:, :4]
    return {
        "conv_causal": Sample(lambda x: ops.conv(x, line, padding="causal", dilation_rate=2), ((8, 4),)),
        "conv_first": Sample(lambda x: ops.conv(x, kernel[..., :1, :], data_format="channels_first"), ((1, 8, 8),)),
        "extract_patches_3d": Sample(lambda x: ops.image.extract_patches_3d(x, (2, 2, 2), strides=1), volume),
        "reconstruct_patches": Sample(
            lambda x: ops.image.reconstruct_patches(x, (3, 2), (8, 4), padding="same"), ((3, 2, 12),)
        ),
        "extract_patches_3d_same": Sample(lambda x: ops.image.extract_patches_3d(x, 3, padding="same"), volume),
        "conv_transpose_same": Sample(
            lambda x: ops.conv_transpose(x, kernel.reshape(3, 3, 3, 4), (2, 3), padding="same"), ((5, 4, 4),)
        ),
        "conv_transpose_line": Sample(lambda x: ops.conv_transpose(x, line, 2, "valid", dilation_rate=1), ((5, 6),)),
        "conv_grouped": Sample(lambda x: ops.conv(x, kernel), (PLANE,)),
        "conv_grouped_same": Sample(lambda x: ops.conv(x, kernel, strides=2, padding="same"), (PLANE,)),
        "conv_grouped_of_two": Sample(lambda x, y: ops.conv(x, y[0]), (PLANE, (3, 3, 2, 6))),
        "conv_grouped_line": Sample(lambda x: ops.conv(x, line[:, :2], padding="causal"), ((8, 4),)),
    }
