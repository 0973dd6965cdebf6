"""`ReplicaFit`: `fit` under `ParameterServer`, in one worker.

Each worker takes tickets, computes the gradients of the rows that these name, and puts them on the ps tasks. The chief
(worker 0) does the same, and besides: a thread of it has the set of each step applied; it calls the callbacks, shows
the progress, and announces the result of an epoch to the others at its end.

When a ps task is lost, with what it held, the chief begins a new *generation*: it waits for the task to be back and
restores all state from the last backup, which has an account of the rows that it contains. The others enrol again.

When the chief is lost, the lowest worker goes on in its place from the last step: it has the callbacks' state by notes
that the chief leaves with the state of steps.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.enrolment import Enrolment
from ...distribute.environment import chief_of_launcher, note_end
from ...distribute.restarts import Restarts
from ...engine.ops.random.keys import global_generator
from ...engine.queues.errors import CancelledError, StateLostError, TaskFailedError
from ...engine.queues.replica_tickets import LEAD, LEAVE, NO_TICKET, SUPPLY
from ..data.adapters import ArrayData, Batch
from ..saving.checkpointing import RunCallback, TrainingRun
from ..saving.run_files import state_as_text, state_of_text
from ..training.base_callback import BaseCallback, BaseCallbackList
from ..training.progress import Progress, make_progress
from .alike import check_alike, facts_of_data, facts_of_model
from .applier import Applier
from .cluster_fit import Logs, ends_group, plain, reason_of, seed_now
from .handed_out import SuppliedRows, place_of
from .member import RESTART_SECONDS, ReplicaMember
from .programs import LeavingError, ReplicaPrograms
from .shares import Current, Shares, part_of
from .ways import PARTS_OF_A_WORKER, TaskWay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..structures import Array

_logger = logging.getLogger(__name__)
END = 1 << 40  # in place of the number of a step: the end of an epoch
NO_BACKUP = (
    "State was lost, and there is no backup to go on from: training has ended, or its folder is another one for each "
    "worker. Give BackupAndRestore a folder that all workers see."
)


class ReplicaFit(ReplicaMember):
    """One call of `fit` in one worker under `ParameterServer`."""

    def run(self, epochs: range) -> None:
        """Train; afterwards the model has the trained values, in each worker.

        Args:
            epochs: those to make, if no interrupted run is taken up.

        Raises:
            CancelledError: another worker, or the chief, has ended the training; the message says why.
            TaskFailedError: a task is gone that is needed.
        """
        # As in one process: the order of the first epoch is drawn before the first values of a model that is not built.
        self._seed = self._first_seed = seed_now()
        self._shares = None if self._hands_out else Shares(self.data, self.strategy.shares, self._seed)
        first = self._first_part() if self._shares is None else self._shares.batch(0)
        self._find_programs(first)
        self._restarts = Restarts(self.strategy.max_restarts)
        self._run: TrainingRun | None = None
        self._enrolment = Enrolment(self.strategy.ps, self._start_of)
        self._passes_made = self._seen = 0  # and how many steps of an epoch the chief's callbacks have seen
        self._own: list[BaseCallback] = []  # those that this worker called while it followed
        self._is_computing = self._is_leaving = False
        self._has_made_epochs = False
        self._place: Any = None  # in data that the chief reads
        self._absent: list[str] = []  # workers that did not take part when the latest epoch began
        self._done: Array | None = None  # the shares that are in the values that the chief has pulled
        # A ps task that was started again, too, has no chief noted: then the launcher has.
        is_known = chief_of_launcher() in (None, self.strategy.task_index)
        if self.strategy.is_chief and (self.programs.current() or not is_known):
            self.strategy.chief_index = None
            self.hooks.replace([each for each in self.hooks.callbacks if each.on_all_workers or each not in self.given])
        try:
            with self._leaving_when_asked():
                while not self._is_done(epochs):
                    self._connect_again()
        except BaseException:
            self.programs.close()
            raise
        finally:
            self.passes.close()
        self._keep_programs()

    def _first_part(self) -> Batch:
        """Return the first rows of the first batch, which is not used up, of data that the chief reads.

        Raises:
            ValueError: there is none.
        """
        whole = self.passes.peek()
        if whole is None:
            raise ValueError("fit() got no data: x gave no batch.")
        return part_of(whole, 0, self.strategy.shares)

    # --- what was lost ----------------------------------------------------------------------------------------------

    def _is_done(self, epochs: range) -> bool:
        """Train to the end; return False if state was lost, and training can go on from what was saved.

        Raises:
            BaseException: it can't.
        """
        try:
            self._is_computing = False
            if self._is_leaving:
                raise LeavingError
            if not self.strategy.is_chief:
                self._follow(epochs)
            else:
                self._lead(epochs)
            self._keep_statistics()
            self.programs.leave()  # so that the end of the chief is no loss to workers that are still reading
        except LeavingError:
            self._leave()
        except BaseException as error:
            if self._goes_on(error):
                return False
            is_needed = isinstance(error, TaskFailedError) and error.task == self.strategy.ps[0]
            if self.strategy.is_chief or not is_needed:  # both would wait for it once more
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
        is_backed_up = any(isinstance(callback, RunCallback) for callback in self.given)
        is_by_number = isinstance(self.data, ArrayData) and not self._hands_out
        may_restore = is_backed_up and is_by_number and self.strategy.max_restarts > 0
        if not self.strategy.is_chief:
            # A ps task that is gone takes all state with it. Otherwise this worker alone was left behind.
            is_lost = self._enrolment.note_error(is_ps, may_restore)
            if is_ps and not is_lost:
                own = self.strategy.workers[self.strategy.task_index]
                _logger.warning("%s takes part again, as all ps tasks are there: %s", own, reason_of(error))
            return (may_restore or not is_lost) and not self._enrolment.is_hopeless
        self._check_leads()
        if not may_restore or self._run is None:
            wanted = {
                "the callback BackupAndRestore": is_backed_up,
                "data that can be read by number (arrays, a PyDataset)": is_by_number,
                "max_restarts above 0 (`launch --max-restarts 3`)": self.strategy.max_restarts > 0,
            }
            absent = [what for what, is_there in wanted.items() if not is_there]
            if absent:
                error.add_note(f"fit would go on by itself from its last backup with {' and '.join(absent)}.")
            return False
        if not self._restarts.take():
            error.add_note(f"Training was restored {self.strategy.max_restarts} times within an hour: max_restarts.")
            return False
        _logger.warning("Training goes on from its last backup: %s", reason_of(error))
        return True

    def _start_of(self, task: str) -> int | None:
        from ...distribute.tasks.front import start_of  # without a cluster gRPC is not needed

        assert self.strategy.cluster is not None
        return start_of(self.strategy.cluster.address(task), task)

    def _check_leads(self) -> None:
        """Check that no other worker has taken over, for whom this one was lost.

        Raises:
            CancelledError: one has.
        """
        with contextlib.suppress(TaskFailedError, StateLostError):
            self._connect_again()
            self.programs.check_leads()

    def _give_up(self, error: BaseException) -> None:
        if self.strategy.is_chief:
            if not isinstance(error, TaskFailedError):
                note_end()  # before others learn of it
            chief = self.strategy.workers[self.strategy.task_index]
            self.programs.end_all(f"{chief}, which leads the training, has ended it: {reason_of(error)}")
        else:
            self.programs.leave()

    # --- the chief --------------------------------------------------------------------------------------------------

    def _lead(self, epochs: range) -> None:
        run, epochs = self._begun(epochs)
        self._push(self.plan.variables)
        self._await_workers()
        self._is_announced = False
        self._lead_epochs(run, epochs, None)

    def _lead_epochs(self, run: TrainingRun, epochs: range, current: Current | None) -> None:
        """Make epochs; the first of them is under way if there is a `current` one."""
        model, hooks = self.model, self.hooks
        logs: Logs = {}
        with self._applying() as self._applier:
            for epoch in epochs:
                if (model.stop_training and self._is_announced) or self.passes.exhausted:
                    break
                current = current or self._begin_epoch(run, epoch)
                title = f"Epoch {epoch + 1}/{epochs.stop}"
                progress = make_progress(self.verbosity, title, self.passes.steps, self._logs_now)
                steps = self._run_epoch(current, progress)
                logs = self._end_epoch(current, steps, progress)
                current = None
        if not self._is_announced:
            self._announce_begin(epochs.stop)
        model.optimizer.finalize_variable_values(model._trained_variables)
        hooks.on_end("train", logs)
        self._push_changed()
        self.programs.announce({"stop": bool(model.stop_training)})

    def _begin_epoch(self, run: TrainingRun, epoch: int) -> Current:
        """Have the callbacks, the ps tasks and the other workers begin an epoch."""
        self.model.reset_metrics()
        self.hooks.on_epoch_begin(epoch)
        rows = run.enter_epoch(None if self._hands_out else self.strategy.shares)
        done: list[int] = [] if rows is None else rows["done"]
        first = self.passes.done_before if rows is None else len(done) // int(rows["shares"])
        self._push_changed()
        if not self._is_announced:
            self._announce_begin(epoch)
        shares: Shares | SuppliedRows
        if self._hands_out:
            self._seed, supplied = seed_now(), self._supplied(self._shares_of_step())
            supplied.read_from(self.passes)
            shares = supplied
        elif rows is None:
            shares = self._shares_of_epoch()
        else:
            shares = self._shares_in_order(int(rows["shares"]), [int(part) for part in rows["seed"]])
        self._shares = None  # those of the first epoch, if they were not used
        batches = -1 if self._hands_out else self.data.batches or 0
        number = self.programs.begin_epoch(batches, shares.parts, np.asarray(done, "int64"))
        found = Current(epoch, number, shares, first, self._applied)
        if rows is not None:  # steps may have been applied that callbacks have not seen yet
            found.seen = found.shown = min(int(rows.get("seen", found.first)), found.first)
        self._note(epoch, found.first)
        self.plan.begin_draws(None if rows is None else rows.get("states"), 0 if rows is None else first)
        message = {"epoch": epoch, "number": number, "seed": self._seed, "shares": shares.parts}
        message |= {"states": self.plan.begin_states, "place": place_of(self.passes)}
        self.programs.announce({**message, "first": found.first, "applied": found.applied})
        return found

    def _shares_of_step(self) -> int:
        if not self._has_made_epochs:  # workers may be on their way
            return self.strategy.shares
        members = self.programs.statistics()["members"]
        absent = [task for number, task in enumerate(self.strategy.workers) if number not in members]
        if absent and absent != self._absent:
            _logger.warning("Training goes on without %s: the others compute all rows.", ", ".join(absent))
        self._absent = absent
        return self.strategy.shares_of(len(members))

    def _note(self, epoch: int, done: int) -> None:
        """Leave what a worker will need that takes over: callbacks saw so many steps of an epoch."""
        assert self._run is not None
        state = {"callbacks": self._run.callbacks_state(), "stop_training": bool(self.model.stop_training)}
        self.programs.note(state_as_text({"epoch": epoch, "done": done, "generator": seed_now(), **state}))

    def _lead_callbacks(self) -> TrainingRun:
        """Have this worker call the callbacks, and show the progress."""
        run, self._own, new = self._become_chief(self.strategy.workers[self.strategy.task_index])
        self._run = run
        self._equip(run)
        for callback in new:
            if not isinstance(callback, RunCallback):  # these would take up what they have saved
                callback.on_train_begin({})
        self._note_savers()
        for _ in range(0 if self._hands_out else self._passes_made - self.passes.position["passes"]):
            self.passes.count_pass()
        return run

    def _take_over(self, epochs: range, begin: int, current: Current | None) -> None:
        """Go on in place of a chief that was lost, from the last step.

        Args:
            epochs: those to make in all.
            begin: the epoch that is under way, or comes next.
            current: that epoch, if it is under way.
        """
        run = self._lead_callbacks()
        mark = self.programs.accept()
        if not self._is_announced:  # nothing has begun
            self._lead(epochs)
            return
        self._settle(mark)
        self._shares = None  # those of the first epoch
        text = self.programs.notes()
        note = state_of_text(text) if text else {}
        if note:
            run.set_callbacks_state(note["callbacks"], self._own)
            self.model.stop_training = note["stop_training"]
            global_generator().state = np.array(note["generator"], "int64")
        self._pull(self.plan.variables, self._counts_rows)
        if current is not None:
            self._seed, self._applied = current.seed, current.applied
            current.seen = current.first
            if note and note["epoch"] == current.epoch:
                current.seen = max(note["done"], current.first)
            elif note and note["epoch"] > current.epoch:
                current.seen = END + 1
        if self._hands_out:
            supplied = "" if current is None else self.programs.supplied()
            if not supplied:
                self.passes.go_to(0, self._place)
            if current is not None and isinstance(current.shares, SuppliedRows):
                current.shares.read_from(self.passes, supplied)
        self._lead_epochs(run, range(begin, epochs.stop), current)

    def _begun(self, epochs: range) -> tuple[TrainingRun, range]:
        """Lead a generation; return the run and the epochs to make, and restores what was saved between two of them."""
        is_again, hooks = self._run is not None, self.hooks
        run = self._run = self._run or TrainingRun(self.model, hooks, self.passes)
        self._enter(ReplicaPrograms.lead, is_again)
        self.strategy.count = self.programs.statistics
        savers = self._note_savers()
        if is_again:
            if not any(callback.take_up() for callback in savers):
                raise FileNotFoundError(NO_BACKUP)
            self._applied, self._has_made_epochs = 0, False  # the others are on their way again
            self._shares = self._shares_in_order(self.strategy.shares, self._first_seed)  # it may begin again
        else:
            hooks.on_begin("train")
        self._equip(run)
        epochs = self._taken_up(run, epochs)
        if not is_again:
            for callback in savers:
                callback.save_first(epochs.start)
        return run, epochs

    def _equip(self, run: TrainingRun) -> None:
        run.rows = self._rows
        run.check = lambda: self.programs.check_leads()  # `programs` may be others by then

    def _note_savers(self) -> list[RunCallback]:
        savers = [callback for callback in self.hooks.callbacks if isinstance(callback, RunCallback)]
        self._counts_rows = any(callback.wants_batches("train") for callback in savers)
        return savers

    def _rows(self) -> dict[str, object]:
        """Return the account of the rows of the epoch that are in the values that were pulled last."""
        rows = {"seed": self._seed, "shares": self._parts, "done": self._done, "states": self.plan.begin_states}
        return {**rows, "seen": self._seen}

    def _supplied(self, parts: int) -> SuppliedRows:
        return SuppliedRows(parts, lambda: self.programs)  # which may be others by then

    def _announce_begin(self, epoch: int) -> None:
        passes, history = self.passes.position["passes"], self._history.get_state()
        facts = {"of": self.strategy.task_index, "facts": self._facts()}
        message = {"passes": passes, "history": history, "epoch": epoch, "alike": facts}
        self.programs.announce({**message, "place": place_of(self.passes)})
        self._is_announced = True

    def _facts(self) -> Mapping[str, object]:
        facts = {"data are read by the chief": self._hands_out}
        facts |= {} if self._hands_out else facts_of_data(self.data)
        return facts | facts_of_model(self.model, self.plan.variables)

    def _end_epoch(self, current: Current, steps: int, progress: Progress) -> Logs:
        """Report the result of an epoch to callbacks and the other workers; return its logs."""
        epoch = current.epoch
        self._pull(self.plan.variables)
        batches = current.shares.batches if isinstance(current.shares, SuppliedRows) else self.data.batches or 0
        self.plan.skip_to(min(steps, batches))
        logs = self._logs() if steps else {}
        of_training = [*logs]
        logs = dict(sorted({**logs, **self.validation(epoch)}.items()))
        progress.close(steps, logs)
        if not self._hands_out:
            self.passes.count_pass()
            self.data.on_epoch_end()
        self._hooks_at(current, END).on_epoch_end(epoch, logs)
        self._note(epoch + 1, 0)
        self._has_made_epochs = True
        message = {"logs": plain(logs), "of training": of_training, "steps": steps}
        self.programs.announce({**message, "place": place_of(self.passes)})
        return logs

    @contextlib.contextmanager
    def _applying(self) -> Generator[Applier]:
        applier = Applier(self.programs)
        try:
            yield applier
        except (CancelledError, StateLostError) as error:
            raise applier.error or error from None
        finally:
            applier.end()

    def _run_epoch(self, current: Current, progress: Progress) -> int:
        """Run the chief's part of an epoch, of which some steps may have been done before; return how many it has."""
        model, first, shares = self.model, current.first, current.shares
        wanted = self.hooks.wants_batches("train")
        self._parts, self._applied = shares.parts, current.applied
        done = first if current.seen is None else min(current.seen, current.shown)
        together, batches = model.steps_per_execution, self.passes.steps

        def end_group(hooks: BaseCallbackList, step: int) -> None:
            self._pull(self.plan.variables, self._counts_rows)
            self._seen = step + 1
            hooks.end_batch("train", step, self._logs() if hooks.reads_batch_logs("train") else {})
            self._push_changed()
            self._note(current.epoch, max(step + 1, current.seen or 0))

        while True:
            ticket = self.programs.take(current.number)
            while done - first < ticket.step - self._applied:
                hooks = self._hooks_at(current, done)
                if wanted and (done % together == 0 or done == first):
                    hooks.begin_batch("train", done)
                if wanted and ends_group(done, together, batches):
                    end_group(hooks, done)
                done += 1
                if model.stop_training:
                    self.programs.end_epoch()
            if ticket.number == NO_TICKET:
                if self._hands_out and wanted and not (model.stop_training or ends_group(done - 1, together, batches)):
                    end_group(self._hooks_at(current, done - 1), done - 1)  # data without a length have ended
                self._applied += done - first
                return done
            if ticket.number == LEAVE:
                raise LeavingError
            if isinstance(shares, SuppliedRows) and ticket.number == SUPPLY:
                shares.supply()
            elif not model.stop_training:
                self._compute(current.epoch, ticket, shares)
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)

    def _hooks_at(self, current: Current, step: int) -> BaseCallbackList:
        """Return the callbacks that are called at a step: all, but those that have seen it before a chief was lost."""
        hooks, seen = self.hooks, current.seen
        if seen is None or step >= max(seen, current.shown):
            return hooks
        called = [each for each in hooks.callbacks if (each in self._own) == (step >= current.shown)]
        return BaseCallbackList(called, **hooks.params)

    # --- the other workers ------------------------------------------------------------------------------------------

    def _follow(self, epochs: range) -> None:
        model, hooks = self.model, self.hooks
        is_again, wish = self._enrolment.generation > 0, self._enrolment.wish
        generation = self._enter(lambda each: each.enrol(wish, RESTART_SECONDS if is_again else None), is_again)
        if generation == LEAVE:
            raise LeavingError
        self.strategy.count = self.programs.statistics
        if not is_again:
            hooks.on_begin("train")
        if generation == LEAD:  # state was lost, and the chief with it
            self._lead_callbacks()
            self._lead(epochs)
            return
        self._enrolment.enter(generation)
        self._applied, self._is_announced = 0, False
        logs: Logs = {}
        begun = self.programs.hear()
        if begun is None:
            self._take_over(epochs, 0, None)
            return
        self._is_announced = True
        own, leader = (self.strategy.workers[number] for number in (self.strategy.task_index, begun["alike"]["of"]))
        check_alike(own, self._facts(), leader, begun["alike"]["facts"])
        if not self._hands_out:
            self.data.skip_passes(max(begun["passes"] - self._passes_made, 0))
        self._passes_made, self._place = begun["passes"], begun["place"]
        self._history.set_state(begun["history"])
        epoch = max(begun["epoch"] - 1, -1)
        while True:
            message = self.programs.hear()
            if message is None:
                self._take_over(epochs, epoch + 1, None)
                return
            if "stop" in message:
                model.stop_training = message["stop"]
                break
            epoch = message["epoch"]
            if not self._passes_made:
                self._first_seed = message["seed"]  # which this worker needs if it leads later
            hooks.on_epoch_begin(epoch)
            parts, self._place = message["shares"], message["place"]
            shares = self._supplied(parts) if self._hands_out else Shares(self.data, parts, message["seed"])
            current = Current(epoch, message["number"], shares, message["first"], message["applied"], message["seed"])
            self.plan.begin_draws(message["states"])
            heard = self._follow_steps(current)
            if heard is None:
                self._take_over(epochs, epoch, current)
                return
            logs = heard["logs"]
            self._applied = current.applied + heard["steps"] - current.first
            self._place = heard["place"]
            if not self._hands_out:
                self.data.on_epoch_end()
            self._passes_made += 1
            hooks.on_epoch_end(epoch, logs)
        self._pull_final()
        hooks.on_end("train", logs)

    def _follow_steps(self, current: Current) -> Any:
        """Compute shares of an epoch; return what the chief says of its end, None if the chief is lost.

        Raises:
            LeavingError: this worker is to leave.
        """
        current.shown = current.first
        while (ticket := self.programs.take(current.number)).number >= 0:
            self._show_steps(current, current.first + ticket.step - current.applied)
            self._compute(current.epoch, ticket, current.shares)
            self._enrolment.note_share()
        if ticket.number == LEAVE:
            raise LeavingError
        heard = None if ticket.number == LEAD else self._hear_logs(current.epoch)
        if heard is not None:
            if any(callback in self.given for callback in self.hooks.callbacks):
                self._pull_final()
            logs = {name: heard["logs"][name] for name in heard["of training"]}
            self._show_steps(current, heard["steps"], logs)
        return heard

    def _show_steps(self, current: Current, until: int, logs: Logs | None = None) -> None:
        """Call the callbacks' methods for batches, which are applied up to `until`.

        Args:
            current: the epoch.
            until: up to which they are called.
            logs: those of the end of the epoch; None within it.
        """
        hooks, together = self.hooks, self.model.steps_per_execution
        if not hooks.wants_batches("train"):
            current.shown = until
            return
        last = until if self._hands_out else self.passes.steps  # data may have ended early
        for step in range(current.shown, until):
            current.shown = step + 1
            if step % together == 0 or step == current.first:
                hooks.begin_batch("train", step)
            if not ends_group(step, together, self.passes.steps if logs is None else last):
                continue
            if logs is None:
                self._pull_final()
                logs = self._logs() if hooks.reads_batch_logs("train") else {}
            hooks.end_batch("train", step, dict(logs))

    def _hear_logs(self, epoch: int) -> Any:
        """Wait for the logs of an epoch, and join its validation before, if there is one; None if the chief is lost."""
        while True:
            heard = self.programs.hear()
            if heard is None or "validate" not in heard:
                return heard
            if self._validate is None:
                continue
            way = TaskWay.joined(self.strategy, heard["validate"], heard["parts"], may_begin=False)
            if way is None:  # it is over
                continue
            weights = self._weights()
            for variable, value in zip(weights, self.programs.pull(weights), strict=True):
                variable.assign(value)
            self.validation(epoch, way)

    # --- validation -------------------------------------------------------------------------------------------------

    def _shared_weights(self) -> list[Array]:
        return [self._known[variable] for variable in self._weights()]

    def _begin_validation(self, batches: int) -> TaskWay | None:
        plan, passes = self.plan, self.passes.position["passes"]
        key = f"validation {plan.container} {plan.training} {self.programs.token} {passes}"
        parts = min(batches, PARTS_OF_A_WORKER * self.strategy.num_workers)
        way = TaskWay.joined(self.strategy, key, parts)
        self.programs.announce({"validate": key, "parts": parts})
        return way


__all__ = ["ReplicaFit"]
