"""Contractions by subscripts: einsum and tensordot, as transposes, reshapes and matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ...common import dtypes
from ...common.dtypes import DType
from ...common.quick_dataclass import dataclass
from ...graph.axis_maps import AxisMap, Follows
from ...graph.op import Cost
from ...graph.spec import Dim, Shape, shape_text
from ..arrays.axes import moveaxis, transpose
from ..arrays.creation import diagonal
from ..base import (
    Op,
    Operation,
    Sample,
    Tensor,
    TensorLike,
    TensorSpec,
    apply,
    as_scalar_or_array,
    cast,
    check_numbers,
    convert_to_tensor,
    normalize_axis,
    promote,
)
from ..math.elementwise import multiply
from ..math.reduction import sum
from ..run_time_shapes import sum_like

_INT8 = dtypes.as_dtype("int8")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Contraction(Op):
    """``out[...] = sum(a[...] * b[...])`` over the labels that are in both operands and not in the result.

    Each axis has a one-character label. No label stands twice in an operand, and each label of an operand is also in
    the other one or in the result (others are summed away before). Axes of size 1 broadcast if the result keeps them.
    """

    a: str
    b: str
    out: str
    never_fails: ClassVar[bool] = True
    cost: ClassVar[Cost] = Cost.PRODUCT
    linear_in: ClassVar[tuple[int, ...]] = (0, 1)
    batchable: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        sizes: dict[str, Dim] = {}
        check_numbers(self, *inputs)
        if inputs[0].dtype.name == "bfloat16":
            raise TypeError(f"{self}: products are not computed in bfloat16; cast both operands to 'float32'.")
        for labels, spec in zip((self.a, self.b), inputs, strict=True):
            self._note_sizes(sizes, labels, spec.shape)
        return TensorSpec(tuple(sizes[label] for label in self.out), inputs[0].dtype)

    def axis_map(self, *inputs: Any) -> AxisMap:
        return tuple([self._followed(label) for label in self.out])

    def _followed(self, label: str) -> tuple[Follows, ...]:
        holders = [(k, own.index(label)) for k, own in enumerate((self.a, self.b)) if label in own]
        return tuple([Follows(k, axis, True, len(holders) > 1) for k, axis in holders])

    def _note_sizes(self, sizes: dict[str, Dim], labels: str, shape: Shape) -> None:
        if shape is not None and len(shape) != len(labels):
            raise ValueError(f"{self}: an operand of shape {shape_text(shape)} has {len(labels)} subscripts.")
        for label, size in zip(labels, shape or (None,) * len(labels), strict=True):
            sizes[label] = self._joint_size(label, sizes[label], size) if label in sizes else size

    def _joint_size(self, label: str, first: Dim, second: Dim) -> Dim:
        broadcasts = label in self.out
        if first == second or (second == 1 and broadcasts):
            return first
        if first == 1 and broadcasts:
            return second
        if first is None or second is None:
            return second if first is None else first
        raise ValueError(f"{self}: subscript {label!r} has size {first} in one operand and {second} in another.")

    def __str__(self) -> str:
        return f"einsum '{self.a},{self.b}->{self.out}'"

    def run(self, xp: Any, *inputs: Any) -> Any:
        a, b = inputs
        plan = _plan(self.a, self.b, self.out)
        a, b = a.transpose(plan.order_a), b.transpose(plan.order_b)
        batch, rows, inner = plan.batch, plan.rows, plan.inner
        if inner == 0:
            left = a.reshape(a.shape + (1,) * plan.columns)
            right = b.reshape(b.shape[:batch] + (1,) * rows + b.shape[batch:])
            return as_scalar_or_array((left * right).transpose(plan.order_out))
        shape_a, shape_b = a.shape, b.shape
        if shape_a[batch + rows :] != shape_b[batch : batch + inner]:
            self.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs])  # says which sizes differ
        depth = math.prod(shape_a[batch + rows :])
        a = a.reshape((*shape_a[:batch], math.prod(shape_a[batch : batch + rows]), depth))
        b = b.reshape((*shape_b[:batch], depth, math.prod(shape_b[batch + inner :])))
        product = xp.matmul(a, b)
        shape = product.shape[:-2] + shape_a[batch : batch + rows] + shape_b[batch + inner :]
        return as_scalar_or_array(product.reshape(shape).transpose(plan.order_out))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        a, b = node.inputs
        assert dy is not None
        da = apply(Contraction(self.out, self.b, self.a), dy, b) if node.needs(0) else None
        db = apply(Contraction(self.out, self.a, self.b), dy, a) if node.needs(1) else None
        return None if da is None else sum_like(da, a), None if db is None else sum_like(db, b)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> Any:
            return rng.uniform(-1, 1, shape).astype("float32")

        for a, b, out, shape_a, shape_b in (
            ("ij", "jk", "ik", (2, 3), (3, 4)),
            ("btnh", "bsnh", "bnts", (2, 3, 2, 4), (2, 5, 2, 4)),
            ("abc", "cbd", "da", (2, 3, 4), (4, 3, 2)),
            ("i", "j", "ji", (2,), (3,)),
            ("ij", "ij", "ji", (2, 3), (2, 3)),
            ("i", "i", "", (3,), (3,)),
            ("ij", "jk", "ik", (2, 0), (0, 4)),
        ):
            x, y = draw(*shape_a), draw(*shape_b)
            yield Sample(cls(a, b, out), [x, y], np.einsum(f"{a},{b}->{out}", x, y), (0, 1), label=f"{a},{b}->{out}")
        x, y = draw(1, 2, 3), draw(4, 3, 2)
        yield Sample(cls("aij", "ajk", "aik"), [x, y], x @ y, (0, 1), label="broadcast")


@dataclass(frozen=True)
class _Plan:
    """A contraction as a product of matrices: axis orders, and how many axes each part has."""

    order_a: tuple[int, ...]  # batch, rows, inner
    order_b: tuple[int, ...]  # batch, inner, columns
    order_out: tuple[int, ...]  # from batch, rows, columns to the result
    batch: int
    rows: int
    inner: int
    columns: int


@lru_cache(maxsize=1024)
def _plan(a: str, b: str, out: str) -> _Plan:
    batch = [label for label in out if label in a and label in b]
    rows = [label for label in out if label in a and label not in b]
    columns = [label for label in out if label in b and label not in a]
    inner = [label for label in a if label in b and label not in out]
    product = [*batch, *rows, *columns]
    return _Plan(
        order_a=tuple(a.index(label) for label in [*batch, *rows, *inner]),
        order_b=tuple(b.index(label) for label in [*batch, *inner, *columns]),
        order_out=tuple(product.index(label) for label in out),
        batch=len(batch),
        rows=len(rows),
        inner=len(inner),
        columns=len(columns),
    )


# --- functions ------------------------------------------------------------------------------------------------------


def einsum(subscripts: str, *operands: TensorLike, **kwargs: Any) -> Tensor:
    """Compute sums of products by subscripts, as `numpy.einsum`: ``einsum("bij,bjk->bik", x, y)``.

    Several operands are contracted two at a time, those with the smallest result first. The ellipsis ``...`` stands
    for leading axes that broadcast; a subscript twice in one operand takes its diagonal. Operands that are all int8
    give int32, as in Keras.

    Raises:
        ValueError: the subscripts are malformed or do not fit the operands.

    >>> import anabranch as ab
    >>> ab.ops.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    Tensor([3., 7.], dtype=float32)
    """
    if kwargs:
        raise TypeError(f"einsum takes subscripts and operands; got {', '.join(kwargs)} as well.")
    if not operands:
        raise ValueError("einsum takes at least one operand.")
    tensors = promote(*operands)
    if all_int8(operands, tensors[0].dtype):
        tensors = [cast(tensor, dtypes.int32) for tensor in tensors]
    return _contracted(subscripts, tensors)


def all_int8(operands: Sequence[TensorLike], joined: DType) -> bool:
    """Test whether operands, whose dtypes join as `joined`, are all int8."""
    return joined == _INT8 and all(convert_to_tensor(operand).dtype == _INT8 for operand in operands)


def _contracted(subscripts: str, tensors: Sequence[Tensor]) -> Tensor:
    dtype = tensors[0].dtype
    if dtype.name in ("float16", "bfloat16"):
        return cast(_contracted(subscripts, [cast(tensor, dtypes.float32) for tensor in tensors]), dtype)
    labels, out = _parse(subscripts, [tensor.ndim for tensor in tensors])
    terms = [
        _simplify(tensor, text, out, labels, place)
        for place, (tensor, text) in enumerate(zip(tensors, labels, strict=True))
    ]
    while len(terms) > 1:
        first, second = _cheapest_pair(terms, out)
        others = [term for place, term in enumerate(terms) if place not in (first, second)]
        terms = [*others, _contract(terms[first], terms[second], others, out)]
    ((result, text),) = terms
    return transpose(result, tuple(text.index(label) for label in out)) if text != out else result


_Term = tuple[Tensor, str]  # a tensor and the labels of its axes


def _parse(subscripts: str, ranks: list[int | None]) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result; an ellipsis becomes letters that are not used otherwise."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(ranks):
        raise ValueError(f"einsum {subscripts!r} has subscripts for {len(parts)} operands; {len(ranks)} were given.")
    for part in [*parts, right]:
        letters = part.replace("...", "", 1)
        if not all(letter in _LETTERS for letter in letters):
            raise ValueError(f"einsum {subscripts!r}: expected letters and at most one '...' an operand; got {part!r}.")
    unused = [letter for letter in _LETTERS if letter not in text]
    widths = [_ellipsis_width(subscripts, part, rank) for part, rank in zip(parts, ranks, strict=True)]
    width = max(widths)
    dots = "".join(unused[:width])
    labels = [part.replace("...", dots[width - own :]) for part, own in zip(parts, widths, strict=True)]
    if not arrow:
        once = sorted(letter for letter in set(left) - set(".,") if left.count(letter) == 1)
        return labels, dots + "".join(once)
    out = right.replace("...", dots)
    if len(set(out)) != len(out) or not set(out) <= set("".join(labels)):
        raise ValueError(
            f"einsum {subscripts!r}: each subscript of the result must stand once there, and in an operand."
        )
    return labels, out


def _ellipsis_width(subscripts: str, part: str, rank: int | None) -> int:
    letters = len(part.replace("...", ""))
    if "..." not in part:
        if rank is not None and rank != letters:
            raise ValueError(f"einsum {subscripts!r}: {part!r} has {letters} subscripts, its operand {rank} axes.")
        return 0
    if rank is None:
        raise ValueError(f"einsum {subscripts!r}: '...' needs an operand of known rank.")
    if rank < letters:
        raise ValueError(f"einsum {subscripts!r}: {part!r} has {letters} subscripts, its operand only {rank} axes.")
    return rank - letters


def _simplify(tensor: Tensor, text: str, out: str, labels: list[str], place: int) -> _Term:
    """Return one operand with its diagonals taken, and with labels summed away that nothing else names."""
    for label in dict.fromkeys(text):
        while text.count(label) > 1:
            first = text.index(label)
            second = text.index(label, first + 1)
            _check_plane(tensor.shape, label, first, second)
            tensor = moveaxis(diagonal(tensor, axis1=first, axis2=second), -1, first)
            text = text[:second] + text[second + 1 :]
    elsewhere = out + "".join(other for position, other in enumerate(labels) if position != place)
    return _sum_away(tensor, text, elsewhere)


def _check_plane(shape: Shape, label: str, first: int, second: int) -> None:
    sizes = (None, None) if shape is None else (shape[first], shape[second])
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(
            f"einsum: subscript {label!r} stands for axes {first} and {second} of an operand of shape "
            f"{shape_text(shape)}, whose sizes differ."
        )


def _sum_away(tensor: Tensor, text: str, wanted: str) -> _Term:
    axes = tuple(axis for axis, label in enumerate(text) if label not in wanted)
    if not axes:
        return tensor, text
    return sum(tensor, axis=axes), "".join(label for label in text if label in wanted)


def _cheapest_pair(terms: list[_Term], out: str) -> tuple[int, int]:
    """Return the two terms whose product is smallest; sizes that are not known count as 64."""
    if len(terms) == 2:
        return 0, 1
    sizes: dict[str, int] = {}
    for tensor, text in terms:
        for label, dim in zip(text, tensor.shape or (None,) * len(text), strict=True):
            sizes[label] = max(sizes.get(label, 1), 64 if dim is None else dim)
    pairs = [(i, j) for i in range(len(terms)) for j in range(i + 1, len(terms))]

    def cost(pair: tuple[int, int]) -> int:
        others = out + "".join(text for place, (_, text) in enumerate(terms) if place not in pair)
        together = set(terms[pair[0]][1]) | set(terms[pair[1]][1])
        return math.prod(sizes[label] for label in together if label in others)

    return min(pairs, key=cost)


def _contract(left: _Term, right: _Term, others: list[_Term], out: str) -> _Term:
    wanted = out + "".join(text for _, text in others)
    (a, labels_a), (b, labels_b) = left, right
    if not others:
        kept = "".join(label for label in out if label in labels_a or label in labels_b)
    else:
        kept = "".join(label for label in dict.fromkeys(labels_a + labels_b) if label in wanted)
    if not labels_a or not labels_b:
        return multiply(a, b), labels_a + labels_b
    return apply(Contraction(labels_a, labels_b, kept), a, b), kept


def tensordot(x1: TensorLike, x2: TensorLike, axes: Any = 2) -> Tensor:
    """Compute the sum of products over pairs of axes.

    Args:
        axes: a number n (the last n axes of `x1` with the first n of `x2`), or two sequences of axes.

    Raises:
        ValueError: the axes do not pair up, or a rank is unknown.
    """
    a, b = promote(x1, x2)
    if a.ndim is None or b.ndim is None:
        raise ValueError("tensordot needs operands of known rank. Give the placeholder a shape.")
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise ValueError(f"tensordot: axes={axes} is more than operands of ranks {a.ndim} and {b.ndim} have.")
        pairs = list(zip(range(a.ndim - axes, a.ndim), range(axes), strict=True))
    else:
        left, right = ([axis] if isinstance(axis, int) else list(axis) for axis in axes)
        if len(left) != len(right):
            raise ValueError(f"tensordot: axes={axes} names {len(left)} axes of x1 and {len(right)} of x2.")
        pairs = [(normalize_axis(i, a.ndim), normalize_axis(j, b.ndim)) for i, j in zip(left, right, strict=True)]
    labels_a = list(_LETTERS[: a.ndim])
    labels_b = list(_LETTERS[a.ndim : a.ndim + b.ndim])
    for i, j in pairs:
        labels_b[j] = labels_a[i]
    summed = {labels_a[i] for i, _ in pairs}
    out = "".join(label for label in labels_a + labels_b if label not in summed)
    return _contracted(f"{''.join(labels_a)},{''.join(labels_b)}->{out}", [a, b])


__all__ = ["einsum", "tensordot"]
