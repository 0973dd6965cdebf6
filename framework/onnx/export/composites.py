"""Attention, RMS normalisation and rotary positions become ONNX's operators for these, from opset 23 on.

They are recognised by what the graph computes, so that a layer of one's own that computes the same becomes the
operator, too. What the operator can't express (weights that are used elsewhere, types but float32) stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ....engine.graph import Symbol
from ....engine.graph.graph import Operation
from ....engine.ops.base import Constant
from ....engine.ops.linear_algebra.einsum import Contraction
from ....engine.ops.linear_algebra.products import BatchMatMul
from .patterns import match
from .registry import attribute, axes_of
from .shapes import scalar_dim
from .sizes import Sizes
from .writer import FLOAT, Writer

if TYPE_CHECKING:
    from .patterns import Bindings

LOWEST_COMPOSITE = 23
_LEAST_MASKED = -1e30  # a logit is lost in the rounding of what is at most this, so that adding equals replacing


class Composite(NamedTuple):
    """Several operations that are one operator.

    Attributes:
        inputs: the tensors that the operator takes.
        write: appends its nodes, given the names of the inputs; returns the name of the result.
    """

    inputs: list[Symbol]
    write: Callable[..., str]


class _Recogniser:
    """The sizes and uses of the tensors of one graph, for all recognisers.

    Attributes:
        sizes: from which axes of other tensors open sizes come.
    """

    def __init__(self, operations: Sequence[Operation], wanted: Iterable[Symbol]) -> None:
        self.sizes = Sizes()
        self._places = {operation: place for place, operation in enumerate(operations)}
        self._uses: dict[Symbol, int] = {}
        readers = [operation for operation in operations if operation.type != "dim_of"]
        for symbol in [*wanted, *[each for operation in readers for each in operation.inputs]]:
            self._uses[symbol] = self._uses.get(symbol, 0) + 1

    def is_used_once(self, symbol: Symbol) -> bool:
        """Test whether the elements of a tensor are read by one operation and are not a result."""
        return self._uses.get(symbol, 0) <= 1

    def first_of_size(self, symbol: Symbol, axis: int) -> tuple[Symbol, int]:
        """Return the first tensor of the graph that has an axis of this size, and the axis."""
        found = self.sizes.origins(symbol, axis)
        return min(found, key=lambda each: (self._places.get(each[0].operation, -1), each[1]))


def find_composites(
    operations: Iterable[Operation], wanted: Iterable[Symbol], opset: int
) -> dict[Operation, Composite]:
    """Return the operators that parts of a graph are, by the operation that gives the result.

    Args:
        operations: those of the graph.
        wanted: the results of the graph.
        opset: of the model that is written.
    """
    if opset < LOWEST_COMPOSITE:
        return {}
    operations = list(operations)
    recogniser = _Recogniser(operations, wanted)
    found: dict[Operation, Composite] = {}
    for operation in operations:
        recognise = _RECOGNISERS.get(operation.type)
        composite = recognise(operation, recogniser) if recognise is not None else None
        if composite is not None:
            found[operation] = composite
    return found


def _size(operation: Operation, recogniser: _Recogniser) -> Composite | None:
    """Ask for sizes of the first tensor that has them, so that logits are not computed for theirs."""
    source = operation.inputs[0]
    if source.shape is None:
        return None
    axis = attribute(operation, "axis", int) % len(source.shape)
    first, own = recogniser.first_of_size(source, axis)
    return None if first is source else Composite([first], lambda w, x: scalar_dim(w, x, own))


# --- RMS normalisation ----------------------------------------------------------------------------------------------

_RMS = ("multiply", ("multiply", "?x", ("rsqrt", ("add", "?mean", "?epsilon"))), "?scale")


def _rms_normalization(operation: Operation, recogniser: _Recogniser) -> Composite | None:
    """Compute ``x / sqrt(mean(x^2) + epsilon) * scale`` over the last axes (Zhang and Sennrich, 2019)."""
    bound = match(operation.outputs[0], _RMS, {})
    if bound is None or bound["?mean"].operation.type != "mean":
        return None
    x, scale, epsilon = bound["?x"], bound["?scale"], _number(bound["?epsilon"])
    mean = bound["?mean"].operation
    axes, rank = mean.op.axes, len(x.shape or ())
    if match(mean.inputs[0], ("multiply", "?x", "?x"), {"?x": x}) is None or epsilon is None or not axes or not rank:
        return None
    axis = min(each % rank for each in axes)
    whole = sorted(each % rank for each in axes) == list(range(axis, rank))
    if not whole or not mean.op.keepdims or scale.shape is None or x.dtype != FLOAT or scale.dtype != FLOAT:
        return None
    own = (*([1] * (rank - len(scale.shape))), *scale.shape)
    if len(own) != rank or any(size != 1 for size in own[:axis]) or own[axis:] != tuple(x.shape or ())[axis:]:
        return None
    ones = list(range(len(scale.shape) - (rank - axis)))

    def write(w: Writer, x: str, scale: str) -> str:
        return w.add("RMSNormalization", x, w.squeeze(scale, *ones), axis=axis - rank, epsilon=epsilon)

    return Composite([x, scale], write)


# --- rotary positions -----------------------------------------------------------------------------------------------

_FIRST, _SECOND = ("part", 0, "?x"), ("part", 1, "?x")
_TURNED = (
    ("subtract", ("multiply", _FIRST, "?cos"), ("multiply", _SECOND, "?sin")),
    ("add", ("multiply", _SECOND, "?cos"), ("multiply", _FIRST, "?sin")),
)


def _rotary_embedding(operation: Operation, recogniser: _Recogniser) -> Composite | None:
    """Return pairs of features (i, i + features / 2) turned by angles (Su et al., 2021)."""
    if len(operation.inputs) != 2:
        return None
    bound: Bindings | None = {}
    for symbol, pattern in zip(operation.inputs, _TURNED, strict=True):
        bound = None if bound is None else match(symbol, pattern, bound)
    if bound is None:
        return None
    x, cos, sin, split = bound["?x"], bound["?cos"], bound["?sin"], bound["split"]
    rank = len(x.shape or ())
    last = rank - 1
    axes = (attribute(split, "axis", int), attribute(operation, "axis", int))
    if rank not in (3, 4) or any(axis % rank != last for axis in axes) or len(set(split.op.sizes)) != 1:
        return None
    if cos.shape is None or sin.shape is None or len(cos.shape) != rank or len(sin.shape) != rank:
        return None
    half = x.shape[last] // 2 if x.shape[last] else None
    heads = [axis for axis in range(1, last) if cos.shape[axis] == sin.shape[axis] == 1] if rank == 4 else [1]
    if half is None or cos.shape[last] != half or sin.shape[last] != half or len(heads) != 1:
        return None
    if any(each.dtype != FLOAT for each in (x, cos, sin)):
        return None
    steps = 1 if rank == 3 else 3 - heads[0]
    if not (recogniser.sizes.are_same(x, steps, cos, steps) and recogniser.sizes.are_same(x, steps, sin, steps)):
        return None
    order = [0, heads[0], steps, last]

    def write(w: Writer, x: str, cos: str, sin: str) -> str:
        if rank == 3:
            return w.squeeze(_rotated(w, w.unsqueeze(x, 1), cos, sin), 1)
        turned = _rotated(w, w.transpose(x, order), w.squeeze(cos, heads[0]), w.squeeze(sin, heads[0]))
        return w.transpose(turned, [order.index(axis) for axis in range(4)])

    return Composite([x, cos, sin], write)


def _rotated(w: Writer, x: str, cos: str, sin: str) -> str:
    """Return the operator, on (batch, heads, steps, features), with a row of angles for each sample."""
    shape = w.concat([w.dim(x, 0), w.ints(1, 1)], 0)
    return w.add("RotaryEmbedding", x, w.expand(cos, shape), w.expand(sin, shape))


# --- attention ------------------------------------------------------------------------------------------------------


class _Product(NamedTuple):
    """A contraction whose operands have their axes in the order (batch, heads, rows, features).

    Attributes:
        left, right: the operands.
        left_order, right_order: their axes in that order; without heads three.
        out_order: the axes of the result in the order (batch, heads, rows of the left, rows or features of the right).
    """

    left: Symbol
    right: Symbol
    left_order: list[int]
    right_order: list[int]
    out_order: list[int]


def _attention(operation: Operation, recogniser: _Recogniser) -> Composite | None:
    """Match ``softmax(queries keys^T scale + mask) values`` (Vaswani et al., 2017); heads may share their keys."""
    found = _weighted(recogniser, operation)
    if found is None:
        return None
    weights, product, groups = found
    softmax = weights.operation
    rank = len(weights.shape or ())
    if softmax.type != "softmax" or axes_of(softmax) not in ((rank - 1,), (-1,)):
        return None
    if not recogniser.is_used_once(weights):
        return None
    masks, masked = _masks(softmax.inputs[0])
    if _is_repeated(masked, softmax.inputs[0]):
        return None
    scale, logits = _scale(masked)
    inner = _logits(recogniser, logits, groups)
    if inner is None or scale is None or any(each.dtype != FLOAT for each in (weights, logits, product.right)):
        return None
    if any(mask.symbol.shape is None or len(mask.symbol.shape) > rank for mask in masks):
        return None
    if len({mask.lowered for mask in masks if mask.replaces}) > 1:
        return None
    inputs = [inner.left, inner.right, product.right]
    writer = _AttentionWriter(inner, product, groups, scale, masks, rank, operation)
    return Composite([*inputs, *[mask.symbol for mask in masks]], writer.write)


def _is_repeated(before: Symbol, after: Symbol) -> bool:
    """Test whether masks broadcast logits along an axis."""
    if before.shape is None or after.shape is None or len(before.shape) != len(after.shape):
        return True
    return any(old == 1 != new for old, new in zip(before.shape, after.shape, strict=True))


def _product(operation: Operation, rows: int, groups: int) -> _Product | None:
    """Take a contraction apart into stacks, rows of both operands and what is summed.

    Args:
        operation: the contraction.
        rows: 1 if the right operand has rows of its own, as keys have; 0 if its rows are summed, as those of values.
        groups: how many heads share one of the right operand; above 1 they are an axis of the left one alone.
    """
    taken = _labelled(operation)
    if taken is None:
        return None
    (left_labels, left), (right_labels, right), out = taken
    for a, b, x, y in ((left_labels, right_labels, left, right), (right_labels, left_labels, right, left)):
        stacks = sorted([label for label in a if label in b and label in out], key=out.index)
        summed = [label for label in a if label in b and label not in out]
        own = sorted([label for label in a if label not in b], key=out.find)
        other = [label for label in b if label not in a]
        if len(stacks) not in ((1, 2) if groups == 1 else (2,)) or len(summed) != 1 or len(other) != 1:
            continue
        if len(own) != (1 if groups == 1 else 2) or _broadcasts(x, y, a, b, [*stacks, *summed]):
            continue
        parts = [*other, *summed] if rows else [*summed, *other]
        return _Product(
            left=x,
            right=y,
            left_order=[a.index(label) for label in [*stacks, *own, *summed]],
            right_order=[b.index(label) for label in [*stacks, *parts]],
            out_order=[out.index(label) for label in [*stacks, *own, *other]],
        )
    return None


_Labelled = tuple[str, Symbol]


def _labelled(operation: Operation) -> tuple[_Labelled, _Labelled, str] | None:
    """Return the operands of a product with a letter for each axis, as of einsum, and the letters of the result."""
    op = operation.op
    if isinstance(op, Contraction):
        a, b, out = op.a, op.b, op.out
    elif isinstance(op, BatchMatMul):
        ranks = {len(each.shape or ()) for each in (*operation.inputs, operation.outputs[0])}
        if len(ranks) != 1:
            return None
        stacks = "abcdefgh"[: ranks.pop() - 2]
        a, b, out = (
            stacks + ("ki" if op.transpose_a else "ik"),
            stacks + ("jk" if op.transpose_b else "kj"),
            stacks + "ij",
        )
    else:
        return None
    left, right = operation.inputs
    return _before_transposes(a, left), _before_transposes(b, right), out


def _before_transposes(labels: str, symbol: Symbol) -> _Labelled:
    while symbol.operation.type == "transpose":
        order = axes_of(symbol.operation)
        axes = list(range(len(labels)))[::-1] if order is None else list(order)
        labels = "".join(labels[axes.index(axis)] for axis in range(len(labels)))
        symbol = symbol.operation.inputs[0]
    return labels, symbol


def _broadcasts(left: Symbol, right: Symbol, a: str, b: str, labels: Sequence[str]) -> bool:
    """Test whether an axis of one operand is repeated for the other; also where a shape is not known."""
    if left.shape is None or right.shape is None:
        return True
    return any((left.shape[a.index(label)] == 1) != (right.shape[b.index(label)] == 1) for label in labels)


def _weighted(recogniser: _Recogniser, operation: Operation) -> tuple[Symbol, _Product, int] | None:
    """Return the weights of attention, the product that takes them, and how many heads share one of the values."""
    if operation.type == "reshape":
        return _weighted_in_groups(recogniser, operation)
    product = _product(operation, 0, 1)
    if product is None or product.left_order[-1] != len(product.left_order) - 1:
        return None
    ordered = product.left_order == list(range(len(product.left_order)))
    return (product.left, product, 1) if ordered else None


def _weighted_in_groups(recogniser: _Recogniser, operation: Operation) -> tuple[Symbol, _Product, int] | None:
    """Return the same, where heads are an axis of groups and one of heads in a group until the result is reshaped."""
    inner = operation.inputs[0].operation
    if not _joins(recogniser, inner.outputs[0], operation.outputs[0], 2):
        return None
    spread = inner.inputs[0]
    groups = spread.shape[2] if spread.shape is not None and len(spread.shape) == 5 else None
    if groups is None or groups < 2 or spread.operation.type != "reshape":
        return None
    product = _product(inner, 0, groups)
    weights = spread.operation.inputs[0]
    if product is None or product.left is not spread or not _joins(recogniser, spread, weights, 1):
        return None
    if product.left_order != [0, 1, 3, 2, 4] or product.out_order != [0, 2, 1, 3, 4]:
        return None
    return weights, product, groups


def _joins(recogniser: _Recogniser, wide: Symbol, narrow: Symbol, axis: int) -> bool:
    """Test whether five axes are four with `axis` and the one behind it joined, in either direction of a reshape."""
    if wide.shape is None or narrow.shape is None or (len(wide.shape), len(narrow.shape)) != (5, 4):
        return False
    pair, joined = wide.shape[axis : axis + 2], narrow.shape[axis]
    known = [dim for dim in pair if dim is not None]
    if len(known) < len(pair) or joined is None or math.prod(known) != joined:
        return False
    others = [k for k in range(4) if k != axis]
    return all(recogniser.sizes.are_same(narrow, k, wide, k if k < axis else k + 1) for k in others)


def _logits(recogniser: _Recogniser, logits: Symbol, groups: int) -> _Product | None:
    """Return the product of queries and keys, the axes of whose result are in order."""
    operation = logits.operation
    if groups > 1:
        if operation.type != "reshape" or not _joins(recogniser, operation.inputs[0], logits, 1):
            return None
        operation = operation.inputs[0].operation
    product = _product(operation, 1, groups)
    if product is None or product.out_order != list(range(len(product.out_order))):
        return None
    if groups == 1:
        return product
    spread = product.left.operation
    if spread.type != "reshape" or product.left_order != [0, 2, 3, 1, 4]:
        return None
    queries = spread.inputs[0]
    return (
        product._replace(left=queries, left_order=[0, 2, 1, 3])
        if _joins(recogniser, product.left, queries, 2)
        else None
    )


class _Mask(NamedTuple):
    """A change of logits before the softmax.

    Attributes:
        symbol: bools, True where a logit stays; or floats that are added.
        lowered: what is added where the bools are False; None for floats.
        replaces: the logits become `lowered` where the bools are False.
    """

    symbol: Symbol
    lowered: float | None = None
    replaces: bool = False


def _masks(logits: Symbol) -> tuple[list[_Mask], Symbol]:
    """Return the masks and biases of logits, and the logits before."""
    found: list[_Mask] = []
    while True:
        step = _mask(logits)
        if step is None:
            return found, logits
        mask, logits = step
        found.append(mask)


def _mask(logits: Symbol) -> tuple[_Mask, Symbol] | None:
    """Return the last mask or bias of logits, and the logits before it."""
    operation = logits.operation
    if operation.type == "where":
        condition, kept, other = operation.inputs
        number = _number(other)
        if number is not None:
            return (_Mask(condition, number, True), kept) if -np.inf < number <= _LEAST_MASKED else None
        inner = operation.inputs[2].operation
        amount = _number(inner.inputs[1]) if inner.type == "subtract" and inner.inputs[0] is kept else None
        return None if amount is None else (_Mask(condition, -amount), kept)
    if operation.type == "add":
        first, second = operation.inputs
        if _leads_to_product(first) != _leads_to_product(second):
            return (_Mask(second), first) if _leads_to_product(first) else (_Mask(first), second)
    return None


def _leads_to_product(symbol: Symbol) -> bool:
    _, logits = _masks(symbol)
    operation = _scale(logits)[1].operation
    if operation.type == "reshape":
        operation = operation.inputs[0].operation
    return operation.type in ("contraction", "batch_matmul")


def _scale(logits: Symbol) -> tuple[float | None, Symbol]:
    """Return the number by which logits are multiplied, None if it can't be an attribute, and the logits before."""
    operation = logits.operation
    if operation.type not in ("multiply", "divide"):
        return 1.0, logits
    first, second = operation.inputs
    number, product = _number(second), first
    if operation.type == "multiply" and number is None:
        number, product = _number(first), second
    if number is None or not 0 < number < np.inf:
        return None, logits
    return (1 / number if operation.type == "divide" else number), product


def _number(symbol: Symbol) -> float | None:
    op = symbol.operation.op
    return float(op.value) if isinstance(op, Constant) and np.ndim(op.value) == 0 else None


class _AttentionWriter:
    """Writes the node, its mask of all logits, and a branch for no samples or places, for which runtimes fail."""

    def __init__(
        self,
        logits: _Product,
        product: _Product,
        groups: int,
        scale: float,
        masks: list[_Mask],
        rank: int,
        operation: Operation,
    ) -> None:
        self.logits, self.product, self.groups, self.scale = logits, product, groups, scale
        self.masks, self.rank, self.operation = masks, rank, operation

    def write(self, w: Writer, queries: str, keys: str, values: str, *masks: str) -> str:
        orders = (self.logits.left_order, self.logits.right_order, self.product.right_order)
        q, k, v = (self._placed(w, name, order) for name, order in zip((queries, keys, values), orders, strict=True))
        mask = self._mask(w, q, k, masks)
        result = self._guarded(w, q, k, v, mask)
        if self.rank == 3:
            result = w.squeeze(result, 1)
        order = [0, 2, 1, 3] if self.groups > 1 else self.product.out_order
        return w.transpose(result, [order.index(axis) for axis in range(len(order))])

    def _placed(self, w: Writer, name: str, order: list[int]) -> str:
        """Return an operand as (batch, heads, rows, features)."""
        placed = w.transpose(name, order)
        return w.unsqueeze(placed, 1) if self.rank == 3 else placed

    def _mask(self, w: Writer, q: str, k: str, names: Sequence[str]) -> str:
        """Return the sum of all masks, floats, over all targets and sources; nothing if there are none."""
        replaced, terms = "", list[str]()
        for mask, name in zip(self.masks, names, strict=True):
            name = self._spread(w, name, mask.symbol)
            if mask.replaces:  # a sum of two could be infinite
                replaced = w.add("And", replaced, name) if replaced else name
            else:
                terms.append(name if mask.lowered is None else self._lowered(w, name, mask.lowered))
        if replaced:
            terms.append(self._lowered(w, replaced, next(mask.lowered for mask in self.masks if mask.replaces)))
        if not terms:
            return ""
        total = terms[0]
        for term in terms[1:]:
            total = w.add("Add", total, term)
        return w.expand(total, w.concat([w.ints(1, 1), w.dim(q, 2), w.dim(k, 2)], 0))

    def _spread(self, w: Writer, name: str, symbol: Symbol) -> str:
        """Return a mask with four axes."""
        name = w.unsqueeze(name, *range(self.rank - len(symbol.shape or ())))
        return w.unsqueeze(name, 1) if self.rank == 3 else name

    def _lowered(self, w: Writer, name: str, lowered: float | None) -> str:
        """Return the floats that are added to logits for a mask of bools."""
        return w.where(name, w.constant(np.zeros((), FLOAT)), w.constant(np.asarray(lowered, FLOAT)))

    def _guarded(self, w: Writer, q: str, k: str, v: str, mask: str) -> str:
        """Return the operator; zeros where there are no samples, targets or sources."""
        left, right = self.logits.left, self.logits.right
        sizes = [(left, q, self.logits.left_order[0], 0), (left, q, self.logits.left_order[-2], 2)]
        sizes.append((right, k, self.logits.right_order[-2], 2))
        if self.rank == 4:
            sizes.append((left, q, self.logits.left_order[1], 1))
        open_sizes = [w.dim(name, axis) for symbol, name, own, axis in sizes if not (symbol.shape or ())[own]]
        if not open_sizes:
            return self._operator(w, q, k, v, mask)
        total = open_sizes[0]
        for size in open_sizes[1:]:
            total = w.add("Mul", total, size)
        empty = w.squeeze(w.compare("Equal", total, w.ints(0)), 0)
        shape = w.concat([w.dim(q, 0), w.dim(q, 1), w.dim(q, 2), w.dim(v, 3)], 0)
        return w.either(
            empty,
            lambda: w.zeros(shape, FLOAT),
            lambda: self._operator(w, q, k, v, mask),
            lambda name: w.info(name, [None] * 4),
        )

    def _operator(self, w: Writer, q: str, k: str, v: str, mask: str) -> str:
        inputs = [q, k, v, mask] if mask else [q, k, v]
        return w.add("Attention", *inputs, dtype=FLOAT, scale=self.scale)


_RECOGNISERS: dict[str, Callable[[Operation, _Recogniser], Composite | None]] = {
    "dim_of": _size,
    "multiply": _rms_normalization,
    "concatenate": _rotary_embedding,
    "contraction": _attention,
    "batch_matmul": _attention,
    "reshape": _attention,
}
