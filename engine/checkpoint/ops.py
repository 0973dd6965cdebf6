"""Ops that save tensors to checkpoints and restore them: one Save a task, and a manifest when all are written.

Source: Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning" (OSDI 2016), section 4.3.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..common.dtypes import as_dtype, name_of, string
from ..common.quick_dataclass import dataclass
from ..control_flow.grouping import group
from ..graph.device import task_of
from ..graph.op import Effect, as_scalar_or_array
from ..graph.scopes import device
from ..graph.spec import as_shape, shape_accepts, shape_text
from ..graph.state.sharded import Rows, ShardedVariable
from ..graph.state.variable import Variable
from ..ops.base import Op, Operation, Tensor, TensorSpec, apply, apply_effect, apply_multi, convert_to_tensor
from ..queues.errors import StateLostError
from .files import CheckpointReader, Part, write_manifest, write_shard

_TEXT = TensorSpec((), string)


class _FileOp(Op):
    """Base: ops that touch files. They have no gradient."""

    host_only: ClassVar[bool] = True
    takes_long: ClassVar[bool] = True
    no_samples: ClassVar[str] = "touches files: test_checkpoints"

    def grad(self, node: Operation, *cotangents: Tensor | None) -> Sequence[Any]:
        return [None] * len(node.inputs)


@dataclass(frozen=True)
class SaveShard(_FileOp):
    """Writes one shard of a checkpoint: of a folder, and of tensors; gives what the manifest says of it, as JSON."""

    names: tuple[str, ...]
    number: int
    count: int
    parts: tuple[tuple[int, ...], ...] = ()  # for each tensor () if it is whole, or first, stop, step, rows of all
    copies: str = ""  # in place of tensors, those that `CopyParts` has taken under this name

    def infer(self, *inputs: Any) -> TensorSpec:
        return _TEXT

    def run(self, xp: Any, *inputs: Any) -> Any:
        folder, *tensors = inputs
        if self.copies:
            tensors = _copied(self.copies, self.number)
        rows = self.parts or ((),) * len(tensors)
        found = [
            Part(name, value, Rows(*region[:3]), region[3]) if region else Part(name, value, None, 0)
            for name, value, region in zip(self.names, tensors, rows, strict=True)
        ]
        return as_scalar_or_array(json.dumps(write_shard(str(folder), self.number, self.count, found)))

    def effects(self) -> Iterable[Effect]:  # shards are written at once
        return (Effect(f"shard {self.number} of a checkpoint", writes=True),)


_copies: dict[tuple[str, int], list[Any]] = {}  # by name and number of the shard; kept, to be written over


@dataclass(frozen=True)
class _CopiesOp(_FileOp):
    """The base of ops on the copies of a shard."""

    name: str
    number: int

    def infer(self, *inputs: Any) -> Any:
        return ()

    def effects(self) -> Iterable[Effect]:
        return (Effect(f"copies for shard {self.number} of a checkpoint", writes=True),)


@dataclass(frozen=True)
class CopyParts(_CopiesOp):
    """Copies tensors into memory that is kept, from where `SaveShard` writes them while steps change the originals."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        kept = iter(_copies.get((self.name, self.number), ()))
        _copies[self.name, self.number] = [copy_into(next(kept, None), np.asarray(each)) for each in inputs]
        return ()


@dataclass(frozen=True)
class DropCopies(_CopiesOp):
    """Gives up the memory of what `CopyParts` has copied."""

    def run(self, xp: Any, *inputs: Any) -> Any:
        _copies.pop((self.name, self.number), None)
        return ()


def copy_into(kept: NDArray[Any] | None, value: NDArray[Any]) -> NDArray[Any]:
    """Copy an array into one that is kept, if that is alike, else into a new one; return the copy."""
    if kept is None or (kept.shape, kept.dtype) != (value.shape, value.dtype):
        return value.copy()
    np.copyto(kept, value)
    return kept


def _copied(name: str, number: int) -> list[Any]:
    found = _copies.get((name, number))
    if found is None:
        raise StateLostError(
            f"The copies for shard {number} of a checkpoint are gone: the task that had taken them was started again. "
            "Restore its variables from a checkpoint before, and save again."
        )
    return found


@dataclass(frozen=True)
class WriteManifest(_FileOp):
    """Writes the manifest of a checkpoint: of a folder, of more to say as JSON, and of what the shards gave."""

    def infer(self, *inputs: Any) -> Any:
        return ()

    def run(self, xp: Any, *inputs: Any) -> Any:
        folder, more, *shards = inputs
        write_manifest(str(folder), [json.loads(str(shard)) for shard in shards], json.loads(str(more)))
        return ()

    def effects(self) -> Iterable[Effect]:
        return (Effect("manifest of a checkpoint", writes=True),)


@dataclass(frozen=True)
class RestoreTensors(_FileOp):
    """Reads tensors of a checkpoint, by name."""

    names: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    parts: tuple[tuple[int, ...], ...] = ()  # for each tensor () for all of it, or first, stop, step of its rows

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        return tuple([_spec_of_rows(*each) for each in zip(self.specs, self._rows, strict=True)])

    @property
    def _rows(self) -> tuple[tuple[int, ...], ...]:
        return self.parts or ((),) * len(self.names)

    def run(self, xp: Any, *inputs: Any) -> Any:
        reader = CheckpointReader(str(inputs[0]))
        wanted = zip(self.names, self.specs, self._rows, strict=True)
        found = [as_scalar_or_array(checked(reader, name, spec, region)) for name, spec, region in wanted]
        return found[0] if len(found) == 1 else tuple(found)

    def effects(self) -> Iterable[Effect]:
        return (Effect("manifest of a checkpoint", writes=False),)


def _spec_of_rows(spec: TensorSpec, region: tuple[int, ...]) -> TensorSpec:
    return TensorSpec((len(Rows(*region)), *(spec.shape or ())[1:]), spec.dtype) if region else spec


def checked(reader: CheckpointReader, name: str, spec: TensorSpec, region: tuple[int, ...] = ()) -> Any:
    """Return a tensor of a checkpoint, or some of its rows, if it is what is expected.

    Args:
        reader: of the checkpoint.
        name: of the tensor.
        spec: what is expected of the whole.
        region: first, stop and step of the rows; () for all.

    Raises:
        KeyError: there is no such tensor. ValueError: its shape or dtype is another one.
    """
    entry = reader.entry(name)
    if as_dtype(entry.dtype) != spec.dtype or not shape_accepts(spec.shape, entry.shape):
        raise ValueError(
            f"Tensor {name!r} of the checkpoint {str(reader.path)!r} is {entry.dtype}{shape_text(entry.shape)}; "
            f"expected {name_of(spec.dtype)}{shape_text(spec.shape)}. Nothing was restored."
        )
    return reader.rows(name, Rows(*region)) if region else reader[name]


def save(prefix: Any, names: Sequence[str], tensors: Sequence[Any], metadata: Any = "{}") -> Operation | None:
    """Save tensors to a checkpoint: one shard for each task on which some of them are, then the manifest.

    Args:
        prefix: the folder, which all tasks share, or its URL (see `CheckpointManager`); a text, or a tensor of one.
        names: of the tensors.
        tensors: tensors or variables. A variable is written by the task on which it is. A `ShardedVariable` is written
            by all tasks on which its shards are; it is one tensor of the checkpoint.
        metadata: a JSON object whose entries the manifest has, too; a text, or a tensor of one.

    Returns:
        The operation that writes the manifest; None outside of graphs.

    Raises:
        ValueError: names and tensors are not as many, or a name is given twice. FileNotFoundError: at run time, a shard
            is not in the folder of the task that writes the manifest.

    >>> import anabranch as ab
    >>> ab.io.save("saved", ["w", "b"], [[[1.0, 2.0]], [0.5]])
    >>> ab.io.restore("saved", ["b"], [ab.InputSpec(shape=(1,), dtype="float32")])[0].numpy()
    array([0.5], dtype=float32)
    """
    where = _as_text(prefix)
    groups = _by_task(names, tensors)
    shards: list[Tensor] = []
    for number, (task, parts) in enumerate(groups.items()):
        with _on(task):
            given = [convert_to_tensor(part) for _, part, _ in parts]
            shards.append(apply(_shard(parts, number, len(groups)), where, *given, name=f"save/shard_{number}"))
    return apply_effect(WriteManifest(), where, _as_text(metadata), *shards, name="save/manifest")


def save_copies(
    copies: str, prefix: Any, names: Sequence[str], variables: Sequence[Any], metadata: Any
) -> tuple[Operation, Operation, list[Operation]]:
    """Build a `save` in two steps: one copies the variables on their tasks, the other writes the copies.

    Args:
        copies: a name for the copies, which tasks keep: the next ones under that name take their memory.
        prefix, names, variables, metadata: as for `save`, in a graph.

    Returns:
        The operation that copies, the one that writes the manifest, and for each task one that gives its copies up.
    """
    where = _as_text(prefix)
    groups = _by_task(names, variables)
    taken: list[Operation | None] = []
    dropped: list[Operation] = []
    shards: list[Tensor] = []
    for number, (task, parts) in enumerate(groups.items()):
        with _on(task):
            given = [convert_to_tensor(part) for _, part, _ in parts]
            taken.append(apply_effect(CopyParts(copies, number), *given, name=f"save/copies_{number}"))
            drop = apply_effect(DropCopies(copies, number), name=f"save/drop_{number}")
            assert drop is not None, "a graph is the default one"
            dropped.append(drop)
            shard = _shard(parts, number, len(groups), copies)
            shards.append(apply(shard, where, name=f"save/shard_{number}"))
    written = apply_effect(WriteManifest(), where, _as_text(metadata), *shards, name="save/manifest")
    copied = group(*taken)
    assert written is not None, "a graph is the default one"
    assert copied is not None, "a graph is the default one"
    return copied, written, dropped


_Part = tuple[str, Any, tuple[int, ...]]  # the name of a tensor, what is saved of it, and which rows that is


def _by_task(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, list[_Part]]:
    """Return what each task is to save."""
    names = [str(name) for name in names]
    if len(names) != len(tensors):
        raise ValueError(f"save: {len(names)} names and {len(tensors)} tensors were given; give as many.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"save: the names {twice} are given more than once; a checkpoint has one tensor of a name.")
    groups: dict[str, list[_Part]] = {}
    for name, tensor in zip(names, tensors, strict=True):
        for part, region in _parts_of(tensor):
            groups.setdefault(_task_of(part), []).append((name, part, region))
    return groups


def _on(task: str) -> Any:
    return device(task) if task else contextlib.nullcontext()


def _shard(parts: Sequence[_Part], number: int, count: int, copies: str = "") -> SaveShard:
    regions = tuple([region for _, _, region in parts])
    return SaveShard(tuple([name for name, _, _ in parts]), number, count, regions if any(regions) else (), copies)


def _parts_of(tensor: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """Return what is saved of a tensor, and which rows of it that is."""
    if not isinstance(tensor, ShardedVariable) or tensor.grid is not None:  # one that is no rows is written whole
        return [(tensor, ())]
    pairs = zip(tensor.shards, tensor.rows, strict=True)
    return [(shard, (rows.first, rows.stop, rows.step, len(tensor))) for shard, rows in pairs]


def assign_restored(prefix: Any, names: Sequence[str], variables: Sequence[Any]) -> list[Tensor]:
    """Build the assignments of what a checkpoint has to variables; each reads and writes where the variable is.

    Args:
        prefix: the folder; a text, or a tensor of one.
        names: of the tensors.
        variables: a variable or a `ShardedVariable` for each. A shard reads the pieces that have rows of it.
    """
    where = _as_text(prefix)
    found: list[Tensor] = []
    for name, variable in zip(names, variables, strict=True):
        if isinstance(variable, ShardedVariable) and variable.grid is not None:
            whole = apply_multi(RestoreTensors((name,), (_spec_of(variable),), ()), where, name=f"restore/{name}")[0]
            pairs = zip(variable.shards, variable.regions, strict=True)
            found += [shard.assign(whole[region]) for shard, region in pairs]
            continue
        for part, region in _parts_of(variable):
            op = RestoreTensors((name,), (_spec_of(variable),), (region[:3],) if region else ())
            with device(part.device) if part.device else contextlib.nullcontext():
                found.append(part.assign(apply_multi(op, where, name=f"restore/{name}")[0]))
    return found


def restore(prefix: Any, names: Sequence[str], specs: Sequence[Any]) -> list[Tensor]:
    """Read tensors of a checkpoint, by name, whichever tasks have saved them.

    Args:
        prefix: the folder; a text, or a tensor of one.
        names: of the tensors.
        specs: for each an `InputSpec`, a variable, or what else has a shape and a dtype.

    Raises:
        ValueError: names and specs are not as many; at run time, a tensor has another shape or dtype.
        TypeError: a spec has no shape or no dtype.
        KeyError: at run time, there is no tensor of a name.
        FileNotFoundError, DataLossError: at run time, the folder is not a checkpoint, or is damaged.

    >>> import anabranch as ab
    >>> ab.io.save("tensors", ["b"], [[0.5]])
    >>> ab.io.restore("tensors", ["b"], [ab.Variable([0.0])])
    [Tensor([0.5], dtype=float32)]
    """
    if len(names) != len(specs):
        raise ValueError(f"restore: {len(names)} names and {len(specs)} specs were given; give as many.")
    if not names:
        return []
    wanted = tuple([_spec_of(spec) for spec in specs])
    op = RestoreTensors(tuple([str(name) for name in names]), wanted)
    return list(apply_multi(op, _as_text(prefix), name="restore"))


def _as_text(value: Any) -> Tensor:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return _text_tensor(value)


def _text_tensor(value: Any) -> Tensor:
    return convert_to_tensor(np.asarray(value, string) if isinstance(value, str) else value)


def _task_of(tensor: Any) -> str:
    """Return the task on which a variable is; "" for whatever is to be saved where the scope says."""
    asked = getattr(tensor, "device", "") if isinstance(tensor, Variable) else ""
    return task_of(asked) if asked else ""


def _spec_of(value: Any) -> TensorSpec:
    spec = getattr(value, "spec", value)
    if getattr(spec, "shape", ...) is ... or getattr(spec, "dtype", None) is None:
        raise TypeError(
            f"restore: the spec {value!r} has no shape and dtype. Give a variable, a tensor, or an InputSpec with both."
        )
    return TensorSpec(as_shape(spec.shape), as_dtype(spec.dtype))


__all__ = ["assign_restored", "restore", "save", "save_copies"]
