"""`PassMethods`: passes over data, batch by batch, of which `fit`, `evaluate` and `predict` are made."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.graph import Tensor, pack_as
from ...engine.runtime import numerics
from ..data.adapters import Batch
from .base_callback import BaseCallbackList
from .base_model import BaseModel, Logs
from .contract import checked_first
from .epochs import Epochs
from .fit_data import without_targets
from .nan_report import located
from .progress import Progress, make_progress

if TYPE_CHECKING:
    from ..replicas.passes import SharedPass
    from ..structures import Array, Tensors


class PassMethods(BaseModel):
    """The methods that run steps on all batches of data. `Trainer` adds those that users call."""

    def _run_steps(self, mode: str, epoch: Epochs, hooks: BaseCallbackList, progress: Progress) -> int:
        """Run one epoch's steps; return how many there were."""
        if self.steps_per_execution > 1:
            return self._run_groups_of_steps(mode, epoch, hooks, progress)
        if hooks.wants_batches(mode):
            return self._run_steps_with_hooks(mode, epoch, hooks, progress)
        run, clock, latest = self._steps[mode].run, time.perf_counter, self._latest
        done = epoch.done_before
        try:
            for batch in progress.timed(self._batches(epoch)):
                latest[mode] = (batch.layout.key, run(batch))
                done += 1
                if clock() >= progress.next_redraw:
                    progress.redraw(done)
        except FloatingPointError as error:
            raise located(error, self, progress.title, done) from error
        return done

    def _run_steps_with_hooks(self, mode: str, epoch: Epochs, hooks: BaseCallbackList, progress: Progress) -> int:
        run, done = self._steps[mode].run, epoch.done_before
        for batch in progress.timed(self._batches(epoch)):
            hooks.begin_batch(mode, done)
            try:
                self._latest[mode] = (batch.layout.key, run(batch))
            except FloatingPointError as error:
                raise located(error, self, progress.title, done) from error
            done += 1
            hooks.end_batch(mode, done - 1, self._batch_logs(mode, hooks))
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)
            if self._is_stopped(mode):
                break
        return done

    def _run_groups_of_steps(self, mode: str, epoch: Epochs, hooks: BaseCallbackList, progress: Progress) -> int:
        """Run an epoch in groups of `steps_per_execution` steps, each group one loop in the graph."""
        together, wanted, done = self.steps_per_execution, hooks.wants_batches(mode), epoch.done_before
        steps = math.inf if epoch.steps is None else epoch.steps
        batches = progress.timed(self._batches(epoch))
        while group := list(islice(batches, int(min(together - done % together, max(steps - done, 1))))):
            if wanted:
                hooks.begin_batch(mode, done)
            self._run_group(mode, group, progress.title, done)
            done += len(group)
            if wanted:
                hooks.end_batch(mode, done - 1, self._batch_logs(mode, hooks))
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)
            if wanted and self._is_stopped(mode):
                break
        return done

    def _is_stopped(self, mode: str) -> bool:
        """Test whether a callback has set `stop_training`, or for other modes `stop_evaluating`."""
        return self.stop_training if mode == "train" else self.stop_evaluating

    def _batch_logs(self, mode: str, hooks: BaseCallbackList) -> Logs:
        return self._logs(mode) if hooks.reads_batch_logs(mode) else {}

    def _run_group(self, mode: str, group: list[Batch], title: str, done: int) -> None:
        key = group[-1].layout.key
        if not numerics.is_enabled():
            self._latest[mode] = (key, self._steps[mode].run_together(group))
            return
        for number, batch in enumerate(group, done):  # one by one, so that the guard names the batch
            try:
                self._latest[mode] = (key, self._steps[mode].run(batch))
            except FloatingPointError as error:
                raise located(error, self, title, number) from error

    def _batches(self, epoch: Epochs) -> Iterator[Batch]:
        """Return an epoch's batches; the first one that the model sees is looked at."""
        return epoch.epoch() if self._checked_batch else checked_first(epoch.epoch(), self._check_batch)

    def _evaluate(self, data: Epochs, hooks: BaseCallbackList, progress: Progress | None) -> Logs:
        self.reset_metrics()
        self.stop_evaluating = False
        hooks.on_begin("test")
        shown = progress or make_progress(0, "", None, dict)
        with closing(data):
            shared = self._shared_pass("test", data, hooks)
            run = partial(self._run_steps, "test", hooks=hooks, progress=shown)
            done = run(data) if shared is None else shared.test(run)
            data.finish()
        logs = self._logs("test") if done else {}
        shown.close(done, logs)
        hooks.on_end("test", logs)
        return logs

    def _outputs(self, data: Epochs, hooks: BaseCallbackList, progress: Progress) -> tuple[Any, list[Array]]:
        """Return the structure of the outputs, and arrays of all rows.

        Raises:
            ValueError: there are no rows.
        """
        shared = self._shared_pass("predict", data, hooks)
        if shared is not None:
            columns = shared.predict(_joined, progress)
            progress.close(data.steps or 0, {})
            return shared.structure(), columns
        parts, structure, done = [], None, 0
        wanted = hooks.wants_batches("predict")
        for batch in progress.timed(data.epoch()):
            only_x = without_targets(batch)
            if wanted:
                hooks.begin_batch("predict", done)
            parts.append(self._steps["predict"].run(only_x))
            structure = self._output_structure[only_x.layout.key]
            done += 1
            if wanted:
                hooks.end_batch("predict", done - 1, {"outputs": pack_as(structure, list(parts[-1]))})
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)
            if self.stop_predicting:
                break
        progress.close(done, {})
        if not parts:
            raise ValueError("predict() got no data: x gave no batch.")
        return structure, [column[0] if len(column) == 1 else _joined(column) for column in zip(*parts, strict=True)]

    def _shared_pass(self, mode: str, data: Epochs, hooks: BaseCallbackList) -> SharedPass | None:
        """Make a pass together with the other workers of a cluster; return None where this process makes it alone."""
        strategy = self.distribute_strategy
        if strategy is None or not strategy.is_distributed:
            return None
        from ..replicas.passes import shared_pass  # few need it

        return shared_pass(self, strategy, mode, data, hooks)


# --- helpers --------------------------------------------------------------------------------------------------------


def _joined(column: Sequence[Array]) -> Array:
    try:
        return np.concatenate(column)
    except ValueError as error:
        shapes = sorted({tuple(array.shape[1:]) for array in column})
        raise ValueError(
            f"predict(): the outputs of batches differ in shape beyond the batch ({shapes}), so they can't be joined. "
            "Call predict_on_batch on each batch."
        ) from error


def packed(structure: Tensors | None, values: list[Array]) -> Any:
    """Give outputs the structure that the model's have."""
    return values[0] if isinstance(structure, Tensor) else pack_as(structure, values)


__all__ = ["PassMethods", "packed"]
