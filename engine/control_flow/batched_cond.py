"""Branches by row: each row of a batch takes its own branch, and each branch computes the rows that need it, no others.

The rows are parted by their choice, each branch runs on its part, and the results are stitched together again in the
rows' order. A branch that no row takes does not run. (JAX's `vmap` of a `cond` computes both branches for all rows.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..common.nest import flatten, flatten_with_path, pack_as
from ..common.operator_table import operator_functions
from ..graph.spec import TensorSpec, shape_text
from ..graph.tensor import Tensor
from ..ops.arrays.creation import arange, zeros
from ..ops.arrays.partitioning import dynamic_partition, dynamic_stitch
from ..ops.arrays.shaping import shape
from ..ops.base import apply, cast, convert_to_tensor, runs_now
from ..ops.math.comparison import logical_not
from .cond import cond
from .region_op import as_component
from .scan import OfLength


def batched_cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any, name: str | None = None
) -> Any:
    """Call ``true_fn(*operands)`` for rows where `pred` holds, else ``false_fn(*operands)``; only rows needed run.

    Args:
        pred: bools ``(batch,)``.
        true_fn, false_fn: functions of the operands' rows: each gets, of every operand, the rows that take its branch,
            ``(count, ...)``, and returns as many rows. Their results have one structure, and one dtype and one shape
            behind the first axis for each leaf. Other tensors may be used as anywhere; they are not split.
        *operands: tensors ``(batch, ...)``, or structures of them.
        name: a name for the operations.

    Returns:
        The results of all rows in order, ``(batch, ...)``, in the structure that the branches return.

    Raises:
        TypeError: `pred` holds no bools, or the branches differ in structure or dtype.
        ValueError: `pred` has another rank than 1, the first axes differ, or there is no operand. At run time: a branch
            returns another number of rows than it was given.

    A branch that no row takes does not run, effects included (unless the shape of its result's rows is not known
    before). Everything has gradients of any order; rows get their cotangents from the branch that they took.

    >>> import anabranch as ab
    >>> x = ab.constant([1.0, -2.0, 3.0])
    >>> ab.batched_cond(x > 0, lambda v: v * 10, lambda v: -v, x)
    Tensor([10.,  2., 30.], dtype=float32)
    """
    choice = convert_to_tensor(pred)
    if choice.dtype.kind != "b":
        raise TypeError(f"batched_cond: pred must hold bools, got {choice.spec}. Compare it with something.")
    index = cast(logical_not(choice), "int32")
    return _by_row("batched_cond", index, [("true_fn", true_fn), ("false_fn", false_fn)], operands, name)


def batched_switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, name: str | None = None) -> Any:
    """Call ``branches[index](*operands)`` row by row; see `batched_cond`.

    Args:
        index: integers ``(batch,)``. At run time, ValueError: one of them names no branch.
        branches: functions of the operands' rows.
        *operands: tensors ``(batch, ...)``, or structures of them.

    >>> import anabranch as ab
    >>> x = ab.constant([1.0, 2.0, 3.0])
    >>> ab.batched_switch([2, 0, 2], [lambda v: v, lambda v: v * 0, lambda v: -v], x)
    Tensor([-1.,  2., -3.], dtype=float32)
    """
    choice = convert_to_tensor(index)
    if choice.dtype.kind not in "iu":
        raise TypeError(f"batched_switch: index must hold integers, got {choice.spec}.")
    if not branches:
        raise ValueError("batched_switch needs at least one branch.")
    named = [(f"branches[{k}]", branch) for k, branch in enumerate(branches)]
    return _by_row("batched_switch", cast(choice, "int32"), named, operands, name)


def _by_row(
    what: str,
    index: Tensor,
    branches: Sequence[tuple[str, Callable[..., Any]]],
    operands: tuple[Any, ...],
    name: str | None,
) -> Any:
    leaves = [convert_to_tensor(leaf) for leaf in flatten(operands)]
    if runs_now([index, *leaves]):
        given = pack_as(operands, leaves)

        def by_row(index: Any, given: Any) -> Any:
            return _by_row(what, index, branches, given, name)

        return operator_functions["staged"](by_row, index, given)
    _check_rows(what, index, leaves)
    count = len(branches)
    parted = [dynamic_partition(leaf, index, count) for leaf in leaves]
    places = dynamic_partition(arange(shape(index)[0], dtype="int32"), index, count)
    results: list[list[Tensor]] = []
    structure: Any = None
    for number, (label, function) in enumerate(branches):
        rows = pack_as(operands, [parts[number] for parts in parted])
        part = _Part(what, label, places[number], lambda f=function, r=rows: f(*r))
        results.append(part.run(name))
        _check_structure(what, branches[0][0], structure, label, part.structure)
        structure = part.structure if number == 0 else structure
    _check_dtypes(what, structure, [label for label, _ in branches], results)
    stitched = [dynamic_stitch(places, list(column)) for column in zip(*results, strict=True)]
    return pack_as(structure, stitched)


class _Part:
    """The rows that take one branch.

    Attributes:
        structure: what the branch returns, once it has been run.
    """

    def __init__(self, what: str, label: str, places: Tensor, function: Callable[[], Any]) -> None:
        self.what = what
        self.label = label
        self.places = places
        self.function = function
        self.structure: Any = None
        self.specs: list[TensorSpec] = []

    def run(self, name: str | None) -> list[Tensor]:
        """Return the flat results of these rows; where there are none, empty ones, without running the branch."""
        # A tensor, also where the number of rows is known: a branch without rows is built, as it says what it returns.
        has_rows = convert_to_tensor(shape(self.places)[0] > 0)
        return cond(has_rows, self._results, self._no_results, name or self.what)

    def _results(self) -> list[Tensor]:
        self.structure = self.function()
        found = [as_component(leaf) for leaf in flatten(self.structure)]
        for (path, _), tensor in zip(flatten_with_path(self.structure), found, strict=True):
            if tensor.shape == () or not isinstance(tensor.spec, TensorSpec):
                raise ValueError(
                    f"{self.what}: {self.label} must return a row for each row that it gets, but result{path} is "
                    f"{tensor.spec}."
                )
            self.specs.append(tensor.spec)
        rule = OfLength(
            f"{self.what}: {self.label} was given {{length}} rows and must return as many; a result has shape "
            "{shape}."
        )
        return [apply(rule, tensor, convert_to_tensor(shape(self.places)[0])) for tensor in found]

    def _no_results(self) -> list[Tensor]:
        if any(spec.shape is None or None in spec.shape[1:] for spec in self.specs):
            return self._results()  # only the branch itself gives the dtype and shape of an empty result
        return [zeros((0, *(spec.shape or (0,))[1:]), spec.dtype) for spec in self.specs]


def _check_rows(what: str, index: Tensor, leaves: Sequence[Tensor]) -> None:
    if index.shape is not None and len(index.shape) != 1:
        raise ValueError(
            f"{what}: the choice must have one axis, an entry for each row; got shape {shape_text(index.shape)}. "
            "For one choice for all rows use ab.cond or ab.switch."
        )
    if not leaves:
        raise ValueError(f"{what} needs operands: tensors whose rows the branches get, behind the branches.")
    sizes = {t.shape[0] for t in (index, *leaves) if t.shape and t.shape[0] is not None}
    if len(sizes) > 1 or any(leaf.shape == () for leaf in leaves):
        listed = ", ".join(str(leaf.spec) for leaf in leaves)
        raise ValueError(f"{what}: the first axes must be equal; the choice is {index.spec}, the operands {listed}.")


def _check_structure(what: str, first: str, want: Any, label: str, have: Any) -> None:
    if want is None:
        return
    expected = [path for path, _ in flatten_with_path(want)]
    found = [path for path, _ in flatten_with_path(have)]
    differences = [f"  {first} returns {p or 'a value'}, {label} does not." for p in expected if p not in found]
    differences += [f"  {label} returns {p or 'a value'}, {first} does not." for p in found if p not in expected]
    if differences:
        raise TypeError("\n".join([f"{what}: the branches must return the same structure.", *differences]))


def _check_dtypes(what: str, structure: Any, labels: Sequence[str], results: Sequence[Sequence[Tensor]]) -> None:
    differences: list[str] = []
    for (path, _), column in zip(flatten_with_path(structure), zip(*results, strict=True), strict=True):
        if len({tensor.dtype for tensor in column}) > 1:
            listed = ", ".join(f"{label} {tensor.spec}" for label, tensor in zip(labels, column, strict=True))
            differences.append(f"  result{path}: {listed}; cast one with ops.cast.")
    if differences:
        raise TypeError("\n".join([f"{what}: the branches must return the same dtypes.", *differences]))
