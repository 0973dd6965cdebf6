"""`ReplicaFit`: `fit` under `ParameterServer`, in one worker.

Each worker takes tickets, computes the gradients of the rows that these name, and puts them on the ps tasks. The chief
(worker 0) does the same, and besides: a thread of it has the set of each step applied; it calls the callbacks, shows
the progress, and tells the others at the end of an epoch what came of it.

When a ps task is lost, with what it held, the chief begins a new *generation*: it waits for the task to be back and
restores all state from the last backup, which has an account of the rows that it contains. The others enrol again.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from ...distribute.restarts import Restarts
from ...distribute.strategies.strategy import ParameterServer
from ...engine.graph import Variable
from ...engine.ops.random.keys import global_generator
from ...engine.queues.errors import CancelledError, StateLostError, TaskFailedError
from ...engine.queues.replica_state import NO_TICKET, Ticket
from ..callbacks.progress import Progress, make_progress
from ..data.adapters import ArrayData
from ..saving.checkpointing import RunCallback, TrainingRun
from .cluster_fit import ClusterFit, Logs, plain, same, seed_now, told
from .plan import ReplicaPlan
from .programs import ReplicaPrograms
from .shares import Shares

_RESTART_SECONDS = 60.0  # how long ps tasks that were lost are waited for
_POLL_SECONDS = 0.2  # between two attempts to reach them


class ReplicaFit(ClusterFit):
    """One call of `fit` in one worker under `ParameterServer`."""

    strategy: ParameterServer

    def run(self, epochs: range) -> None:
        """Train; afterwards the model has the trained values, in each worker.

        Args:
            epochs: those to make, if no interrupted run is taken up.

        Raises:
            CancelledError: another worker, or the chief, has ended the training; the message says why.
            TaskFailedError: a task is gone that is needed.
        """
        self.strategy.fits += 1
        # As in one process: the order of the first epoch is drawn before the first values of a model that is not built.
        self._seed = seed_now()
        self._shares = Shares(self.data, self.strategy.shares, self._seed)
        self.plan = ReplicaPlan(self.model, self.strategy, self._shares.batch(0))
        self._restarts = Restarts(self.strategy.max_restarts)
        self._run: TrainingRun | None = None
        self._generation = self._after = 0  # in which this worker takes part, and which one it does not want
        self._passes_made = 0
        self._is_computing = False
        self._done: Any = None  # the shares that are in the values that the chief has pulled
        self.programs = ReplicaPrograms(self.plan)
        try:
            while not self._is_done(epochs):
                self._connect_again()
        finally:
            self.programs.close()

    def _is_done(self, epochs: range) -> bool:
        """Train to the end; gives False if state was lost, and training can go on from what was saved.

        Raises:
            BaseException: it can't.
        """
        try:
            self._is_computing = False
            if self.strategy.is_chief:
                self._lead(epochs)
            else:
                self._follow()
            self._keep_statistics()
            self.programs.leave()  # so that the end of the chief is no loss to workers that are still reading
        except BaseException as error:
            if self._goes_on(error):
                return False
            self._keep_statistics()
            with contextlib.suppress(Exception):
                self._give_up(error)
            raise
        return True

    def _goes_on(self, error: BaseException) -> bool:
        """Decide if training goes on after an error: it says that state was lost, and there is a backup."""
        is_ps = isinstance(error, TaskFailedError) and error.task in self.strategy.ps
        is_ps = is_ps or (isinstance(error, StateLostError) and self._is_computing)
        if not is_ps and not isinstance(error, StateLostError):
            return False
        may_restore = self.is_backed_up and isinstance(self.data, ArrayData) and self.strategy.max_restarts > 0
        if not self.strategy.is_chief:
            # A ps task that is gone takes all state with it. Otherwise this worker alone was left behind.
            self._after = self._generation if is_ps else 0
            return may_restore or not is_ps
        if not may_restore or self._run is None:
            return False
        if not self._restarts.take():
            error.add_note(f"Training was restored {self.strategy.max_restarts} times within an hour: max_restarts.")
            return False
        warnings.warn(f"Training goes on from its last backup: {told(error)}", stacklevel=2)
        return True

    def _connect_again(self) -> None:
        self.programs.close()
        self.programs = ReplicaPrograms(self.plan)

    def _enter(self, enter: Callable[[ReplicaPrograms], Any], is_again: bool) -> Any:
        """Lead or enrol; where that was done before, ps tasks that are gone are waited for.

        Raises:
            TaskFailedError: one does not come back.
        """
        deadline = time.monotonic() + _RESTART_SECONDS
        while True:
            try:
                return enter(self.programs)
            except (TaskFailedError, StateLostError):
                if not is_again or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)
            self._connect_again()

    def _keep_statistics(self) -> None:
        found: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # a ps task may be gone
            found = self.programs.statistics()
        self.strategy.count = lambda: found

    def _give_up(self, error: BaseException) -> None:
        if self.strategy.is_chief:
            chief = self.strategy.workers[0]
            self.programs.end_all(f"{chief}, which leads the training, has ended it: {told(error)}")
        else:
            self.programs.leave()

    # --- the chief --------------------------------------------------------------------------------------------------

    def _lead(self, epochs: range) -> None:
        model, hooks = self.model, self.hooks
        run, epochs = self._begun(epochs)
        self._push(self.plan.variables)
        is_announced = False
        logs: Logs = {}
        with self._applying() as self._applier:
            for epoch in epochs:
                model.reset_metrics()
                hooks.on_epoch_begin(epoch)
                rows = run.enter_epoch()
                self._push_changed()
                if not is_announced:
                    self._announce_begin()
                    is_announced = True
                shares = self._shares_of_epoch() if rows is None else self._shares_left(rows)
                done: Any = [] if rows is None else rows["done"]
                number = self.programs.begin_epoch(self.data.batches or 0, shares.parts, np.asarray(done, "int64"))
                self.programs.announce({"epoch": epoch, "number": number, "seed": self._seed, "shares": shares.parts})
                title = f"Epoch {epoch + 1}/{epochs.stop}"
                progress = make_progress(self.verbosity, title, self.data.batches, self._logs_now)
                steps = self._run_epoch(number, shares, progress, len(done) // shares.parts)
                logs = self._end_epoch(epoch, steps, progress)
                if model.stop_training:
                    break
        if not is_announced:
            self._announce_begin()
        model.optimizer.finalize_variable_values(model._trained_variables)
        hooks.on_end("train", logs)
        self._push_changed()
        self.programs.announce({"stop": bool(model.stop_training)})

    def _begun(self, epochs: range) -> tuple[TrainingRun, range]:
        """Lead a generation; gives the run and the epochs to make, and restores what was saved between two of them."""
        is_again, hooks = self._run is not None, self.hooks
        run = self._run = self._run or TrainingRun(self.model, hooks, self.passes)
        self._enter(ReplicaPrograms.lead, is_again)
        self.strategy.count = self.programs.statistics
        savers = [callback for callback in hooks.callbacks if isinstance(callback, RunCallback)]
        if is_again:
            any(callback.take_up() for callback in savers)
            self._applied, self._shares = 0, None
        else:
            hooks.on_begin("train")
        self._counts_rows = any(callback.wants_batches("train") for callback in savers)
        run.rows = self._rows
        epochs = self._taken_up(run, epochs)
        if not is_again:
            for callback in savers:
                callback.save_first(epochs.start)
        return run, epochs

    def _rows(self) -> dict[str, Any]:
        """The account of the rows of the epoch that are in the values that were pulled last."""
        return {"seed": self._seed, "shares": self._parts, "done": self._done}

    def _shares_left(self, rows: dict[str, Any]) -> Shares:
        """The shares of an epoch that was interrupted, in its order."""
        self._seed = [int(part) for part in rows["seed"]]
        generator = global_generator()
        state = generator.state
        shares = Shares(self.data, int(rows["shares"]), self._seed)
        generator.state = state
        return shares

    def _announce_begin(self) -> None:
        passes, history = self.passes.position["passes"], self.model.history.get_state()
        self.programs.announce({"passes": passes, "history": history})

    def _end_epoch(self, epoch: int, steps: int, progress: Progress) -> Logs:
        """Have callbacks and the other workers know what came of an epoch; gives its logs."""
        self._pull(self.plan.variables)
        logs = self._logs() if steps else {}
        logs = dict(sorted({**logs, **self.validate(epoch)}.items()))
        progress.close(steps, logs)
        self.passes.count_pass()
        self.data.on_epoch_end()
        self.hooks.on_epoch_end(epoch, logs)
        self.programs.announce({"logs": {name: plain(value) for name, value in logs.items()}})
        return logs

    @contextlib.contextmanager
    def _applying(self) -> Generator[_Applier]:
        applier = _Applier(self.programs)
        try:
            yield applier
        except (CancelledError, StateLostError) as error:
            raise applier.error or error from None
        finally:
            applier.end()

    def _run_epoch(self, number: int, shares: Shares, progress: Progress, first: int) -> int:
        """Run the chief's part of an epoch, of which some steps were done before; gives how many steps it has now."""
        hooks, model = self.hooks, self.model
        wanted = hooks.wants_batches("train")
        self._parts = shares.parts
        done = first
        while True:
            ticket = self.programs.take(number)
            while done - first < ticket.step - self._applied:
                if wanted:
                    hooks.begin_batch("train", done)
                    self._pull(self.plan.variables, self._counts_rows)
                    hooks.end_batch("train", done, self._logs() if hooks.reads_batch_logs("train") else {})
                    self._push_changed()
                done += 1
                if model.stop_training:
                    self.programs.end_epoch()
            if ticket.number == NO_TICKET:
                self._applied += done - first
                return done
            if not model.stop_training:
                self._compute(ticket, shares)
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)

    def _compute(self, ticket: Ticket, shares: Shares) -> None:
        batch = shares.batch(ticket.share)
        if not self.model._checked_batch and batch.size:
            self.model._check_batch(batch)
        self._is_computing = True
        self.programs.train(ticket.number, batch, shares.part(ticket.share, batch))
        self._is_computing = False

    def _logs_now(self) -> Logs:
        self._pull([variable for metric in self.model.metrics for variable in metric.variables])
        return self._logs()

    def _pull(self, variables: Sequence[Variable], with_account: bool = False) -> None:
        with self._between_steps():
            if with_account:
                values, self._done = self.programs.pull_with_account(variables)
            else:
                values = self.programs.pull(variables)
        for variable, value in zip(variables, values, strict=True):
            self._known[variable] = value
            variable.assign(value)

    def _push(self, variables: Sequence[Variable]) -> None:
        values = [variable.numpy() for variable in variables]
        with self._between_steps():
            self.programs.push(variables, values)
        self._known.update(zip(variables, values, strict=True))

    def _push_changed(self) -> None:
        """Bring what a callback has changed to the ps tasks."""
        self._push([variable for variable in self.plan.variables if not same(variable.numpy(), self._known[variable])])

    def _between_steps(self) -> Any:
        applier = getattr(self, "_applier", None)
        return contextlib.nullcontext() if applier is None else applier.between_steps

    # --- the other workers ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        model, hooks = self.model, self.hooks
        is_again, after = self._generation > 0, self._after
        self._generation = self._enter(lambda programs: programs.enrol(after), is_again)
        self.strategy.count = self.programs.statistics
        if not is_again:
            hooks.on_begin("train")
        logs: Logs = {}
        begun = self.programs.hear()
        self.data.skip_passes(max(begun["passes"] - self._passes_made, 0))
        self._passes_made = begun["passes"]
        model.history.set_state(begun["history"])
        while True:
            message = self.programs.hear()
            if "stop" in message:
                model.stop_training = message["stop"]
                break
            epoch = message["epoch"]
            hooks.on_epoch_begin(epoch)
            shares = Shares(self.data, message["shares"], message["seed"])
            while (ticket := self.programs.take(message["number"])).number != NO_TICKET:
                self.plan.begin_share(epoch, ticket.share)
                self._compute(ticket, shares)
            logs = self.programs.hear()["logs"]
            self.data.on_epoch_end()
            self._passes_made += 1
            hooks.on_epoch_end(epoch, logs)
        for variable, value in zip(self.plan.variables, self.programs.pull(self.plan.variables), strict=True):
            variable.assign(value)
        hooks.on_end("train", logs)


class _Applier:
    """A thread of the chief that has the set of each step applied.

    Attributes:
        between_steps: held while a set is applied.
        error: what went wrong in the thread.
    """

    def __init__(self, programs: ReplicaPrograms) -> None:
        self.between_steps = threading.Lock()
        self.error: Exception | None = None
        self._programs = programs
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="anabranch applies steps", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                chosen = self._programs.choose()
                with self.between_steps:
                    self._programs.apply(chosen)
        except Exception as error:
            if not self._is_ending:
                self.error = error
                reason = f"a step could not be applied: {told(error)}"
                with contextlib.suppress(Exception):
                    if isinstance(error, (TaskFailedError, StateLostError)):
                        self._programs.abandon(reason)
                    else:
                        self._programs.end_all(reason)

    def end(self) -> None:
        """End the thread; a set that is being applied is waited for."""
        self._is_ending = True
        with contextlib.suppress(TaskFailedError, StateLostError):  # then nobody waits for a set any more
            self._programs.end_choosing()
        self._thread.join()


__all__ = ["ReplicaFit"]
