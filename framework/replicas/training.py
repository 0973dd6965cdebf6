"""`ReplicaFit`: `fit` under `ParameterServer`, in one worker.

Each worker takes tickets, computes the gradients of the rows that these name, and puts them on the ps tasks. The chief
(worker 0) does the same, and besides: a thread of it has the set of each step applied; it calls the callbacks, shows
the progress, and tells the others at the end of an epoch what came of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any

from ...distribute.strategies.strategy import ParameterServer
from ...engine.graph import Variable
from ...engine.queues.errors import CancelledError
from ...engine.queues.replica_state import NO_TICKET, Ticket
from ..checkpointing import TrainingRun
from ..progress import Progress, make_progress
from .cluster_fit import ClusterFit, Logs, plain, same, seed_now, told
from .plan import ReplicaPlan
from .programs import ReplicaPrograms
from .shares import Shares


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
        self.programs = ReplicaPrograms(self.plan)
        try:
            self.programs.join()
            self.strategy.count = self.programs.statistics
            if self.strategy.is_chief:
                self._lead(epochs)
            else:
                self._follow()
            self._keep_statistics()
            self.programs.leave()  # so that the end of the chief is no loss to workers that are still reading
        except BaseException as error:
            self._keep_statistics()
            with contextlib.suppress(Exception):
                self._give_up(error)
            raise
        finally:
            self.programs.close()

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
        run = TrainingRun(model, hooks, self.passes)
        hooks.on_begin("train")
        epochs = self._taken_up(run, epochs)
        self._push(self.plan.variables)
        self.programs.announce({"passes": self.passes.position["passes"], "history": model.history.get_state()})
        logs: Logs = {}
        with self._applying() as self._applier:
            for epoch in epochs:
                model.reset_metrics()
                hooks.on_epoch_begin(epoch)
                self._push_changed()
                shares = self._shares_of_epoch()
                number = self.programs.begin_epoch(self.data.batches or 0)
                self.programs.announce({"epoch": epoch, "number": number, "seed": self._seed})
                title = f"Epoch {epoch + 1}/{epochs.stop}"
                progress = make_progress(self.verbosity, title, self.data.batches, self._logs_now)
                done = self._run_epoch(number, shares, progress)
                self._pull(self.plan.variables)
                logs = self._logs() if done else {}
                logs = dict(sorted({**logs, **self.validate(epoch)}.items()))
                progress.close(done, logs)
                self.passes.count_pass()
                self.data.on_epoch_end()
                hooks.on_epoch_end(epoch, logs)
                self.programs.announce({"logs": {name: plain(value) for name, value in logs.items()}})
                if model.stop_training:
                    break
        model.optimizer.finalize_variable_values(model._trained_variables)
        hooks.on_end("train", logs)
        self._push_changed()
        self.programs.announce({"stop": bool(model.stop_training)})

    @contextlib.contextmanager
    def _applying(self) -> Generator[_Applier]:
        applier = _Applier(self.programs)
        try:
            yield applier
        except CancelledError as error:
            raise applier.error or error from None
        finally:
            applier.end()

    def _run_epoch(self, number: int, shares: Shares, progress: Progress) -> int:
        """Run the chief's part of an epoch; gives how many steps were applied in it."""
        hooks, model = self.hooks, self.model
        wanted = hooks.wants_batches("train")
        done = 0
        while True:
            ticket = self.programs.take(number)
            while done < ticket.step - self._applied:
                if wanted:
                    hooks.begin_batch("train", done)
                    self._pull(self.plan.variables)
                    hooks.end_batch("train", done, self._logs() if hooks.reads_batch_logs("train") else {})
                    self._push_changed()
                done += 1
                if model.stop_training:
                    self.programs.end_epoch()
            if ticket.number == NO_TICKET:
                self._applied += done
                return done
            if not model.stop_training:
                self._compute(ticket, shares)
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)

    def _compute(self, ticket: Ticket, shares: Shares) -> None:
        batch = shares.batch(ticket.share)
        if not self.model._checked_batch and batch.size:
            self.model._check_batch(batch)
        self.programs.train(ticket.number, batch, shares.part(ticket.share, batch))

    def _logs_now(self) -> Logs:
        self._pull([variable for metric in self.model.metrics for variable in metric.variables])
        return self._logs()

    def _pull(self, variables: Sequence[Variable]) -> None:
        with self._between_steps():
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
        hooks.on_begin("train")
        logs: Logs = {}
        begun = self.programs.hear()
        self.data.skip_passes(begun["passes"])
        model.history.set_state(begun["history"])
        while True:
            message = self.programs.hear()
            if "stop" in message:
                model.stop_training = message["stop"]
                break
            epoch = message["epoch"]
            hooks.on_epoch_begin(epoch)
            shares = Shares(self.data, self.strategy.shares, message["seed"])
            self.plan.begin_epoch(epoch)
            while (ticket := self.programs.take(message["number"])).number != NO_TICKET:
                self._compute(ticket, shares)
            logs = self.programs.hear()["logs"]
            self.data.on_epoch_end()
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
                with contextlib.suppress(Exception):
                    self._programs.end_all(f"a step could not be applied: {told(error)}")

    def end(self) -> None:
        """End the thread; a set that is being applied is waited for."""
        self._is_ending = True
        self._programs.end_choosing()
        self._thread.join()


__all__ = ["ReplicaFit"]
