"""`vjp` and `jvp`: derivatives of functions along a direction, backward and forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..common.nest import flatten, flatten_with_path, is_nested, is_sequence, pack_as
from ..graph.graph import graph_for
from ..graph.spec import TensorSpec, shape_text, shapes_compatible
from ..graph.tensor import Tensor
from ..ops.base import apply, convert_to_tensor, runs_now
from ..ops.math.elementwise import Identity
from ..ops.run_time_shapes import zeros_of
from .gradients import gradients
from .tape import Tape


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return the value of a function, and the function that pulls cotangents back to its arguments (as ``jax.vjp``).

    Args:
        fun: a function of tensors, or structures of them, that returns a tensor or a structure.
        *primals: its arguments.
        has_aux: `fun` returns a pair, whose second part is passed on and not differentiated.

    Returns:
        ``(outputs, pullback)``, with `has_aux` ``(outputs, pullback, aux)``. ``pullback(cotangents)`` takes the
        structure of the outputs and returns a tuple with the cotangent of each primal, in its structure: zeros where
        the outputs do not depend on it, None for integers and bools. It may be called many times.

    Raises:
        TypeError: no output is of a floating or complex dtype (when `pullback` is called).
        ValueError: the cotangents do not fit the outputs in number or shape.

    >>> import anabranch as ab
    >>> y, pullback = ab.vjp(lambda a, b: a * b, ab.constant(2.0), ab.constant(5.0))
    >>> [float(v) for v in ab.Session().run(list(pullback(1.0)))]
    [5.0, 2.0]
    """
    inputs, tape = _fresh(primals), Tape(watches_reads=False)
    with tape.watching(inputs):
        outputs, aux = _outputs("vjp", fun(*pack_as(primals, inputs)), has_aux)

    def pullback(cotangents: Any) -> tuple[Any, ...]:
        seeds = _matching("vjp: the cotangents", cotangents, outputs, "outputs")
        with tape.asked():
            found = _cotangents([convert_to_tensor(y) for y in flatten(outputs)], inputs, seeds)
        return pack_as(primals, [_or_zeros(dx, x) for dx, x in zip(found, inputs, strict=True)])

    return (outputs, pullback, aux) if has_aux else (outputs, pullback)


def jvp(fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return the value of a function and its derivative along a direction (``keras.ops.jvp``).

    Args:
        fun: a function of tensors, or structures of them, that returns a tensor or a structure.
        primals: a tuple or list of its arguments.
        tangents: the direction, in the structure and shapes of `primals`. None is a zero, as are the tangents of
            integers and bools, whatever is given for them.
        has_aux: `fun` returns a pair, whose second part is passed on and not differentiated.

    Returns:
        ``(outputs, tangents of the outputs)``, with `has_aux` ``(outputs, tangents, aux)``. The tangents have the
        structure, shapes and dtypes of the outputs; they are zeros where nothing depends on `primals`.

    Raises:
        TypeError: `primals` or `tangents` is not a tuple or list.
        ValueError: they do not fit each other in structure or shape.

    The backward derivative is linear in its cotangents, so its own derivative by them is the forward one, exactly; what
    only the cotangents' values would need is never computed. (Christianson, "Reverse accumulation and accurate rounding
    error estimates for Taylor series coefficients", Optimization Methods and Software 1, 1992.)

    >>> import anabranch as ab
    >>> y, dy = ab.jvp(ab.ops.sin, (ab.constant(0.0),), (ab.constant(2.0),))
    >>> float(ab.Session().run(dy))
    2.0
    """
    for name, value in (("primals", primals), ("tangents", tangents)):
        if not is_sequence(value):
            raise TypeError(f"jvp: {name} must be a tuple or list with one entry for each argument, got {value!r}.")
    inputs = _fresh(primals)
    directions = _matching("jvp: the tangents", tangents, pack_as(primals, inputs), "primals")
    tape = Tape(watches_reads=False)
    with tape.watching(inputs), tape.asked():
        outputs, aux = _outputs("jvp", fun(*pack_as(primals, inputs)), has_aux)
        results = [convert_to_tensor(y) for y in flatten(outputs)]
        pushed = pack_as(outputs, _pushed_forward(results, inputs, directions, tape))
    return (outputs, pushed, aux) if has_aux else (outputs, pushed)


def _pushed_forward(results: list[Tensor], inputs: list[Tensor], directions: list[Any], tape: Tape) -> list[Tensor]:
    """Return the tangents of `results` where `inputs` move along `directions`."""
    # Any cotangents will do, for the sweep is linear in them. They must be tensors that are used for nothing else.
    probes = [apply(Identity(), zeros_of(result)) for result in results]
    for probe in probes:
        tape.watch(probe)
    swept = _cotangents(results, inputs, probes)
    pairs = [
        (dx, direction)
        for dx, direction in zip(swept, directions, strict=True)
        if dx is not None and direction is not None
    ]
    moving = [probe for probe in probes if probe.spec.differentiable]
    found = (
        dict.fromkeys(probes)
        if not pairs
        else dict(
            zip(moving, gradients([dx for dx, _ in pairs], moving, [direction for _, direction in pairs]), strict=True)
        )
    )
    return [_or_zeros(found.get(p), y, integers=True) for p, y in zip(probes, results, strict=True)]


def _cotangents(ys: Sequence[Tensor], xs: Sequence[Tensor], seeds: Sequence[Any]) -> list[Any]:
    """Return the cotangents of `xs`, None where no path leads to them from `ys`."""
    pairs = [(_here(y), seed) for y, seed in zip(ys, seeds, strict=True) if y.spec.differentiable and seed is not None]
    moving = [x for x in xs if x.spec.differentiable]
    if not pairs or not moving:
        return [None] * len(xs)
    found = dict(zip(moving, gradients([y for y, _ in pairs], moving, [seed for _, seed in pairs]), strict=True))
    return [found.get(x) for x in xs]


def _fresh(primals: Any) -> list[Tensor]:
    """Return the leaves as tensors of their own: a value that comes twice is two arguments."""
    return [apply(Identity(), _here(convert_to_tensor(leaf))) for leaf in flatten(primals)]


def _here(tensor: Tensor) -> Tensor:
    """Return a tensor in the graph in which it can be used now; a value outside of graphs stays."""
    return tensor if runs_now([tensor]) else graph_for([tensor]).capture(tensor)


def _outputs(name: str, returned: Any, has_aux: bool) -> tuple[Any, Any]:
    """Split what the function returned into the outputs, with tensors as leaves, and the rest.

    Raises:
        TypeError: `has_aux`, and it returned no pair.
    """
    aux = None
    if has_aux:
        if not is_sequence(returned) or len(returned) != 2:
            raise TypeError(f"{name}: with has_aux=True the function must return a pair (outputs, aux).")
        returned, aux = returned
    return pack_as(returned, [convert_to_tensor(leaf) for leaf in flatten(returned)]), aux


def _matching(what: str, given: Any, wanted: Any, name: str) -> list[Any]:
    """Return the leaves of `given` as tensors like those of `wanted`; None for a None, and where nothing can flow.

    Raises:
        ValueError: they differ in structure or shape.
    """
    found: list[Any] = []
    for path, leaf, like in _paired(what, given, wanted, name, ""):
        tensor = None if leaf is None or not like.spec.differentiable else convert_to_tensor(leaf, like.dtype)
        if tensor is not None and isinstance(like.spec, TensorSpec) and not shapes_compatible(tensor.shape, like.shape):
            raise ValueError(
                f"{what} must have the shapes of the {name}, but {path or 'one'} has shape {shape_text(tensor.shape)} "
                f"instead of {shape_text(like.shape)}."
            )
        found.append(tensor)
    return found


def _paired(what: str, given: Any, wanted: Any, name: str, path: str) -> list[tuple[str, Any, Any]]:
    """Pair each leaf of `wanted` with the one in its place in `given`; a None stands for all that is below it."""
    if given is None:
        return [(path + below, None, like) for below, like in flatten_with_path(wanted)]
    if not is_nested(wanted):
        return [] if wanted is None else [(path, given, wanted)]
    keys, items = _items(wanted)
    if not is_nested(given) or _items(given)[0] != keys:
        raise ValueError(f"{what} must have the structure of the {name}; they differ at {path or 'the top'}.")
    return [
        found
        for key, part, like in zip(keys, _items(given)[1], items, strict=True)
        for found in _paired(what, part, like, name, f"{path}[{key!r}]")
    ]


def _items(structure: Any) -> tuple[list[Any], list[Any]]:
    """Return the keys or positions of one level of a structure in the order of `flatten`, and what stands there."""
    if is_sequence(structure):
        return list(range(len(structure))), list(structure)
    keys = sorted(structure)
    return keys, [structure[key] for key in keys]


def _or_zeros(value: Any, like: Tensor, integers: bool = False) -> Any:
    if value is not None:
        return value
    return zeros_of(like) if like.spec.differentiable or integers else None


__all__ = ["jvp", "vjp"]
