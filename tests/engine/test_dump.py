"""`Graph.dump`: typed text that a person reads, compared with golden files.

After a change that is meant to change them: ``ANABRANCH_WRITE_GOLDEN=1 pytest tests/engine/test_dump.py``, and read the
difference.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops
from anabranch.engine.graph import Graph, registered_ops
from anabranch.engine.graph.tensor import symbol_of

FOLDER = Path(__file__).parent / "dumps"


def straight_line() -> Any:
    x = ab.placeholder((None, 3), "float32", "x")
    w = ab.Variable(np.eye(3, 2, dtype="float32"), name="w")
    y = ops.relu(x @ w + ops.convert_to_tensor([0.5, 1.5]))
    values, positions = ops.top_k(y, 1)
    with ab.device("cpu:0"), ab.name_scope("scope"):
        total = ops.sum(values, axis=1, keepdims=True)
    ops.mean(ops.convert_to_tensor(np.arange(20.0, dtype="float32")))
    with ab.control_dependencies([w.assign_sub(ops.ones((3, 2)))]):
        ops.add(ops.cast(positions, "float32"), total)


def loop() -> Any:
    n = ab.placeholder((), "int32", "n")
    x = ab.placeholder((4,), "float32", "x")
    w = ab.Variable(np.ones(4, "float32"), name="w")
    _, y = ab.while_loop(
        lambda i, h: i < n, lambda i, h: (i + 1, ops.tanh(h * w)), (0, x), name="rnn", parallel_iterations=4
    )
    return ab.gradients(y, [w])


def nested() -> Any:
    n = ab.placeholder((), "int32", "n")
    x = ab.placeholder((), "float32", "x")

    def body(i: Any, state: Any) -> Any:
        doubled = ab.cond(state["value"] > 0, lambda: state["value"] * 2, lambda: x)
        _, value = ab.while_loop(lambda j, _: j < i, lambda j, v: (j + 1, v + x), (0, doubled), name="inner")
        return i + 1, {"value": value, "trace": state["trace"].write(i, value)}

    trace = ab.TensorArray("float32", size=n)
    _, state = ab.while_loop(lambda i, _: i < n, body, (0, {"value": x, "trace": trace}), name="outer")
    return state["trace"].stack()


def effects() -> Any:
    flag = ab.placeholder((), "bool", "flag")
    v = ab.Variable(0.0, name="v")
    ab.cond(flag, lambda: v.assign_add(1.0), lambda: v.value)
    return v.value


CASES: dict[str, Callable[[], Any]] = {f.__name__: f for f in (straight_line, loop, nested, effects)}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str):
    with Graph().as_default() as graph:
        CASES[name]()
    path = FOLDER / f"{name}.txt"
    if os.environ.get("ANABRANCH_WRITE_GOLDEN"):
        path.write_text(graph.dump())
    assert graph.dump() == path.read_text()


def test_only_what_is_asked_for():
    with Graph().as_default() as graph:
        x = ab.placeholder((), "float32", "x")
        y = ops.sin(x)
        ops.cos(x)
        v = ab.Variable(1.0, name="v")
        with ab.control_dependencies([ops.exp(x)]):
            z: Any = ops.tan(x)
    assert graph.dump(y) == "x: float32[] = placeholder()\nsin: float32[] = sin(x)\n"
    assert "exp" in graph.dump([z])
    assert "cos" not in graph.dump({"a": y, "b": [symbol_of(z).operation]})
    assert graph.dump(v) == "v/read: float32[] = read_variable[variable=v]()\n"


def test_locations_on_demand():
    with Graph().as_default() as graph:
        ab.placeholder((), "float32", "x")
    assert "#" not in graph.dump()
    assert f"# {__file__}:" in graph.dump(locations=True)


def test_empty_graph():
    assert Graph().dump() == ""


def test_generators_are_printed_without_their_state():
    with Graph().as_default() as graph:
        dice = ab.random.SeedGenerator(5, name="dice")
        ab.random.uniform((3,), seed=dice)
    before = graph.dump()
    assert "take_key[generator=dice]" in before
    dice.next()
    assert graph.dump() == before


def test_fetches_of_other_graphs():
    with Graph().as_default():
        x = ab.placeholder((), "float32", "x")
    with pytest.raises(ValueError, match="dump: <Tensor x:0 float32\\[\\]> is no tensor or operation of this graph"):
        Graph().dump(x)


def test_every_kind_of_op_can_be_printed():
    for name, cls in registered_ops().items():
        is_ours = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls  # other tests make ops, too
        for sample in cls.samples() if is_ours and cls.__module__.startswith("anabranch.") else ():
            with Graph().as_default() as graph:
                node = graph.add(sample.op, [ops.convert_to_tensor(x) for x in sample.inputs])
            assert name in graph.dump(node) or name == "constant"
