"""`train_on_cluster`: `train_on_batch` in one worker of a cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING

from ...distribute.environment import chief_of_launcher, notify_launcher
from ...distribute.strategies.data_parallel import DataParallel
from ...distribute.strategies.strategy import ParameterServer, Strategy
from ...engine.common.deadlines import deadline
from ...engine.queues.errors import CancelledError, DeadlineExceededError, StateLostError, TaskFailedError
from ...engine.queues.replica_tickets import LEAVE, NO_TICKET
from ..data.adapters import ArrayData, Batch
from ..training.base_callback import BaseCallbackList
from ..training.epochs import Epochs
from .alike import check_alike, facts_of_data, facts_of_model
from .applier import Applier
from .cluster_fit import Logs, plain, reason_of, seed_now
from .member import ReplicaMember
from .parallel import ParallelFit
from .plan import ReplicaPlan
from .programs import BEGIN_SECONDS, SAYS_SECONDS, LeavingError, ReplicaPrograms
from .shares import Shares

if TYPE_CHECKING:
    from ..training.base_model import BaseModel

_logger = logging.getLogger(__name__)


class BatchData(ArrayData):
    """One batch as data of which each worker reads its rows.

    Args:
        batch: all rows.
    """

    def __init__(self, batch: Batch) -> None:
        self.layout, self.arrays = batch.layout, batch.leaves
        self.rows = self.batch_size = batch.size
        self.shuffle, self.batches = False, 1


def train_on_cluster(model: BaseModel, strategy: Strategy, batch: Batch) -> Logs:
    """Make a step on a batch that all workers pass, each on its rows; return the logs of all rows.

    Args:
        model: a compiled model.
        strategy: with a cluster.
        batch: all rows.

    Raises:
        ValueError: workers have passed different batches.
        RuntimeError: `fit` runs.
    """
    _refuse(strategy)
    if isinstance(strategy, ParameterServer):
        steps = model._steps_on_cluster
        if not isinstance(steps, ReplicaSingleSteps):
            steps = model._steps_on_cluster = ReplicaSingleSteps(model, strategy, batch)
        return steps.step_on(BatchData(batch))
    assert isinstance(strategy, DataParallel)
    if strategy.joiner is not None:
        strategy.joiner.barrier()  # which is refused, with the reason
    assert strategy.group is not None
    _check_alike(model, strategy, batch)
    try:
        made = model._steps_on_cluster
        if not isinstance(made, ParallelFit):
            made = ParallelFit(model, strategy, Epochs(BatchData(batch)), None, BaseCallbackList(()), 0)
            made.begin_steps()
            made.send_values()
            made.keep_steps()  # `fit` may make the same ones
            model._steps_on_cluster = made
        for each in made._shards_of_optimizers:
            each.take_up()
        logs = made.step_on(BatchData(batch))
        for each in made._shards_of_optimizers:  # what a script does next, such as to save, only the chief may do
            each.gather(strategy.is_chief)
        return logs
    except BaseException as error:
        strategy.group.abort(reason_of(error))
        raise


def _refuse(strategy: Strategy) -> None:
    if strategy.running is not None:
        raise RuntimeError(
            "train_on_batch() was called while fit() runs on a cluster, such as by a callback. All workers make each "
            "step together there, and callbacks run in the chief: train in fit(), with a train_step of your own."
        )


def _check_alike(model: BaseModel, strategy: DataParallel, batch: Batch) -> None:
    """Check that all workers pass batches of the same form at the same step.

    Raises:
        ValueError: they don't.
    """
    assert strategy.group is not None
    scalars = [variable for variable in model.optimizer.variables if variable.shape == ()]
    numbers = {variable.name.rpartition("/")[2]: float(variable.numpy()) for variable in scalars}
    own = {"rows": batch.size, "shapes": [list(leaf.shape) for leaf in batch.leaves], **numbers}
    found = [json.loads(each) for each in strategy.group.gather_bytes(json.dumps(own).encode())]
    for rank, other in enumerate(found):
        # Before the first step numbers may differ: all get the chief's.
        names = ("rows", "shapes") if model._steps_on_cluster is None else own
        names = [name for name in names if repr(own[name]) != repr(other.get(name))]
        if names:
            mine, theirs = ({name: each.get(name) for name in names} for each in (own, other))
            raise ValueError(
                f"train_on_batch(): this worker, {strategy.group.links.names[strategy.group.rank]}, has {mine}, and "
                f"{strategy.group.links.names[rank]} has {theirs}. Pass the whole batch in each worker, of which it "
                "computes its rows, and change learning rates and weights in all."
            )


# --- with ps tasks ----------------------------------------------------------------------------------------------------


class ReplicaSingleSteps(ReplicaMember):
    """The single steps of a model under `ParameterServer`, in one worker.

    Each is an epoch of one batch: the chief announces it, workers take tickets, and the chief announces its logs. The
    chief begins a step when all other workers wait for it, so that nobody reads values of a step while the next one
    changes them. If the chief is lost, the lowest worker goes on with the step.

    Args:
        model: a compiled model.
        strategy: with a cluster.
        batch: the first one, of which nothing but shapes and dtypes is used.
    """

    def __init__(self, model: BaseModel, strategy: ParameterServer, batch: Batch) -> None:
        super().__init__(model, strategy, Epochs(BatchData(batch)), None, BaseCallbackList(()), 0)
        self._applier: Applier | None = None
        self._done = None
        self._is_leaving = self._is_computing = False
        self._is_announced = False  # the chief, this worker or another one, has announced what it trains
        self._is_complete = False  # all workers have come to a step, or were waited for
        self.plan = ReplicaPlan(model, strategy, Shares(self.data, strategy.shares, seed_now()).batch(0))
        self.programs = ReplicaPrograms(self.plan)
        is_known = chief_of_launcher() in (None, strategy.task_index)
        if strategy.is_chief and (self.programs.current() or not is_known):
            strategy.chief_index = None
        self._leads = strategy.is_chief  # another model's steps may have made this worker the chief meanwhile
        if self._leads:
            self.programs.lead()
        elif self.programs.enrol() == LEAVE:
            raise SystemExit(0)
        strategy.count = self.programs.statistics
        strategy.ends.append(self.close)

    def step_on(self, data: BatchData) -> Logs:
        """Make a step on a batch that all workers have; return its logs.

        Args:
            data: the batch.

        Raises:
            ValueError: the chief has another batch.
            CancelledError: the chief has failed.
            TaskFailedError: a task is gone that is needed.
        """
        self.data = data
        self.model.reset_metrics()
        try:
            with self._leaving_when_asked():
                logs = self._led() if self._leads else self._followed()
        except LeavingError:
            self._end_applying()
            self._leave()
        except (CancelledError, StateLostError) as error:
            raise (self._applier and self._applier.error) or error from None
        except BaseException as error:
            is_needed = isinstance(error, TaskFailedError) and error.task == self.strategy.ps[0]
            if self._leads or not is_needed:  # both would wait for it once more
                with contextlib.suppress(Exception):
                    self._give_up(error)
            raise
        self.plan.skip_to(1)
        return logs

    def _give_up(self, error: BaseException) -> None:
        if self._leads:
            self.programs.end_all(f"{self._name}, which leads the training, has ended it: {reason_of(error)}")
        else:
            self.programs.leave()

    @property
    def _name(self) -> str:
        return self.strategy.workers[self.strategy.task_index]

    # --- the chief --------------------------------------------------------------------------------------------------

    def _led(self) -> Logs:
        """Begin a step, and make it with the others."""
        count = self._assembled()
        if self._applier is None:
            self._applier = Applier(self.programs)
        if self._known:
            self._push_changed()
        else:
            self._push(self.plan.variables)
        shares = Shares(self.data, self.strategy.shares_of(count), seed_now())
        number = self.programs.begin_epoch(1, shares.parts)
        self.plan.begin_draws()
        facts = facts_of_data(self.data)
        if not self._is_announced:
            facts |= facts_of_model(self.model, self.plan.variables)
        begun = {"of": self._name, "facts": facts, "whole": not self._is_announced, "number": number}
        self.programs.announce({**begun, "shares": shares.parts, "states": self.plan.begin_states})
        self._is_announced = True
        return self._finished(number, shares)

    def _assembled(self) -> int:
        """Wait until the other workers have come to the step; return how many take part."""
        begun = time.monotonic()
        while True:
            is_late = time.monotonic() - begun >= BEGIN_SECONDS
            least = 1 if self._is_complete or is_late else self.strategy.present
            try:
                with deadline(SAYS_SECONDS):
                    found = self.programs.assemble(least)
            except DeadlineExceededError:
                _logger.warning(
                    "%s has waited %.0f s in train_on_batch() for the other workers, which have not come to this step.",
                    self._name,
                    time.monotonic() - begun,
                )
                continue
            self._is_complete, self.strategy.present = True, found
            return found

    def _finished(self, number: int, shares: Shares) -> Logs:
        """Make the step of a number; return its logs, which all workers get."""
        while (ticket := self.programs.take(number)).number != NO_TICKET:
            if ticket.number == LEAVE:
                raise LeavingError
            self._compute(number, ticket, shares)
        self._pull(self.plan.variables)
        logs = self._logs()
        self.programs.announce({"logs": plain(logs)})
        return logs

    def _take_over(self) -> None:
        """Lead in place of a chief that was lost."""
        strategy = self.strategy
        strategy.chief_index = strategy.task_index
        notify_launcher(strategy.task_index)
        _logger.warning("%s leads the training from now on.", self._name)
        self._leads = True
        self._settle(self.programs.accept())
        self._applier = Applier(self.programs)

    # --- the other workers ------------------------------------------------------------------------------------------

    def _followed(self) -> Logs:
        begun = self.programs.hear()
        if begun is None:  # the chief is lost, and has announced no further step
            self._take_over()
            return self._led()
        own = facts_of_data(self.data)
        if begun["whole"]:
            own |= facts_of_model(self.model, self.plan.variables)
        check_alike(self._name, own, begun["of"], begun["facts"])
        self._is_announced = self._is_complete = True
        shares, number = Shares(self.data, begun["shares"], seed_now()), begun["number"]
        self.plan.begin_draws(begun["states"])
        while (ticket := self.programs.take(number)).number >= 0:
            self._compute(number, ticket, shares)
        if ticket.number == LEAVE:
            raise LeavingError
        heard = self.programs.hear()
        if heard is None:  # the chief is lost, and has not announced the logs
            self._take_over()
            return self._finished(number, shares)
        self._pull(self.plan.variables)
        return heard["logs"]

    # --- the end ----------------------------------------------------------------------------------------------------

    def _end_applying(self) -> None:
        applier, self._applier = self._applier, None
        if applier is not None:
            applier.end()

    def close(self) -> None:
        """Take part no more; the steps that others still make are made without this worker."""
        with contextlib.suppress(Exception):  # ps tasks may be gone
            self._end_applying()
            if self._leads:
                self.programs.hand_over()
            else:
                self.programs.leave()
        self.programs.close()


__all__ = ["BatchData", "ReplicaSingleSteps", "train_on_cluster"]
