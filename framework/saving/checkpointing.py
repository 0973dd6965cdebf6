"""A `fit` that was interrupted, taken up again: all of its state in a checkpoint, and the way back into it.

The state is every variable and generator of random numbers that the model, its metrics and its optimizers hold, the
global generators, what callbacks keep, and where in the data the run is. Batches that were run are drawn once more and
left out, from the random state with which their pass over the data began; so the order of the rows is the same, and a
run that goes on ends with the same bits as one that was never interrupted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.graph.state.aligned import own_copy
from ...engine.graph.state.sharded import ShardedVariable, grouped
from ...engine.graph.state.variable import Variable
from ...engine.ops.random.keys import SeedGenerator, global_generator
from ...layers.core.layer import Layer
from ...optim.optimizer import Optimizer
from ..metrics.base import Metric
from ..training.base_callback import BaseCallback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...engine.checkpoint.folders import Folder
    from ..data.adapters import Batch
    from ..training.base_callback import BaseCallbackList
    from ..training.base_model import BaseModel
    from ..training.epochs import Epochs
    from .archive import SavedFileError
    from .run_files import State

_HOLDERS = (Layer, Optimizer, Metric)
# Attributes that hold no state of their own, or averages, which are found by `Model.metrics`.
_MADE_OF = ("inbound_nodes", "_constructor_call", "_functions")
_NOTED = (
    "_compile_arguments",
    "_found_metrics",
    "_latest",
    "_read_logs_program",
    "_steps",
    "_trained_variables",
    "history",
)
_AVERAGES = ("_compiled_loss", "_compiled_metrics", "_loss_tracker")
_SKIPPED = frozenset((*_MADE_OF, *_NOTED, *_AVERAGES))
_SHOWN = 8


# --- what there is --------------------------------------------------------------------------------------------------


def stateful_parts(
    model: BaseModel, with_averages: bool = True
) -> dict[str, Variable | ShardedVariable | SeedGenerator]:
    """Return every variable and generator that a model holds in its layers, metrics and optimizers, by its first path.

    Args:
        model: the model.
        with_averages: also those of the compiled loss and metrics, which start from zero in each epoch.
    """
    found: dict[str, Variable | ShardedVariable | SeedGenerator] = {}
    visited: dict[int, object] = {}  # keeps what it names, so that no other object gets its id
    _collect(model, "", found, visited)
    if with_averages:
        _collect([metric for metric in model.metrics if id(metric) not in visited], "averages", found, visited)
    return found


def _collect(
    item: object, path: str, found: dict[str, Variable | ShardedVariable | SeedGenerator], visited: dict[int, object]
) -> None:
    if id(item) in visited:
        return
    if isinstance(item, (Variable, ShardedVariable, SeedGenerator)):
        visited[id(item)] = item
        found[path] = item
    elif isinstance(item, (*_HOLDERS, list, tuple, dict)):
        visited[id(item)] = item
        for name, child in _children(item):
            _collect(child, f"{path}/{name}" if path else str(name), found, visited)


def _children(item: object) -> Iterator[tuple[str, object]]:
    """Yield what an object holds. Layers come before optimizers, which refer to their weights once they are built."""
    if isinstance(item, dict):
        yield from ((str(key), value) for key, value in item.items() if isinstance(key, (str, int)))
        return
    if isinstance(item, (list, tuple)):
        yield from ((str(position), value) for position, value in enumerate(grouped(item)))
        return
    if isinstance(item, Layer):
        yield "weights", item._weights
        yield "layers", item._sublayers()
    attributes = [pair for pair in vars(item).items() if pair[0] not in _SKIPPED]
    yield from sorted(attributes, key=lambda pair: isinstance(pair[1], Optimizer))


def random_state() -> State:
    """Return the states of the global generators: the engine's, NumPy's and Python's."""
    version, words, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - what users' own code draws from
    return {
        "engine": global_generator().state,
        "numpy": [kind, np.asarray(keys), *rest],
        "python": [version, np.array(words, "uint32"), gauss],
    }


def set_random_state(state: State) -> None:
    """Go back to what `random_state` gave."""
    global_generator().state = state["engine"]
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    version, words, gauss = state["python"]
    random.setstate((version, tuple(int(word) for word in words), gauss))


# --- a run ----------------------------------------------------------------------------------------------------------


class RunCallback(BaseCallback):
    """A callback that saves runs, or takes them up."""

    runs_last = True
    run: TrainingRun | None = None

    def _needs_whole_optimizer(self) -> bool:
        return True

    def take_up(self) -> bool:
        """Load what was saved last, so that the run goes on there; return whether there is something."""
        return False

    def save_first(self, epoch: int) -> None:
        """Save the state before an epoch, unless something is saved already."""


class TrainingRun:
    """A `fit` under way, which can be saved, or go on where a saved one was.

    Args:
        model: the model.
        hooks: its callbacks; each `RunCallback` gets the run as its attribute `run`.
        data: the data.
    """

    def __init__(self, model: BaseModel, hooks: BaseCallbackList, data: Epochs) -> None:
        self.model = model
        self.hooks = hooks
        self.data = data
        self.rows: Callable[[], State] | None = None
        """Return an account of the rows of the epoch that are done, where workers share them in any order."""
        self.check: Callable[[], None] | None = None
        """Raise an error, before anything is written, if another process saves the run by now."""
        self._loaded: State | None = None
        self._path = ""
        for callback in hooks.callbacks:
            if isinstance(callback, RunCallback):
                callback.run = self
                data.note_random_state = random_state

    @property
    def steps(self) -> int:
        """The number of updates that the optimizer has made."""
        return int(np.asarray(self.model.optimizer.iterations))

    def save(self, folder: Folder, step: int, epoch: int, batch: int) -> None:
        """Write everything to a checkpoint: the run goes on with `batch` of `epoch`, both counted from 0."""
        parts = stateful_parts(self.model, with_averages=batch > 0)
        state: State = {
            "epoch": epoch,
            "batch": batch,
            "steps": self.data.steps,
            "data": self.data.position,
            "rows": self.rows() if batch and self.rows is not None else None,
            "stop_training": bool(self.model.stop_training),
            "variables": {
                path: part.stored_value() for path, part in parts.items() if not isinstance(part, SeedGenerator)
            },
            "generators": {path: part.state for path, part in parts.items() if isinstance(part, SeedGenerator)},
            "random": random_state(),
            "callbacks": self.callbacks_state(),
            "latest": [np.asarray(value) for value in self.model._latest.get("train", ("", ()))[1]],
        }
        if self.check is not None:
            self.check()
        from .run_files import write_backup  # few processes save runs

        write_backup(folder, state, step)

    def load(self, place: Folder | Path) -> None:
        """Read a checkpoint, or a file of version 0.1, from whose state the run then begins.

        Raises:
            SavedFileError: it is damaged.
        """
        from .run_files import read_backup, read_state

        self._loaded = read_state(place) if isinstance(place, Path) else read_backup(place)
        self._path = str(place)

    def epochs(self, initial_epoch: int, epochs: int) -> range:
        """Return the epochs to run. State that was saved between two epochs is restored now."""
        state = self._loaded
        if state is None:
            return range(initial_epoch, epochs)
        if not state["batch"]:
            self._restore(state)
        return range(state["epoch"], state["epoch"] if state["stop_training"] and not state["batch"] else epochs)

    def enter_epoch(self, shares: int | None = None) -> State | None:
        """Restore what was saved in the midst of the epoch that has just begun.

        Args:
            shares: into how many shares workers cut each batch, if they read rows by their numbers. None where this
                process reads the batches in order.

        Returns:
            With `shares`, the account of the rows that are done: the state of which their order is drawn (``seed``),
            their numbers (``done``) as ``shares`` of batches. None if nothing was saved within an epoch.

        Raises:
            SavedFileError: the epoch can't go on here.
        """
        if self._loaded is None:
            return None
        state, position, rows = self._loaded, self._loaded["data"], self._loaded.get("rows")
        if shares is None and rows is not None:
            random_before = {**state["random"], "engine": np.asarray(rows["seed"], "int64")}
            batches = self.batches_done(rows)
            state = {**state, "data": {"passes": position["passes"] + 1, "batches": batches, "random": random_before}}
        elif shares is not None and rows is None:
            seed = [int(part) for part in position["random"]["engine"]]
            rows = {"seed": seed, "shares": shares, "done": [*range(position["batches"] * shares)]}
            state = {**state, "data": {"passes": position["passes"] - 1, "batches": 0, "random": None}}
        self._restore(state)
        return None if shares is None else rows

    def batches_done(self, rows: State) -> int:
        """Return how many batches of an epoch are done.

        Raises:
            SavedFileError: those that are done are not the first ones.
        """
        batches, rest = divmod(len(rows["done"]), int(rows["shares"]))
        if rest or [int(share) for share in rows["done"]] != [*range(len(rows["done"]))]:
            raise _refused(
                f"{self._path!r} was saved within an epoch by workers that had computed parts of several batches, as "
                "with backup workers or sync=False. Only ParameterServer can go on from there: go on under it, or "
                "delete the backup to start from the beginning."
            )
        return batches

    def _restore(self, state: State) -> None:
        self._loaded = None
        batch = self._go_to(state)
        self._make_variables(state, batch)
        self._give_values(state)
        if batch is not None and state["latest"]:
            self.model._latest["train"] = (batch.layout.key, tuple(state["latest"]))
        self.model.stop_training = state["stop_training"]
        self.set_callbacks_state(state["callbacks"])
        set_random_state(state["random"])

    def callbacks_state(self) -> list[list[object]]:
        """Return the state of each callback, with the name of its class."""
        return [[type(item).__name__, item.get_state()] for item in self.hooks.callbacks]

    def set_callbacks_state(self, states: Sequence[Any], kept: Sequence[BaseCallback] = ()) -> None:
        """Have the callbacks go on with what `callbacks_state` gave; others of the same class follow in their order.

        Args:
            states: what that gave.
            kept: callbacks that keep the state that they have.
        """
        remaining = list(states)
        for callback in self.hooks.callbacks:
            saved = next((pair for pair in remaining if pair[0] == type(callback).__name__), None)
            if saved is not None:
                remaining.remove(saved)
                if callback not in kept:
                    callback.set_state(saved[1])

    def _go_to(self, state: State) -> Batch | None:
        """Bring the data to where they were; the batch before that, if there is one in this pass."""
        steps = self.data.steps
        if state["batch"] and steps is not None and state["steps"] not in (None, steps):
            raise _refused(
                f"{self._path!r} was saved after {state['batch']} of {state['steps']} steps of epoch "
                f"{state['epoch'] + 1}, but an epoch of these data has {steps} steps. Call fit with the same data and "
                "batch size, or delete it to start from the beginning."
            )
        position = state["data"]
        if position["random"] is not None:
            set_random_state(position["random"])
        return self.data.go_to(state["batch"], position)

    def _make_variables(self, state: State, batch: Batch | None) -> None:
        """Make the variables that a model, its metrics and optimizers have only once a step was built."""
        model = self.model
        if model.built and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        if batch is None and self._lacks(state):
            set_random_state(state["random"])
            batch = self.data.peek()
        if batch is not None:
            model._steps["train"].make_state(batch)

    def _lacks(self, state: State) -> bool:
        return bool(state["variables"].keys() - stateful_parts(self.model).keys())

    def _give_values(self, state: State) -> None:
        """Compare, then assign.

        Raises:
            SavedFileError: the model is another one.
        """
        parts = stateful_parts(self.model)
        values: State = {**state["variables"], **state["generators"]}
        differences = _differences(parts, values)
        if differences:
            listed = "".join(f"\n  {line}" for line in differences[:_SHOWN])
            more = f"\n  ... and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            raise _refused(
                f"{self._path!r} was saved by a run of another model, and nothing was restored:{listed}{more}\n"
                "Build and compile the model as it was, or delete it to start from the beginning."
            )
        for path, value in values.items():
            part = parts[path]
            if isinstance(part, SeedGenerator):
                part.state = value
            else:
                part.write_value(own_copy(value))


_VARIABLES = (Variable, ShardedVariable)


def _refused(reason: str) -> SavedFileError:
    from .archive import SavedFileError

    return SavedFileError(reason)


def _differences(parts: Mapping[str, object], values: State) -> list[str]:
    found = [f"{path} is not in the model" for path in values.keys() - parts.keys()]
    for path, part in parts.items():
        value = values.get(path)
        if value is None and isinstance(part, _VARIABLES) and part.trainable:
            found.append(f"{path} is not in the file")
        elif value is not None and isinstance(part, _VARIABLES):
            mine = np.asarray(part.stored_value())
            if (mine.shape, mine.dtype) != (value.shape, value.dtype):
                found.append(f"{path} is {mine.dtype}{list(mine.shape)}, in the file {value.dtype}{list(value.shape)}")
    return sorted(found)
