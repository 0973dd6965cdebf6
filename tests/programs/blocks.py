"""Random blocks: loops, branches, maps, scans and arrays within each other, each from a matrix to one of its shape.

A block takes `x`, of shape ``(rows, WIDTH)`` with any number of rows, and `w`, ``(WIDTH, WIDTH)``. So blocks fit into
each other in every way, and what a seed draws is a tree of their names: ``("cond", ("tanh",), ("sort",))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import ops

WIDTH = 3
Block = Callable[[Any, Any], Any]
Tree = tuple[Any, ...]

LEAVES: dict[str, Block] = {
    "tanh": lambda x, w: ops.tanh(x),
    "product": lambda x, w: ops.tanh(x @ w),
    "row added": lambda x, w: x + w[0],
    "row multiplied": lambda x, w: x * w[1] + 0.2,
    "softmax": lambda x, w: ops.softmax(x, axis=-1),
    "running sum": lambda x, w: ops.tanh(ops.cumsum(x, axis=0)),
    "running product": lambda x, w: ops.cumprod(ops.tanh(x), axis=1),
    "columns reversed": lambda x, w: ops.flip(x, axis=1),
    "rows reversed": lambda x, w: ops.flip(x, axis=0),
    "gate": lambda x, w: x * ops.sigmoid(x @ w),
    "concatenation": lambda x, w: ops.concatenate([x[:, 1:], x[:, :1] * 2.0], axis=1),
    "sort": lambda x, w: ops.sort(x, axis=1),
    "columns taken": lambda x, w: ops.take(x, [2, 0, 0], axis=1),
    "where": lambda x, w: ops.where(x > 0.3, x * w[2], ops.cos(x)),
    "norm": lambda x, w: x / ops.sqrt(ops.sum(ops.square(x), axis=1, keepdims=True) + 1.0),
    "prefixes": lambda x, w: ab.associative_scan(lambda a, b: a + b, x * 0.5),
    "suffixes": lambda x, w: ab.associative_scan(lambda a, b: a * b, 1.0 + 0.1 * x, axis=1, reverse=True),
    "padding": lambda x, w: ops.pad(x, [[0, 0], [1, 0]])[:, :WIDTH],
    "rows of a table": lambda x, w: ops.take(w, ops.cast(ops.argmax(x, axis=1), "int32"), axis=0) * x,
}


def _of_row(f: Block) -> Block:
    return lambda row, w: f(row[None], w)[0]


def _repeated(count: Any, f: Block, x: Any, w: Any) -> Any:
    return ab.while_loop(lambda i, _: i < count, lambda i, h: (i + 1, f(h, w)), (0, x))[1]


def _until(f: Block, x: Any, w: Any) -> Any:
    """Repeat until a sum is large, which depends on the data."""

    def body(i: Any, h: Any, total: Any) -> Any:
        return i + 1, f(h, w), total + ops.sum(ops.abs(h)) + 0.3

    return ab.while_loop(lambda i, h, total: ops.logical_and(i < 5, total < 4.0), body, (0, x, 0.0 * ops.sum(x)))[1]


def _two_carried(f: Block, g: Block, x: Any, w: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        return i + 1, f(b, w), g(a, w) + 0.1 * b

    _, a, b = ab.while_loop(lambda i, *_: i < 3, body, (0, x, x * 0.5))
    return a + b


def _two_arrays(f: Block, g: Block, x: Any, w: Any) -> Any:
    rows = ops.shape(x)[0]

    def body(i: Any, a: Any, b: Any, before: Any) -> Any:
        row = _of_row(f)(x[i] + 0.1 * before, w)
        other = _of_row(g)(row, w)
        return i + 1, a.write(i, row), b.write(rows - 1 - i, other), other

    empty = [ab.TensorArray(x.dtype, rows, element_shape=(WIDTH,)) for _ in range(2)]
    _, a, b, _ = ab.while_loop(lambda i, *_: i < rows, body, (0, *empty, w[0] * 0.0))
    return a.stack() + 0.5 * b.stack()


def _read_again(f: Block, x: Any, w: Any) -> Any:
    """Fill an array of which each step reads what the one before has written."""
    rows = ops.shape(x)[0]
    array = ab.TensorArray(x.dtype, rows + 1, element_shape=(WIDTH,), clear_after_read=False).write(0, w[0])

    def body(i: Any, filled: Any) -> Any:
        return i + 1, filled.write(i + 1, _of_row(f)(filled.read(i) + x[i], w))

    return ab.while_loop(lambda i, _: i < rows, body, (0, array))[1].stack()[1:]


def _by_lengths(f: Block, x: Any, w: Any) -> Any:
    """Repeat for each row as many times as its first number says."""
    steps = ops.cast(ops.floor(ops.abs(x[:, :1]) * 2.0), "int32")

    def more(i: Any, _: Any) -> Any:
        return ops.logical_and(i < 4, ops.any(i < steps))

    return ab.while_loop(more, lambda i, h: (i + 1, ops.where(i < steps, f(h, w), h)), (0, x))[1]


def _gradient(f: Block, x: Any, w: Any) -> Any:
    with ab.GradientTape() as tape:
        tape.watch(x)
        y = ops.sum(ops.square(f(x, w)))
    return ops.tanh(tape.gradient(y, x, unconnected_gradients="zero"))


@ab.custom_gradient
def _own(x: Any) -> Any:
    return ops.tanh(x), lambda upstream: upstream * (1.0 - ops.square(ops.tanh(x)))


def _choice(x: Any, count: int) -> Any:
    return ops.cast(ops.sum(ops.abs(x)) * 2.0, "int32") % count


# By name: how many blocks it takes, and the block that is made of them.
NODES: dict[str, tuple[int, Callable[..., Block]]] = {
    "then": (2, lambda f, g: lambda x, w: g(f(x, w), w)),
    "sum": (2, lambda f, g: lambda x, w: f(x, w) + 0.5 * g(x, w)),
    "three times": (1, lambda f: lambda x, w: _repeated(3, f, x, w)),
    "once a row": (1, lambda f: lambda x, w: _repeated(ops.shape(x)[0], f, x, w)),
    "as often as data say": (1, lambda f: lambda x, w: _repeated(_choice(x, 4), f, x, w)),
    "never": (1, lambda f: lambda x, w: _repeated(0 * ops.shape(x)[0], f, x, w)),
    "until": (1, lambda f: lambda x, w: _until(f, x, w)),
    "by lengths": (1, lambda f: lambda x, w: _by_lengths(f, x, w)),
    "two carried": (2, lambda f, g: lambda x, w: _two_carried(f, g, x, w)),
    "two arrays": (2, lambda f, g: lambda x, w: _two_arrays(f, g, x, w)),
    "array read again": (1, lambda f: lambda x, w: _read_again(f, x, w)),
    "fori_loop": (1, lambda f: lambda x, w: ab.fori_loop(0, 3, lambda i, h: f(h, w) * ops.cast(i + 1, h.dtype), x)),
    "cond": (2, lambda f, g: lambda x, w: ab.cond(ops.sum(x) > 0.2, lambda: f(x, w), lambda: g(x, w))),
    "switch": (2, lambda f, g: lambda x, w: ab.switch(_choice(x, 2), [lambda y: f(y, w), lambda y: g(y, w)], x)),
    "case": (
        2,
        lambda f, g: lambda x, w: ab.case([(ops.sum(x) > 1.0, lambda: f(x, w))], default=lambda: g(x, w)),
    ),
    "batched_cond": (
        2,
        lambda f, g: lambda x, w: ab.batched_cond(x[:, 0] > 0, lambda y: f(y, w), lambda y: g(y, w), x),
    ),
    "vectorized_map": (1, lambda f: lambda x, w: ab.vectorized_map(lambda row: _of_row(f)(row, w), x)),
    "vectorized_map over rows of w": (
        1,
        lambda f: lambda x, w: ops.sum(ab.vectorized_map(lambda row: f(x * row[0], w), w), axis=0) * 0.3,
    ),
    "map_fn": (1, lambda f: lambda x, w: ab.map_fn(lambda row: _of_row(f)(row, w), x, reverse=True)),
    "scan": (1, lambda f: lambda x, w: ab.scan(lambda c, row: (_of_row(f)(c + row, w),) * 2, w[0], x)[1]),
    "scan in pairs": (1, lambda f: lambda x, w: ab.scan(lambda c, r: (_of_row(f)(c, w) + r, c), w[0], x, unroll=2)[1]),
    "foldl": (1, lambda f: lambda x, w: x * ab.foldl(lambda c, row: _of_row(f)(c + row, w), x, w[0])),
    "foldr": (1, lambda f: lambda x, w: x + ab.foldr(lambda c, row: _of_row(f)(c * 0.5 + row, w), x, w[2])),
    "remat": (1, lambda f: lambda x, w: ab.remat(lambda y, v: f(y, v))(x, w)),
    "own gradient": (1, lambda f: lambda x, w: f(_own(x), w)),
    "gradient": (1, lambda f: lambda x, w: _gradient(f, x, w)),
    "function": (1, lambda f: lambda x, w: ab.function(lambda y, v: f(y, v))(x, w)),
    "no gradient": (1, lambda f: lambda x, w: x + ops.stop_gradient(f(x, w))),
}


def drawn(rng: np.random.Generator, depth: int) -> Tree:
    """Draw a tree of at most so many levels above its leaves."""
    if depth == 0 or rng.random() < 0.1:
        return (list(LEAVES)[rng.integers(len(LEAVES))],)
    name = list(NODES)[rng.integers(len(NODES))]
    return (name, *[drawn(rng, depth - 1) for _ in range(NODES[name][0])])


def built(tree: Tree) -> Block:
    """Return the block of a tree."""
    name, *inner = tree
    return LEAVES[name] if name in LEAVES else NODES[name][1](*map(built, inner))


def has(tree: Tree, *names: str) -> bool:
    """Test whether a node of one of these names is in a tree."""
    return tree[0] in names or any(has(each, *names) for each in tree[1:])


__all__ = ["LEAVES", "NODES", "WIDTH", "Block", "Tree", "built", "drawn", "has"]
