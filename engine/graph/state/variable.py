"""`Variable`: state that outlives a step, read and written in program order."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.dtypes import DType, DTypeLike, with_own_dtype
from ...common.keywords import explain_keywords
from ...common.operator_table import operator_functions
from ..context import graph_context, in_explicit_graph, refuse_in_trace
from ..device import VariableState, place_state
from ..element_count import ElementCount
from ..graph import current_device_scope, get_default_graph, graph_for
from ..name_scopes import scoped_path
from ..op import Effect, Op
from ..provenance import user_location
from ..slices import IndexedSlices
from ..spec import Shape, TensorSpec, as_shape, shape_accepts, shape_text
from ..tensor import Symbol, Tensor
from ..tracebacks import shorten
from ..value import Value
from .aligned import own_copy
from .container import current_container
from .forked import free_in_children
from .home import Home
from .initial_values import Later, as_later, call_initializer, names_initializer, one_initial_value
from .keras_options import KerasOptions, checked_name, set_options
from .lifting import created, outside
from .readable import Readable
from .stateless import in_stateless_scope, keep, substitute
from .variable_ops import Assign, ReadVariable
from .writing_rows import Held, give_back, hold_if_free, lending, take_out


def _references(holder: Any) -> int:
    """Count what refers to the array of a variable: the variable, values, views, and this function."""
    array = holder._value
    return sys.getrefcount(array)


_OWN_REFERENCES = _references(SimpleNamespace(_value=np.zeros(1)))  # Python versions count differently


class OwnMemory:
    """Makes the memory of the variables that a step writes their own again, where values have been lent some of it.

    Args:
        effects: those of the step.
    """

    def __init__(self, effects: Iterable[Effect]) -> None:
        written = dict.fromkeys(effect.resource for effect in effects if effect.writes)
        self._variables = [resource for resource in written if isinstance(resource, Variable)]
        self._seen = -1

    def take_back(self) -> None:
        """See to it before a run of the step. Where nothing was lent since the last run, that costs nothing."""
        if self._seen == lending.count:
            return
        self._seen = lending.count
        for variable in self._variables:
            variable.take_back()


class _CreatedOnce(type):
    """Makes a variable unless an earlier trace of the same loop body or branch has made it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        create = super().__call__
        try:
            return created(lambda: create(*args, **kwargs))
        except TypeError as error:
            explain_keywords(error, cls.__init__)
            raise


class Variable(KerasOptions, VariableState, metaclass=_CreatedOnce):
    """A mutable value. It has its first value at once: there is nothing to initialise.

    Args:
        initial_value: an array, a Python number, a function of `shape` and `dtype` (an initializer), or its name.
        shape: needed with a function; otherwise it may leave dimensions open (None) that later values can change.
        dtype: the dtype; by default that of the value, where Python floats are float32 and ints int32.
        trainable: whether optimizers are to update it.
        name: a name for messages and checkpoints.
        initializer: Keras's name of `initial_value`; one of them is given. It may be a name, such as "zeros".
        aggregation: how replicas agree on a value that a step assigns: "sum", "mean" or "only_first_replica"; by
            default the mean of what has fractions, and the first replica's of other values.
        autocast, synchronization: accepted as in Keras, and of no effect.
        constraint: a function of the value, which optimizers assign after each update. `ab.constraints` has some.

    Made inside ``with ab.device(...):``, it is on that device, and so are its reads and updates (`device`).
    Made inside ``with ab.container(name):``, it lives as long as the process, or until that container is cleared.
    One that is on a task of a cluster belongs to the cluster whose session first runs it: from then on reads and
    writes from plain Python act on the task.

    Used in an expression, a variable is read at that place of the program. `assign`, `assign_add` and `assign_sub`
    build operations where a graph is being built (inside ``with graph.as_default():``, a `Session`'s block, a
    function, a loop or a branch, or with a symbol as the value); elsewhere they act at once. They return the new value.

    Made inside a loop body, a branch or a function, a variable belongs to none of them: it exists once, with its
    initial value (which must not depend on what a loop carries), and is shared by all iterations.

    >>> import anabranch as ab
    >>> v = ab.Variable([1.0, 2.0], name="v")
    >>> v.assign([3.0, 4.0])
    Tensor([3., 4.], dtype=float32)
    >>> v.numpy()
    array([3., 4.], dtype=float32)
    """

    whole: Any = None  # the `ShardedVariable` of which it is a shard
    home: Home | None = None  # the place of its value, if a task of a cluster holds that
    _first: Later | None = None  # its value, before that is needed
    _held: Held | None = None  # its memory, while a step writes in that

    def __init__(
        self,
        initial_value: Any = None,
        shape: Any = None,
        dtype: DTypeLike = None,
        trainable: bool = True,
        name: str | None = None,
        *,
        initializer: Any = None,
        autocast: bool = True,
        aggregation: str | None = None,
        synchronization: str | None = None,
        constraint: Callable[[Variable], Any] | None = None,
    ) -> None:
        if initializer is None and names_initializer(initial_value, shape, dtype):
            initial_value, initializer = None, initial_value
        if isinstance(initializer, str) and shape is None:
            raise ValueError(
                f"Variable {name or ''!r}: an initializer by name needs a shape: initializer={initializer!r}, "
                "shape=(2, 3)."
            )
        initial_value = one_initial_value(initial_value, initializer, name)
        if callable(initial_value):
            initial_value = call_initializer(initial_value, shape, dtype)
        if isinstance(initial_value, Variable):
            initial_value = initial_value.numpy()
        if isinstance(initial_value, Later) and as_later(initial_value, dtype) is None:
            initial_value = initial_value.compute()
        if isinstance(initial_value, Symbol):
            initial_value = outside(initial_value, name or "variable").eval()
        later = as_later(initial_value, dtype)
        value = operator_functions["as_array"](initial_value, dtype) if later is None else later
        static: Shape = tuple(value.shape) if shape is None else as_shape(shape)
        if not shape_accepts(static, tuple(value.shape)):
            raise ValueError(
                f"Variable {name or ''!r}: the initial value has shape {shape_text(tuple(value.shape))}, "
                f"but shape={shape_text(static)} was asked for."
            )
        self.spec = TensorSpec(static, value.dtype)
        self.name = checked_name(name)
        self.trainable = self.was_made_trainable = trainable
        set_options(self, aggregation, constraint)
        if later is None:
            self._value: Any = own_copy(value)
        else:
            self._first = later
        self._is_lent = False  # whether values may share the memory of `_value`
        self.lock = RLock()  # held by who reads the value and then writes what depends on it
        free_in_children(self)
        self.location = user_location()
        place_state(self, current_device_scope())
        holder = current_container()
        if holder is not None:
            self.name = holder.hold(self)
        self.path = scoped_path(self.name)

    @property
    def shape(self) -> Any:  # a `Shape`, of which nearly all are known: callers would have to ask each time
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def ndim(self) -> int | None:
        return self.spec.rank

    @property
    def size(self) -> int:
        """The number of elements of the current value."""
        return ElementCount(math.prod(self._current_shape()))

    @property
    def nbytes(self) -> int:
        return math.prod(self._current_shape()) * self.dtype.itemsize

    def _current_shape(self) -> tuple[int, ...]:
        first, static = self.first_value, self.spec.shape
        if first is not None:
            return first.shape
        if static is not None and None not in static:  # the value may be elsewhere, or lost
            return tuple([dimension or 0 for dimension in static])
        return tuple(np.shape(self._value))

    @property
    def first_value(self) -> Later | None:
        """Return what computes its value, if that was not needed yet; None otherwise."""
        return None if "_value" in self.__dict__ or self._held is not None else self._first

    def postpone(self, first: Later) -> None:
        """Let the value go: it is computed again when it is next needed."""
        if self.home is not None:
            self.write_value(first.compute())
            return
        self._first = first
        vars(self).pop("_value", None)

    def store_as(self, make: Callable[[Any, Later | None], tuple[Later, bool]]) -> Later | None:
        """Keep another form of the value, from which the value is computed when it is next needed.

        The caller holds `lock`. A value that is assigned meanwhile stays.

        Args:
            make: gets the array and the form that was kept last, which may be that of an earlier value. It returns the
                form, and whether the array is let go. A form whose array stays refers to it (`Later.keeps_array`).

        Returns:
            The form; None if a task has the value, or another step writes in its memory.
        """
        held = hold_if_free(self) if self.home is None else None
        if held is None:
            return None
        try:
            array = self._lent()
            form, is_taken_out = make(array, self._first)
            if not is_taken_out or take_out(self, array):
                self._first = form
        finally:
            give_back(self, held)
        return form

    def settle(self, home: Home) -> None:
        """Let a task hold the value from now on, which has it already."""
        with self.lock:
            self.home, self._first, self._is_lent = home, None, False
            vars(self).pop("_value", None)

    if not TYPE_CHECKING:  # it would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            home = self.__dict__.get("home") if name == "_value" else None
            if home is not None:
                return own_copy(home.run("read", lambda: self.value)[0])
            held = self._held if name == "_value" else None
            if held is not None:
                if held.is_mine and held.array is not None:
                    return held.array
                if not held.is_mine:
                    held.wait()
                    return self._value
            elif name == "_value" and "_value" in self.__dict__:  # it was written until just now
                return self.__dict__["_value"]
            if name != "_value" or self._first is None:
                return super().__getattribute__(name)  # fails as it did
            with self.lock:
                first, held = self._first, self._held
                if first is not None and "_value" not in self.__dict__ and (held is None or held.is_mine):
                    array = first.compute()
                    if first.keeps_array:
                        self._is_lent = True
                        lending.count += 1
                    array = self.__dict__.setdefault("_value", array)  # unless somebody has assigned one meanwhile
                    first.release()
                    return array
            return self._value  # which another thread has computed, or has taken to write in it

    def numpy(self) -> Any:
        """Return a copy of the current value."""
        return self._value.copy()

    @property
    def value(self) -> Tensor:
        """The value here: a symbol of the graph that is being built, else that of now. No later write changes it."""
        given = substitute(self)
        if given is not None:
            return given
        if graph_context.stack:
            return get_default_graph().read(self)
        value = Value(self._lent(), self.trainable and self.spec.differentiable)
        for tape in graph_context.tapes:
            tape.record_read(self, value)
        return value

    def _lent(self) -> Any:
        """Return the array of the value, into which nothing is written from now on."""
        array = self.stored_value()
        if type(array) is np.ndarray and self.home is None:
            self._is_lent = True
            lending.count += 1
        return array

    def take_back(self) -> None:
        """Make the memory of the value the variable's own again, so that a step may write into it."""
        if self._is_lent:
            self._is_lent = False
            if _references(self) > _OWN_REFERENCES or not self._value.flags.writeable:
                self._value = self._value.copy()

    def read_value(self) -> Tensor:
        """Return `value` (``tf.Variable.read_value``)."""
        return self.value

    def read_op(self) -> Op:
        """Return the op that reads the variable, which `Graph.read` puts into a graph.

        >>> import anabranch as ab
        >>> ab.Variable(1.0).read_op().type_name
        'read_variable'
        """
        return ReadVariable(self)

    def stored_value(self) -> Any:
        """Return the value itself, not a copy: for the runtime, which does not change it in place while it is used."""
        return self._value

    def write_value(self, value: Any) -> None:
        """Replace the value by one that nothing else changes: for the runtime, which has checked it."""
        if self.home is None:
            self._value = with_own_dtype(value)
        else:
            self.home.run("assign", self._assigned, [value])

    def _assigned(self, value: Any) -> Any:
        """Return what sets the value in the graph that is being built: an operation, of which nothing is fetched."""
        return self.assign(value).operation

    def assign(self, value: Any) -> Any:
        """Set the value. See the class for when this builds an operation (whose tensor is returned).

        Raises:
            ValueError: the shape does not fit the variable's.
            TypeError: the value can't be cast to its dtype.
        """
        tensor = self._converted(value)
        if in_stateless_scope() or not isinstance(tensor, Value) or in_explicit_graph():
            return self._assign_tensor(tensor)
        return self._assign_value(tensor)

    def _assign_value(self, tensor: Value) -> Value:
        """Set the value to one of the variable's dtype."""
        self._check_shape(tensor.array.shape)
        self._store(tensor.array)
        return tensor

    def _converted(self, value: Any) -> Tensor:
        """Return `value` in the variable's dtype; symbols are cast in their graph."""
        if isinstance(value, Symbol) and not in_explicit_graph():
            with graph_for([value]).entered():
                return operator_functions["convert"](value, self.dtype)
        return operator_functions["convert"](value, self.dtype)

    def _store(self, array: Any) -> None:
        """Let the value be that of a tensor, whose memory it shares unless that is a part of something larger."""
        graph_context.effects += 1
        if self.home is not None or type(array) is not np.ndarray:
            self.write_value(array)
        elif array.base is None and array.flags.carray and with_own_dtype(array) is array:
            self._value = array
            self._is_lent = True
            lending.count += 1
        else:
            self._value = own_copy(array)

    def assign_add(self, delta: Any) -> Any:
        """Add `delta` to the value; as `assign`."""
        return self._update("add", delta)

    def assign_sub(self, delta: Any) -> Any:
        """Subtract `delta` from the value; as `assign`."""
        return self._update("sub", delta)

    def _update(self, name: str, delta: Any) -> Any:
        tensor = self._converted(delta)
        if in_stateless_scope() or in_explicit_graph():
            return self._assign_tensor(self._changed(name, tensor))
        if not isinstance(tensor, Value):
            with graph_for([tensor]).entered():
                return self._assign_tensor(self._changed(name, tensor))
        # In one step of the task, so that no other client is between.
        if self.home is not None and not graph_context.tapes:
            build = {"add": self.assign_add, "sub": self.assign_sub}[name]
            return Value(own_copy(self.home.run(name, build, [tensor.array], is_repeatable=False)[0]))
        with self.lock:  # between reading and writing nobody else writes
            before = self.value if graph_context.tapes else Value(self.stored_value())  # tapes record what is read
            return self._assign_value(operator_functions[name](before, tensor))

    def _changed(self, name: str, delta: Tensor) -> Tensor:
        """Build the sum or difference where the variable is: what a step elsewhere would add to may be old by then."""
        with near(self):
            return operator_functions[name](self, delta)

    def scatter_update(self, sparse_delta: IndexedSlices, name: str | None = None) -> Any:
        """Set rows: ``v[indices[k]] = values[k]``; of rows named several times the last one counts.

        Args:
            sparse_delta: the rows and their positions; negative ones count from the end. Its `dense_shape` is not used.
            name: a name for the operation.

        Returns:
            Where a graph is being built (see the class), the new value of the variable; None where it acted at once.
            Either way nothing but the rows is written, unless an earlier value is still needed.

        Raises:
            IndexError: a position is out of range (when it runs).
            ValueError: the rows have other shapes than the variable's, or the variable has none.

        >>> import anabranch as ab
        >>> v = ab.Variable([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        >>> v.scatter_update(IndexedSlices([[9.0, 8.0]], [-1], [3, 2]))
        >>> v.numpy()
        array([[1., 1.],
               [2., 2.],
               [9., 8.]], dtype=float32)
        """
        return operator_functions["scatter"](self, sparse_delta, "update", name)

    def scatter_add(self, sparse_delta: IndexedSlices, name: str | None = None) -> Any:
        """Add to rows: ``v[indices[k]] += values[k]``, each time that a row is named; as `scatter_update`."""
        return operator_functions["scatter"](self, sparse_delta, "add", name)

    def scatter_sub(self, sparse_delta: IndexedSlices, name: str | None = None) -> Any:
        """Subtract from rows: ``v[indices[k]] -= values[k]``, each time that a row is named; as `scatter_update`."""
        return operator_functions["scatter"](self, sparse_delta, "subtract", name)

    def _assign_tensor(self, value: Tensor) -> Tensor:
        kept = keep(self, value)
        if kept is not None:
            return kept
        return graph_for([value]).add(Assign(self), [value], f"{self.name}/assign").outputs[0]

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if self.spec.shape != shape and not shape_accepts(self.spec.shape, shape):
            raise ValueError(
                f"Variable {self.name!r} has shape {shape_text(self.spec.shape)}; a value of shape "
                f"{shape_text(shape)} can't be assigned to it."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles, which have a lock of their own."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("lock", "home", "_held")}
        is_here = self.home is None and self._held is None
        return state if is_here else {**state, "_value": self.numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.lock = RLock()
        free_in_children(self)

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        refuse_in_trace(self.name)
        return np.array(self._value, dtype=dtype)

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __len__(self) -> int:
        return len(self._value)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.value)

    def __bool__(self) -> bool:
        if in_explicit_graph():
            raise TypeError(
                f"Variable {self.name!r} has no truth value while a graph is built: use ab.cond(...) or ops.where(...)."
            )
        return bool(self.value)

    def __complex__(self) -> complex:
        return complex(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.value, ndigits)

    def __contains__(self, item: object) -> bool:
        return item in self.value

    def __format__(self, format_spec: str) -> str:
        return format(self.value, format_spec) if format_spec else str(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        tensors = [item.value if isinstance(item, Variable) else item for item in inputs]
        own = next(tensor for tensor in tensors if isinstance(tensor, Tensor))
        try:
            return own.__array_ufunc__(ufunc, method, *tensors, **options)
        except Exception as error:
            shorten(error)
            raise

    def item(self, *index: Any) -> Any:
        """Return the current value, of which there is one element (or the one at an index), as a Python number."""
        return self.numpy().item(*index)

    def tolist(self) -> Any:
        """Return the current value as nested lists of Python numbers, or as a number."""
        return self.numpy().tolist()

    def __repr__(self) -> str:
        place = "" if self.home is None else f" on {self.home.task}"
        return f"<Variable {self.name} {self.spec}{place}>"


class VariableRows(Readable):
    """Some rows of a variable, read and assigned like a variable of their own: for optimizers' updates of tables.

    Args:
        variable: the whole.
        indices: ``(n,)`` integer tensor, the positions of the rows, each of them once.
    """

    __slots__ = ("indices", "variable")

    def __init__(self, variable: Variable, indices: Tensor) -> None:
        self.variable = variable
        self.indices = indices

    @property
    def shape(self) -> Shape:
        """``(n, ...)``, as far as it is known."""
        whole, count = self.variable.shape, self.indices.shape
        return None if whole is None or count is None else (*count, *whole[1:])

    @property
    def dtype(self) -> DType:
        return self.variable.dtype

    @property
    def ndim(self) -> int | None:
        return self.variable.ndim

    @property
    def value(self) -> Tensor:
        """The rows at this place of the program."""
        return operator_functions["take_rows"](self.variable, self.indices)

    def assign(self, value: Any) -> Any:
        """Set the rows; in a graph that is being built, return the new value of the whole variable."""
        return self.variable.scatter_update(IndexedSlices(value, self.indices, self.variable.shape))

    def assign_add(self, delta: Any) -> Any:
        """Add `delta` to the rows."""
        return self.assign(self._changed("add", delta))

    def assign_sub(self, delta: Any) -> Any:
        """Subtract `delta` from the rows."""
        return self.assign(self._changed("sub", delta))

    def _changed(self, name: str, delta: Any) -> Tensor:
        symbols = [each for each in (self.indices, delta) if isinstance(each, Symbol)]
        if not (in_explicit_graph() or symbols):
            return operator_functions[name](self, delta)
        with graph_for(symbols).entered(), near(self.variable):
            return operator_functions[name](self, delta)

    def rows_of(self, other: Variable) -> VariableRows:
        """Return the rows of another variable at the same positions."""
        return VariableRows(other, self.indices)


def near(variable: Variable) -> AbstractContextManager[None]:
    """Ask for the place of a variable, whatever the scopes around ask for; where nobody asks, placement decides."""
    graph = get_default_graph()
    scope = graph.device_scope
    is_asked = variable.device or scope.parts or scope.colocations
    return graph.near_state((variable,), variable.device) if is_asked else nullcontext()
