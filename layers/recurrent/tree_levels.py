"""Batches of trees as levels: which nodes are how deep, and where their children are among those of the level below."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...engine import ops
from ...engine.control_flow import while_loop
from ...engine.graph import Tensor
from ..attention.masks import as_mask

if TYPE_CHECKING:
    from ...engine.ops.arrays.shaping import DimLike
    from ...engine.ops.base import TensorLike


class Trees(NamedTuple):
    """Trees whose nodes are numbered through, over the whole batch. There are ``total`` nodes, padding included.

    Attributes:
        children: ``(total, width)``, numbers of the children; ``total`` for none.
        depths: ``(total,)``, how far a node is from its root.
        is_live: ``(total,)``, False for padding.
        roots: ``(batch,)``, the first node of each row that is nobody's child; ``total`` where there is none.
        width: the most children that a node can have.
        total: how many nodes there are.
    """

    children: Tensor
    depths: Tensor
    is_live: Tensor
    roots: Tensor
    width: int
    total: DimLike


class Levels(NamedTuple):
    """The nodes of trees, sorted by depth. ``inner`` are those with children, ``leaves`` the others.

    Attributes:
        inner, leaves: ``(inner,)`` and ``(leaves,)``, numbers of nodes, by depth.
        inner_counts: ``(levels,)``, how many inner nodes each level has; there are as many levels as have any.
        leaf_counts: ``(levels + 1,)``, how many leaves; those of the last level have no inner nodes beside them.
        places: ``(inner, width)``, where the children of inner nodes are among the nodes of the level below, whose
            inner nodes come first; the number of these nodes for no child.
    """

    inner: Tensor
    leaves: Tensor
    inner_counts: Tensor
    leaf_counts: Tensor
    places: Tensor


def trees_of(children: Tensor, mask: TensorLike | None, name: str) -> Trees:
    """Return trees from the numbers of children within each row of the batch.

    Args:
        children: ``(batch, nodes, width)``, integers; -1 for none.
        mask: ``(batch, nodes)``, False for padding, or None.
        name: of the layer, for errors.

    Raises at run time:
        InvalidArgumentError: a number is out of range, a node is the child of two, or of itself by some way.
    """
    batch, nodes, width = ops.shape(children)
    total = batch * nodes
    given = ops.cast(children, "int32")
    in_range = ops.logical_and(given >= -1, given < nodes)
    ops.assert_true(in_range, [given], f"{name}: children are numbers of nodes in the same row, or -1 for none.")
    first = ops.reshape(ops.arange(batch) * nodes, (-1, 1, 1))
    numbers = ops.reshape(ops.where(given >= 0, given + first, total), (-1, width))
    is_live = ops.ones((total,), "bool")
    if mask is not None:
        is_live = ops.reshape(as_mask(mask), (-1,))
        with_none = ops.concatenate([is_live, ops.zeros((1,), "bool")])
        numbers = ops.where(ops.logical_and(is_live[:, None], ops.take(with_none, numbers)), numbers, total)
    parents, depths = _parents_and_depths(numbers, width, total, name)
    is_root = ops.reshape(ops.logical_and(is_live, ops.equal(parents, total)), (batch, nodes))
    places = ops.where(is_root, ops.arange(nodes)[None], nodes)
    found = ops.min(ops.concatenate([places, ops.full((batch, 1), nodes, "int32")], axis=1), axis=1)
    roots = ops.where(found < nodes, found + ops.arange(batch) * nodes, total)
    return Trees(numbers, depths, is_live, roots, width, total)


def _parents_and_depths(numbers: Tensor, width: int, total: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return parent and depth of each node, by pointer doubling, so that deep trees take few rounds."""
    flat, owners = ops.reshape(numbers, (-1,)), ops.repeat(ops.arange(total), width)
    counts = ops.segment_sum(ops.ones_like(flat), flat, num_segments=total + 1)[:total]
    ops.assert_true(counts <= 1, [], f"{name}: a node is the child of two nodes. Trees are needed, not graphs.")
    up = ops.scatter_update(ops.full((total + 1,), total, "int32"), flat[:, None], owners)
    up = ops.where(ops.equal(ops.arange(total + 1), total), total, up)  # nobody's parent is nobody

    def body(round: Tensor, up: Tensor, way: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return round + 1, ops.take(up, up), way + ops.take(way, up)

    def unfinished(round: Tensor, up: Tensor, way: Tensor) -> Tensor:
        return ops.logical_and(round < 31, ops.any(up < total))

    _, ends, ways = while_loop(unfinished, body, (0, up, ops.cast(up < total, "int32")))
    ops.assert_true(ends >= total, [], f"{name}: a node is among its own descendants. Trees are needed, not cycles.")
    return up[:total], ways[:total]


def levels_of(trees: Trees) -> Levels:
    """Sort nodes by depth, those with children before the others, and return what a pass from the leaves up needs."""
    is_inner = ops.any(trees.children < trees.total, axis=-1)
    is_leaf = ops.logical_and(ops.logical_not(is_inner), trees.is_live)
    last = trees.total + 1  # deeper than any node
    inner_depths = ops.where(is_inner, trees.depths, -1)
    levels = ops.max(ops.concatenate([inner_depths, ops.full((1,), -1, "int32")])) + 1
    keys = ops.where(trees.is_live, 2 * trees.depths + ops.cast(is_leaf, "int32"), 2 * last)
    order = ops.argsort(keys)
    inner_counts, leaf_counts = (
        ops.segment_sum(ops.cast(chosen, "int32"), ops.where(chosen, trees.depths, 0), num_segments=levels + 1)
        for chosen in (is_inner, is_leaf)
    )
    sizes = inner_counts + leaf_counts
    starts = ops.cumsum(sizes) - sizes
    ranks = ops.scatter_update(ops.zeros((trees.total,), "int32"), order[:, None], ops.arange(trees.total))
    # Of padding it is no matter what comes out here.
    places = ranks - ops.take(starts, ops.minimum(trees.depths, levels))
    inner = ops.boolean_mask(order, ops.take(is_inner, order))
    leaves = ops.boolean_mask(order, ops.take(is_leaf, order))
    below = ops.take(trees.children, inner, axis=0)
    nothing = ops.take(sizes, ops.take(trees.depths, inner) + 1)[:, None]
    with_none = ops.concatenate([places, ops.zeros((1,), "int32")])
    places = ops.where(below < trees.total, ops.take(with_none, below), nothing)
    return Levels(inner, leaves, inner_counts[:levels], leaf_counts, places)
