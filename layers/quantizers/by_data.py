"""GPTQ and AWQ: weights of few bits, by what the model computes of data.

Both go through the model block by block. A block sees what the quantised blocks before it give, so that errors do not
add up unseen.

Sources: Frantar et al., "GPTQ", 2023; Lin et al., "AWQ", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ..core.layer import Layer
from .data_configs import AWQConfig, GPTQConfig
from .kernels import QuantizableKernel
from .observing import observed
from .packing import packed_array
from .quantizable import Array

if TYPE_CHECKING:
    from ...engine.graph import Tensor, Value


_BLOCK = 128  # columns whose errors are passed on at once


def quantize_by_data(model: Layer, config: GPTQConfig | AWQConfig, chosen: list[QuantizableKernel]) -> None:
    """Quantise layers of a model.

    Args:
        model: has ``get_quantization_layer_structure(mode)``, unless the config has the structure.
        config: how, and by what data.
        chosen: the layers that may be quantised; those that are in no block stay as they are.

    Raises:
        ValueError: there is no structure, or no data.
    """
    structure = config.quantization_layer_structure
    find = getattr(model, "get_quantization_layer_structure", None)
    if structure is None and find is not None:
        structure = find(config.mode)
    if structure is None or not structure.get("sequential_blocks"):
        raise ValueError(
            f"For mode={config.mode!r}, a valid quantization structure must be provided either via "
            "`config.quantization_layer_structure` or by overriding `model.get_quantization_layer_structure(mode)`. "
            "The structure should be a dictionary with keys 'pre_block_layers' and 'sequential_blocks'."
        )
    states: list[Tensor] = []
    for tokens in windows(config):
        state: Tensor = tokens[None]
        for layer in structure.get("pre_block_layers", []):
            state = layer(state)
        states.append(state)
    wanted = {id(layer) for layer in chosen}
    for block in structure["sequential_blocks"]:
        layers = [layer for layer in block._flatten_layers() if id(layer) in wanted]
        seen = {id(layer): _Seen(layer) for layer in layers}
        with ExitStack() as stack:
            for layer in layers:
                stack.enter_context(observed(layer, seen[id(layer)].note))
            for state in states:
                block(state)
        for layer in layers:
            if seen[id(layer)].count:
                _quantise(layer, config, seen[id(layer)])
        states = [_first(block(state)) for state in states]


def _first(outputs: object) -> Any:
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


def windows(config: GPTQConfig | AWQConfig) -> Array:
    """Return sequences of tokens out of the data, evenly taken from all of it, (samples, length).

    Raises:
        TypeError: the data is not an iterable of texts or tokens, or texts without a tokenizer.
        ValueError: there is none.
    """
    data = config.dataset
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise TypeError(
            f"The `dataset` argument must be an iterable (e.g., a list of strings, a generator, or a NumPy array). Got "
            f"type: {type(data).__name__}. Please pass the loaded dataset directly."
        )
    pieces: list[Array] = []
    for piece in data:
        if isinstance(piece, str):
            tokenize = getattr(config.tokenizer, "tokenize", config.tokenizer)
            if not callable(tokenize):
                raise TypeError(f"The dataset holds texts, which need a tokenizer; got tokenizer={config.tokenizer!r}.")
            piece = tokenize(piece)
        pieces.append(np.asarray(piece).reshape(-1).astype("int32"))
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, "int32")
    if not tokens.size:
        raise ValueError("Provided dataset is empty.")
    length, samples = config.sequence_length, config.num_samples
    if tokens.size < length * samples:
        tokens = np.tile(tokens, -(-length * samples // tokens.size))
    starts = np.linspace(0, tokens.size - length, samples).astype(int)
    return np.stack([tokens[start : start + length] for start in starts])


class _Seen:
    """The inputs of a layer: how they vary together, and the largest of each."""

    def __init__(self, layer: QuantizableKernel) -> None:
        self.terms = layer._matrix_sizes()[0]
        self.count = 0
        self.products = np.zeros((self.terms, self.terms), "float64")
        self.largest = np.zeros(self.terms, "float32")

    def note(self, inputs: Value, outputs: object) -> None:
        rows = np.asarray(inputs, "float32").reshape(-1, self.terms)
        self.count += len(rows)
        self.products += rows.T.astype("float64") @ rows
        self.largest = np.maximum(self.largest, np.abs(rows).max(axis=0, initial=0))


def is_supported(layer: Layer) -> TypeGuard[QuantizableKernel]:
    """Test whether the terms of a layer's kernel come first, and last in its inputs: as in `Dense` and in attention."""
    if not isinstance(layer, QuantizableKernel):
        return False
    axes = layer._reduced_axes()
    names = getattr(layer, "_subscripts", None)
    in_order = names is None or (names.is_product and names.inputs.endswith(names.kernel[: len(axes)]))
    return axes == tuple(range(len(axes))) and in_order


def _quantise(layer: QuantizableKernel, config: GPTQConfig | AWQConfig, seen: _Seen) -> None:
    weight = layer._kernel.numpy().reshape(layer._matrix_sizes()).T.astype("float64")
    if isinstance(config, GPTQConfig):
        integers, scale, zero, group = gptq(weight, 2 * seen.products / seen.count, config)
        values = {}
    else:
        integers, scale, zero, group, factors = awq(weight, seen.largest, config)
        values = {"awq_scales": factors.astype("float32")}
    packed = integers.astype("uint8")
    values |= {
        "quantized_kernel": packed_array(packed, 0) if config.weight_bits == 4 else packed,
        "kernel_scale": scale.astype("float32"),
        "kernel_zero": zero.astype("uint8"),
        "g_idx": group.astype("float32"),
    }
    layer.replace_weights(config.mode, values, config)


def scales_of(weight: Array, bits: int, symmetric: bool = False, per_channel: bool = True) -> tuple[Array, Array]:
    """Return the scale and the zero point of each row of a matrix, (rows, 1); 0 is one of the integers."""
    low, high = weight.min(axis=1, initial=0), weight.max(axis=1, initial=0)
    if not per_channel:
        low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    most = 2**bits - 1
    if symmetric:
        high = np.maximum(np.abs(low), high)
        low = -high
    is_flat = low == high
    low, high = np.where(is_flat, -1, low), np.where(is_flat, 1, high)
    scale = (high - low) / most
    zero = np.full_like(scale, (most + 1) // 2) if symmetric else np.round(-low / scale)
    return scale[:, None], zero[:, None]


def _integers(weight: Array, scale: Array, zero: Array, bits: int) -> Array:
    return np.clip(np.round(weight / scale + zero), 0, 2**bits - 1)


def gptq(weight: Array, hessian: Array, config: GPTQConfig) -> tuple[Array, Array, Array, Array]:
    """Round a matrix (outputs, terms) term by term, each making up for the errors of those before.

    Args:
        weight: the matrix.
        hessian: how inputs vary together, (terms, terms).
        config: bits, groups, damping and order.

    Returns:
        The integers (outputs, terms), scales and zero points (outputs, groups), and the group of each term.
    """
    terms, bits = weight.shape[1], config.weight_bits
    hessian, weight = hessian.copy(), weight.copy()
    dead = np.diag(hessian) == 0
    hessian[dead, dead] = 1
    weight[:, dead] = 0
    order = np.argsort(-np.diag(hessian), kind="stable") if config.activation_order else np.arange(terms)
    weight, hessian = weight[:, order], hessian[np.ix_(order, order)]
    hessian[np.diag_indices(terms)] += config.hessian_damping * np.mean(np.diag(hessian))
    influence = np.linalg.cholesky(np.linalg.inv(hessian)).T  # upper, as in the paper
    size = terms if config.group_size == -1 else config.group_size
    integers = np.zeros_like(weight)
    scales: list[Array] = []
    zeros: list[Array] = []
    for start in range(0, terms, _BLOCK):
        end = min(start + _BLOCK, terms)
        errors = np.zeros((len(weight), end - start))
        for term in range(start, end):
            if term % size == 0:
                # Terms of the group that are behind the block do not have their share of its errors yet, as in the
                # paper.
                found = scales_of(weight[:, term : term + size], bits, config.symmetric, config.per_channel)
                scales.append(found[0])
                zeros.append(found[1])
            column = weight[:, term : term + 1]
            integers[:, term : term + 1] = _integers(column, scales[-1], zeros[-1], bits)
            back = (integers[:, term : term + 1] - zeros[-1]) * scales[-1]
            error = (column - back) / influence[term, term]
            weight[:, term:end] -= error * influence[term, term:end]
            errors[:, term - start] = error[:, 0]
        weight[:, end:] -= errors @ influence[start:end, end:]
    group, back_order = np.arange(terms) // size, np.argsort(order)
    return integers[:, back_order], np.hstack(scales), np.hstack(zeros), group[back_order]


def awq(weight: Array, largest: Array, config: AWQConfig) -> tuple[Array, Array, Array, Array, Array]:
    """Round a matrix (outputs, terms) with the terms of large inputs scaled up.

    Args:
        weight: the matrix.
        largest: the largest absolute input of each term.
        config: groups, and how many strengths are tried.

    Returns:
        The integers, scales and zero points (outputs, groups), the group of each term, and its factor.
    """
    terms = weight.shape[1]
    size = terms if config.group_size == -1 else config.group_size
    group = np.arange(terms) // size
    inputs = np.where(largest < 1e-8, 1.0, largest).astype("float64")
    best: tuple[float, Any] = (np.inf, None)
    for point in range(config.num_grid_points + 1):
        factors = np.maximum(inputs ** (point / config.num_grid_points), 1e-4)
        factors /= max(float(np.sqrt(factors.max() * factors.min())), 1e-8)
        scaled = weight * factors
        parts = [scales_of(scaled[:, start : start + size], 4) for start in range(0, terms, size)]
        scale, zero = (np.hstack([part[k] for part in parts]) for k in range(2))
        integers = _integers(scaled, scale[:, group], zero[:, group], 4)
        back = (integers - zero[:, group]) * scale[:, group] / factors
        loss = float(np.mean((weight - back) ** 2 * inputs**2))
        if loss < best[0]:
            best = loss, (integers, scale, zero, group, factors)
    return best[1]
