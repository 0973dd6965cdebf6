"""Parts of a layer call beside the layer: its arguments, masks, and the calls around it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from ...engine import ops
from ...engine.common.cached import cached_property
from ...engine.common.dtypes import is_floating
from ...engine.common.quick_dataclass import dataclass
from ...engine.graph import Graph, Symbol, Tensor, TensorSpec, Variable, flatten, get_default_graph, in_explicit_graph
from ...engine.ops.base import as_array

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from .layer import Layer

TensorOrTensors: TypeAlias = Tensor
"""A tensor; or several, where an argument such as ``return_state=True`` adds them. Both unpack into tensors."""


def one_or_several(tensors: Sequence[object]) -> TensorOrTensors:
    """Return one output by itself, and several as a tuple."""
    given: Any = tuple(tensors) if len(tensors) > 1 else tensors[0]
    return given


@dataclass(frozen=True)
class CallSignature:
    """The parameters of a layer's `call`, without self."""

    signature: inspect.Signature
    names: tuple[str, ...] = field(init=False)
    takes_anything: bool = field(init=False)
    is_plain: bool = field(init=False)  # whether each parameter can be given by position and by name

    def __post_init__(self) -> None:
        parameters = self.signature.parameters.values()
        named = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        object.__setattr__(self, "names", tuple(named))
        object.__setattr__(self, "takes_anything", any(p.kind == p.VAR_KEYWORD for p in parameters))
        object.__setattr__(self, "is_plain", all(p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters))

    @cached_property
    def required(self) -> list[str]:
        """The parameters without a default."""
        return [n for n in self.names if self.signature.parameters[n].default is inspect.Parameter.empty]

    @property
    def described(self) -> str:
        """The parameters as an error shows them: names and defaults, without annotations."""
        plain = [p.replace(annotation=p.empty) for p in self.signature.parameters.values()]
        return str(inspect.Signature(plain))[1:-1]

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
        """Return the arguments by name; those of *args under ``*0``, ``*1``, and those of **kwargs under their names.

        Required parameters `training` and `mask` that are not among them are None.

        Raises:
            TypeError: the parameters can't take these arguments.
        """
        if self.is_plain and len(args) <= len(self.names):
            given = dict(zip(self.names, args, strict=False))
            if kwargs.keys().isdisjoint(given):
                given.update(kwargs)
                found = {name: given[name] for name in self.names if name in given}
                if len(found) == len(given) and all(name in found for name in self.required):
                    return found
        named = self.signature.bind_partial(*args, **kwargs).arguments
        automatic = [name for name in self.required if name in ("training", "mask") and name not in named]
        bound = self.signature.bind(*args, **kwargs, **dict.fromkeys(automatic))
        arguments: dict[str, object] = {}
        for name, value in bound.arguments.items():
            kind = self.signature.parameters[name].kind
            if kind == inspect.Parameter.VAR_POSITIONAL:
                arguments.update({f"*{position}": item for position, item in enumerate(value)})
            elif kind == inspect.Parameter.VAR_KEYWORD:
                arguments.update(value)
            else:
                arguments[name] = value
        return arguments

    def takes(self, name: str) -> bool:
        return name in self.names

    def default(self, name: str) -> Any:
        value = self.signature.parameters[name].default
        return None if value is inspect.Parameter.empty else value


@cache
def signature_of(function: Callable[..., object]) -> CallSignature:
    """Return the signature of a method, without self."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    return CallSignature(signature.replace(parameters=parameters))


# --- the calls around this one --------------------------------------------------------------------------------------


@dataclass
class ActiveCall:
    """A layer whose `call` or `build` is running."""

    path: str
    training: bool | None = None
    layer: Layer | None = None  # whose call it is; None for a build
    autocast: str | None = None  # the dtype in which weights are read; None for their own
    symbols: Graph | None = None  # where an `Input` made inside the call is put


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[ActiveCall] = []
        self.path = ""  # where paths go on from when the stack is empty


_calls = _Calls()


@contextmanager
def active_call(name: str, training: bool | None = None, layer: Layer | None = None) -> Generator[ActiveCall]:
    """Note that the layer called `name` is being called or built."""
    active = ActiveCall(enclosing_path() + name, training, layer)
    _calls.stack.append(active)
    try:
        yield active
    finally:
        _calls.stack.pop()


@contextmanager
def symbols_apart() -> Generator[None]:
    """Make an `Input` inside of the block: inside a layer's call, it is put in a graph apart from that of the call.

    What is built on it is a model, not a part of the call, whose graph could run the model's updates of weights only
    if somebody fed the `Input`.
    """
    if not _calls.stack:
        with get_default_graph().entered():
            yield
        return
    active = _calls.stack[-1]
    active.symbols = active.symbols or Graph()
    with active.symbols.as_default():
        yield


@contextmanager
def calls_around(graph: Graph) -> Generator[None]:
    """Call a layer in `graph` inside of the block: on symbols made inside a call, only paths go on."""
    if not any(active.symbols is graph.root for active in _calls.stack):
        yield
        return
    stack, path = _calls.stack, _calls.path
    _calls.stack, _calls.path = [], enclosing_path()
    try:
        yield
    finally:
        _calls.stack, _calls.path = stack, path


@contextmanager
def paths_below(path: str) -> Generator[None]:
    """Let layers that are built outside of all calls have paths that begin with `path`, inside of the block."""
    before, _calls.path = _calls.path, path
    try:
        yield
    finally:
        _calls.path = before


def defines_forward(layer: object) -> bool:
    """Test whether a class defines the computation by PyTorch's name of `call`."""
    return inspect.isfunction(getattr(type(layer), "forward", None))


def is_outermost() -> bool:
    """Test whether no layer's call or build is running around this point."""
    return not _calls.stack


def calling_layer() -> Layer | None:
    """Return the layer whose call is running, and not its `build`; None outside of all calls."""
    layer = _calls.stack[-1].layer if _calls.stack else None
    return None if layer is None or layer._is_building else layer


def is_within_call_of(layer: object) -> bool:
    """Test whether this point is in the call of `layer`, or in one that it makes."""
    return any(active.layer is layer for active in _calls.stack)


def enclosing_path() -> str:
    """Return the path of the layer that is being called or built, with a slash; empty if there is none."""
    return _calls.stack[-1].path + "/" if _calls.stack else _calls.path


def autocast_dtype() -> str | None:
    """Return the dtype in which the layer that is being called reads its weights; None for their own."""
    return _calls.stack[-1].autocast if _calls.stack else None


@contextmanager
def without_autocast() -> Generator[None]:
    """Read weights in their own dtype inside of the block."""
    active = _calls.stack[-1] if _calls.stack else ActiveCall("")
    dtype, active.autocast = active.autocast, None
    try:
        yield
    finally:
        active.autocast = dtype


def enclosing_training() -> bool | None:
    """Return the `training` argument of the calls around this one; None if none has one."""
    for active in reversed(_calls.stack):
        if active.training is not None:
            return active.training
    return None


# --- arguments ------------------------------------------------------------------------------------------------------


def map_leaves(function: Callable[[Any], object], structure: object) -> Any:
    """Map `function` over the leaves of nested lists, tuples and dicts; None stays."""
    if structure is None:
        return None
    if isinstance(structure, dict):
        return {key: map_leaves(function, value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        items = [map_leaves(function, item) for item in structure]
        if hasattr(structure, "_fields"):
            return type(structure)(*items)
        return tuple(items) if isinstance(structure, tuple) else items
    return function(structure)


def tensors_in(structure: object) -> list[Tensor]:
    """Return the tensors among the leaves of a structure, values and symbols."""
    return [leaf for leaf in flatten(structure) if isinstance(leaf, Tensor)]


def symbols_in(structure: object) -> list[Symbol]:
    """Return the symbolic tensors among the leaves of a structure."""
    return [leaf for leaf in flatten(structure) if isinstance(leaf, Symbol)]


def is_symbolic(*values: object) -> bool:
    """Test whether a call with these arguments adds to a graph: one is being built, or there is a symbol among them."""
    return in_explicit_graph() or bool(symbols_in(values))


def is_array(leaf: object) -> TypeGuard[ArrayLike]:
    """Test whether `leaf` is a concrete array (of NumPy or another library), rather than a tensor or a setting."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return True
    return not isinstance(leaf, (Tensor, Variable)) and hasattr(leaf, "__array__") and hasattr(leaf, "dtype")


def numbers_to_arrays(structure: object) -> object:
    """Return `structure` with nested lists of numbers, ``[[1, 2], [3, 4]]``, as arrays; other lists stay lists."""
    if isinstance(structure, (list, tuple)) and structure and not hasattr(structure, "_fields"):
        leaves = flatten(structure)
        if leaves and all(isinstance(leaf, (bool, int, float)) for leaf in leaves):
            return as_array(structure)
    if isinstance(structure, dict):
        return {key: numbers_to_arrays(value) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and not hasattr(structure, "_fields"):
        items = [numbers_to_arrays(item) for item in structure]
        return tuple(items) if isinstance(structure, tuple) else items
    return structure


def to_tensors(arguments: Mapping[str, object], dtype: str | None) -> dict[str, object]:
    """Return the arguments with arrays and variables made tensors, and floating values of the layer's `dtype`.

    Args:
        arguments: by name of the parameter.
        dtype: the layer's compute dtype; None leaves dtypes as they are.
    """

    def convert(leaf: object) -> object:
        if isinstance(leaf, Variable) or is_array(leaf):
            leaf = ops.convert_to_tensor(leaf)
        if not isinstance(leaf, Tensor) or dtype is None or not isinstance(leaf.spec, TensorSpec):
            return leaf
        return ops.cast(leaf, dtype) if is_floating(leaf.dtype) and leaf.dtype != dtype else leaf

    return {name: map_leaves(convert, value) for name, value in arguments.items()}


def positional(arguments: Mapping[str, object]) -> list[object]:
    """Return the arguments to pass by position: those of *args, and everything before them."""
    starred = [name for name in arguments if name.startswith("*")]
    if not starred:
        return []
    names = list(arguments)
    last = max(names.index(name) for name in starred)
    return [arguments[name] for name in names[: last + 1]]


def by_keyword(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments to pass by name: those that `positional` leaves out."""
    skipped = len(positional(arguments))
    return dict(list(arguments.items())[skipped:])


def shapes_of(value: object) -> object:
    """Return the shapes of the tensors in a structure, in that structure."""
    return map_leaves(lambda leaf: leaf.shape if isinstance(leaf, Tensor) else None, value)


def masks_of(value: object) -> object:
    """Return the masks that the tensors of a structure carry, in that structure; None if none carries one."""
    masks = map_leaves(lambda leaf: leaf.annotations.get("mask") if isinstance(leaf, Tensor) else None, value)
    return masks if any(mask is not None for mask in flatten(masks)) else None


def path_in(model: Layer, layer: Layer) -> str:
    """Return the path of a layer inside of a model, without the model's own name, in which copies differ."""
    return layer.path.removeprefix(f"{model.name}/")
