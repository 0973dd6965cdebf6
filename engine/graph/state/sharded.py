"""`ShardedVariable`: a variable that is cut, as a rule by rows, into others, which may be on several devices.

Each shard is a `Variable` like any other, so optimizers, strategies and steps treat it as one. The class here puts them
together where the whole is asked for: values, assignments, files and checkpoints.

Source: Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning" (OSDI 2016), section 4.2.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np

from ...common.dtypes import DType, DTypeLike
from ...common.operator_table import operator_functions
from ...common.partitioners import FixedShardsPartitioner, shards_along_rows
from ..device import State
from ..element_count import ElementCount
from ..scopes import device
from ..slices import IndexedSlices
from ..spec import TensorSpec, shape_text
from ..tensor import Tensor
from .aligned import own_copy
from .initial_values import Later
from .readable import Readable
from .variable import Variable

Array = Any
_BLOCK_NUMBERS = 1 << 20  # of a first value that are drawn at once, of which a shard has some columns


class Rows:
    """The rows of a whole that a shard holds: every `step`-th from `first` on, before `stop`.

    >>> Rows(1, 8, 3), len(Rows(1, 8, 3))
    (Rows(1, 8, 3), 3)
    """

    __slots__ = ("first", "step", "stop")

    def __init__(self, first: int, stop: int, step: int = 1) -> None:
        self.first = first
        self.stop = stop
        self.step = step

    @property
    def slice(self) -> builtins.slice:
        """The same as a slice of the first axis."""
        return slice(self.first, self.stop, self.step)

    def __len__(self) -> int:
        return len(range(self.first, self.stop, self.step))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and (self.first, self.stop, self.step) == (other.first, other.stop, other.step)

    def __hash__(self) -> int:
        return hash((self.first, self.stop, self.step))

    def __repr__(self) -> str:
        return f"Rows({self.first}, {self.stop}, {self.step})"


def rows_of_shards(rows: int, count: int, layout: str = "div") -> list[Rows]:
    """Return the rows of each of `count` shards; the first ones hold one more than the others where that is uneven.

    Args:
        rows: of the whole.
        count: how many shards there are.
        layout: "div": each holds rows that follow one another; "mod": row i is in shard ``i % count``.

    >>> rows_of_shards(5, 2), rows_of_shards(5, 2, "mod")
    ([Rows(0, 3, 1), Rows(3, 5, 1)], [Rows(0, 5, 2), Rows(1, 5, 2)])
    """
    if layout == "mod":
        return [Rows(shard, rows, count) for shard in range(count)]
    size, more = divmod(rows, count)
    bounds = [shard * size + min(shard, more) for shard in range(count + 1)]
    return [Rows(first, stop) for first, stop in pairwise(bounds)]


def layout_of_grid(counts: Sequence[int]) -> str:
    """Name the layout of a variable that is cut along several axes, or along another one than the first.

    Args:
        counts: how many equal parts there are along each axis.

    >>> layout_of_grid([1, 2]), layout_of_grid([4, 1])
    ('1x2', 'div')
    """
    return "div" if all(count == 1 for count in counts[1:]) else "x".join(map(str, counts))


def grid_of_layout(layout: str) -> tuple[int, ...] | None:
    """Return how many parts there are along each axis; None if it is cut by rows alone.

    >>> grid_of_layout("1x2"), grid_of_layout("mod")
    ((1, 2), None)
    """
    return tuple([int(count) for count in layout.split("x")]) if "x" in layout else None


def regions_of_grid(shape: Sequence[int], counts: Sequence[int]) -> list[tuple[slice, ...]]:
    """Return the part of a whole that each shard holds, in row-major order of the parts.

    Args:
        shape: of the whole; its sizes divide.
        counts: how many parts there are along each axis.

    >>> regions_of_grid([2, 4], [1, 2])
    [(slice(0, 2, None), slice(0, 2, None)), (slice(0, 2, None), slice(2, 4, None))]
    """
    sizes = [size // count for size, count in zip(shape, counts, strict=True)]
    return [
        tuple([slice(number * size, (number + 1) * size) for number, size in zip(index, sizes, strict=True)])
        for index in np.ndindex(*counts)
    ]


class ShardedVariable(Readable):
    """A variable that is cut by rows into several shards, which may be on different devices and tasks.

    Args:
        initial_value: an array, or an initializer: a function of `shape` and `dtype`. Each shard gets its rows of the
            value. An initializer of this library runs where a shard is, and makes no other rows.
        partitioner: how many shards there are: `FixedShardsPartitioner`, `MinSizePartitioner`, `MaxSizePartitioner`,
            or a function of shape and dtype that gives a count for each axis. By default two shards.
        devices: where the shards are, in turn, such as ``["/job:ps/task:0", "/job:ps/task:1"]``. By default what the
            scopes around ask for. Without such scopes these are the ps tasks of the cluster: of the one in the
            environment, or else of the session with a target that first runs a step of a graph with the shards.
        name: its name. Shards are called ``name/part_0`` and so on.
        shape: needed with an initializer.
        dtype: the dtype; by default that of the value, or float32.
        trainable: whether optimizers are to update it.

    It can be used in ops like a variable, which joins the shards. `ops.take`, `ops.gather` and `ops.embedding_lookup`
    read rows where these are, and nothing else is moved. The gradient of a sharded variable is a list of its shards'
    gradients; optimizers take the variable with such a list, or with a gradient of the whole.

    Raises:
        ValueError: the value has no rows, or the partitioner cuts something else than rows.
        TypeError: `devices` is a string.

    Source: TensorFlow's ``tf.distribute.experimental.partitioners`` and ``ShardedVariable``.

    >>> import anabranch as ab
    >>> table = ab.distribute.ShardedVariable([[1.0], [2.0], [3.0]], ab.distribute.FixedShardsPartitioner(2))
    >>> [shard.shape for shard in table.shards]
    [(2, 1), (1, 1)]
    >>> ab.ops.take(table, [2, 0], axis=0)
    Tensor([[3.],
            [1.]], dtype=float32)
    """

    is_open: bool = False  # whether the cluster whose session first runs it chooses the places of the shards

    def __init__(
        self,
        initial_value: Any,
        partitioner: Any = None,
        devices: Sequence[str] | None = None,
        name: str | None = None,
        *,
        shape: Any = None,
        dtype: DTypeLike = None,
        trainable: bool = True,
    ) -> None:
        name = name or "variable"
        if callable(initial_value):
            if shape is None:
                raise ValueError(f"ShardedVariable {name!r}: an initializer needs a shape, such as shape=(1000, 8).")
            whole: Any = operator_functions["first_value"](initial_value, tuple(int(size) for size in shape), dtype)
        else:
            whole = operator_functions["as_array"](initial_value, dtype)
            if shape is not None and tuple(shape) != tuple(whole.shape):
                raise ValueError(
                    f"ShardedVariable {name!r}: the initial value has shape {shape_text(tuple(whole.shape))}, but "
                    f"shape={tuple(shape)} was asked for."
                )
        if not whole.shape:
            raise ValueError(f"ShardedVariable {name!r}: a scalar has no rows to cut; use Variable.")
        chosen = FixedShardsPartitioner(2) if partitioner is None else partitioner
        rows = rows_of_shards(whole.shape[0], shards_along_rows(chosen, whole.shape, whole.dtype))
        if isinstance(devices, str):
            raise TypeError(f"ShardedVariable {name!r}: devices={devices!r} is a string; give a list of names.")
        found = _places.find() if devices is None else devices
        places = list(found or ())
        self.is_open = found is None

        def make(number: int, held: Rows) -> Variable:
            with device(places[number % len(places)]) if places else nullcontext():
                return Variable(part_of(whole, held), trainable=trainable, name=f"{name}/part_{number}")

        self._hold([make(number, held) for number, held in enumerate(rows)], "div", name, name)

    @classmethod
    def of(cls, shards: Sequence[Variable], layout: str, name: str, path: str) -> ShardedVariable:
        """Put variables together that are the shards of a whole.

        Args:
            shards: the variables, as `rows_of_shards` cuts; or the parts of a `layout_of_grid`, in row-major order.
            layout: "div" or "mod", or that of a grid.
            name, path: of the whole.
        """
        made = cls.__new__(cls)
        made._hold(list(shards), layout, name, path)
        return made

    def _hold(self, shards: list[Variable], layout: str, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.layout = layout
        self.shards = shards
        self.grid = grid_of_layout(layout)
        first: Any = shards[0].shape or (0,)
        if self.grid is None:
            sizes = [int((shard.shape or (0,))[0] or 0) for shard in shards]
            rows = rows_of_shards(sum(sizes), len(shards), layout)
            shape: Any = (sum(sizes), *first[1:])
            self.regions: list[Any] = [(held.slice,) for held in rows]
        else:
            shape = tuple([int(size) * count for size, count in zip(first, self.grid, strict=True)])
            self.regions = regions_of_grid(shape, self.grid)
        self.spec = TensorSpec(shape, shards[0].spec.dtype)
        for shard in shards:
            shard.whole = self

    @property
    def rows(self) -> list[Rows]:
        """The rows that each shard holds.

        Raises:
            ValueError: it is cut along other axes, too.
        """
        if self.grid is not None:
            raise ValueError(
                f"Variable {self.path!r} is cut into {' x '.join(map(str, self.grid))} parts, not by rows alone. Cut "
                "it along its first axis, or not at all."
            )
        return rows_of_shards(int(self.shape[0]), len(self.shards), self.layout)

    @property
    def variables(self) -> list[Variable]:
        """The shards (TensorFlow's name)."""
        return list(self.shards)

    @property
    def shape(self) -> Any:  # a `Shape`, of which all is known
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.shards[0].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return ElementCount(math.prod(self.shape))

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    @property
    def trainable(self) -> bool:
        """Test whether optimizers are to update it. Setting it sets it for all shards."""
        return self.shards[0].trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        for shard in self.shards:
            shard.trainable = value

    @property
    def was_made_trainable(self) -> bool:
        """Test whether the shards were made for optimizers to update, whatever `trainable` is now."""
        return self.shards[0].was_made_trainable

    @property
    def value(self) -> Tensor:
        """The whole, joined, at this place of the program."""
        return operator_functions["join_shards"](self)

    def numpy(self) -> Array:
        """Return a copy of the current value, joined."""
        shape: Any = self.spec.shape
        whole: Any = np.empty(shape, self.spec.dtype)
        for shard, region in zip(self.shards, self.regions, strict=True):
            whole[region] = shard.stored_value()
        return whole

    def stored_value(self) -> Array:
        """Return the same, by the name that variables have for the runtime."""
        return self.numpy()

    def write_value(self, value: Any) -> None:
        """Give each shard its part of a value that was checked."""
        for shard, region in zip(self.shards, self.regions, strict=True):
            shard.write_value(own_copy(value[region]))

    def assign(self, value: Any) -> ShardedVariable:
        """Set the value; see `Variable` for when that builds operations. Each shard takes its part."""
        return self._each("assign", value)

    def assign_add(self, delta: Any) -> ShardedVariable:
        """Add `delta` to the value; as `assign`."""
        return self._each("assign_add", delta)

    def assign_sub(self, delta: Any) -> ShardedVariable:
        """Subtract `delta` from the value; as `assign`."""
        return self._each("assign_sub", delta)

    def _each(self, method: str, value: Any) -> ShardedVariable:
        given = operator_functions["convert"](value, self.dtype)
        if given.shape is not None and tuple(given.shape) != tuple(self.shape):
            raise ValueError(
                f"Variable {self.name!r} has shape {shape_text(self.shape)}; a value of shape "
                f"{shape_text(given.shape)} can't be assigned to it."
            )
        for shard, region in zip(self.shards, self.regions, strict=True):
            getattr(shard, method)(given[region])
        return self

    def scatter_update(self, sparse_delta: IndexedSlices, name: str | None = None) -> ShardedVariable:
        """Set rows, each in the shard that holds it; see `Variable.scatter_update`."""
        return self._scatter("scatter_update", sparse_delta, name)

    def scatter_add(self, sparse_delta: IndexedSlices, name: str | None = None) -> ShardedVariable:
        """Add to rows, each in the shard that holds it; see `Variable.scatter_add`."""
        return self._scatter("scatter_add", sparse_delta, name)

    def scatter_sub(self, sparse_delta: IndexedSlices, name: str | None = None) -> ShardedVariable:
        """Subtract from rows, each in the shard that holds it; see `Variable.scatter_sub`."""
        return self._scatter("scatter_sub", sparse_delta, name)

    def _scatter(self, method: str, slices: IndexedSlices, name: str | None) -> ShardedVariable:
        for shard, part in zip(self.shards, self.parts(slices), strict=True):
            getattr(shard, method)(part, name)
        return self

    def parts(self, gradient: Any) -> list[Any]:
        """Cut a gradient of the whole, dense or `IndexedSlices`, into those of the shards."""
        return operator_functions["parts_of_shards"](self, gradient)

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), dtype=dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        tensors = [item.value if isinstance(item, ShardedVariable) else item for item in inputs]
        return operator_functions["ufunc"](ufunc, method, tensors, options)

    def __repr__(self) -> str:
        return f"<ShardedVariable {self.name} {self.spec} in {len(self.shards)} shards>"


class _Places:
    """The devices of shards for which nothing is said.

    Attributes:
        find: gives devices, which they take in turn; an empty list for what the scopes around ask for, and None where
            that depends on the cluster that runs them.
    """

    find: Callable[[], Sequence[str] | None] = tuple


_places = _Places()


def set_finder(find: Callable[[], Sequence[str] | None]) -> None:
    """Have a function place the shards for which no device is given."""
    _places.find = find


def spread_shards(resources: Sequence[Any], tasks: Sequence[str]) -> None:
    """Place the shards among the state of a graph whose places are open, and what is to be beside them.

    Args:
        resources: the state.
        tasks: where the shards are, in turn. If there are none, the places stay open.
    """
    wholes = {id(whole): whole for whole in map(_open_whole, resources) if whole is not None} if tasks else {}
    for whole in wholes.values():
        for number, shard in enumerate(whole.shards):
            shard.device = tasks[number % len(tasks)]
        whole.is_open = False
    for resource in resources:  # those made before the places were known
        if isinstance(resource, State) and not resource.device:
            resource.device = next((held.device for held in resource.colocations if isinstance(held, State)), "")


def has_open_shards(resources: Sequence[Any]) -> bool:
    """Test whether there are shards among the state of a graph whose places are open."""
    return any(_open_whole(resource) is not None for resource in resources)


def _open_whole(resource: Any) -> ShardedVariable | None:
    whole = resource.whole if isinstance(resource, Variable) else None
    return whole if whole is not None and whole.is_open else None


def part_of(whole: Any, rows: Rows) -> Any:
    """Return the rows of a first value, which is an array, or what makes one later."""
    return whole.at(rows) if hasattr(whole, "at") else np.array(whole[rows.slice], order="C")


def block_of(whole: Any, region: Sequence[slice]) -> Any:
    """Return the part of a first value that a shard of a grid holds, as an array; no more is made at once."""
    if not hasattr(whole, "at"):
        return np.array((whole.compute() if isinstance(whole, Later) else whole)[tuple(region)], order="C")
    rows, *rest = region
    found = np.empty([each.stop - each.start for each in region], whole.dtype)
    step = max(_BLOCK_NUMBERS // max(math.prod(whole.shape[1:]), 1), 1)
    for first in range(rows.start, rows.stop, step):
        last = min(first + step, rows.stop)
        found[first - rows.start : last - rows.start] = whole.at(Rows(first, last)).compute()[:, *rest]
    return found


def grouped(items: Sequence[Any]) -> list[Any]:
    """Put the shards in a list together: in the place of the first stands the `ShardedVariable`, if all are there.

    >>> import anabranch as ab
    >>> table = ab.distribute.ShardedVariable([1.0, 2.0, 3.0])
    >>> grouped([*table.shards, 5]) == [table, 5]
    True
    """
    there = {id(item) for item in items}
    found: list[Any] = []
    seen: set[int] = set()
    for item in items:
        whole = item.whole if isinstance(item, Variable) else None
        if whole is None or any(id(shard) not in there for shard in whole.shards):
            found.append(item)
        elif id(whole) not in seen:
            seen.add(id(whole))
            found.append(whole)
    return found


def expanded(items: Sequence[Any]) -> list[Any]:
    """Return the items, with shards in the place of each `ShardedVariable`."""
    return [part for item in items for part in (item.shards if isinstance(item, ShardedVariable) else [item])]


def regrouped(items: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Return what was found for `expanded` items, as a list for each `ShardedVariable` among them."""
    rest = iter(found)
    return [[next(rest) for _ in item.shards] if isinstance(item, ShardedVariable) else next(rest) for item in items]


__all__ = [
    "Rows",
    "ShardedVariable",
    "block_of",
    "expanded",
    "grid_of_layout",
    "grouped",
    "has_open_shards",
    "layout_of_grid",
    "part_of",
    "regions_of_grid",
    "regrouped",
    "rows_of_shards",
    "set_finder",
    "spread_shards",
]
