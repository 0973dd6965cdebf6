"""`reference_evaluator`: onnx's reference implementation, with the operators mended in which it differs from ONNX.

onnx 1.23.2 computes these otherwise than its own specification says (https://onnx.ai/onnx/operators/):

- `Loop` without a condition makes no trips: it tests the input that was left out. Scan outputs of scalars and matrices
  are joined by `numpy.vstack`, which makes an axis too many or too few: of three matrices (2, 4) it makes (6, 4) in
  place of (3, 2, 4). After no trips it fails. ::

      Loop(3, "", body=(i, go) -> (go, x)), x of shape (2, 4)      # an empty scan output

- `SequenceInsert` at the position behind the last element puts the element first: it takes the position modulo the
  length. At position 0 of an empty sequence it divides by zero. ::

      SequenceInsert([a, b], c, 2)      # [c, a, b]

- `Flatten` of a tensor without elements fails: it leaves a size to `numpy.reshape`, which can't infer it. ::

      Flatten(x, axis=-1), x of shape (4, 0, 3)

- `LSTM`, `GRU` and `RNN` leave out `sequence_lens`: all sequences are as long as the longest. ::

      LSTM(x, w, r, "", [2, 0]), x of shape (3, 2, 4)      # the second sequence has no steps

- `LSTM` and `RNN` of no steps, `RNN` with `Relu`, and `ConvTranspose` of no samples fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .protos import load_onnx

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    from ..structures import Array


def reference_evaluator(model: str | ModelProto) -> ReferenceEvaluator:
    """Return the reference implementation of a model, which computes as ONNX's specification says.

    Args:
        model: a path or a ModelProto.
    """
    load_onnx()  # says how to install it
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model, new_ops=_mended_ops())


def _mended_ops() -> list[type[OpRun]]:
    """Return the classes of operators that replace those of the package."""
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_conv_transpose, op_loop

    class Loop(op_loop.Loop):
        def _run(
            self,
            M: Array | None,
            cond: Array | None,
            *carried: Array,
            context: Mapping[str, object] | None = None,
            body: object = None,
            attributes: object = None,
            bindings: object = None,
        ) -> tuple[Array, ...]:
            op: Any = self  # attributes of the node are set by its name
            names = list(op.body.input_names)
            states: list[Array] = list(carried)
            go_on: Array = np.array(True) if cond is None else cond
            infos = list(op.body.proto_.output)[1 + len(states) :]
            rows: list[list[Array]] = [[] for _ in infos]
            passed = {"attributes": attributes} | ({} if bindings is None else {"bindings": bindings})  # from 1.23 on
            trip = 0
            while go_on and (M is None or trip < M):
                values: list[Array] = [np.array(trip, "int64"), np.asarray(go_on), *states]
                own = dict(zip(names, values, strict=True))
                given = {**(context or {}), **own}
                go_on, *results = op._run_body(given, **passed)
                states = results[: len(states)]
                for row, value in zip(rows, results[len(states) :], strict=True):
                    row.append(value)
                trip += 1
            return (*states, *[_stacked(row, info) for row, info in zip(rows, infos, strict=True)])

    class SequenceInsert(OpRun):
        def _run(self, sequence: Sequence[Array], tensor: Array, position: Array | None = None) -> tuple[list[Array]]:
            place = len(sequence) if position is None else int(np.reshape(position, ()))
            place = place + len(sequence) if place < 0 else place
            return ([*sequence[:place], tensor, *sequence[place:]],)

    class Flatten(OpRun):
        def _run(self, x: Array, axis: int = 1) -> tuple[Array]:
            place = axis + x.ndim if axis < 0 else axis
            return (x.reshape(math.prod(x.shape[:place]), math.prod(x.shape[place:])),)

    class ConvTranspose(op_conv_transpose.ConvTranspose):
        def _run(self, x: Array, *inputs: Array | None, **attributes: object) -> tuple[Array]:
            if len(x):
                return super()._run(x, *inputs, **attributes)
            (one,) = super()._run(np.zeros_like(x, shape=(1, *x.shape[1:])), *inputs, **attributes)
            return (one[:0],)

    return [Loop, SequenceInsert, Flatten, ConvTranspose, *_mended_networks()]


def _mended_networks() -> list[type[OpRun]]:
    """Return the classes of recurrent operators."""
    from onnx.reference.ops import op_gru, op_lstm, op_rnn

    class LSTM(op_lstm.LSTM):
        def _run(self, *inputs: Array | None, **attributes: object) -> tuple[Array, ...]:
            return _by_lengths(super()._run, inputs, attributes)

    class GRU(op_gru.GRU):
        def _run(self, *inputs: Array | None, **attributes: object) -> tuple[Array, ...]:
            return _by_lengths(super()._run, inputs, attributes)

    class RNN(op_rnn.RNN_14):
        def choose_act(self, name: str, alpha: float | None, beta: float | None) -> Callable[[Array], Array]:
            return _relu if name == "Relu" else super().choose_act(name, alpha, beta)

        def _run(self, *inputs: Array | None, **attributes: object) -> tuple[Array, ...]:
            return _by_lengths(super()._run, inputs, attributes)

    return [LSTM, GRU, RNN]


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _by_lengths(
    run: Callable[..., tuple[Array, ...]], inputs: Sequence[Array | None], attributes: Mapping[str, object]
) -> tuple[Array, ...]:
    """Return the outputs of a recurrent operator: each sequence by itself, of as many steps as it has.

    Behind their ends outputs are 0, and so are the last states of sequences without steps, as in onnxruntime.
    """
    lengths = inputs[4] if len(inputs) > 4 else None
    time, batch = (1, 0) if attributes.get("layout") else (0, 1)  # of sequences, the latter also of states
    x = inputs[0]
    assert x is not None
    if not x.shape[time]:
        sizes = [*x.shape]
        sizes[time] = 1
        y, *last = run(np.zeros_like(x, shape=sizes), *inputs[1:4], None, *inputs[5:], **attributes)
        return y.take(range(0), axis=time), *[np.zeros_like(each) for each in last]
    if lengths is None or not lengths.size:
        return run(*inputs, **attributes)
    columns: list[tuple[Array, ...]] = []
    for row, length in enumerate(lengths):
        steps = np.take(x, [row], axis=batch).take(range(length), axis=time)
        steps = steps if length else np.zeros_like(x, shape=[1, 1, x.shape[2]])
        states = [None if state is None else np.take(state, [row], axis=batch) for state in inputs[5:7]]
        y, *last = run(steps, *inputs[1:4], None, *states, *inputs[7:], **attributes)
        missing = [(0, 0)] * 4
        missing[time] = (0, x.shape[time] - length)
        y = np.pad(y.take(range(length), axis=time), missing)
        columns.append((y, *[each if length else np.zeros_like(each) for each in last]))
    axes = [0 if batch == 0 else 2, *[batch] * 2]  # of the sequences among outputs, and among states
    return tuple(np.concatenate(parts, axis) for parts, axis in zip(zip(*columns, strict=True), axes, strict=False))


def _stacked(rows: list[Array], info: ValueInfoProto) -> Array:
    """Return a scan output; after no trips sizes that are not declared are 0, as in onnxruntime."""
    if rows:
        return np.stack(rows)
    kind = info.type.tensor_type
    dtype = load_onnx().helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return np.zeros((0, *[dim.dim_value if dim.HasField("dim_value") else 0 for dim in kind.shape.dim]), dtype)
