"""Recurrent layers in ONNX files: what becomes ONNX's operators, and with which lengths of sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from shared.onnx_runs import assert_same, run_file

import anabranch as ab
from anabranch import layers, ops

onnx = pytest.importorskip("onnx")


def op_types_of(graph: Any) -> set[str]:
    """The types of a graph's nodes, and of those inside of loops and branches."""
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return {node.op_type for node in graph.node}.union(*map(op_types_of, inner))


def used(path: Path) -> set[str]:
    """The recurrent operators and loops of a file."""
    return op_types_of(onnx.load(path).graph) & {"LSTM", "GRU", "RNN", "Loop"}


class Doubled(layers.SimpleRNNCell):
    """A cell whose output is not its state."""

    def call(self, x: Any, states: Any, training: Any = None) -> Any:
        output, new = super().call(x, states, training)
        return 2 * output, new


class Inner(layers.LSTMCell):
    """A cell whose output is its second state."""

    def call(self, x: Any, states: Any, training: Any = None) -> Any:
        _, new = super().call(x, states, training)
        return new[1], new


@pytest.mark.parametrize("cell", [Doubled, Inner])
def test_other_outputs_than_the_first_state_are_those_of_a_loop(cell: Any, tmp_path: Path) -> None:
    ab.utils.set_random_seed(1)
    x = ab.Input((None, 3), name="x")
    model = ab.Model(x, layers.RNN(cell(4), return_sequences=True)(x))
    model.export(tmp_path / "m.onnx", "onnx", verbose=False)
    assert used(tmp_path / "m.onnx") == {"Loop"}
    ab.onnx.check(model, tmp_path / "m.onnx", np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32"))


# --- lengths of sequences -------------------------------------------------------------------------------------------

FEATURES, UNITS = 3, 4


def _stacked(x: Any, **options: Any) -> Any:
    return layers.GRU(UNITS)(layers.LSTM(UNITS, return_sequences=True)(x, **options), **options)


def _call(layer: Callable[[], Any]) -> Callable[..., Any]:
    return lambda x, **options: layer()(x, **options)


def _dynamic(x: Any, mask: Any = None, sequence_length: Any = None) -> Any:
    outputs, final = ab.dynamic_rnn(layers.GRUCell(UNITS, bias_initializer="normal"), x, sequence_length)
    return [outputs, *final]


BOTH = {"return_sequences": True, "return_state": True, "bias_initializer": "normal"}
LAST_OR_ZERO = {"zero_output_for_mask": True, "return_state": True, "bias_initializer": "normal"}
CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "lstm": (_call(lambda: layers.LSTM(UNITS)), "LSTM"),
    "lstm, all": (_call(lambda: layers.LSTM(UNITS, **BOTH)), "LSTM"),
    "lstm, backwards": (_call(lambda: layers.LSTM(UNITS, go_backwards=True, **BOTH)), "LSTM"),
    "lstm, zeros": (_call(lambda: layers.LSTM(UNITS, zero_output_for_mask=True, **BOTH)), "LSTM"),
    "lstm, last or zero": (_call(lambda: layers.LSTM(UNITS, zero_output_for_mask=True)), "LSTM"),
    "gru": (_call(lambda: layers.GRU(UNITS)), "GRU"),
    "gru, all": (_call(lambda: layers.GRU(UNITS, **BOTH)), "GRU"),
    "gru, reset before": (_call(lambda: layers.GRU(UNITS, reset_after=False, go_backwards=True, **BOTH)), "GRU"),
    "gru, first or zero": (_call(lambda: layers.GRU(UNITS, go_backwards=True, **LAST_OR_ZERO)), "GRU"),
    "simple": (_call(lambda: layers.SimpleRNN(UNITS, **BOTH)), "RNN"),
    "simple, backwards": (_call(lambda: layers.SimpleRNN(UNITS, "relu", go_backwards=True, **BOTH)), "RNN"),
    "both ways": (_call(lambda: layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True))), "LSTM"),
    "both ways, last": (_call(lambda: layers.Bidirectional(layers.GRU(UNITS, return_state=True))), "GRU"),
    "stacked": (_stacked, "GRU LSTM"),
}
MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "sequence_mask": lambda n, time: ops.sequence_mask(n, time),
    "arange": lambda n, time: ops.arange(time)[None, :] < n[:, None],
    "greater": lambda n, time: ops.reshape(n, (-1, 1)) >= 1 + ops.arange(time),
    "cast": lambda n, time: ops.cast(ops.sequence_mask(n, time, dtype="float32"), "bool"),
    "both": lambda n, time: ops.logical_and(ops.sequence_mask(n, time), ops.arange(time) < 4),
    "broadcast mask": lambda n, time: ops.broadcast_to(ops.sequence_mask(n, time), (ops.shape(n)[0], time)),
    "broadcast lengths": lambda n, time: (
        ops.arange(time) < ops.broadcast_to(ops.expand_dims(n, -1), (ops.shape(n)[0], time))
    ),
    "squeezed": lambda n, time: ops.squeeze(ops.arange(time) < ops.cast(n, "int32")[:, None, None], 1),
    "whole parts": lambda n, time: ops.sequence_mask(n + 2, time + 2)[:, 2:],
    "one of several": lambda n, time: ops.expand_dims(ops.sequence_mask(n, time), 1)[..., 0, ::-1][:, ::-1],
    "chosen": lambda n, time: ops.where(ops.sequence_mask(n, time), 1, 0) > 0,
    "is not 0": lambda n, time: ops.not_equal(ops.cast(ops.sequence_mask(n, time), "int32"), 0),
    "is 0": lambda n, time: ops.equal(0.0, ops.cast(n[:, None] <= ops.arange(time), "float32")),
    "smaller": lambda n, time: ops.arange(time) < ops.minimum(ops.maximum(n, 0), 4)[:, None],
    "not": lambda n, time: ops.logical_not(ops.less_equal(n[:, None], ops.arange(time))),
}
LENGTHS = [
    ((3, 5, FEATURES), [5, 0, 2]),
    ((1, 4, FEATURES), [1]),
    ((2, 3, FEATURES), [0, 0]),
    ((4, 2, FEATURES), [2] * 4),
]
EMPTY = [((0, 3, FEATURES), []), ((2, 0, FEATURES), [0, 0]), ((0, 0, FEATURES), [])]
ALL = [*LENGTHS, *EMPTY]
SOME = [LENGTHS[0], LENGTHS[2], EMPTY[0]]  # each other size is a program to be prepared, twice
EVERY_SIZE = ["lstm, all", "gru, first or zero", "simple, backwards"]  # with these `make test` takes all of them


def _sized(names: Iterable[str]) -> list[ParameterSet]:
    """Return each name with some sizes, and with all of them: of few names in `make test`."""
    each = [pytest.param(name, SOME, id=name) for name in names if name not in EVERY_SIZE]
    marks = {name: [] if name in EVERY_SIZE else [pytest.mark.slow] for name in names}
    return [*each, *[pytest.param(name, ALL, marks=marks[name], id=f"{name}, all sizes") for name in names]]


def _compare(
    call: Callable[..., Any], mask: Callable[[Any, Any], Any] | None, op_types: str, path: Path, opset: int, sizes: Any
) -> None:
    """Export, and compare the file in onnxruntime and the imported file with the graph, for batches of any lengths."""
    ab.utils.set_random_seed(5)
    x, n = ab.placeholder((None, None, FEATURES), "float32", name="x"), ab.placeholder((None,), "int64", name="n")
    time = ops.shape(x)[1]
    found = call(x, sequence_length=n) if mask is None else call(x, mask=mask(n, time))
    outputs = list(found) if isinstance(found, (list, tuple)) else [found]
    names = [f"y_{k}" for k in range(len(outputs))]
    ab.onnx.export_graph(path, {"x": x, "n": n}, dict(zip(names, outputs, strict=True)), opset_version=opset)
    assert used(path) == set(op_types.split())
    assert all(node.input[4] for node in onnx.load(path).graph.node if node.op_type in op_types.split())
    session, imported = ab.Session(), ab.onnx.load(path)
    for shape, lengths in sizes:
        feeds = {
            x: np.random.default_rng(sum(shape)).normal(size=shape).astype("float32"),
            n: np.array(lengths, "int64"),
        }
        wanted = session.run(outputs, feeds)
        named = {"x": feeds[x], "n": feeds[n]}
        again = imported(named)
        again = again if isinstance(again, tuple) else (again,)
        for one, other, third in zip(run_file(path, named), again, wanted, strict=True):
            assert_same(one, third)
            assert_same(other, third)


@pytest.mark.parametrize(("name", "sizes"), _sized(CALLS))
def test_masks_of_lengths(name: str, sizes: Any, tmp_path: Path) -> None:
    """No steps of a row, of all rows, and no rows, too, for which onnxruntime gives zeros or ends the process."""
    call, op_types = CALLS[name]
    _compare(call, MASKS["sequence_mask"], op_types, tmp_path / "m.onnx", 21, sizes)


@pytest.mark.parametrize(("name", "sizes"), _sized([*CALLS, "dynamic_rnn"]))
def test_given_lengths(name: str, sizes: Any, tmp_path: Path) -> None:
    call, op_types = CALLS.get(name, (_dynamic, "GRU"))
    _compare(call, None, op_types, tmp_path / "m.onnx", 21, sizes)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("mask", [None, "arange"])
@pytest.mark.parametrize("sizes", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some sizes", "all sizes"])
def test_lengths_by_opset(mask: str | None, opset: int, sizes: Any, tmp_path: Path) -> None:
    call, op_types = CALLS["both ways"]
    _compare(call, None if mask is None else MASKS[mask], op_types, tmp_path / "m.onnx", opset, sizes)


@pytest.mark.parametrize(("mask", "sizes"), _sized(MASKS))
def test_spellings_of_a_mask(mask: str, sizes: Any, tmp_path: Path) -> None:
    call, op_types = CALLS["lstm, all"]
    _compare(call, MASKS[mask], op_types, tmp_path / "m.onnx", 21, sizes)


OTHER_MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "begins late": lambda n, time: ops.arange(time) >= n[:, None],
    "holes": lambda n, time: ops.logical_and(ops.sequence_mask(n, time), ops.not_equal(ops.arange(time), 1)),
    "of signs": lambda n, time: ops.cast(n[:, None] - 2 - ops.arange(time), "bool"),
    "reversed": lambda n, time: ops.sequence_mask(n, time)[:, ::-1],
    "where not": lambda n, time: ops.where(ops.sequence_mask(n, time), 0, 1) > 0,
    "is 0": lambda n, time: ops.equal(ops.cast(ops.sequence_mask(n, time), "int32"), 0),
    "a number": lambda n, time: ops.not_equal(n[:, None] - ops.arange(time), 2),
    "one of two": lambda n, time: ops.minimum(ops.sequence_mask(n, time), ops.arange(time) >= 1),
    "by step": lambda n, time: ops.arange(time) * ops.arange(time) < n[:, None],
    "backwards": lambda n, time: ops.flip(ops.sequence_mask(n, time), 1),
}


@pytest.mark.parametrize("mask", OTHER_MASKS)
def test_masks_that_are_not_known_to_come_from_lengths_are_those_of_a_loop(mask: str, tmp_path: Path) -> None:
    """Also one that does, but by an operation, a square, that keeps no order in general."""
    x, n = ab.placeholder((None, None, FEATURES), "float32", name="x"), ab.placeholder((None,), "int64", name="n")
    y = layers.LSTM(UNITS)(x, mask=OTHER_MASKS[mask](n, ops.shape(x)[1]))
    path = tmp_path / "m.onnx"
    ab.onnx.export_graph(path, {"x": x, "n": n}, {"y": y})
    assert used(path) == {"Loop"}
    feeds = {x: np.random.default_rng(3).normal(size=(3, 4, FEATURES)).astype("float32"), n: np.array([1, 0, 3])}
    assert_same(run_file(path, {"x": feeds[x], "n": feeds[n]})[0], ab.Session().run(y, feeds))


def test_lengths_and_a_mask_of_lengths(tmp_path: Path) -> None:
    def both(x: Any, sequence_length: Any) -> Any:
        return layers.GRU(UNITS, **BOTH)(
            x, sequence_length=sequence_length, mask=ops.sequence_mask([3], ops.shape(x)[1])
        )

    _compare(both, None, "GRU", tmp_path / "m.onnx", 21, ALL)


def test_lengths_of_known_sizes(tmp_path: Path) -> None:
    """The loop ends with the longest row, whose length is known here."""
    x = ab.placeholder((2, 4, FEATURES), "float32", name="x")
    outputs = layers.LSTM(UNITS, **BOTH)(x, sequence_length=[2, 0])
    path, names = tmp_path / "m.onnx", ["y", "h", "c"]
    ab.onnx.export_graph(path, {"x": x}, dict(zip(names, outputs, strict=True)))
    feed = np.random.default_rng(3).normal(size=(2, 4, FEATURES)).astype("float32")
    for found, wanted in zip(run_file(path, {"x": feed}), ab.Session().run(list(outputs), {x: feed}), strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("of_lengths", [False, True])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_operators_in_a_branch(cell: str, of_lengths: bool, tmp_path: Path) -> None:
    """The rows, the mask and their sizes are those of the graph around the branch."""
    ab.utils.set_random_seed(5)
    x, n = ab.placeholder((None, None, FEATURES), "float32", name="x"), ab.placeholder((None,), "int64", name="n")
    mask = ops.sequence_mask(n, ops.shape(x)[1]) if of_lengths else None
    layer = getattr(layers, cell)(UNITS, return_sequences=True)
    y = ab.cond(ops.sum(n) > 3, lambda: layer(x, mask=mask), lambda: -layer(x))
    path = tmp_path / "m.onnx"
    ab.onnx.export_graph(path, {"x": x, "n": n}, {"y": y})
    assert used(path) == {cell}
    for shape, lengths in [*LENGTHS, *EMPTY]:
        given = {"x": np.random.default_rng(3).normal(size=shape).astype("float32"), "n": np.array(lengths, "int64")}
        wanted = ab.Session().run(y, {x: given["x"], n: given["n"]})
        assert_same(run_file(path, given)[0], wanted)
        assert_same(ab.onnx.load(path)(given), wanted)


def test_operators_in_a_loop(tmp_path: Path) -> None:
    ab.utils.set_random_seed(5)
    x, n = ab.placeholder((None, None, FEATURES), "float32", name="x"), ab.placeholder((None,), "int64", name="n")
    layer, mask = layers.GRU(FEATURES, return_sequences=True), ops.sequence_mask(n, ops.shape(x)[1])
    y = ab.while_loop(lambda k, h: k < 3, lambda k, h: (k + 1, layer(h, mask=mask)), (0, x))[1]
    path = tmp_path / "m.onnx"
    ab.onnx.export_graph(path, {"x": x, "n": n}, {"y": y})
    assert used(path) == {"GRU", "Loop"}
    for shape, lengths in [*LENGTHS, *EMPTY]:
        given = {"x": np.random.default_rng(3).normal(size=shape).astype("float32"), "n": np.array(lengths, "int64")}
        wanted = ab.Session().run(y, {x: given["x"], n: given["n"]})
        assert_same(run_file(path, given)[0], wanted)
        assert_same(ab.onnx.load(path)(given), wanted)
