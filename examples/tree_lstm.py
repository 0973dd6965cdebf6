"""A Tree-LSTM over batches of differently shaped trees: one loop over all nodes, with a `TensorStore` between them.

Each tree is an expression of truth values, such as ((T xor F) and T). The model sees symbols and shapes only, and
learns what an expression is worth from examples. A node's state is made of those of its children (Tai et al., "Improved
Semantic Representations From Tree-Structured Long Short-Term Memory Networks", 2015, the binary Tree-LSTM), which it
reads from the store by their keys, (tree, node): no tree is padded, and no graph is built for a shape of tree.

    python examples/tree_lstm.py --figure tree_lstm.svg
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import anabranch as ab
from anabranch import ops, optim

LEARNT = (1, 8)  # leaves of the trees to learn from
GOAL = 0.95  # accuracy on trees with 9 to 16 leaves
SYMBOLS = ("F", "T", "and", "or", "xor")
_OPERATIONS: dict[int, Callable[[bool, bool], bool]] = {
    2: lambda a, b: a and b,
    3: lambda a, b: a or b,
    4: lambda a, b: a != b,
}


# --- trees ----------------------------------------------------------------------------------------------------------


@dataclass
class Tree:
    """An expression: the number of a symbol and, if that is an operation, two expressions."""

    symbol: int
    children: tuple[Tree, ...] = ()

    @property
    def value(self) -> bool:
        """The value of the expression."""
        if not self.children:
            return bool(self.symbol)
        left, right = self.children
        return _OPERATIONS[self.symbol](left.value, right.value)

    @property
    def height(self) -> int:
        """The length of the longest way down to a leaf."""
        return 1 + max([child.height for child in self.children], default=-1)

    def __str__(self) -> str:
        """The expression as text.

        >>> str(Tree(2, (Tree(4, (Tree(1), Tree(0))), Tree(1))))
        '((T xor F) and T)'
        """
        if not self.children:
            return SYMBOLS[self.symbol]
        return f"({self.children[0]} {SYMBOLS[self.symbol]} {self.children[1]})"


def draw_tree(random: np.random.Generator, leaves: int) -> Tree:
    """A random expression with so many leaves, of any shape."""
    if leaves == 1:
        return Tree(int(random.integers(2)))
    left = int(random.integers(1, leaves))
    return Tree(int(random.integers(2, 5)), (draw_tree(random, left), draw_tree(random, leaves - left)))


def draw_trees(random: np.random.Generator, count: int, leaves: tuple[int, int]) -> list[Tree]:
    """Random expressions with from ``leaves[0]`` to ``leaves[1]`` leaves."""
    return [draw_tree(random, int(random.integers(leaves[0], leaves[1] + 1))) for _ in range(count)]


def nodes_of(tree: Tree) -> Iterable[Tree]:
    """The tree itself, and all below it."""
    yield tree
    for child in tree.children:
        yield from nodes_of(child)


@dataclass
class Batch:
    """The nodes of several trees in one order, in which children come before their parents.

    Attributes:
        keys: [nodes, 2], (tree, number of the node in it; 0 is the root).
        children: [nodes, 2], the numbers of the children, or -1.
        symbols: [nodes].
        values: [nodes], 1 for what is true.
    """

    keys: np.ndarray
    children: np.ndarray
    symbols: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Batch:
        """The batch of these trees: leaves first, then what is made of leaves, and so on.

        >>> batch = Batch.of([Tree(1), Tree(2, (Tree(0), Tree(1)))])
        >>> batch.keys.tolist(), batch.children.tolist()
        ([[0, 0], [1, 1], [1, 2], [1, 0]], [[-1, -1], [-1, -1], [-1, -1], [1, 2]])
        """
        rows: list[tuple[int, list[int]]] = []
        for number, tree in enumerate(trees):
            nodes = list(nodes_of(tree))
            places = {id(node): place for place, node in enumerate(nodes)}
            for place, node in enumerate(nodes):
                below = [places[id(child)] for child in node.children] or [-1, -1]
                rows.append((node.height, [number, place, *below, node.symbol, int(node.value)]))
        rows.sort(key=lambda row: row[0])
        table = np.array([row for _, row in rows], "int32").reshape(-1, 6)
        return cls(table[:, :2], table[:, 2:4], table[:, 4], table[:, 5])


# --- the model ------------------------------------------------------------------------------------------------------


class TreeLSTM:
    """The graph of the model: what is fed, what it gives, and a step of training.

    Args:
        units: the length of a hidden state.
        learning_rate: of Adam.
        scheduled: run each node's cell on whichever device is free, where several are declared.
    """

    def __init__(self, units: int, learning_rate: float, scheduled: bool = False) -> None:
        random, initialiser = np.random.default_rng(0), ab.initializers.GlorotUniform(seed=0)
        bias = np.repeat([0.0, 1.0, 1.0, 0.0, 0.0], units)  # a forget gate for each child; they start open
        start = (random.normal(scale=0.5, size=(len(SYMBOLS), 5 * units)) + bias).astype("float32")
        self.units = units
        self.scheduled = scheduled
        self.from_symbol = ab.Variable(start, name="from_symbol")
        self.from_children = ab.Variable(initialiser((2 * units, 5 * units)), name="from_children")
        self.readout = ab.Variable(initialiser((units, 1)), name="readout")

        self.keys = ab.placeholder((None, 2), "int32", "keys")
        self.children = ab.placeholder((None, 2), "int32", "children")
        self.symbols = ab.placeholder((None,), "int32", "symbols")
        self.values = ab.placeholder((None,), "int32", "values")

        states = self._states()
        logits = ops.dot(states.gather(self.keys)[:, 0], self.readout)[:, 0]
        targets = ops.cast(self.values, "float32")
        self.loss = ops.mean(ops.binary_crossentropy(targets, logits, from_logits=True))
        self.accuracy = self._share_of_roots(ops.equal(logits > 0, targets > 0))
        self.step = optim.Adam(learning_rate).minimize(self.loss, [self.from_symbol, self.from_children, self.readout])

    def _states(self) -> Any:
        """The store with the hidden state and memory, [2, units], of every node."""
        inputs = ops.take(self.from_symbol, self.symbols, axis=0)

        def body(i: Any, store: Any) -> Any:
            key, children = self.keys[i], self.children[i]

            def below() -> Any:
                return ops.stack([store.read((key[0], children[0])), store.read((key[0], children[1]))])

            def nothing() -> Any:
                return ops.zeros((2, 2, self.units))

            given = [inputs[i], ab.cond(children[0] < 0, nothing, below)]
            state = ab.dynamic_schedule(self._cell, given, split=False) if self.scheduled else self._cell(*given)
            return i + 1, store.write(key, state)

        start = ab.TensorStore("float32", (2, self.units), key_shape=2, name="states")
        return ab.while_loop(lambda i, _: i < ops.shape(self.keys)[0], body, (0, start))[1]

    def _cell(self, inputs: Any, below: Any) -> Any:
        """A node's hidden state and memory, from its symbol's part of the gates and its children's, [2, 2, units]."""
        hidden, memory = below[:, 0], below[:, 1]
        gates = ops.reshape(inputs + ops.dot(ops.reshape(hidden, (-1,)), self.from_children), (5, self.units))
        opened = ops.sigmoid(gates[:4])  # input, left forget, right forget, output
        memory = opened[0] * ops.tanh(gates[4]) + ops.sum(opened[1:3] * memory, axis=0)
        return ops.stack([opened[3] * ops.tanh(memory), memory])

    def _share_of_roots(self, right: Any) -> Any:
        is_root = ops.cast(ops.equal(self.keys[:, 1], 0), "float32")
        return ops.sum(is_root * ops.cast(right, "float32")) / ops.sum(is_root)

    def feeds(self, trees: Sequence[Tree]) -> dict[Any, Any]:
        """Return what is fed for a batch of these trees."""
        batch = Batch.of(trees)
        return {
            self.keys: batch.keys,
            self.children: batch.children,
            self.symbols: batch.symbols,
            self.values: batch.values,
        }


def draw_learning(path: str, small: Sequence[float], large: dict[int, float], goal: float) -> None:
    """The accuracy of the roots of each step's trees, and that on larger ones after some of the steps."""
    from drawing import line_chart

    lines = {"1 to 8 leaves, learnt from": (list(range(1, len(small) + 1)), [100 * share for share in small])}
    lines["9 to 16 leaves"] = (list(large), [100 * share for share in large.values()])
    lines["the goal"] = ([1, len(small)], [100 * goal] * 2)
    drawn = line_chart("A Tree-LSTM learns values of expressions", "steps", "roots that are right, %", lines)
    Path(path).write_text(drawn, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> tuple[list[float], float]:
    """Train and test; the losses, and the accuracy on larger trees than those of the training."""
    parser = argparse.ArgumentParser(description="Learn what expressions of truth values are worth.")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=24, help="trees in a step")
    parser.add_argument("--units", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="a few steps of a small model")
    parser.add_argument("--least", type=float, default=GOAL, help="fail if the accuracy is lower")
    parser.add_argument("--figure", help="where to draw the accuracy while it learns, as SVG")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.batch, options.units = 40, 16, 16

    began = time.perf_counter()
    random = np.random.default_rng(0)
    watched = draw_trees(np.random.default_rng(1), 100, (9, 16))
    losses: list[float] = []
    small: list[float] = []
    large: dict[int, float] = {}
    with ab.Graph().as_default():
        model = TreeLSTM(options.units, learning_rate=0.03)
        with ab.Session() as session:
            for step in range(1, options.steps + 1):
                feeds = model.feeds(draw_trees(random, options.batch, LEARNT))
                loss, accuracy, _ = session.run([model.loss, model.accuracy, model.step], feeds)
                losses.append(float(loss))
                small.append(float(accuracy))
                if options.figure and (step == 1 or step % 5 == 0):
                    large[step] = float(session.run(model.accuracy, model.feeds(watched)))
                if step % 20 == 0:
                    print(f"step {step:4}: loss {np.mean(losses[-20:]):.4f}, accuracy of the roots {accuracy:.2f}")
            larger = draw_trees(random, 100, (9, 16))
            accuracy = float(session.run(model.accuracy, model.feeds(larger)))
    heights = [tree.height for tree in larger]
    print(f"\nOne that was not learnt from: {min(larger, key=lambda tree: len(str(tree)))}")
    print(f"Accuracy on 100 larger trees, of heights {min(heights)} to {max(heights)}: {accuracy:.3f}")
    print(f"All of it took {time.perf_counter() - began:.0f} s.")
    if options.figure:
        draw_learning(options.figure, small, large, options.least)
    if accuracy < options.least:
        raise SystemExit(f"The goal, an accuracy of {options.least:.1%}, was missed.")
    return losses, accuracy


if __name__ == "__main__":
    main()
