"""Rules for RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....engine import ops
from ....engine.control_flow import TensorArray, while_loop
from ....engine.ops.base import TensorLike
from .node import Node, imports
from .values import shape_of, sizes_of

if TYPE_CHECKING:
    from ....engine.graph import Tensor

_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "sigmoid": lambda x, a, b: ops.sigmoid(x),
    "tanh": lambda x, a, b: ops.tanh(x),
    "relu": lambda x, a, b: ops.relu(x),
    "affine": lambda x, a, b: ops.add(ops.multiply(x, 1.0 if a is None else a), 0.0 if b is None else b),
    "leakyrelu": lambda x, a, b: ops.where(ops.greater_equal(x, 0), x, ops.multiply(x, 0.01 if a is None else a)),
    "thresholdedrelu": lambda x, a, b: ops.where(ops.greater(x, 1.0 if a is None else a), x, ops.zeros_like(x)),
    "scaledtanh": lambda x, a, b: ops.multiply(a, ops.tanh(ops.multiply(b, x))),
    "hardsigmoid": lambda x, a, b: ops.clip(
        ops.add(ops.multiply(x, 0.2 if a is None else a), 0.5 if b is None else b), 0.0, 1.0
    ),
    "elu": lambda x, a, b: ops.elu(x, 1.0 if a is None else a),
    "softsign": lambda x, a, b: ops.softsign(x),
    "softplus": lambda x, a, b: ops.softplus(x),
}
_WITH_ALPHA = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
_WITH_BETA = {"affine", "scaledtanh", "hardsigmoid"}


def _activations(node: Node, defaults: list[str], direction: int) -> list[Callable[[TensorLike], Tensor]]:
    """Return the functions of one direction, with what clips their inputs."""
    names = [str(name).lower() for name in node.get("activations") or defaults * 2]
    alphas, betas = list(node.get("activation_alpha") or []), list(node.get("activation_beta") or [])
    found: list[Callable[[TensorLike], Tensor]] = []
    clip = node.get("clip")
    for name in names:
        alpha = alphas.pop(0) if name in _WITH_ALPHA and alphas else None
        beta = betas.pop(0) if name in _WITH_BETA and betas else None
        found.append(_clipped(_ACTIVATIONS[name], alpha, beta, clip))
    count = len(defaults)
    return found[direction * count : (direction + 1) * count]


def _clipped(
    function: Callable[..., Tensor], alpha: float | None, beta: float | None, clip: float | None
) -> Callable[[TensorLike], Tensor]:
    if not clip:
        return lambda x: function(x, alpha, beta)
    return lambda x: function(ops.clip(x, -clip, clip), alpha, beta)


def _run(
    node: Node, x: Tensor, states: int, gates: int, bias: TensorLike | None, lengths: TensorLike | None,
    initial: list[Tensor | None], step: Callable[[int], Callable[..., list[Tensor]]],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return each direction by itself: all outputs (time, directions, batch, units), and last states."""
    if node.get("layout"):
        x = ops.swapaxes(x, 0, 1)
        initial = [None if each is None else ops.swapaxes(each, 0, 1) for each in initial]
    kind = node.get("direction", "forward")
    count = 2 if kind == "bidirectional" else 1
    outputs: list[Tensor] = []
    lasts: list[list[Tensor]] = []
    for direction in range(count):
        backward = kind == "reverse" or direction == 1
        start = [None if each is None else each[direction] for each in initial]
        rows, last = _one_way(x, start, lengths, backward, step(direction), states, node)
        outputs.append(rows)
        lasts.append(last)
    y = ops.stack(outputs, 1)
    found = [ops.stack([last[k] for last in lasts], 0) for k in range(states)]
    if node.get("layout"):
        y = ops.transpose(y, (2, 0, 1, 3))
        found = [ops.swapaxes(each, 0, 1) for each in found]
    return (y, *found)


def _one_way(
    x: Tensor,
    start: list[Tensor | None],
    lengths: TensorLike | None,
    backward: bool,
    step: Callable[..., list[Tensor]],
    states: int,
    node: Node,
) -> tuple[Tensor, list[Tensor]]:
    time, batch, _ = sizes_of(x)
    units = node.get("hidden_size")
    first = [
        ops.zeros((batch, units), dtype=x.dtype) if each is None else _of_sizes(each, batch, units)
        for each in start[:states]
    ]
    if backward:
        x = _turned(x, lengths)
    rows = TensorArray(x.dtype, time, element_shape=(shape_of(x)[1], units))

    def body(i: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *held, written = rest
        new = step(ops.take(x, i, axis=0), *held)
        output = new[0]
        if lengths is not None:
            live = ops.expand_dims(ops.less(ops.cast(i, "int32"), ops.cast(lengths, "int32")), -1)
            output = ops.where(live, output, ops.zeros_like(output))
            new = [ops.where(live, one, other) for one, other in zip(new, held, strict=True)]
        return (ops.add(i, 1), *new, written.write(i, output))

    final = while_loop(lambda i, *_: ops.less(i, ops.cast(time, "int32")), body, (0, *first, rows))
    y = final[-1].stack()
    if not isinstance(batch, int):  # no steps leave no trace of the number of sequences
        y = ops.reshape(y, (time, batch, units))
    return (_turned(y, lengths) if backward else y), list(final[1:-1])


def _of_sizes(state: Tensor, batch: object, units: int) -> Tensor:
    """Return a first state whose open sizes are those of the sequences and the weights, which ONNX requires.

    They are set one by one: a state of other sizes and as many values then fails, as it does without.
    """
    rows, width = shape_of(state)
    if width is None:
        state = ops.reshape(state, (sizes_of(state)[0], units))
    if rows is None and isinstance(batch, int) and width in (None, units):
        state = ops.reshape(state, (batch, units))
    return state


def _turned(x: TensorLike, lengths: TensorLike | None) -> Tensor:
    """Return each sequence in reverse order, what is behind its end left in place."""
    if lengths is None:
        return ops.flip(x, 0)
    return ops.reverse_sequence(x, ops.cast(lengths, "int32"), seq_axis=0, batch_axis=1)


def _direction(value: Tensor | None, direction: int) -> Tensor | None:
    return None if value is None else value[direction]


@imports("RNN")
def _rnn(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: TensorLike | None = None,
    initial: Tensor | None = None,
) -> tuple[Tensor, ...]:
    units = _units(node, r)

    def make(direction: int) -> Callable[..., list[Tensor]]:
        (f,) = _activations(node, ["Tanh"], direction)
        kernel, recurrent, b = w[direction], r[direction], _direction(bias, direction)

        def step(row: TensorLike, h: TensorLike) -> list[Tensor]:
            total = ops.add(_product(row, kernel), _product(h, recurrent))
            total = total if b is None else ops.add(total, ops.add(b[:units], b[units:]))
            return [f(total)]

        return step

    return _run(node, x, 1, 1, bias, lengths, [initial], make)


def _units(node: Node, r: Tensor) -> int:
    """Return the number of units, which older files leave out."""
    units = int(shape_of(r)[-1] or 0)
    node.attributes.setdefault("hidden_size", units)
    return units


def _product(x: TensorLike, w: TensorLike) -> Tensor:
    return ops.matmul(x, ops.transpose(w))


@imports("GRU")
def _gru(
    node: Node,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None = None,
    lengths: TensorLike | None = None,
    initial: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return gates z, r, h."""
    units = _units(node, r)

    def make(direction: int) -> Callable[..., list[Tensor]]:
        f, g = _activations(node, ["Sigmoid", "Tanh"], direction)
        kernel, recurrent, b = w[direction], r[direction], _direction(bias, direction)
        own = 0.0 if b is None else b[: 3 * units]
        other = ops.zeros((3 * units,), dtype=x.dtype) if b is None else b[3 * units :]

        def step(row: TensorLike, h: TensorLike) -> list[Tensor]:
            a = ops.add(_product(row, kernel), own)
            gates = ops.add(_product(h, recurrent[: 2 * units]), other[: 2 * units])
            z = f(ops.add(a[:, :units], gates[:, :units]))
            reset = f(ops.add(a[:, units : 2 * units], gates[:, units:]))
            if node.get("linear_before_reset"):
                inner = ops.add(_product(h, recurrent[2 * units :]), other[2 * units :])
                candidate = g(ops.add(a[:, 2 * units :], ops.multiply(reset, inner)))
            else:
                inner = _product(ops.multiply(reset, h), recurrent[2 * units :])
                candidate = g(ops.add(ops.add(a[:, 2 * units :], inner), other[2 * units :]))
            return [ops.add(ops.multiply(ops.subtract(1.0, z), candidate), ops.multiply(z, h))]

        return step

    return _run(node, x, 1, 3, bias, lengths, [initial], make)


@imports("LSTM")
def _lstm(
    node: Node, x: Tensor, w: Tensor, r: Tensor, bias: Tensor | None = None, lengths: TensorLike | None = None,
    initial: Tensor | None = None, initial_cell: Tensor | None = None, peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return gates i, o, f, c; peepholes for i, o, f."""
    units = _units(node, r)

    def make(direction: int) -> Callable[..., list[Tensor]]:
        f, g, last = _activations(node, ["Sigmoid", "Tanh", "Tanh"], direction)
        kernel, recurrent, b = w[direction], r[direction], _direction(bias, direction)
        p = _direction(peepholes, direction)

        def step(row: TensorLike, h: TensorLike, c: TensorLike) -> list[Tensor]:
            total = ops.add(_product(row, kernel), _product(h, recurrent))
            total = total if b is None else ops.add(total, ops.add(b[: 4 * units], b[4 * units :]))
            i, o, forget, new = (total[:, k * units : (k + 1) * units] for k in range(4))
            if p is not None:
                i = ops.add(i, ops.multiply(p[:units], c))
                forget = ops.add(forget, ops.multiply(p[2 * units :], c))
            i, forget = f(i), f(forget)
            if node.get("input_forget"):
                forget = ops.subtract(1.0, i)
            cell = ops.add(ops.multiply(forget, c), ops.multiply(i, g(new)))
            if p is not None:
                o = ops.add(o, ops.multiply(p[units : 2 * units], cell))
            return [ops.multiply(f(o), last(cell)), cell]

        return step

    return _run(node, x, 2, 4, bias, lengths, [initial, initial_cell], make)
