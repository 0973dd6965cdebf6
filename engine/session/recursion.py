"""Functions that call themselves while they are traced: a recursive call becomes a call of the graph."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dis import Instruction, get_instructions
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, Protocol

import numpy as np

from ..common.nest import flatten_with_path, is_mapping, is_sequence, pack_as
from ..control_flow.call import Body, EndlessRecursionError, build_recursion, call_again
from ..control_flow.region_op import as_component, component, rebuild, wrapped
from ..graph.graph import Graph, Operation, get_default_graph
from ..graph.spec import ArraySpec, Spec, StoreSpec, kind_of
from ..graph.tensor import Tensor


class TracedFunction(Protocol):
    """The attributes of a `Function` that are used here."""

    python_function: Callable[..., Any]

    def may_recurse(self) -> bool: ...


class Arguments:
    """The arguments of one call, by the names of parameters, whichever way they were passed."""

    def __init__(self, python_function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._bound = _signature(python_function).bind(*args, **kwargs)
        self._bound.apply_defaults()
        self.leaves = {
            name + path: leaf
            for name, value in self._bound.arguments.items()
            for path, leaf in flatten_with_path(value)
        }

    def call(self, python_function: Callable[..., Any], replaced: dict[str, Any]) -> Any:
        """Call the function for these arguments, with some leaves replaced; values without any stay as they are."""
        given = self._bound.arguments
        bound = inspect.BoundArguments(self._bound.signature, OrderedDict(given))
        for name, value in given.items():
            names = [name + path for path, _ in flatten_with_path(value)]
            if not replaced.keys().isdisjoint(names):
                bound.arguments[name] = pack_as(value, [replaced.get(leaf, self.leaves[leaf]) for leaf in names])
        return python_function(*bound.args, **bound.kwargs)


def _signature(python_function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(python_function, follow_wrapped=False)
    except (TypeError, ValueError):  # of some functions that are not written in Python
        return inspect.signature(lambda *args, **kwargs: None)


class _NumberVaries(BaseException):
    """A call inside gives a tensor where the first call has a Python number. No error: the trace starts again."""

    def __init__(self, entry: _Entry, specs: dict[str, Spec]) -> None:
        super().__init__(", ".join(specs))
        self.entry = entry
        self.specs = specs


class _Entry:
    """A call that is being traced: as a body, if its function calls itself, otherwise as a part of `graph`."""

    def __init__(self, function: TracedFunction, arguments: Arguments, numbers: dict[str, Spec]) -> None:
        self.function = function
        self.graph = get_default_graph()
        self.body: Body | None = None
        self.structure: Any = None
        self.has_structure = False
        self.carried = [name for name, leaf in arguments.leaves.items() if _is_carried(leaf) or name in numbers]
        self.numbers = numbers
        self.statics = {n: static_key(leaf) for n, leaf in arguments.leaves.items() if n not in self.carried}
        self._kept = arguments  # some statics are known by their id

    @property
    def name(self) -> str:
        return _name(self.function)

    def matches(self, function: TracedFunction, arguments: Arguments, graph: Graph) -> bool:
        """Test whether a call of `function` in `graph` is one of this entry again, with other values of the tensors.

        Raises:
            _NumberVaries: it would be, but for numbers that are tensors now.
        """
        if self.function is not function or not graph.is_inside(self.body or self.graph):
            return False
        leaves = arguments.leaves
        if leaves.keys() != {*self.carried, *self.statics}:
            return False
        if any(not _is_carried(leaves[name]) and not _is_number(leaves[name]) for name in self.carried):
            return False
        different = [name for name, key in self.statics.items() if not _is_same(static_key(leaves[name]), key)]
        if not different:
            return True
        tensors = {name: leaves[name] for name in different if isinstance(leaves[name], Tensor)}
        if self.body is not None and len(tensors) == len(different) and all(
            _is_number(self._kept.leaves[name]) for name in tensors
        ):  # fmt: skip
            raise _NumberVaries(self, {name: tensor.spec for name, tensor in tensors.items()})
        return False

    def call(self, arguments: Arguments) -> Any:
        """Call the body again."""
        body = self.body
        assert body is not None
        names = self.carried
        values = [as_component(arguments.leaves[n], p.spec) for n, p in zip(names, body.parameters, strict=True)]
        differences = [
            f"  {name}: went in as {_kind(parameter.spec)}, is {_kind(value.spec)} in the call inside"
            + (f"; cast it with ops.cast(..., '{parameter.dtype}')." if _is_cast_enough(parameter, value) else ".")
            for name, parameter, value in zip(names, body.parameters, values, strict=True)
            if _kind(parameter.spec) != _kind(value.spec)
        ]
        if differences:
            listed = "\n".join(differences)
            raise TypeError(f"Function {self.name!r} must call itself with arguments of the same dtypes.\n{listed}")
        outputs = call_again(body, values).outputs[:-1]
        return rebuild(self.structure, outputs) if outputs else self.structure

    def first_values(self) -> list[Tensor]:
        """Return the tensors of the first call."""
        return [as_component(self._kept.leaves[name], self.numbers.get(name)) for name in self.carried]

    def trace(self, body: Body) -> list[Tensor]:
        """Return the results of the function in `body`, flat."""
        self.body = body
        symbols = {name: wrapped(tensor) for name, tensor in zip(self.carried, body.parameters, strict=True)}
        with _entered(self):
            result = without_operations(self._kept.call(self.function.python_function, symbols))
        self._check_structure(result)
        leaves = [leaf for _, leaf in flatten_with_path(result)]
        specs: Sequence[Spec | None] = body.result_specs or [None] * len(leaves)
        return [as_component(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)]

    def _check_structure(self, result: Any) -> None:
        if self.has_structure:
            want = [path for path, _ in flatten_with_path(self.structure)]
            have = [path for path, _ in flatten_with_path(result)]
            if want != have:
                raise TypeError(
                    f"Function {self.name!r} must return one structure on every path. Where it does not call itself "
                    f"it returns {_shown(want)}, with calls of itself {_shown(have)}."
                )
        self.structure, self.has_structure = result, True


def call_on_tensors(function: TracedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function in the current graph: of its Python function, or of a call of the graph."""
    try:
        arguments = Arguments(function.python_function, args, kwargs)
    except TypeError:
        return function.python_function(*args, **kwargs)  # raises Python's usual error
    graph = get_default_graph()
    entries = [entry for entry in reversed(_traced.stack) if entry.function is function]
    running = next((entry for entry in entries if entry.matches(function, arguments, graph)), None)
    if running is not None and running.body is not None:
        return running.call(arguments)
    may_recurse = running is not None or (function.may_recurse() and not entries)
    try:
        result = _as_recursion(function, arguments) if may_recurse else None
        return _inlined(function, arguments) if result is None else result.value
    except RecursionError as error:
        if entries or type(error) is not RecursionError:
            raise
        failure = EndlessRecursionError(
            f"Function {_name(function)!r} calls itself without end while it is traced, each time with other Python "
            "values or another structure of its arguments. Give it tensors, so that from call to call nothing but the "
            "values of these changes."
        )
    raise failure


def meets_itself(function: TracedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Test whether a call without tensors is one of a function that is being traced, with numbers for its tensors."""
    entries = [entry for entry in reversed(_traced.stack) if entry.function is function and entry.body is not None]
    if not entries:
        return False
    arguments, graph = Arguments(function.python_function, args, kwargs), get_default_graph()
    return any(entry.matches(function, arguments, graph) for entry in entries)


class _Result:
    def __init__(self, value: Any) -> None:
        self.value = value


def _as_recursion(function: TracedFunction, arguments: Arguments) -> _Result | None:
    """Return the result as that of a recursion; None if the function does not call itself for such arguments."""
    numbers: dict[str, Spec] = {}
    while True:
        entry = _Entry(function, arguments, numbers)
        try:
            node = build_recursion(entry.name, entry.trace, entry.first_values(), entry.carried)
        except _NumberVaries as found:
            if found.entry is not entry:
                raise
            numbers |= found.specs
            continue
        if node is None:
            return None
        outputs = node.outputs[:-1]
        return _Result(rebuild(entry.structure, outputs) if outputs else entry.structure)


def _inlined(function: TracedFunction, arguments: Arguments) -> Any:
    with _entered(_Entry(function, arguments, {})):
        return arguments.call(function.python_function, {})


class _Traced(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Entry] = []


_traced = _Traced()


@contextmanager
def _entered(entry: _Entry) -> Generator[None]:
    _traced.stack.append(entry)
    try:
        yield
    finally:
        _traced.stack.pop()


# --- what a function mentions ---------------------------------------------------------------------------------------


def mentions(python_function: Any, target: TracedFunction, kind: type[Any]) -> bool:
    """Test whether `python_function`, or a function that it mentions, mentions `target`: then it may call itself.

    Args:
        python_function: where to look.
        target: the function that is looked for, by identity and, for methods, by name.
        kind: the class of traced functions, into which the search goes.
    """
    seen: set[int] = set()
    pending = [python_function]
    while pending:
        current = pending.pop()
        if not isinstance(current, FunctionType) or id(current) in seen:
            continue
        seen.add(id(current))
        names = _names_in(current.__code__)
        if current is target.python_function and _names_itself(current):
            return True
        for known in _objects_named(current, names):
            if known is target:
                return True
            if isinstance(known, kind):
                traced: Any = known
                pending.append(traced.python_function)
            elif isinstance(known, FunctionType) and known.__module__ == current.__module__:
                pending.append(known)
    return False


def _names_itself(method: FunctionType) -> bool:
    """Test whether a method calls the method of its name, of its own object."""
    code = method.__code__
    around = method.__qualname__.rpartition(".")[0]
    if not code.co_argcount or not around or around.endswith("<locals>"):
        return False  # it is no method
    owner = code.co_varnames[0]
    return any(
        before.opname.startswith("LOAD_") and before.argval == owner and after.argval == method.__name__
        for before, after in pairwise(_instructions(code))
    )


def _instructions(code: CodeType) -> Iterator[Instruction]:
    yield from get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _names_in(code: CodeType) -> set[str]:
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _objects_named(function: FunctionType, names: set[str]) -> Iterator[Any]:
    for name in names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue


# --- leaves ---------------------------------------------------------------------------------------------------------


def static_key(leaf: Any) -> Any:
    """Return the key of an argument that is part of the trace: its value, or its identity if it has no hash."""
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return leaf


def without_operations(result: Any) -> Any:
    """Return a result without operations, which have no value."""
    if isinstance(result, Operation):
        return None
    if is_mapping(result):
        return {key: without_operations(value) for key, value in result.items()}
    if is_sequence(result) and any(isinstance(leaf, Operation) for _, leaf in flatten_with_path(result)):
        return [without_operations(item) for item in result]
    return result


def _name(function: TracedFunction) -> str:
    return str(getattr(function, "__name__", "function"))


def _is_carried(leaf: Any) -> bool:
    return isinstance(component(leaf), (Tensor, np.ndarray, np.generic))


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex))


def _is_same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)  # pyrefly: ignore[unknown-argument-type] - any values


def _kind(spec: Spec) -> str:
    if isinstance(spec, StoreSpec):
        return f"store<{spec.key} -> {spec.dtype}>"
    return f"array<{spec.dtype}>" if isinstance(spec, ArraySpec) else str(spec.dtype)


def _is_cast_enough(parameter: Tensor, value: Tensor) -> bool:
    return kind_of(parameter.spec) == kind_of(value.spec)


def _shown(paths: list[str]) -> str:
    return ", ".join(path or "one value" for path in paths) or "nothing"
