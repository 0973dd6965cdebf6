"""Collective ops: sums over all processes of a group, and what else they exchange.

Every member of a group runs the same collectives in the same order; the ops have an effect, so that program order is
kept. ``group=`` gives some ranks, among which a collective runs while others run theirs. A process that belongs to no
group is a group of one. How members reach each other is no matter of this module: `anabranch.distribute` sets the group
of a process.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..common.quick_dataclass import dataclass
from ..graph.op import OUTSIDE_WORLD, Effect
from ..graph.spec import shape_text
from . import run_time_shapes
from .arrays import creation, gathering, shaping
from .base import ErrorSample, Op, Operation, Sample, Tensor, TensorLike, TensorSpec, apply, apply_effect, cast
from .base import convert_to_tensor as to_tensor
from .math import comparison, reduction
from .run_time_shapes import reshape_like

REDUCE_OPS = ("sum", "mean", "max", "min")


class Group:
    """The processes that run collectives together: here one alone; `distribute` has those of several.

    Attributes:
        rank: the number of this process in the group, from 0.
        size: how many there are.
        ranks: their numbers among all processes, in ascending order.
        refuses: why scripts can't run collectives in it, in sentences; empty where they can.
    """

    rank = 0
    size = 1
    ranks: tuple[int, ...] = (0,)
    refuses = ""

    def of_arrays(self, xp: Any) -> Group:
        """Return the same group for arrays of another module than NumPy, such as cupy.

        Args:
            xp: the module.
        """
        return self

    def why_not_on_gpus(self) -> str | None:
        """Return the reason why this process has collectives run on its host; None if they may run on a GPU."""
        return None

    def why_by_host(self) -> str | None:
        """Return the reason why values on GPUs go through the host's memory, as far as it is known; else None.

        It may be in another member, and found by the first collective, when operations have their devices.
        """
        return self.why_not_on_gpus()

    def subgroup(self, ranks: tuple[int, ...]) -> Group:
        """Return the group that some members form, one of which is this process.

        Args:
            ranks: as `members_of` gives them.
        """
        return self

    def all_reduce(self, array: Any, reduce_op: str) -> Any:
        """Reduce the members' arrays, of one shape and dtype, in the order of ranks; each gets the result."""
        return array

    def all_reduce_over(self, array: Any, reduce_op: str) -> Any:
        """Reduce as `all_reduce`; the result may be in the memory of the array, contiguous, which nobody else uses."""
        return self.all_reduce(array, reduce_op)

    def begin_all_reduce(self, array: Any, reduce_op: str) -> int:
        """Begin to reduce the members' arrays, while the caller goes on; return the number by which it is ended."""
        return 0

    def end_all_reduce(self, number: int, array: Any) -> Any:
        """Wait for what was begun with `array`, which nobody has changed since; return the result."""
        return array

    def reduce_scatter(self, array: Any, reduce_op: str) -> Any:
        """Reduce the members' arrays, whose rows divide by their number; each gets its part of the rows."""
        return array

    def all_gather(self, array: Any, axis: int) -> Any:
        """Join the members' arrays along an axis, in the order of ranks; each gets the result."""
        return array

    def broadcast(self, array: Any, root: int) -> Any:
        """Give each member the array of one of them; all have one shape and dtype."""
        return array

    def barrier(self) -> None:
        """Wait until all members are here."""


Members = tuple[int, ...] | None  # the ranks of a group, in ascending order; None for all


def members_of(group: Iterable[int] | None, name: str) -> Members:
    """Check the ranks of a group.

    Args:
        group: ranks in any order, or None for all processes.
        name: the collective, for messages.

    Returns:
        The ranks in ascending order; None if they are all processes.

    Raises:
        ValueError: a rank is not a rank of this job, or comes twice, or this process is not a member; or the other
            processes run no collectives.
        TypeError: `group` holds something else.
    """
    whole = current_group()
    if whole.refuses:
        raise ValueError(
            f"{name}: {whole.refuses} Leave it out: tensors are whole here. DataParallel has replicas of the script, "
            "which run collectives."
        )
    if group is None:
        return None
    try:
        ranks = tuple(sorted(operator.index(rank) for rank in group))
    except TypeError:
        raise TypeError(f"{name}: group= takes a list of ranks, or None for all processes; got {group!r}.") from None
    if not ranks or ranks[0] < 0 or ranks[-1] >= whole.size:
        raise ValueError(f"{name}: group={list(ranks)} has to hold ranks from 0 to {whole.size - 1}, at least one.")
    if len({*ranks}) < len(ranks):
        raise ValueError(f"{name}: group={list(ranks)} names a rank twice.")
    if whole.rank not in ranks:
        raise ValueError(
            f"{name}: this process has rank {whole.rank}, and is no member of group={list(ranks)}. Only members call "
            "it."
        )
    return ranks if len(ranks) < whole.size else None


def _group_of(ranks: Members) -> Group:
    """Return the group of some ranks."""
    return current_group() if ranks is None else current_group().subgroup(ranks)


_current: Group | None = None


def _find() -> Group | None:
    """Find the group of this process; replaced by `set_finder`."""
    return None


def current_group() -> Group:
    """Return the group of this process, which is looked for when it is first needed."""
    global _current
    if _current is None:
        _current = _find() or Group()
    return _current


def set_group(group: Group | None) -> None:
    """Set the group of this process; None to look for it again."""
    global _current
    _current = group


def set_finder(find: Callable[[], Group | None]) -> None:
    """Set what finds the group of this process; it gives None for a process alone."""
    global _find
    _find = find


# --- the ops --------------------------------------------------------------------------------------------------------


class Collective(Op, abstract=True):
    """Base: what all members run together, on the host or on a GPU of each.

    Attributes:
        group: the ranks of the members.
    """

    @property
    def group(self) -> Members:
        return None

    def effects(self) -> Iterable[Effect]:
        return (Effect(OUTSIDE_WORLD, writes=True),)

    def why_not_on_gpus(self) -> str | None:
        """Return the reason why it runs on the host, and not on the GPU where its input is; None if it may run there.

        All members run it in the same place: where one has its tensor in the memory of its host, others copy theirs.
        """
        return None if self.host_only else _group_of(self.group).why_not_on_gpus()

    def why_by_host(self) -> str | None:
        """Return the reason why its values go through the host's memory, wherever it runs; None if there is none."""
        return _group_of(self.group).why_by_host()

    def _run(self, xp: Any, value: Any, call: Callable[[Group, Any], Any]) -> Any:
        """Run it on an array of a module."""
        x = xp.asarray(value)
        found = call(_group_of(self.group).of_arrays(xp), x)
        return _own(found, x) if xp is np else xp.array(found) if found is x else found


_REDUCED = {
    "sum": "integers, floating-point and complex numbers",
    "mean": "floating-point and complex numbers",
    "max": "integers and floating-point numbers",
    "min": "integers and floating-point numbers",
}


def _check_reduced(name: str, reduce_op: str, x: TensorSpec) -> None:
    """Refuse a reduction that there is not, and tensors that have none.

    Raises:
        ValueError: of the reduction.
        TypeError: of the tensor.
    """
    if reduce_op not in REDUCE_OPS:
        raise ValueError(f"{name}: reduce_op is one of {', '.join(REDUCE_OPS)}; got {reduce_op!r}.")
    refused = {"mean": "bTiu", "sum": "bT"}.get(reduce_op, "bTc")
    if x.dtype.kind in refused:
        raise TypeError(f"{name}({reduce_op!r}) takes {_REDUCED[reduce_op]}; got {x}. Cast the tensor first.")


@dataclass(frozen=True)
class AllReduce(Collective):
    """The sum, mean, maximum or minimum of the members' tensors."""

    reduce_op: str
    group: Members = None

    updates_first: ClassVar[bool] = True

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        _check_reduced("all_reduce", self.reduce_op, x)
        return x

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self._run(xp, inputs[0], lambda group, x: group.all_reduce(x, self.reduce_op))

    def run_over(self, xp: Any, *inputs: Any) -> Any:
        return _group_of(self.group).of_arrays(xp).all_reduce_over(inputs[0], self.reduce_op)

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (x,), (y,), (dy,) = node.inputs, node.outputs, cotangents
        if dy is None:
            return (None,)
        if self.reduce_op in ("sum", "mean"):
            return (all_reduce(dy, self.reduce_op, self.group),)
        here = cast(comparison.equal(x, y), x.dtype)
        total, ties = all_reduce(dy, group=self.group), all_reduce(here, group=self.group)
        return (total * here / ties,)  # ties share, as in `max` over an axis

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1.0, -2.0], [3.0, 0.5]], "float32")
        for reduce_op in REDUCE_OPS:
            yield Sample(cls(reduce_op), [x], x, label=reduce_op)

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: all_reduce([1.0], "product"), ValueError, "sum, mean, max, min; got 'product'")
        yield ErrorSample(lambda: all_reduce([True]), TypeError, r"takes integers, .*; got bool\[1\]")
        yield ErrorSample(lambda: all_reduce([1, 2], "mean"), TypeError, "floating-point")


@dataclass(frozen=True)
class ReduceScatter(Collective):
    """This member's part of the rows of the sum, mean, maximum or minimum of the members' tensors."""

    reduce_op: str
    size: int  # of the group
    group: Members = None

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        _check_reduced("reduce_scatter", self.reduce_op, x)
        if x.shape is None:
            return x
        rows = x.shape[0] if x.shape else 1
        if not x.shape or (rows is not None and rows % self.size):
            raise ValueError(self._uneven(x))
        return TensorSpec((None if rows is None else rows // self.size, *x.shape[1:]), x.dtype)

    def _uneven(self, x: Any) -> str:
        return f"reduce_scatter: the rows of {x} do not divide by {self.size} members. Pad them."

    def run(self, xp: Any, *inputs: Any) -> Any:
        x = xp.asarray(inputs[0])
        if not x.ndim or len(x) % self.size:
            raise ValueError(self._uneven(TensorSpec(x.shape, x.dtype)))
        return self._run(xp, x, lambda group, x: group.reduce_scatter(x, self.reduce_op))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (x,), (y,), (dy,) = node.inputs, node.outputs, cotangents
        if dy is None:
            return (None,)
        dx = reshape_like(all_gather(dy, group=self.group), x)
        if self.reduce_op in ("sum", "mean"):
            return (dx / self.size if self.reduce_op == "mean" and self.size > 1 else dx,)
        here = cast(comparison.equal(x, reshape_like(all_gather(y, group=self.group), x)), x.dtype)
        return (dx * here / all_reduce(here, group=self.group),)  # ties share, as in `AllReduce`

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1.0, -2.0], [3.0, 0.5]], "float32")
        yield Sample(cls("sum", 1), [x], x, label="sum")
        yield Sample(cls("mean", 1), [x], x, label="mean")
        yield Sample(cls("max", 1), [x], x, label="max")
        yield Sample(cls("min", 1), [x], x, label="min")
        yield Sample(cls("sum", 1), [x[:0]], x[:0], label="no rows")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: reduce_scatter(1.0), ValueError, "do not divide by 1 members")
        yield ErrorSample(lambda: reduce_scatter([True]), TypeError, r"^reduce_scatter\('sum'\) takes integers")


@dataclass(frozen=True)
class AllGather(Collective):
    """The members' tensors, joined along an axis."""

    axis: int
    group: Members = None

    shape_from_values: ClassVar[bool] = True  # members may have more or fewer

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.dtype.kind == "T":
            raise TypeError(f"all_gather takes numbers; got {x}.")
        if x.shape is None:
            return TensorSpec(None, x.dtype)
        dims = list(x.shape)
        dims[self._from_front(x.shape)] = None
        return TensorSpec(tuple(dims), x.dtype)

    def _from_front(self, shape: tuple[Any, ...]) -> int:
        """Return the axis in a shape, counted from its front: of tensors of unknown rank it may count from the end."""
        if not -len(shape) <= self.axis < len(shape):
            raise ValueError(
                f"all_gather: there is no axis {self.axis} in shape {shape_text(shape)}. Give one of its axes."
            )
        return self.axis % len(shape)

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self._run(xp, inputs[0], lambda group, x: group.all_gather(x, self._from_front(x.shape)))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (x,), (dy,) = node.inputs, cotangents
        if dy is None:
            return (None,)
        length = run_time_shapes.runtime_shape(x)[self.axis]
        lengths = all_gather(shaping.reshape(length, (1,)), group=self.group)
        begin = reduction.sum(lengths[: _group_of(self.group).rank])
        own = creation.arange(begin, begin + length)
        part = reshape_like(gathering.take(all_reduce(dy, group=self.group), own, axis=self.axis), x)
        return (part,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1.0, -2.0, 4.0], [3.0, 0.5, 0.0]], "float32")
        yield Sample(cls(0), [x], x, label="rows")
        yield Sample(cls(1), [x], x, label="columns")
        yield Sample(cls(0), [x[:0]], x[:0], label="no rows")

    @classmethod
    def error_samples(cls) -> Iterable[ErrorSample]:
        yield ErrorSample(lambda: all_gather(1.0), ValueError, "no axis 0 in shape")
        yield ErrorSample(lambda: all_gather([1.0], axis=1), ValueError, "no axis 1")
        yield ErrorSample(lambda: all_gather([1.0], axis=-2), ValueError, "no axis -2")


@dataclass(frozen=True)
class Broadcast(Collective):
    """The tensor of one member."""

    root: int  # its rank among all processes
    group: Members = None

    def infer(self, *inputs: Any) -> TensorSpec:
        (x,) = inputs
        if x.dtype.kind == "T":
            raise TypeError(f"broadcast takes numbers; got {x}.")
        return x

    def run(self, xp: Any, *inputs: Any) -> Any:
        return self._run(xp, inputs[0], lambda group, x: group.broadcast(x, self.root))

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        (dy,) = cotangents
        if dy is None:
            return (None,)
        total = all_reduce(dy, group=self.group)
        return (total if current_group().rank == self.root else total * 0,)

    @classmethod
    def samples(cls) -> Iterable[Sample]:
        x = np.array([[1.0, -2.0], [3.0, 0.5]], "float32")
        yield Sample(cls(0), [x], x, label="matrix")
        yield Sample(cls(0), [x[0, 0]], x[0, 0], label="scalar")
        yield Sample(cls(0), [x[:0]], x[:0], label="empty")


@dataclass(frozen=True)
class Barrier(Collective):
    """Waits for all members."""

    group: Members = None

    host_only: ClassVar[bool] = True
    no_samples: ClassVar[str] = "gives no result: test_collectives"

    def infer(self, *inputs: Any) -> Any:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        _group_of(self.group).barrier()
        return ()

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return ()


def _index(name: str, argument: str, value: Any, expected: str) -> int:
    """Return an argument that is an int.

    Raises:
        TypeError: it is something else.
    """
    try:
        return operator.index(value)
    except TypeError:
        given = f"{value!r} of type {type(value).__name__}"
        raise TypeError(f"{name}: {argument} must be {expected}; got {given}.") from None


def _own(found: Any, given: Any) -> Any:
    """Return a result that is not the array that was given, for whoever owns that may write to it."""
    return np.array(found)[()] if found is given or np.may_share_memory(found, given) else found[()]


def all_reduce(tensor: TensorLike, reduce_op: str = "sum", group: Iterable[int] | None = None) -> Tensor:
    """Reduce the tensors of all members of a group; each member gets the result.

    Numbers are added in the order of ranks, so that the result has the same bits on all members and in each run. Those
    on GPUs are added in the order of NCCL (docs/gpu.md). The gradient is that of the sum of all members' losses.

    Args:
        tensor: numbers, of the same shape and dtype on all members.
        reduce_op: "sum", "mean", "max" or "min".
        group: the ranks of the members, one of which is this process; None for all processes.

    Returns:
        A tensor like `tensor`.

    Raises:
        ValueError: `reduce_op` is another text, `group` can't be, or, at run time, members disagree on op, shape, dtype
            or group.
        TypeError: the dtype has no such reduction.
        TaskFailedError: at run time, a member is gone.

    >>> import anabranch as ab
    >>> float(ab.distribute.all_reduce(2.0))  # this process is alone
    2.0
    """
    return apply(AllReduce(reduce_op, members_of(group, "all_reduce")), to_tensor(tensor), name="all_reduce")


def all_gather(tensor: TensorLike, axis: int = 0, group: Iterable[int] | None = None) -> Tensor:
    """Join the tensors of all members of a group, in the order of ranks; each member gets the result.

    Args:
        tensor: numbers; the members' shapes agree but for `axis`.
        axis: along which they are joined.
        group: the ranks of the members, one of which is this process; None for all processes.

    Raises:
        ValueError: there is no such axis, `group` can't be, or, at run time, members disagree.
        TypeError: `axis` is no int.
        TaskFailedError: at run time, a member is gone.

    >>> import anabranch as ab
    >>> ab.distribute.all_gather([[1.0, 2.0]]).shape  # this process is alone
    (1, 2)
    """
    axis = _index("all_gather", "axis", axis, "an int")
    return apply(AllGather(axis, members_of(group, "all_gather")), to_tensor(tensor), name="all_gather")


def reduce_scatter(tensor: TensorLike, reduce_op: str = "sum", group: Iterable[int] | None = None) -> Tensor:
    """Reduce the tensors of all members of a group; each gets its part of the rows, in the order of ranks.

    Args:
        tensor: numbers, of the same shape and dtype on all members; the rows divide by the number of members.
        reduce_op: "sum", "mean", "max" or "min".
        group: the ranks of the members, one of which is this process; None for all processes.

    Raises:
        ValueError: rows do not divide, `group` can't be, or, at run time, members disagree.
        TaskFailedError: at run time, a member is gone.

    >>> import anabranch as ab
    >>> ab.distribute.reduce_scatter([[1.0], [2.0]]).shape  # this process is alone
    (2, 1)
    """
    ranks = members_of(group, "reduce_scatter")
    op = ReduceScatter(reduce_op, _group_of(ranks).size, ranks)
    return apply(op, to_tensor(tensor), name="reduce_scatter")


def broadcast(tensor: TensorLike, root: int = 0, group: Iterable[int] | None = None) -> Tensor:
    """Give each member of a group the tensor of one of them.

    Args:
        tensor: numbers, of the same shape and dtype on all members.
        root: the rank, among all processes, of the member whose numbers all get.
        group: the ranks of the members, one of which is this process; None for all processes.

    Raises:
        ValueError: there is no such member, `group` can't be, or, at run time, members disagree.
        TypeError: `root` is no int.
        TaskFailedError: at run time, a member is gone.

    >>> import anabranch as ab
    >>> float(ab.distribute.broadcast(2.0))  # this process is alone
    2.0
    """
    root = _index("broadcast", "root", root, "a rank, an int")
    if not 0 <= root < current_group().size:
        raise ValueError(f"broadcast: root={root} is no rank of a group of {current_group().size}; ranks begin at 0.")
    ranks = members_of(group, "broadcast")
    if ranks is not None and root not in ranks:
        raise ValueError(
            f"broadcast: root={root} is no member of group={list(ranks)}. Give one of these: root is a rank among all "
            "processes."
        )
    return apply(Broadcast(root, ranks), to_tensor(tensor), name="broadcast")


def barrier(group: Iterable[int] | None = None) -> Operation | None:
    """Wait until all members of a group are here.

    Args:
        group: the ranks of the members, one of which is this process; None for all processes.

    Returns:
        The operation; None outside of graphs.

    >>> import anabranch as ab
    >>> ab.distribute.barrier()  # this process is alone, and goes on at once
    """
    return apply_effect(Barrier(members_of(group, "barrier")), name="barrier")


__all__ = ["all_gather", "all_reduce", "barrier", "broadcast", "reduce_scatter"]
