"""`vectorized_map` and `vectorize`: a function of one example, run for all examples at once."""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..common.nest import flatten, map_structure, pack_as
from ..common.operator_table import operator_functions
from ..graph.graph import Graph, graph_for
from ..graph.region import Region
from ..graph.spec import TensorSpec, broadcast_shapes, shape_text
from ..graph.tensor import Tensor
from ..graph.tracebacks import short_tracebacks
from ..ops.arrays.shaping import DimLike, broadcast_to, dim, expand_dims, reshape
from ..ops.base import convert_to_tensor, runs_now
from ..ops.containers.indexed_slices import dense
from ..ops.math.comparison import equal, where
from .batching import Batch, CannotBatchError, Rules, SizesVaryError, Value, check_effects
from .batching_regions import STRUCTURAL
from .batching_rules import RULES, general
from .region_op import check_takes
from .scan import ONE_ELEMENT, map_fn, map_rows, of_length

_logger = logging.getLogger(__name__)


@short_tracebacks
def vectorized_map(function: Callable[..., Any], elements: Any, fallback_to_while_loop: bool = True) -> Any:
    """Map `function` over the elements of `elements` along the first axis, for all at once, and stack the results.

    Args:
        function: maps one element (a tensor, or the structure of `elements`) to a tensor or a structure of tensors.
        elements: a tensor or a structure of tensors with one common first axis.
        fallback_to_while_loop: loop over operations that can't be batched (with a warning in the log that names
            them), and over the whole function where even that does not do. False makes that an error.

    Returns:
        The results along a new first axis, as of `map_fn`, and with the same gradients.

    Raises:
        ValueError: the lengths differ; or something can't be batched, and `fallback_to_while_loop` is False.

    The function is traced once, for one element; then its operations are rewritten, one by one, for a batch
    (``keras.ops.vectorized_map``, ``tf.vectorized_map``). Loops whose examples stop at different iterations, and
    branches that only some take, are run for the examples concerned. Random numbers differ between the elements.

    >>> import anabranch as ab
    >>> rows = ab.constant([[1.0, 2.0], [3.0, 4.0]])
    >>> ab.vectorized_map(lambda row: ab.ops.sum(row * row), rows)
    Tensor([ 5., 25.], dtype=float32)
    """
    check_takes("vectorized_map: function", function, 1, ONE_ELEMENT)
    if runs_now(map(convert_to_tensor, flatten(elements))):
        given = map_structure(convert_to_tensor, elements)

        def mapped(each: Any) -> Any:
            return vectorized_map(function, each, fallback_to_while_loop)

        return operator_functions["staged"](mapped, given)
    result, looped = batched_map(function, elements)
    if looped and not fallback_to_while_loop:
        raise ValueError(
            "vectorized_map can't batch everything, and fallback_to_while_loop is False:\n" + "\n".join(looped)
        )
    for what in looped:
        _logger.warning("vectorized_map loops over what it can't batch: %s", what)
    return result


def batched_map(function: Callable[..., Any], elements: Any) -> tuple[Any, list[str]]:
    """Compute `vectorized_map`, and return also what had to be looped over."""
    given = [convert_to_tensor(leaf) for leaf in flatten(elements)]
    size = _common_size(given)
    leaves = [of_length(leaf, size) for leaf in given]
    graph = graph_for(given)
    with graph.entered():
        return _batched_map(function, elements, graph, given, leaves, size)


def _batched_map(
    function: Callable[..., Any], elements: Any, graph: Graph, given: list[Tensor], leaves: list[Tensor], size: DimLike
) -> tuple[Any, list[str]]:
    region = Region(graph, "vectorized_map")
    with region.as_default():
        parameters = [region.add_parameter(_element_spec(leaf), "element") for leaf in leaves]
        result = map_structure(convert_to_tensor, dense(function(pack_as(elements, list(parameters)))))
        region.results = [region.capture(leaf) for leaf in flatten(result)]
    rules = Rules(RULES, STRUCTURAL, general)
    batch = Batch(size, rules)
    for parameter, leaf in zip(parameters, leaves, strict=True):
        batch.values[parameter] = Value(leaf, batched=True)
    try:
        check_effects(region)
        found = [batch.batched(value) for value in batch.run(region)]
    except CannotBatchError as error:
        mapped = map_rows if isinstance(error, SizesVaryError) else map_fn  # zeros may be no such values
        return mapped(function, pack_as(elements, given)), [str(error)]
    region.is_built = True  # what was computed in it is part of the program, in another form
    looped = [
        f"{operation.name!r} ({kind}, defined at {operation.location})" for kind, operation in rules.fallbacks.items()
    ]
    return pack_as(result, found), looped


def _common_size(leaves: Sequence[Tensor]) -> DimLike:
    """Return the number of elements: an int where any leaf has a known one."""
    if not leaves:
        raise ValueError("vectorized_map: elements holds no tensors.")
    for leaf in leaves:
        if leaf.shape == ():
            raise ValueError(f"vectorized_map runs over the first axis of elements, but {leaf!r} is a scalar.")
    known = {leaf.shape[0] for leaf in leaves if leaf.shape is not None and leaf.shape[0] is not None}
    if len(known) > 1:
        listed = ", ".join(shape_text(leaf.shape) for leaf in leaves)
        raise ValueError(f"vectorized_map: the elements differ in their first axis: their shapes are {listed}.")
    return known.pop() if known else dim(leaves[0], 0)


def _element_spec(leaf: Tensor) -> TensorSpec:
    return TensorSpec(None if leaf.shape is None else leaf.shape[1:], leaf.dtype)


# --- vectorize ------------------------------------------------------------------------------------------------------

_DIMENSION = r"[A-Za-z_]\w*|\d+"
_ARGUMENT = rf"\(\s*(?:(?:{_DIMENSION})\s*(?:,\s*(?:{_DIMENSION})\s*)*)?,?\s*\)"
_SIGNATURE = re.compile(rf"\s*({_ARGUMENT}(?:\s*,\s*{_ARGUMENT})*)?\s*->\s*({_ARGUMENT}(?:\s*,\s*{_ARGUMENT})*)\s*")


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Iterable[int | str] | None = None, signature: str | None = None
) -> Callable[..., Any]:
    """Return a function over arrays from one over their elements (``keras.ops.vectorize``, ``numpy.vectorize``).

    Args:
        pyfunc: a function of scalar tensors, or of tensors with the axes that `signature` says.
        excluded: positions and names of arguments that are handed over as they are.
        signature: the last axes that each argument and result keeps, as ``"(m,n),(n)->(m)"``.

    Returns:
        A function whose arguments broadcast against each other over all other axes. All elements are computed at
        once (see `vectorized_map`).

    Raises:
        TypeError: `pyfunc` is not a function.
        ValueError: the signature can't be read, or the arguments do not fit it or each other (when called).

    >>> import anabranch as ab
    >>> larger = ab.ops.vectorize(lambda a, b: ab.cond(a > b, lambda: a, lambda: b))
    >>> larger(ab.constant([1.0, 5.0, 3.0]), 2.0)
    Tensor([2., 5., 3.], dtype=float32)
    """
    if not callable(pyfunc):
        raise TypeError(f"vectorize: pyfunc must be a function, got {pyfunc!r}.")
    left_out = set(excluded or ())
    cores = None if signature is None else _parsed(signature)

    @functools.wraps(pyfunc)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        keys: list[int | str] = [*range(len(args)), *kwargs]
        values = dict(zip(keys, [*args, *kwargs.values()], strict=True))
        moving = [key for key in keys if key not in left_out and values[key] is not None]
        tensors = [convert_to_tensor(values[key]) for key in moving]

        def call(elements: Sequence[Tensor]) -> Any:
            given = {**values, **dict(zip(moving, elements, strict=True))}
            return pyfunc(*[given[k] for k in range(len(args))], **{name: given[name] for name in kwargs})

        return _vectorized_call(call, tensors, cores, signature)

    return vectorized


def _parsed(signature: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise ValueError(f"vectorize: the signature {signature!r} is not of the form '(m,n),(n)->(m)'.")
    sides = [re.findall(_ARGUMENT, side or "") for side in match.groups()]
    inputs, outputs = ([tuple(re.findall(_DIMENSION, core)) for core in side] for side in sides)
    return inputs, outputs


def _vectorized_call(
    call: Callable[[Sequence[Tensor]], Any],
    tensors: list[Tensor],
    cores: tuple[list[tuple[str, ...]], list[tuple[str, ...]]] | None,
    signature: str | None,
) -> Any:
    if cores is not None and len(cores[0]) != len(tensors):
        raise ValueError(
            f"vectorize: the signature {signature!r} has {len(cores[0])} arguments, but {len(tensors)} were given."
        )
    inputs = [()] * len(tensors) if cores is None else cores[0]
    loops = [_loop_sizes(tensor, core, signature) for tensor, core in zip(tensors, inputs, strict=True)]
    _check_sizes(tensors, inputs, signature)
    common = _common_loop(tensors, loops)

    def checked(elements: Sequence[Tensor]) -> Any:
        return _checked_outputs(call(elements), cores, signature)

    if not common:
        return checked(tensors)
    spread = [position for position, loop in enumerate(loops) if loop]
    rows = [_as_rows(tensors[k], loops[k], common) for k in spread]

    def one(elements: list[Tensor]) -> Any:
        given = dict(zip(spread, elements, strict=True))
        return checked([given.get(position, tensor) for position, tensor in enumerate(tensors)])

    found = vectorized_map(one, rows)

    def in_place(y: Tensor) -> Tensor:
        return reshape(y, (*common, *[dim(y, axis) for axis in range(1, len(y.shape or ()))]))

    return map_structure(in_place, found)


def _loop_sizes(tensor: Tensor, core: tuple[str, ...], signature: str | None) -> list[DimLike]:
    if tensor.shape is None:
        raise ValueError(f"vectorize needs arguments of known rank; got {tensor!r}.")
    if len(tensor.shape) < len(core):
        raise ValueError(
            f"vectorize: an argument of shape {shape_text(tensor.shape)} has no axes ({','.join(core)}), which the "
            f"signature {signature!r} asks for."
        )
    return [dim(tensor, axis) for axis in range(len(tensor.shape) - len(core))]


def _check_sizes(tensors: list[Tensor], cores: Sequence[tuple[str, ...]], signature: str | None) -> None:
    """Check that axes of one name have one size."""
    sizes: dict[str, int] = {}
    for tensor, core in zip(tensors, cores, strict=True):
        shape = tensor.shape or ()
        for name, size in zip(core, shape[len(shape) - len(core) :], strict=True):
            wanted = int(name) if name.isdigit() else sizes.setdefault(name, size) if size is not None else None
            if None not in (wanted, size) and wanted != size:
                raise ValueError(
                    f"vectorize: axis {name} of the signature {signature!r} has size {wanted} in one place and {size} "
                    f"in an argument of shape {shape_text(tensor.shape)}."
                )


def _common_loop(tensors: list[Tensor], loops: list[list[DimLike]]) -> list[DimLike]:
    """Return the sizes of the axes that are looped over, which all arguments broadcast to."""
    static = [tuple(size if isinstance(size, int) else None for size in loop) for loop in loops]
    try:
        joined = broadcast_shapes(*static) if static else ()
    except ValueError as error:
        listed = ", ".join(shape_text(tensor.shape) for tensor in tensors)
        raise ValueError(f"vectorize: the arguments of shapes {listed} do not broadcast: {error}") from None
    common: list[DimLike] = []
    for back, size in enumerate(reversed(joined or ()), start=1):
        dynamic = [loop[-back] for loop in loops if len(loop) >= back and isinstance(loop[-back], Tensor)]
        common.append(size if size is not None else _largest(dynamic))
    return common[::-1]


def _largest(sizes: list[DimLike]) -> DimLike:
    """Return the size to which unknown ones broadcast: the one that is not 1."""
    found = sizes[0]
    for size in sizes[1:]:
        found = where(equal(found, 1), size, found)
    return found


def _as_rows(tensor: Tensor, loop: list[DimLike], common: list[DimLike]) -> Tensor:
    """Return a tensor with its loop axes broadcast to `common` and made one."""
    core = [dim(tensor, axis) for axis in range(len(loop), len(tensor.shape or ()))]
    missing = len(common) - len(loop)
    whole = expand_dims(tensor, tuple(range(missing))) if missing else tensor
    if len(common) == 1 and loop and _same(loop[0], common[0]):
        return tensor
    return reshape(broadcast_to(whole, (*common, *core)), (math.prod(common), *core))


def _same(first: DimLike, second: DimLike) -> bool:
    return first is second or (isinstance(first, int) and isinstance(second, int) and first == second)


def _checked_outputs(
    result: Any, cores: tuple[list[tuple[str, ...]], list[tuple[str, ...]]] | None, signature: str | None
) -> Any:
    outputs = map_structure(convert_to_tensor, result)
    leaves = flatten(outputs)
    for leaf in leaves:
        if leaf.shape is None:
            raise ValueError(f"vectorize: pyfunc returned {leaf!r}, of an unknown number of axes.")
    if cores is None:
        return outputs
    wanted = cores[1]
    if len(leaves) != len(wanted):
        raise ValueError(
            f"vectorize: the signature {signature!r} has {len(wanted)} results, but pyfunc returned {len(leaves)}."
        )
    for leaf, core in zip(leaves, wanted, strict=True):
        if len(leaf.shape) != len(core):
            raise ValueError(
                f"vectorize: the signature {signature!r} has a result ({','.join(core)}), but pyfunc returned one of "
                f"shape {shape_text(leaf.shape)}."
            )
    return outputs


__all__ = ["batched_map", "vectorize", "vectorized_map"]
