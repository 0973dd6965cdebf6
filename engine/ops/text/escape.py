"""`numpy_function`: a Python function over NumPy arrays as an operation, for what no op does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...common import blas, dtypes
from ...common.dtypes import DType, as_dtype
from ...common.nest import is_sequence
from ...common.quick_dataclass import dataclass
from ...graph.op import OUTSIDE_WORLD, Effect, as_scalar_or_array, is_array
from ...graph.spec import Shape, as_shape, shape_accepts, shape_text, shapes_compatible
from ..base import Op, Operation, Tensor, TensorSpec, apply_effect, apply_multi, as_array, convert_to_tensor, is_numpy
from ..registered import RegisteredFunction, by_name
from ..run_time_shapes import zeros_of

Gradient = Callable[[list[Tensor], list[Tensor], list[Any]], Any]


@dataclass(frozen=True)
class NumpyFunction(Op):
    """A call of a Python function.

    Attributes:
        function: takes arrays and returns arrays.
        specs: what it returns.
        stateful: it has effects, or its result depends on more than its arguments.
        gradient: cotangents of the inputs from inputs, outputs and their cotangents.
    """

    function: Callable[..., Any]
    specs: tuple[TensorSpec, ...]
    stateful: bool = True
    gradient: Gradient | None = None
    no_samples: ClassVar[str] = "calls any function: test_numpy_function"

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return self.specs

    def run(self, xp: Any, *inputs: Any) -> Any:
        results = self._separated(self._called([_given(value) for value in inputs]))
        values = [self._checked(position, value) for position, value in enumerate(results)]
        return values[0] if len(values) == 1 else tuple(values)

    def _called(self, values: Sequence[Any]) -> Any:
        """Call the function; its own products have the threads that OpenBLAS has outside of steps."""
        if blas.limited is None or not blas.limited.pause():
            return self.function(*values)
        try:
            return self.function(*values)
        finally:
            blas.limited.go_on()

    def _separated(self, returned: Any) -> Sequence[Any]:
        """Return what the function returned, as one value for each output.

        Raises:
            TypeError: there are more or fewer.
        """
        if len(self.specs) == 1:
            alone = is_sequence(returned) and len(returned) == 1 and is_numpy(returned[0])
            return returned if alone else (returned,)
        results = () if returned is None else returned if is_sequence(returned) else (returned,)
        if len(results) != len(self.specs):
            raise TypeError(
                f"numpy_function: {self.label} returned {len(results)} values, but Tout names {len(self.specs)}."
            )
        return results

    def _checked(self, position: int, value: Any) -> Any:
        """Return one result as an array that nothing else refers to.

        Raises:
            TypeError: its dtype is not what Tout says. ValueError: its shape is not what `shape` says.
        """
        spec = self.specs[position]
        which = f"numpy_function: {self.label} returned"
        place = f" as output {position}" if len(self.specs) > 1 else ""
        try:
            array = as_array(value)
        except TypeError as error:
            raise TypeError(f"{which} {type(value).__name__}{place}, which can't become a tensor. {error}") from error
        weak = not is_numpy(value) and _becomes(array, spec.dtype)
        if array.dtype != spec.dtype and not weak:
            wanted = dtypes.name_of(spec.dtype)
            raise TypeError(
                f"{which} {dtypes.name_of(array.dtype)}{place}, but Tout says {wanted}. Return "
                f"value.astype('{wanted}'), or change Tout."
            )
        if not shape_accepts(spec.shape, tuple(array.shape)):
            raise ValueError(
                f"{which} shape {shape_text(tuple(array.shape))}{place}, but shape={shape_text(spec.shape)} was "
                "declared."
            )
        return as_scalar_or_array(np.array(as_array(value, spec.dtype)))

    def missing(self) -> str:
        """Say which function this process does not have; nothing if it has all."""
        function = self.function
        return function.missing() if isinstance(function, RegisteredFunction) and not function.is_here else ""

    @property
    def label(self) -> str:
        """The name of the function in messages."""
        return getattr(self.function, "__name__", None) or type(self.function).__name__

    def effects(self) -> Iterable[Effect]:
        return (Effect(OUTSIDE_WORLD, writes=True),) if self.stateful else ()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        if self.gradient is None:
            raise LookupError(
                f"numpy_function: {self.label} has no gradient. Pass grad=f, where f(inputs, outputs, cotangents) "
                "returns the cotangents of the inputs, built out of ops; or wrap what should be constant in "
                "ops.stop_gradient."
            )
        pairs = zip(node.outputs, cotangents, strict=True)
        filled = [zeros_of(y) if dy is None and y.spec.differentiable else dy for y, dy in pairs]
        returned = self.gradient(list(node.inputs), list(node.outputs), filled)
        results = returned if is_sequence(returned) else (returned,)
        if len(results) != len(node.inputs):
            raise TypeError(
                f"numpy_function: the grad function of {self.label} returned {len(results)} cotangents, but there are "
                f"{len(node.inputs)} inputs. Return None for those to which nothing flows."
            )
        return [self._cotangent(x, dx) for x, dx in zip(node.inputs, results, strict=True)]

    def _cotangent(self, x: Tensor, dx: Any) -> Tensor | None:
        if dx is None or not x.spec.differentiable:
            return None
        tensor = convert_to_tensor(dx, x.dtype)
        if not shapes_compatible(tensor.shape, x.shape):
            raise ValueError(
                f"numpy_function: the grad function of {self.label} returned shape {shape_text(tensor.shape)} for "
                f"{x!r}; a cotangent has the shape of its input."
            )
        return tensor


def _given(value: Any) -> Any:
    """Return an argument as the function gets it: it can't write into it, and a single string is a ``str``."""
    if not is_array(value):
        return value
    if not value.ndim:
        return value[()]
    view = value.view()
    view.flags.writeable = False
    return view


def _becomes(array: Any, wanted: DType) -> bool:
    """Test whether Python data may take the dtype that is wanted: numbers without loss of kind, nothing from text."""
    if "T" in (array.dtype.kind, wanted.kind):
        return array.size == 0
    return array.size == 0 or np.can_cast(array.dtype, wanted, "same_kind")


def numpy_function(
    func: Callable[..., Any],
    inp: Any,
    Tout: Any,
    stateful: bool = True,
    shape: Any = None,
    grad: Gradient | None = None,
    name: str | None = None,
) -> Any:
    """Call a Python function of NumPy arrays when the program gets there.

    Args:
        func: takes the values of `inp` (arrays that can't be written to; NumPy scalars and ``str`` where there are no
            axes) and returns what `Tout` says. Its results are copied.
        inp: a tensor, or a list of tensors.
        Tout: the dtype of the result, or a list of dtypes; an empty one for a function that returns nothing.
        stateful: the function has effects, or depends on more than its arguments: it runs in program order, with
            `print` and the assertions, and in functions, loops and branches whether or not its result is used. With
            False, equal calls may become one, and calls whose results are not needed are left out.
        shape: the shape of the result, as far as it is known, or a list of shapes.
        grad: ``grad(inputs, outputs, cotangents)``, three lists of tensors, returns the cotangents of the inputs (None
            where nothing flows), built out of ops, which may call `numpy_function` again. Then derivatives of any
            order exist. (A cotangent of complex x is dy/d(real x) - i dy/d(imag x).)
        name: of the operation.

    A graph with the call can be saved and sent to tasks if `func` is registered: `ab.distribute.register_function`.

    Returns:
        A tensor; for a list of dtypes a list of tensors; for an empty one the operation (None outside of graphs).

    Raises:
        TypeError, ValueError: at run time, if the result does not have the dtypes or shapes declared. What `func`
            raises keeps its type, and gains a note that names the operation.

    >>> import anabranch as ab
    >>> x = ab.placeholder((None,), "float32", "x")
    >>> y = ab.ops.numpy_function(np.sinc, [x], "float32", stateful=False, shape=(None,))
    >>> ab.Session().run(y, {x: [0.0, 0.5]})
    array([1.        , 0.63661975], dtype=float32)
    """
    if not callable(func):
        raise TypeError(f"numpy_function takes a function; got {type(func).__name__}.")
    tensors = [convert_to_tensor(value) for value in (inp if is_sequence(inp) else (inp,))]
    single = not is_sequence(Tout)
    types = [as_dtype(dtype) for dtype in ((Tout,) if single else Tout)]
    specs = [TensorSpec(static, dtype) for static, dtype in zip(_shapes(shape, len(types), single), types, strict=True)]
    op = NumpyFunction(by_name(func), tuple(specs), stateful, by_name(grad))
    label = name or op.label.strip("<>")
    if not types:
        return apply_effect(op, *tensors, name=label)
    outputs = apply_multi(op, *tensors, name=label)
    return outputs[0] if single else list(outputs)


def _shapes(shape: Any, count: int, single: bool) -> list[Shape]:
    """Return the declared shape of each output."""
    if shape is None:
        return [None] * count
    if single:
        return [as_shape(shape)]
    if not is_sequence(shape) or len(shape) != count:
        raise ValueError(f"numpy_function: shape must be a list of {count} shapes, as Tout is a list; got {shape!r}.")
    return [as_shape(item) for item in shape]


__all__ = ["numpy_function"]
