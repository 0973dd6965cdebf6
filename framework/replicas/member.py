"""`ReplicaMember`: what each worker does under `ParameterServer`, whoever leads: leaving, shares and values."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ...distribute.strategies.strategy import ParameterServer
from ...engine.common.deadlines import deadline
from ...engine.graph import Variable
from ...engine.queues.errors import DeadlineExceededError, StateLostError, TaskFailedError
from ...engine.queues.replica_tickets import Ticket
from ..training.kept_steps import key_of
from .cluster_fit import ClusterFit, Logs, same
from .handed_out import SuppliedRows
from .plan import ReplicaPlan
from .programs import SAYS_SECONDS, ReplicaPrograms
from .shares import Shares

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ..data.adapters import Batch
    from ..structures import Array

RESTART_SECONDS = 60.0  # how long ps tasks that were lost are waited for
_logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.2  # between two attempts to reach them


class ReplicaMember(ClusterFit):
    """The part of `ReplicaFit` that is the same in the chief and in other workers; see there for these attributes."""

    strategy: ParameterServer
    plan: ReplicaPlan
    programs: ReplicaPrograms
    _is_leaving: bool
    _is_computing: bool
    _done: Array | None

    # --- leaving ----------------------------------------------------------------------------------------------------

    def _leaving_when_asked(self) -> AbstractContextManager[None]:
        """Have SIGTERM make this worker leave between steps; a second one ends it at once."""

        def asked() -> None:
            self._is_leaving = True
            threading.Thread(target=self._retire, name="anabranch leaves", daemon=True).start()

        return self.leaving_when_asked(asked)

    def _retire(self) -> None:
        try:
            self.programs.retire()
        except Exception:  # nobody is there to whom anything could be handed back
            os.kill(os.getpid(), signal.SIGTERM)

    def _leave(self) -> NoReturn:
        """End this process, as it was asked to; others go on.

        Raises:
            SystemExit: always, with 0, unless no other worker is there: then the signal ends the process.
        """
        self._keep_statistics()
        if not self.strategy.is_chief:
            self.programs.leave()
        elif not self.programs.hand_over():
            os.kill(os.getpid(), signal.SIGTERM)
        _logger.warning("%s leaves the training.", self.strategy.workers[self.strategy.task_index])
        raise SystemExit(0)

    # --- connections --------------------------------------------------------------------------------------------------

    def _find_programs(self, first: Batch) -> None:
        """Take the programs that the model has kept, or make others.

        Args:
            first: a worker's part of the first batch.
        """
        model, strategy = self.model, self.strategy
        training = strategy.begin_fit()
        self._key = partial(key_of, model, strategy, first, strategy.incarnation)
        found, self._version = model._kept_steps.take(ReplicaPrograms, self._key())
        if found is None:
            self.plan = ReplicaPlan(model, strategy, first, training)
            self.programs = ReplicaPrograms(self.plan)
            return
        self.programs, self.plan = found, found.plan
        self.plan.begin_again()
        self.plan.training = training
        if not self.programs.begin_again():
            self._connect_again()

    def _keep_programs(self) -> None:
        """Have the model keep the programs for its next `fit`."""
        self.model._kept_steps.give_back(self._key(), self.programs, self._version)

    def _connect_again(self) -> None:
        self.programs.close()
        self.programs = ReplicaPrograms(self.plan, self.programs.token)

    def _enter(self, enter: Callable[[ReplicaPrograms], object], is_again: bool) -> Any:
        """Lead or enrol; where that was done before, ps tasks that are gone are waited for.

        Raises:
            TaskFailedError: one does not come back.
        """
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                return enter(self.programs)
            except (TaskFailedError, StateLostError):
                if not is_again or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)
            self._connect_again()

    def _await_workers(self) -> None:
        """Wait for all workers, if they compute each step together: so the first steps have the same bits in each run.

        One that has not come for some time is not needed.
        """
        if self.plan.is_together:
            with contextlib.suppress(DeadlineExceededError), deadline(SAYS_SECONDS):
                self.programs.assemble(self.strategy.num_workers)

    def _settle(self, mark: int) -> None:
        """Find out what has become of a set that the chief before was given to apply.

        Raises:
            StateLostError: a part of it is written.
        """
        if mark < 0:
            return
        marks = self.programs.marks()
        if all(written == mark for _, written in marks):
            step, *_ = self.programs.choose()
            self.programs.applied(int(step))
        elif any(begun == mark for begun, _ in marks):
            raise StateLostError("the chief was lost while it applied a step, of which a part is written")

    def _keep_statistics(self) -> None:
        found: dict[str, object] = {}
        with contextlib.suppress(Exception):  # a ps task may be gone
            found = self.programs.statistics()
        self.strategy.count = lambda: found

    # --- shares and values --------------------------------------------------------------------------------------------

    def _compute(self, epoch: int, ticket: Ticket, shares: Shares | SuppliedRows) -> None:
        batch = shares.batch(ticket.share, ticket.length)
        if not self.model._checked_batch and batch.size:
            self.model._check_batch(batch)
        self._is_computing = True
        self.plan.draw_for(epoch, ticket.share, shares)
        totals = shares.totals(ticket.share, self.plan.totals_of) if self.plan.totals and batch.size else []
        part, window = shares.part(ticket.share, batch), shares.window(ticket.share, ticket.length)
        self.programs.train(ticket.number, batch, part, window, totals)
        self._is_computing = False

    def _logs_now(self) -> Logs:
        metrics = [variable for metric in self.model.metrics for variable in metric.variables]
        self._pull([*metrics, *self.plan.read_by_logs])
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

    def _pull_final(self) -> None:
        """Take the values at the end of the training, which may be over for long, or those of now."""
        with self._between_steps():
            values = self.programs.pull_final()
        if len(values) < len(self.plan.variables):
            _logger.warning(
                "The values that this fit() has trained are lost with a ps task. %s goes on with those that it has.",
                self.strategy.workers[self.strategy.task_index],
            )
        for variable, value in values.items():
            variable.assign(value)

    def _push(self, variables: Sequence[Variable]) -> None:
        values = [variable.numpy() for variable in variables]
        with self._between_steps():
            self.programs.push(variables, values)
        self._known.update(zip(variables, values, strict=True))

    def _push_changed(self) -> None:
        """Bring what a callback has changed to the ps tasks."""
        self._push([variable for variable in self.plan.variables if not same(variable.numpy(), self._known[variable])])

    def _between_steps(self) -> AbstractContextManager[object]:
        applier = getattr(self, "_applier", None)
        return contextlib.nullcontext() if applier is None else applier.between_steps


__all__ = ["RESTART_SECONDS", "ReplicaMember"]
