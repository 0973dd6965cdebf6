"""`CheckpointManager`: checkpoints of a run, one folder for each step, of which the latest and the best are kept."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from numbers import Integral
from typing import Any, Self

import numpy as np

from ..engine.checkpoint.files import (
    MANIFEST,
    CheckpointReader,
    is_checkpoint,
    is_leftover,
    write_manifest,
    write_shard,
)
from ..engine.checkpoint.folders import Folder, folder_of
from ..engine.checkpoint.ops import assign_restored, checked, copy_into, save, save_copies
from ..engine.common.dtypes import string
from ..engine.control_flow.grouping import group
from ..engine.graph import Graph, Placeholder, ShardedVariable, TensorSpec, Variable
from ..engine.graph.graph import get_default_graph
from ..engine.graph.state.sharded import expanded, grouped
from ..engine.ops.random.keys import SeedGenerator
from ..engine.queues.errors import DataLossError, StateLostError

_HOUR = 3600.0
_ITEMS = (Variable, ShardedVariable, SeedGenerator)
_KEY = TensorSpec((2,), np.dtype("int64"))
Metrics = Mapping[str, float]


class CheckpointManager:
    """Saves checkpoints of variables, keeps the latest and the best ones, and restores them.

    Each checkpoint is a folder ``step-N`` with shards and a manifest, which is written last: a run that is killed while
    it saves leaves the checkpoints before. Without a session the values of this process are saved. With one, the tasks
    that hold variables each write their own, to a folder that all share.

    Args:
        directory: where the checkpoints are. It is made if there is none. A URL such as ``s3://bucket/run`` names a
            folder that fsspec reads and writes (extra ``remote``, and the package of that kind of store).
        items: a model, with its optimizer, metrics and random state; or variables, in a list or by name.
        max_to_keep: how many checkpoints are kept; None for all.
        keep_checkpoint_every_n_hours: also keep one for each such number of hours.
        save_interval_steps: `save` is due at multiples of this.
        save_interval_seconds: and once this many seconds have passed since the last checkpoint.
        best_by: a function of a checkpoint's metrics. Those of the largest results are kept, and the latest one.
        save_async: write in a thread, from copies of the values, while training goes on. With a session each task
            copies what it holds, into memory that it keeps for the next checkpoint.
        consistent: `save` waits for these copies, so that all values are those between two steps. Without it nothing is
            waited for and, with a session, nothing copied: values are of any time until the checkpoint is written.
        session: a `Session` of the graph of the variables, such as one with a target.

    Raises:
        ValueError: an argument is out of range, or two variables have the same name.
        TypeError: `items` are not variables.

    Source: Abadi et al., "TensorFlow: A System for Large-Scale Machine Learning" (OSDI 2016), section 4.3.

    >>> import anabranch as ab
    >>> w = ab.Variable([1.0, 2.0], name="w")
    >>> manager = ab.distribute.CheckpointManager("checkpoints", [w], max_to_keep=2)
    >>> for step in range(3):
    ...     _ = w.assign_add([1.0, 1.0])
    ...     _ = manager.save(step)
    >>> manager.all_steps()
    [1, 2]
    >>> _ = w.assign([0.0, 0.0])
    >>> manager.restore(), w.numpy()
    (2, array([4., 5.], dtype=float32))
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        items: Any,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = None,
        save_interval_steps: int = 1,
        save_interval_seconds: float | None = None,
        best_by: Callable[[Metrics], float] | None = None,
        save_async: bool = True,
        consistent: bool = True,
        session: Any = None,
    ) -> None:
        if max_to_keep is not None and not _is_count(max_to_keep):
            raise ValueError(
                f"CheckpointManager: max_to_keep={max_to_keep} must be at least 1, a whole number, or None for all."
            )
        if not _is_count(save_interval_steps):
            raise ValueError(
                f"CheckpointManager: save_interval_steps={save_interval_steps} must be at least 1, a whole number."
            )
        hours, seconds = keep_checkpoint_every_n_hours, save_interval_seconds
        if hours is not None and not hours > 0:
            raise ValueError(
                f"CheckpointManager: keep_checkpoint_every_n_hours={hours} must be above 0, or None to keep no more."
            )
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"CheckpointManager: save_interval_seconds={seconds} must be at least 0, or None.")
        if best_by is not None and not callable(best_by):
            raise TypeError(
                "CheckpointManager: best_by must be a function of a checkpoint's metrics, such as "
                f"lambda metrics: -metrics['loss']; got {best_by!r}."
            )
        if _is_empty(items):
            raise ValueError("CheckpointManager: items is empty. Give a model, or the variables to save.")
        self._root = folder_of(directory)
        self.directory = self._root.path if type(self._root) is Folder else str(self._root)
        self.max_to_keep = max_to_keep
        self._hours = hours
        self._interval_steps = save_interval_steps
        self._interval_seconds = seconds
        self._best_by = best_by
        self._items = items
        self._session = session
        self._pool = ThreadPoolExecutor(1, "anabranch saves") if save_async else None
        self._consistent = consistent
        self._writing: Future[None] | None = None
        self._is_closed = False
        self._saved_at = 0.0
        self._programs: dict[str, tuple[Any, ...]] = {}
        self._kept: dict[str, np.ndarray[Any, Any]] = {}  # copies of this process
        self._dropped: list[Any] = []  # operations that give up the copies of tasks
        self._root.make()
        self._parts()  # so that what can't be saved is refused now

    # --- saving -----------------------------------------------------------------------------------------------------

    def save(self, step: int, metrics: Metrics | None = None) -> bool:
        """Save a checkpoint, if one is due.

        Args:
            step: its number, 0 or more; nothing is saved unless it is larger than that of all other checkpoints.
            metrics: numbers by name, which the manifest keeps, and by which `best_by` judges.

        Returns:
            Whether a checkpoint was saved, or is being saved.

        Raises:
            OSError: this checkpoint, or the one before it that a thread has written, could not be written. A step of
                the manager's session raises it, too, if that comes before the next `save`.
            TypeError: the step is no whole number.
            ValueError: the step is negative, or metrics are missing by which `best_by` judges.
            RuntimeError: the manager is closed.
        """
        step = _checked_step(step)
        if self._is_closed:
            raise RuntimeError(
                f"CheckpointManager.save({step}): the manager is closed. Save before, or make another one."
            )
        if self._writing is not None and self._writing.done():
            self.wait_until_finished()  # what went wrong is raised, also where nothing is due
        if not self._is_due(step):
            return False
        if self._best_by is not None and metrics is None:
            raise ValueError(f"CheckpointManager.save({step}): best_by judges by metrics; give metrics=.")
        noted = {name: float(value) for name, value in (metrics or {}).items()}
        if self._best_by is not None:
            self._check_judge(step, noted)
        self._saved_at = time.time()
        more = {"step": step, "time": self._saved_at, "metrics": noted}
        folder = self._folder(step)
        write = self._writes(folder, more) if self._session is None else self._writes_on_tasks(folder, more)
        if self._pool is None:
            write()
        else:
            self._writing = self._pool.submit(write)
            self._writing.add_done_callback(self._note_failure)
        return True

    def _note_failure(self, writing: Future[None]) -> None:
        """Have the session's next step raise what has failed, unless a method of the manager has raised it before."""

        def raise_it() -> None:
            if self._writing is writing:
                self.wait_until_finished()

        if self._session is not None and writing.exception() is not None:
            self._session.before_next_step(raise_it)

    def _is_due(self, step: int) -> bool:
        if step % self._interval_steps:
            return False
        if self._interval_seconds is not None and time.time() - self._saved_at < self._interval_seconds:
            return False
        latest = self.latest_step()  # which waits for the checkpoint that is being saved
        return latest is None or latest < step

    def _writes(self, folder: Folder, more: Mapping[str, Any]) -> Callable[[], None]:
        """Return what writes the values of this process."""
        copied = self._copied() if self._consistent and self._pool is not None else None

        def write() -> None:
            values = {name: value.copy() for name, value in self._values().items()} if copied is None else copied
            self._make_way(folder)
            write_manifest(folder, [write_shard(folder, 0, 1, values)], more)
            self._remove_old()

        return write

    def _values(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: np.asarray(_value_of(part)) for name, part in self._parts().items()}

    def _copied(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copy all values into memory that is kept for the next checkpoint."""
        self._kept = {name: copy_into(self._kept.get(name), value) for name, value in self._values().items()}
        return dict(self._kept)

    def wait_until_finished(self) -> None:
        """Wait until the checkpoint that is being saved is on the disk.

        Raises:
            OSError: it could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for what is being saved, end the thread that saves, and give up the memory of copies."""
        self._is_closed = True
        try:
            self.wait_until_finished()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            self._kept.clear()
            dropped, self._dropped = self._dropped, []
            for operation in dropped:
                # A task that is gone has no copies, and a session that is closed doesn't reach any.
                with contextlib.suppress(ConnectionError, StateLostError):
                    self._session.run(operation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- which there are --------------------------------------------------------------------------------------------

    def all_steps(self) -> list[int]:
        """Return the numbers of all checkpoints that were written to their end, in order."""
        self.wait_until_finished()
        return self._steps()

    def latest_step(self) -> int | None:
        """Return the number of the latest checkpoint; None if there is none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """Return the number of the checkpoint that `best_by` likes best; None if there is none."""
        steps = self.all_steps()
        return max(steps, key=self._worth, default=None) if self._best_by is not None else max(steps, default=None)

    def _steps(self) -> list[int]:
        names = [name for name in self._root.folders("step-") if is_checkpoint(self._root / name)]
        numbers = [name.removeprefix("step-") for name in names]
        return sorted(int(number) for number in numbers if number.isdigit())

    def _worth(self, step: int) -> float:
        assert self._best_by is not None
        try:
            worth = float(self._best_by(CheckpointReader(self._folder(step)).manifest.get("metrics", {})))
        except (DataLossError, FileNotFoundError):
            return -np.inf
        return -np.inf if np.isnan(worth) else worth

    def _check_judge(self, step: int, metrics: Metrics) -> None:
        """Have `best_by` judge a checkpoint before it is written, so that what is wrong is known by then.

        Raises:
            Exception: what `best_by` raises, with the metrics that it was given.
        """
        assert self._best_by is not None
        try:
            float(self._best_by(metrics))
        except Exception as error:
            error.add_note(f"In best_by, as CheckpointManager.save({step}) gave it the metrics {metrics}.")
            raise

    def _folder(self, step: int) -> Folder:
        return self._root / f"step-{int(step)}"

    def _make_way(self, folder: Folder) -> None:
        """Remove what saves have left here that did not come to their end, so that it takes no room."""
        folder.remove(MANIFEST)
        for name in self._root.folders("step-"):
            if name.removeprefix("step-").isdigit() and is_leftover(self._root / name):
                with contextlib.suppress(OSError):  # another's, which only takes room
                    (self._root / name).remove(MANIFEST)

    def _remove_old(self) -> None:
        """Remove what is not to be kept."""
        steps = self._steps()
        if self.max_to_keep is None or len(steps) <= self.max_to_keep:
            return
        ordered = sorted(steps, key=self._worth) if self._best_by is not None else steps
        kept = {*ordered[-self.max_to_keep :], steps[-1]}
        kept_at = -np.inf
        for step in steps:
            at = _time_of(self._folder(step))
            if step in kept:
                continue
            if self._hours is not None and at - kept_at >= self._hours * _HOUR:
                kept_at = at
                continue
            self._folder(step).remove(MANIFEST)

    # --- restoring --------------------------------------------------------------------------------------------------

    def restore(self, step: int | None = None) -> int | None:
        """Give all items the values of a checkpoint.

        Args:
            step: its number; by default the latest that can be read. Damaged ones are left out, with a warning.

        Returns:
            The number of the checkpoint; None if there is none and no number was given.

        Raises:
            FileNotFoundError: there is no checkpoint of this number.
            DataLossError: the checkpoint that was asked for is damaged, or all that there are.
            KeyError, ValueError: it lacks an item, or has it with another shape or dtype. Nothing is restored then.
        """
        if step is not None:
            self.wait_until_finished()
            self._restore_from(self._folder(step))
            return step
        steps = self.all_steps()
        for found in reversed(steps):
            try:
                self._restore_from(self._folder(found))
            except (DataLossError, FileNotFoundError) as error:
                warnings.warn(f"CheckpointManager takes a checkpoint before step {found}: {error}", stacklevel=2)
            else:
                return found
        if steps:
            raise DataLossError(
                f"CheckpointManager.restore: none of the {len(steps)} checkpoints in {self.directory!r} can be read; "
                "the warnings say why. Bring copies of them back, or begin in another folder."
            )
        return None

    def _restore_from(self, folder: Folder) -> None:
        reader = CheckpointReader(folder)
        folder.sync()  # whoever goes on from this checkpoint must find it after a power failure, too
        if self._session is not None:
            self._run_restore(folder)
            return
        parts = self._parts()
        values = {name: checked(reader, name, _spec_of(part)) for name, part in parts.items()}
        for name, part in parts.items():
            _set(part, values[name])

    # --- items ------------------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, Any]:
        """Return what is saved, by name."""
        items = self._items
        if hasattr(items, "checkpoint_items"):
            return items.checkpoint_items()
        if isinstance(items, Sequence):
            items = grouped(items)
        if isinstance(items, Mapping):
            found = {str(name): part for name, part in items.items()}
        elif isinstance(items, Sequence):
            found = {}
            for number, part in enumerate(items):
                if not isinstance(part, _ITEMS):
                    raise TypeError(
                        f"CheckpointManager: item number {number} is no variable but a {type(part).__name__}."
                    )
                name = getattr(part, "path", None) or getattr(part, "name", None)
                if name in found:
                    raise ValueError(
                        f"CheckpointManager: two items are named {name!r}. Give them by name: items={{'a': v, 'b': w}}."
                    )
                found[str(name)] = part
        else:
            raise TypeError(f"CheckpointManager: items are a model or variables; got {type(items).__name__}.")
        for name, part in found.items():
            if not isinstance(part, _ITEMS):
                raise TypeError(f"CheckpointManager: item {name!r} is no variable but a {type(part).__name__}.")
        return found

    # --- with a session ---------------------------------------------------------------------------------------------

    def _variables(self) -> dict[str, Variable | ShardedVariable]:
        found = self._parts()
        others = [name for name, part in found.items() if isinstance(part, SeedGenerator)]
        if others:
            raise TypeError(f"CheckpointManager(session=...) saves variables; {others} are none. Leave them out.")
        self._session.place_state(expanded(list(found.values())))  # each task is to write what it has
        return found

    def _writes_on_tasks(self, folder: Folder, more: Mapping[str, Any]) -> Callable[[], None]:
        """Return what has tasks write, from copies if they are to."""
        if "save" not in self._programs:
            variables = self._variables()
            with self._graph().as_default():
                where, what = _text("folder"), _text("metadata")
                given = where, list(variables), list(variables.values()), what
                if self._pool is not None and self._consistent:
                    copied, done, self._dropped = save_copies(self._root.absolute(), *given)
                else:
                    copied, done = None, save(*given)
            self._session.program(done, [where, what])  # here, as the thread must not read a graph that still grows
            self._programs["save"] = copied, done, where, what
        copied, done, where, what = self._programs["save"]
        if copied is not None:
            self._session.run(copied)

        def write() -> None:
            self._make_way(folder)
            self._session.run(done, {where: folder.absolute(), what: json.dumps(more)})
            self._remove_old()

        return write

    def _run_restore(self, folder: Folder) -> None:
        if "restore" not in self._programs:
            variables = self._variables()
            with self._graph().as_default():
                where = _text("folder")
                done = group(*assign_restored(where, list(variables), list(variables.values())))
            self._programs["restore"] = done, where
        done, where = self._programs["restore"]
        self._session.run(done, {where: folder.absolute()})

    def _graph(self) -> Graph:
        return self._session.graph


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and int(value) >= 1


def _is_empty(items: object) -> bool:
    return isinstance(items, (Sequence, Mapping)) and not items


def _checked_step(step: Any) -> int:
    """Return the number of a step as an int; a variable or a tensor may hold it.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is negative.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(
            f"CheckpointManager.save({step!r}): step must be a whole number; got a {type(step).__name__}."
        ) from None
    if number < 0:
        raise ValueError(f"CheckpointManager.save({number}): step must be 0 or more.")
    return number


def _text(name: str) -> Any:
    return get_default_graph().add(Placeholder(TensorSpec((), string)), (), name).outputs[0]


def _value_of(part: Any) -> Any:
    return part.state if isinstance(part, SeedGenerator) else part.stored_value()


def _spec_of(part: Any) -> TensorSpec:
    return _KEY if isinstance(part, SeedGenerator) else part.spec


def _set(part: Any, value: Any) -> None:
    if isinstance(part, SeedGenerator):
        part.state = value
    else:
        part.write_value(value[()] if value.ndim == 0 else value)


def _time_of(folder: Folder) -> float:
    try:
        return float(CheckpointReader(folder).manifest.get("time", 0.0))
    except (DataLossError, FileNotFoundError):
        return 0.0


__all__ = ["CheckpointManager"]
