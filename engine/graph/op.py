"""`Op`: the definition of an operation. One op is one class in one place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard

import numpy as np

from ..common.dtypes import string
from ..common.nest import is_tuple
from ..common.operator_table import operator_functions
from ..common.quick_dataclass import dataclass
from .axis_maps import AxisMap, broadcast_map, leading_map
from .row_states import State, state_by_axes

if TYPE_CHECKING:
    from .axis_maps import ResultSizes, SizesOfTensors
    from .graph import Operation
    from .kernel_roles import KernelRole
    from .provenance import Location
    from .region import Region
    from .spec import Spec
    from .tensor import Tensor


class Effect(NamedTuple):
    """An access to a resource (a variable, a random state), kept in program order.

    A resource that is a text, such as the outside world, has no place: what touches it may run on several devices.
    """

    resource: Any
    writes: bool


OUTSIDE_WORLD = "the outside world"  # the resource of ops that print, check or call Python, which keep their order


class Cost(Enum):
    """The floating-point operations that a run takes; `passes/framework/estimates.py` has the formulas."""

    NOTHING = "none: the op names a value that is there"
    ELEMENTS = "one for each element that is read or made"
    DEAR_ELEMENTS = "some 20 for each element that is read or made"
    PRODUCT = "twice the product of three sizes, each of which is one of two operands and the result"
    CONVOLUTION = "for each element of the images, the filters' elements of one channel"
    FACTORISATION = "the cube of the size of a matrix"


PRODUCTS = (Cost.PRODUCT, Cost.CONVOLUTION, Cost.FACTORISATION)  # of which BLAS computes some, on several cores


@dataclass
class Sample:
    """One case from which an op's tests are generated.

    Attributes:
        op: the definition under test.
        inputs: concrete input arrays.
        expected: the right result(s), computed some other way; None where NumPy itself is the reference.
        differentiable: positions of the inputs whose gradients are checked against finite differences.
        tolerance: relative tolerance of results (float32).
        label: a short name of the case.

    >>> import anabranch as ab
    >>> import numpy as np
    >>> exp = ab.ops.registered_ops()["exp"]()
    >>> sample = ab.ops.Sample(exp, [np.zeros(3, "float32")], expected=np.ones(3, "float32"), label="zeros")
    >>> sample.label
    'zeros'
    """

    op: Op
    inputs: Sequence[Any]
    expected: Any = None
    differentiable: Sequence[int] | None = None
    tolerance: float = 1e-5
    label: str = ""


@dataclass
class ErrorSample:
    """A case that must be refused: `call()` raises `error`, whose message matches `match`.

    >>> import anabranch as ab
    >>> sample = ab.ops.ErrorSample(lambda: ab.ops.reshape([1, 2, 3], (2, 2)), ValueError, "reshape")
    >>> sample.error
    <class 'ValueError'>
    """

    call: Any
    error: type[Exception]
    match: str
    label: str = field(default="")


_registry: dict[str, type[Op]] = {}


class Op:
    """The definition of an operation: attributes as dataclass fields, shape inference, execution and gradient.

    Subclasses are frozen dataclasses. A definition holds no tensors; the same one may be used by many operations.
    A class is registered by being defined, unless its name starts with an underscore or it is one with `abstract=True`;
    `anabranch.testing.check_op` tests it from its samples.

    Class attributes:
        type_name: the op's name in graphs and dumps; from the class name unless it is given.
        view: the result may share memory with an input.
        expression: for elementwise ops, the scalar function over ``e`` (see ``passes``), printed into fused kernels.
        shape_from_values: the result's shape follows from values of inputs, so that it may be unknown though all
            shapes of inputs are known.
        needs_known: for the position of an input, what has to be known of it for `infer`: its "rank", or its "last
            axis".
        never_fails: whether `run` gives a result for all values of inputs that `infer` took, where all shapes are known
            and none is empty. See `cannot_fail`.
        takes_slices: whether `grad` takes a cotangent that is an `IndexedSlices` as it is; otherwise it gets it dense.
        last_axes: for ops over the last axes of their inputs, with any before them: how many, one number for all inputs
            or one for each. All axes before are treated index by index; see `axis_map`.
        axis_fields: the names of the fields that hold axes: an int, several, or None for all. With these one further
            back the op does the same for each index of an axis in front: of the inputs that the result's follows by
            `axis_map`, or of all but `shape_input`, with a size more in its field `shape`. Where axes count from the
            back, no field needs to be named.
        shape_input: the position of the input that holds the result's shape, an int32 vector, where there is one.
        kernel_role: the part of the op in a kernel that computes several ops at once; see `kernel_roles`. Elementwise
            ops, and those of `kernel_steps`, need none.
        cost: how much a run computes.
        serial_nanoseconds: the time for each element of the largest input, of ops for which NumPy uses one core.
        reads_rows: whether a run reads only those rows of the first input that it returns.
        gives_part: whether the result is a part of the first input: of a variable on another task only that is sent.
        writes_rows: whether a run writes only some rows of variables, which are the first inputs.
        updates_first: whether the result is the first input, changed in some places; see `run_over`.
        repeats_values: whether the result has the values of an input more than once, so that it takes more room.
        linear_in: the positions of inputs in each of which the result is linear, where the others stay the same.
        grows_with: for each input 1 if each element of the result grows with it, or -1 if it falls; bools count as 0
            and 1.
        by_element: whether each element depends on the elements at its place alone, of inputs that broadcast, as in
            elementwise ops.
        batchable: whether a run for many examples at once takes no longer for each of them than a run for one alone, as
            for elementwise ops. Fission takes it out of loops, with a product that uses it.
        kept_on_host: whether the result is kept in the memory of the host, whatever device the inputs are on.
        host_only: whether `run` computes with NumPy alone, so that no GPU can run it.
        takes_long: whether a run takes long whatever its inputs are, as one that writes files. Other steps go on
            beside it.
        no_samples: why the op has no samples, and which tests it has instead; empty where it has some.

    >>> from dataclasses import dataclass
    >>> import anabranch as ab
    >>> @dataclass(frozen=True)
    ... class _Scaled(ab.ops.Op):
    ...     factor: float
    ...     def infer(self, x):
    ...         return x
    ...     def run(self, xp, x):
    ...         return x * x.dtype.type(self.factor)
    ...     def grad(self, node, dy):
    ...         return (ab.ops.apply(_Scaled(self.factor), dy),)
    >>> ab.ops.apply(_Scaled(3.0), ab.convert_to_tensor([1.0, 2.0]))
    Tensor([3., 6.], dtype=float32)
    """

    type_name: ClassVar[str] = ""
    view: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    shape_from_values: ClassVar[bool] = False
    needs_known: ClassVar[Mapping[int, str]] = MappingProxyType({})
    never_fails: ClassVar[bool] = False
    takes_slices: ClassVar[bool] = False
    last_axes: ClassVar[int | tuple[int, ...] | None] = None
    axis_fields: ClassVar[tuple[str, ...] | None] = None
    shape_input: ClassVar[int | None] = None
    kernel_role: ClassVar[KernelRole | None] = None
    cost: ClassVar[Cost] = Cost.ELEMENTS
    serial_nanoseconds: ClassVar[float | None] = None
    reads_rows: ClassVar[bool] = False
    gives_part: ClassVar[bool] = False
    writes_rows: ClassVar[bool] = False
    updates_first: ClassVar[bool] = False
    repeats_values: ClassVar[bool] = False
    linear_in: ClassVar[tuple[int, ...]] = ()
    grows_with: ClassVar[tuple[int, ...]] = ()
    by_element: ClassVar[bool] = False
    batchable: ClassVar[bool] = False
    kept_on_host: ClassVar[bool] = False
    host_only: ClassVar[bool] = False
    takes_long: ClassVar[bool] = False
    no_samples: ClassVar[str] = ""

    regions: tuple[Region, ...] = ()  # those of a loop or branch
    is_choice: ClassVar[bool] = False  # the first input says which region is run

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type_name" not in cls.__dict__:
            cls.type_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        if not abstract and not cls.__name__.startswith("_"):
            known = _registry.get(cls.type_name)
            if known is None or _is_of_package(known) or not _is_of_package(cls):  # ours may be imported after a user's
                _registry[cls.type_name] = cls

    def infer(self, *inputs: Any) -> Spec | tuple[Spec, ...]:
        """Return the specs of the outputs, from those of the inputs.

        Raises:
            ValueError, TypeError: the inputs do not fit; the message names shapes or dtypes and the remedy.
        """
        raise NotImplementedError(f"{type(self).__name__} must define infer().")

    def run(self, xp: Any, *inputs: Any) -> Any:
        """Compute the output(s) on arrays of module `xp` (numpy or cupy). Rank-0 results are NumPy scalars.

        Strings of rank 0 are arrays of rank 0, or ``str``, of which the runtime makes such arrays.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run().")

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        """Compute as `run`, in the memory of the first input. Ops with `updates_first` have it.

        Args:
            xp: the module of arrays, as for `run`.
            inputs: the values; the first one is contiguous and writable, and nothing else uses it.
        """
        raise NotImplementedError(f"{type(self).__name__}.run_over")

    def cannot_fail(self, *inputs: Tensor) -> bool:
        """Test whether `run` gives a result whatever these inputs hold: then it may run where the graph might not.

        That is before a loop, of which there may be no iteration.

        Args:
            inputs: tensors of known shapes, none of them empty. Those that are constants may be looked at.
        """
        return self.elementwise or self.never_fails

    def axis_map(self, *inputs: Any) -> AxisMap | None:
        """Return for each axis of a result the axes of inputs that it follows; None where nothing is known.

        All outputs of an op follow the same axes. By default ops that compute `by_element` broadcast, and ops with
        `last_axes` treat the axes before these index by index.

        Args:
            inputs: specs of inputs, whose ranks are known.
        """
        ranks = [len(spec.shape) for spec in inputs]
        if self.elementwise or self.by_element:
            return broadcast_map(ranks)
        if self.last_axes is None:
            return None
        last = self.last_axes
        return leading_map(ranks, (last,) * len(ranks) if isinstance(last, int) else last)

    def result_sizes(self, node: Operation, sizes: SizesOfTensors) -> Sequence[ResultSizes] | None:
        """Return the sizes of the results where they follow from more than `axis_map`; else None.

        Args:
            node: the operation, some of whose results have sizes that are known at run time only.
            sizes: those of its inputs.
        """
        return None

    def row_state(self, node: Operation, given: Sequence[State]) -> State:
        """Return how the results depend on the rows of a batch; by default as `axis_map` says.

        Args:
            node: the operation.
            given: the states of its inputs: none is `Mixed`, and not all are None.
        """
        return state_by_axes(node, given)

    def kernel_steps(self, inputs: Sequence[Any], output: Any) -> Sequence[tuple[Op, tuple[int, ...]]]:
        """Return the op as steps of a kernel, which are elementwise or have a `kernel_role`; none where it has no such.

        Values are numbered: the inputs first, then the result of each step. A step is an op and the numbers of the
        values that it takes. The last step gives the result.

        Args:
            inputs: the specs of the inputs, whose shapes are known.
            output: that of the result.
        """
        return ()

    def row_expression(self, e: Any, x: Any, reduce: Any) -> Any:
        """Return what an op of the roles `REDUCTION` and `NORMALISATION` gives for a row.

        Args:
            e: the functions of expressions, as `expression` gets them.
            x: any element of the row.
            reduce: ``reduce("add", value)`` is the sum of a value over the row; "max" and "min" are its extrema, and
                ``reduce.mean(value)`` the mean.
        """
        raise NotImplementedError(f"{type(self).__name__} must define row_expression().")

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        """Return cotangents of the inputs, from those of the outputs; None where nothing flows.

        On values each cotangent is computed at once: a rule that has much to do for one asks `node.needs` before.
        """
        raise LookupError(
            f"No gradient is defined for op {node.name!r} ({self.type_name}). "
            "Wrap what should be constant in ops.stop_gradient, or define `grad` in its class."
        )

    def takes_rows(self, indices: Sequence[Tensor]) -> bool:
        """Test whether the result is rows of the first input, at `indices`, which are the inputs after it."""
        return False

    def text(self, names: Sequence[str]) -> str | None:
        """Return the operation as users write it, by the names of its inputs, where errors of positions show it."""
        return None

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the ops that it computes at once, in order; none of an op that is one by itself."""
        return ()

    def failed_part(self, values: Sequence[Any]) -> tuple[str, str, Location | None, int] | None:
        """Return the operation that failed, of those that the op computes at once; None where it is the op itself.

        Its name, the name of its op, the user's line, and how many of the inputs are its own, from the first.

        Args:
            values: the inputs of the run that failed.
        """
        return None

    @property
    def called(self) -> Region | None:
        """The region around it that a call runs again."""
        return None

    def attributes(self) -> dict[str, Any]:
        """Return what `Graph.dump` prints of the definition: its fields, without those that have their defaults."""
        if not is_dataclass(self):
            return {name: value for name, value in vars(self).items() if name not in ("regions", "spec")}
        defaults = {known.name: known.default for known in fields(self)}
        found = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in found.items() if not _is_default(value, defaults[name])}

    def emit(self, arguments: Sequence[str]) -> str | None:
        """Return the call as a Python expression over ``np`` and the names of the inputs, or None to call `run`."""
        return None

    def emit_out(self, arguments: Sequence[str], out: str) -> str | None:
        """Return the call as an expression that writes into buffer `out` (of the result's shape and dtype), or None."""
        return None

    def effects(self) -> Iterable[Effect]:
        """Return the resources that a run touches; none for pure ops."""
        return ()

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """Return cases from which the op's tests are generated."""
        return ()

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        """Return cases that must be refused, with the error expected."""
        return ()


def _is_of_package(cls: type[Op]) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


def imported_ops() -> dict[str, type[Op]]:
    """Return the op classes of the modules that have been imported, by their `type_name`."""
    return dict(_registry)


def registered_ops() -> dict[str, type[Op]]:
    """Return every op class by its `type_name`."""
    operator_functions["import_ops"]()  # the modules that few programs need
    return imported_ops()


def _is_default(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def as_scalar_or_array(value: Any) -> Any:
    """Return `value` in the form that programs compute with: of rank 0, a NumPy scalar.

    Strings are the exception. Their scalars are Python's ``str``, which have no dtype and no shape, so that they stay
    arrays of rank 0.
    """
    if is_array(value):
        return value if value.ndim or value.dtype.kind == "T" else value[()]
    return np.array(value, string) if isinstance(value, str) else value


def without_bare_strings(result: Any) -> Any:
    """Return what an op's `run` returned, with every ``str`` that NumPy took out of an array put back into one."""
    if isinstance(result, str):
        return as_scalar_or_array(result)
    if is_tuple(result):
        return tuple([as_scalar_or_array(value) for value in result])
    return result


def is_plain_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Test whether `value` is a NumPy array and of no subclass."""
    return type(value) is np.ndarray


def is_array(value: Any) -> TypeGuard[np.ndarray[Any, Any]]:
    """Test whether `value` is a NumPy array (a NumPy scalar is none)."""
    return isinstance(value, np.ndarray)
