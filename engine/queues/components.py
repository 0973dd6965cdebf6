"""The components of a queue's elements: their dtypes, shapes and names, and what fits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.dtypes import DType, as_dtype, is_integer, name_of
from ..common.nest import is_mapping, is_sequence
from ..graph.op import as_scalar_or_array, is_array
from ..graph.spec import Shape, TensorSpec, as_shape, shape_accepts, shape_text, shapes_compatible
from ..graph.state.variable import Variable
from ..graph.tensor import Tensor
from ..ops.base import as_array, convert_to_tensor


class Components:
    """The components of which an element of a queue is made.

    Args:
        owner: the queue as messages name it.
        dtypes: one dtype or several, one a component.
        shapes: one shape or several, one a component; None leaves all open.
        names: a name for each component: elements are dicts then.
        flexible: dimensions may be left open.

    Raises:
        ValueError: the numbers of dtypes, shapes and names differ, or a dimension is open.
    """

    def __init__(self, owner: str, dtypes: Any, shapes: Any = None, names: Any = None, flexible: bool = False) -> None:
        self.owner = owner
        single = not is_sequence(dtypes)
        self.dtypes: tuple[DType, ...] = tuple([as_dtype(dtype) for dtype in ((dtypes,) if single else dtypes)])
        if not self.dtypes:
            raise ValueError(f"{owner}: dtypes is empty; an element has at least one component.")
        self.shapes = None if shapes is None else self._shapes(shapes, single, flexible)
        self.names = None if names is None else self._names((names,) if isinstance(names, str) else names)

    def _shapes(self, shapes: Any, single: bool, flexible: bool) -> tuple[Shape, ...]:
        bare = not is_sequence(shapes) or (single and not any(is_sequence(dim) for dim in shapes))
        found = tuple([as_shape(shape) for shape in ([shapes] if bare else shapes)])
        if len(found) != len(self.dtypes):
            raise ValueError(
                f"{self.owner}: {len(self.dtypes)} dtypes and {len(found)} shapes were given; give one shape for each "
                "component, such as shapes=[(), (3,)]."
            )
        for shape in found:
            if shape is None or (not flexible and None in shape):
                remedy = "give the rank" if flexible else "use PaddingFIFOQueue, or leave out shapes"
                raise ValueError(f"{self.owner}: shape {shape_text(shape)} is not fully known; {remedy}.")
        return found

    def _names(self, names: Sequence[str]) -> tuple[str, ...]:
        if len(names) != len(self.dtypes) or len(set(names)) < len(names):
            raise ValueError(
                f"{self.owner}: names must be {len(self.dtypes)} different strings, one a component; got "
                f"{list(names)!r}."
            )
        return tuple(names)

    # --- structures -----------------------------------------------------------------------------------------

    def flat(self, values: Any) -> list[Any]:
        """Return the value of each component.

        Raises:
            ValueError: there are more or fewer, or other names.
        """
        if self.names is not None:
            return self._by_name(values, self.names)
        if is_mapping(values):
            raise ValueError(f"{self.owner} has no names: give its components as a tuple, not as a dict.")
        found = list(values) if is_sequence(values) else [values]
        if len(found) != len(self.dtypes):
            remedy = " A list or tuple holds one value a component: write [value]." if len(self.dtypes) == 1 else ""
            raise ValueError(
                f"{self.owner} takes {len(self.dtypes)} component{'s' * (len(self.dtypes) > 1)}; got {len(found)} "
                f"values.{remedy}"
            )
        return found

    def _by_name(self, values: Any, names: tuple[str, ...]) -> list[Any]:
        if not is_mapping(values):
            raise ValueError(
                f"{self.owner} has names: give a dict with the keys {list(names)!r}; got {type(values).__name__}."
            )
        if set(values) != set(names):
            raise ValueError(f"{self.owner} takes a dict with the keys {list(names)!r}; got the keys {list(values)!r}.")
        return [values[name] for name in names]

    def packed(self, values: Sequence[Any]) -> Any:
        """Return the components as the caller gets them: one alone, several as a list, by name as a dict."""
        if self.names is not None:
            return dict(zip(self.names, values, strict=True))
        return values[0] if len(values) == 1 else list(values)

    # --- values ---------------------------------------------------------------------------------------------

    def specs(self, *batch: int | None) -> tuple[TensorSpec, ...]:
        """Return what is known of the components, with axes `batch` in front."""
        shapes = self.shapes or (None,) * len(self.dtypes)
        pairs = zip(shapes, self.dtypes, strict=True)
        return tuple([TensorSpec(None if shape is None else (*batch, *shape), dtype) for shape, dtype in pairs])

    def arrays(self, values: Any) -> list[Any]:
        """Return concrete values as arrays of the components' dtypes.

        Raises:
            ValueError, TypeError: they do not fit.
        """
        pairs = enumerate(zip(self.flat(values), self.dtypes, strict=True))
        return [self._array(position, value, dtype) for position, (value, dtype) in pairs]

    def _array(self, position: int, value: Any, dtype: DType) -> Any:
        array = as_array(value)
        if array.dtype == dtype or array.size == 0:
            return as_array(value, dtype)
        if is_integer(array.dtype) and is_integer(dtype):
            self._check_range(position, array, dtype)
        elif "T" in (array.dtype.kind, dtype.kind) or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise self._wrong_dtype(position, array.dtype)
        return as_array(value, dtype)

    def _check_range(self, position: int, array: Any, dtype: DType) -> None:
        limits = np.iinfo(dtype)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(
                    f"{self.owner}: {self._label(position)} is {name_of(dtype)}, which can't hold {value}."
                )

    def tensors(self, values: Any) -> list[Tensor]:
        """Return values, of which some may be symbolic, as tensors of the components' dtypes.

        Raises:
            ValueError, TypeError: they do not fit.
        """
        pairs = enumerate(zip(self.flat(values), self.dtypes, strict=True))
        return [self._tensor(position, value, dtype) for position, (value, dtype) in pairs]

    def _tensor(self, position: int, value: Any, dtype: DType) -> Tensor:
        if not holds_tensors(value):
            return convert_to_tensor(self._array(position, value, dtype))
        tensor = convert_to_tensor(value)
        if tensor.dtype != dtype:
            raise self._wrong_dtype(position, tensor.dtype)
        return tensor

    def _wrong_dtype(self, position: int, dtype: DType) -> TypeError:
        wanted = name_of(self.dtypes[position])
        return TypeError(
            f"{self.owner}: {self._label(position)} is {wanted}; got {name_of(dtype)}. Convert it first, for instance "
            f"with ops.cast(value, '{wanted}')."
        )

    def _label(self, position: int) -> str:
        return f"component {position}" if self.names is None else f"component {self.names[position]!r}"

    def check_specs(self, specs: Sequence[Any], many: bool) -> None:
        """Refuse tensors whose shapes can't fit; with `many` the first axis counts elements.

        Raises:
            ValueError: one does not.
        """
        pairs = enumerate(zip(self.specs(*([None] if many else [])), specs, strict=True))
        for position, (wanted, got) in pairs:
            if many and got.shape == ():
                raise self._no_rows(position)
            if not shapes_compatible(wanted.shape, got.shape):
                raise self._wrong_shape(position, wanted.shape, got.shape)
        if many:
            self._check_counts([spec.shape[0] for spec in specs if spec.shape and spec.shape[0] is not None])

    def element(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return one element: copies of `values`, which must fit.

        Raises:
            ValueError: a shape does not fit.
        """
        for position, (value, wanted) in enumerate(zip(values, self.specs(), strict=True)):
            if not shape_accepts(wanted.shape, tuple(value.shape)):
                raise self._wrong_shape(position, wanted.shape, tuple(value.shape))
        return tuple([value.copy() if is_array(value) else value for value in values])

    def elements(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the elements in `values`, whose first axes count them.

        Raises:
            ValueError: a shape does not fit, or the counts differ.
        """
        for position, (value, wanted) in enumerate(zip(values, self.specs(None), strict=True)):
            if not value.ndim:
                raise self._no_rows(position)
            if not shape_accepts(wanted.shape, tuple(value.shape)):
                raise self._wrong_shape(position, wanted.shape, tuple(value.shape))
        self._check_counts([len(value) for value in values])
        copies = [value.copy() for value in values]
        return [tuple([as_scalar_or_array(copy[row]) for copy in copies]) for row in range(len(copies[0]))]

    def _wrong_shape(self, position: int, wanted: Shape, got: Shape) -> ValueError:
        return ValueError(
            f"{self.owner}: {self._label(position)} has shape {shape_text(wanted)}; got {shape_text(got)}."
        )

    def _no_rows(self, position: int) -> ValueError:
        return ValueError(
            f"{self.owner}: enqueue_many takes elements along axis 0; got a scalar for {self._label(position)}. "
            "enqueue takes a single element."
        )

    def _check_counts(self, counts: Sequence[int]) -> None:
        if len(set(counts)) > 1:
            raise ValueError(f"{self.owner}: enqueue_many got components with different numbers of elements: {counts}.")


def holds_tensors(values: Any) -> bool:
    """Test whether a tensor or a variable is among `values`."""
    if is_mapping(values):
        return any(holds_tensors(value) for value in values.values())
    if is_sequence(values):
        return any(holds_tensors(value) for value in values)
    return isinstance(values, (Tensor, Variable))


def stacked(elements: Sequence[tuple[Any, ...]], specs: Sequence[TensorSpec], pad: bool) -> list[Any]:
    """Return elements as one array a component, with a new first axis.

    Args:
        elements: of one queue.
        specs: of the components, without that axis.
        pad: fill up open dimensions with zeros (False, "") to the largest size.
    """
    columns = list(zip(*elements, strict=True)) or [()] * len(specs)
    return [_stacked(column, spec, pad) for column, spec in zip(columns, specs, strict=True)]


def _stacked(column: Sequence[Any], spec: TensorSpec, pad: bool) -> Any:
    if not column:
        return np.zeros((0, *[dim or 0 for dim in spec.shape or ()]), spec.dtype)
    if not pad or spec.is_static:
        return np.stack([np.asarray(value) for value in column])
    sizes = [max(dims) for dims in zip(*[value.shape for value in column], strict=True)]
    whole = np.zeros((len(column), *sizes), spec.dtype)
    for row, value in enumerate(column):
        whole[row][tuple([slice(dim) for dim in value.shape])] = value
    return whole
