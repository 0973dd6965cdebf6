"""`Value`: a tensor that holds its numbers, which is what ops give outside of graphs."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..common.dtypes import name_of
from ..common.names_elsewhere import VALUES
from ..common.nest import is_mapping, is_sequence
from ..common.operator_table import operator_functions
from .element_count import ElementCount
from .spec import Shape, Spec, TensorSpec
from .tensor import Operators, Tensor
from .tracebacks import shorten


class Value(Tensor, elsewhere=VALUES):
    """A tensor that is computed. Its numbers never change: what seems to change it (``x += 1``) makes another one.

    Attributes:
        array: the numbers: a NumPy array, or a NumPy scalar where the rank is 0 (strings stay arrays). Nothing writes
            into it; what is handed out is a read-only view or a copy.
        of_weights: whether it was computed from trainable variables, so that its gradient would be lost in a graph.
    """

    __slots__ = ("__weakref__", "_annotations", "array", "of_weights")

    def __init__(self, array: Any, of_weights: bool = False) -> None:
        self.array = array
        self.of_weights = of_weights
        self._annotations: dict[str, Any] | None = None

    @property
    def spec(self) -> Spec:
        return TensorSpec(self.array.shape, self.array.dtype)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def shape(self) -> Shape:
        """The shape, as a tuple of ints."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return ElementCount(self.array.size)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return int(self.array.nbytes)

    @property
    def itemsize(self) -> int:
        """The number of bytes of one element."""
        return int(self.array.dtype.itemsize)

    @property
    def device(self) -> str:
        return "/device:CPU:0"

    @property
    def annotations(self) -> dict[str, Any]:
        if self._annotations is None:
            self._annotations = {}
        return self._annotations

    # --- NumPy ----------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy or (dtype is not None and dtype != self.array.dtype):
            if copy is False:
                raise ValueError(f"A {self.array.dtype} tensor can't become an array of {dtype} without a copy.")
            return np.array(self.array, dtype=dtype)
        view = np.asarray(self.array).view()
        view.setflags(write=False)
        return view

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        try:
            found = operator_functions["ufunc"](ufunc, method, inputs, options)
        except Exception as error:
            shorten(error)
            raise
        if found is not NotImplemented:
            return found
        if any(isinstance(out, Tensor) for out in options.get("out", ())):
            raise TypeError(f"np.{ufunc.__name__}(out=...) can't write into a tensor: tensors do not change.")
        arrays = [np.asarray(item) if isinstance(item, Value) else item for item in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*_as_arrays(args), **_as_arrays(kwargs))

    def numpy(self) -> Any:
        """Return a copy of the value as a NumPy array; where the rank is 0 as a NumPy scalar, of a string as a `str`.

        >>> import anabranch as ab
        >>> ab.ops.add([1, 2], 3).numpy()
        array([4, 5], dtype=int32)
        >>> ab.constant("word").numpy()
        'word'
        """
        return _copied(self.array)

    def item(self, *index: Any) -> Any:
        """Return the value, of which there is one element (or the one at an index), as a Python number."""
        return self.array.item(*index) if index else self._single("a Python number")

    def eval(self, feed_dict: Any = None) -> Any:
        """Return the value as a NumPy array, as of a symbol that a session runs."""
        return _copied(self.array)

    def tolist(self) -> Any:
        """Return the value as nested lists of Python numbers, or as a number."""
        return self.array.tolist()

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self.array).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return np.empty(0).__dlpack_device__()

    # --- Python ---------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        if self.array.size == 1:
            return bool(self.array)
        raise ValueError(
            f"A tensor of shape {list(self.array.shape)} has no one truth value: use ops.any(x) or ops.all(x)."
        )

    def __float__(self) -> float:
        return float(self._single("a float"))

    def __int__(self) -> int:
        return int(self._single("an int"))

    def __complex__(self) -> complex:
        return complex(self._single("a complex number"))

    def __index__(self) -> int:
        return operator.index(self.array)

    def _single(self, wanted: str) -> Any:
        if self.array.size != 1:
            raise TypeError(f"A tensor of shape {list(self.array.shape)} can't become {wanted}: expected one element.")
        return self.array.item()

    def __len__(self) -> int:
        if not self.array.ndim:
            raise TypeError("A tensor of rank 0 has no len().")
        return len(self.array)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.array.ndim:
            raise TypeError("A tensor of rank 0 can't be iterated over.")
        return (self[position] for position in range(len(self.array)))

    def __contains__(self, item: object) -> bool:
        return bool(operator_functions["any"](self == item))

    def __format__(self, format_spec: str) -> str:
        return format(self.item() if not self.array.ndim else str(self), format_spec)

    def __str__(self) -> str:
        return str(self.array)

    def __repr__(self) -> str:
        text = np.array2string(np.asarray(self.array), separator=", ", prefix="Tensor(")
        shape = f", shape={self.array.shape}" if not self.array.size else ""
        return f"Tensor({text}{shape}, dtype={name_of(self.array.dtype)})"

    def _repr_html_(self) -> str:
        from ..common.html import array_view  # notebooks alone need it

        return array_view(f"Tensor {name_of(self.array.dtype)}{list(self.array.shape)}", self.array)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.array,)

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: Any) -> Value:
        return type(self)(self.array)


class FlowValue(Value):
    """The value of a TensorArray, a TensorStore or a record outside of graphs.

    Attributes:
        origin: the op that made it and its inputs, by which a graph can make it again; None if it was written since.
    """

    __slots__ = ("_spec", "origin")

    def __init__(self, array: Any, spec: Spec, origin: tuple[Any, Any] | None = None) -> None:
        super().__init__(array)
        self._spec = spec
        self.origin = origin

    @property
    def spec(self) -> Spec:
        return self._spec

    @property
    def dtype(self) -> Any:
        return self._spec.dtype

    @property
    def shape(self) -> Shape:
        return self._spec.shape

    @property
    def ndim(self) -> Any:
        return None

    def __repr__(self) -> str:
        return f"<Tensor {self._spec}>"

    def _repr_html_(self) -> str:
        return Operators._repr_html_(self)


def _copied(array: Any) -> Any:
    """Return a copy for the caller; a single string, which has no scalar of NumPy's, as a `str`."""
    return array.copy() if array.ndim or array.dtype.kind != "T" else array[()]


def _as_arrays(structure: Any) -> Any:
    """Return the arguments of a NumPy function with arrays in the places of values."""
    if isinstance(structure, Value):
        return np.asarray(structure)
    if is_sequence(structure):
        items = [_as_arrays(item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)
    if is_mapping(structure):
        return {key: _as_arrays(item) for key, item in structure.items()}
    array: Any = structure if isinstance(structure, np.ndarray) else None
    is_other = isinstance(structure, deque) or (array is not None and array.dtype == object and array.ndim > 0)
    return [_as_arrays(item) for item in structure] if is_other else structure


__all__ = ["FlowValue", "Value"]
