"""`ParallelFit`: `fit` under `DataParallel`, in one worker.

All workers run the same steps: each computes the gradients of its rows of a batch, all sum them, and each makes the
same update. What only the chief (worker 0) has, it sends between steps: which epoch begins, with which order of rows,
what callbacks have changed, and what the logs were.

When the chief is lost, all others are at the same operation, and so at the same `Place`. The lowest of them becomes the
chief: it has the state of the chief's callbacks by notes in the messages. Then all go on from this place. Workers that
were started again join before a step, or behind the last one: see `ParallelJoins`.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ...distribute.collectives.elastic import LeaderLostError
from ...engine.ops.random.keys import global_generator
from ...engine.queues.errors import TaskFailedError
from ..saving.checkpointing import RunCallback, TrainingRun
from ..saving.run_files import state_as_text, state_of_text
from ..training.base_callback import BaseCallbackList
from ..training.progress import make_progress
from .cluster_fit import Logs, ends_group, plain, read_message, reason_of, same, seed_now, write_message
from .handed_out import HandedOut, place_of
from .parallel_joins import ParallelJoins
from .programs import LeavingError
from .shares import Place, Shares, Stage
from .ways import GroupWay, joined_bytes, packed, parted_bytes, unpacked

if TYPE_CHECKING:
    from ..structures import Array
    from ..training.progress import Progress

_logger = logging.getLogger(__name__)
_ALONE = (
    "Workers go on without the chief where one launcher has started all of them: python -m anabranch launch. Give the "
    "callback BackupAndRestore to go on from the last epoch after a new start."
)
_NOT_BEGUN = (
    "This fit had not begun: the script of that worker has ended before it came to fit, or has failed. Call fit as "
    "often in all workers. `if strategy.is_chief:` is for what one of them does alone, such as to save the model."
)


class ParallelFit(ParallelJoins):
    """One call of `fit` in one worker under `DataParallel`."""

    _has_begun = False

    def run(self, epochs: range) -> None:
        """Train; afterwards the model has the trained values, in each worker.

        Args:
            epochs: those to make, if no interrupted run is taken up.

        Raises:
            CancelledError: another worker has ended the training; the message says why.
            CancelledError: the others have gone on without this worker, which was stopped.
            TaskFailedError: another worker is gone.
        """
        try:
            with self.leaving_when_asked(self._is_asked_to_leave):
                self._train(epochs)
            self.keep_steps()
        except LeavingError:
            self._leave()
        except BaseException as error:
            if self._together.is_joining:  # the others go on, and have nothing of this worker
                raise
            if self._together.is_refused:
                self.strategy.chief_index = None  # it may have been this worker
            elif isinstance(error, TaskFailedError) and self._together.lacks_successor(error.task):
                error.add_note(_ALONE)
            elif isinstance(error, TaskFailedError) and not self._has_begun:
                error.add_note(_NOT_BEGUN)
            self._group.abort(reason_of(error))
            raise
        finally:
            self.passes.close()

    # --- workers that are lost or leave -----------------------------------------------------------------------------

    def _is_asked_to_leave(self) -> None:
        if not self._together.is_on or (self.strategy.is_chief and not self._together.has_successor):
            os.kill(os.getpid(), signal.SIGTERM)  # the others can't go on
        self._is_leaving = True

    def _leave(self) -> NoReturn:
        """End this process, as it was asked to; the others go on.

        Raises:
            SystemExit: always.
        """
        if self.strategy.is_chief and not self._together.has_successor:  # others have gone since
            os.kill(os.getpid(), signal.SIGTERM)
        self._group.close()
        _logger.warning("%s leaves the training.", self._group.links.names[self._group.rank])
        raise SystemExit(0)

    def _may_go_on(self) -> bool:
        """Test whether the others go on when a worker is lost: all of them have all state."""
        return self.strategy.shard is None

    # --- fit --------------------------------------------------------------------------------------------------------

    def _train(self, epochs: range) -> None:
        if self.strategy.joiner is not None:
            if self._has_joined(self.strategy.joiner):
                self._make_all(epochs.stop)
            return
        self._group.trainings += 1
        self._make_all(self._begun(epochs))

    def _begun(self, epochs: range) -> int:
        """Begin with all workers; return the number of the epoch behind the last one."""
        model, hooks = self.model, self.hooks
        self.begin_steps()
        run = TrainingRun(model, hooks, self.passes) if self.strategy.is_chief else None  # callbacks load a backup
        hooks.on_begin("train")
        epochs = self._begin(epochs, run)
        self.send_values()
        for each in self._shards_of_optimizers:
            each.scatter()
        self._start = epochs.start
        self._at = Place(epochs.start, self._first, self._first, ended=self._first)
        if self._may_go_on():
            self._together.begin()
        return epochs.stop

    def _make_all(self, stop: int) -> None:
        """Make the epochs that are left, and end the training."""
        self._has_begun = True
        while True:
            try:
                self._make_epochs(stop)
                self._end_training()
                self._together.end(self._note_of_end())
                return
            except LeaderLostError:
                self._go_on_without_chief()

    def _make_epochs(self, stop: int) -> None:
        """Make the epochs that are left."""
        while self._at.stage != Stage.TRAINED and self._at.epoch < stop:
            self._epoch(stop)
            at = self._at
            if self.model.stop_training or self.passes.exhausted:
                return
            self._at = Place(at.epoch + 1, logs=at.logs, seen=at.seen)

    def _end_training(self) -> None:
        model, at = self.model, self._at
        at.stage = Stage.TRAINED
        self._admit()
        if self._is_leaving:  # another worker ends the training, and saves what there is
            raise LeavingError
        for each in self._shards_of_optimizers:
            each.gather(self.strategy.is_chief or model.optimizer.use_ema)
        model.optimizer.finalize_variable_values(model._trained_variables)
        before = self._values()
        self._hooks_at("end of training", 0).on_end("train", at.logs)
        self._share_changes(before)

    # --- the loss of the chief --------------------------------------------------------------------------------------

    def _go_on_without_chief(self) -> None:
        """Have the lowest worker lead from here on; all workers that are left call it at the same place."""
        strategy, group = self.strategy, self._group
        self._together.accept_leader()
        self._has_taken_over = True
        self._new = BaseCallbackList((), **self.hooks.params)
        if strategy.task_index != group.left[0]:
            strategy.chief_index = group.left[0]
            return
        run, own, new = self._become_chief(group.links.names[group.rank])
        self._new = BaseCallbackList(new, **self.hooks.params)
        self._equip(run)
        for callback in new:
            if not isinstance(callback, RunCallback):  # these would take up what they have saved
                callback.on_train_begin({})
        if self._notes:
            run.set_callbacks_state([*self._notes.values()], own)
            kept = dict(self._notes.values()).get("History", {})
            self._history.by_step = kept.get("by_step", [])
        if self._hands_out:
            self._read_on()

    def _equip(self, run: TrainingRun) -> None:
        run.rows = None if self._hands_out else self._rows
        run.check = self._together.check_leads
        self._run = run

    def _read_on(self) -> None:
        """Read the data, in place of a chief that was lost, from where it was."""
        at, shares = self._at, self._at.shares
        if not isinstance(shares, HandedOut):
            self.passes.go_to(at.first, self._position)
        elif not shares.has_ended:
            shares.read_from(self.passes, at.done)
        else:
            self.passes.go_to(0, shares.position)

    def _hooks_at(self, moment: str, number: int) -> BaseCallbackList:
        """Return the callbacks to be notified of a moment: those that were not, before the chief was lost.

        Args:
            moment: which kind.
            number: which of its kind.
        """
        if self._at.seen == (moment, number):
            return self._new
        self._at.seen = (moment, number)
        return self.hooks

    def _begin(self, epochs: range, run: TrainingRun | None) -> range:
        """Agree on the epochs to make, and on what came before; the chief has the run."""
        history = self._history
        seed, first = None, 0
        if run is not None:
            epochs = self._taken_up(run, epochs)
            rows = run.enter_epoch(None if self._hands_out else self.strategy.shares)
            first = self.passes.done_before
            self._equip(run)
            if rows is not None:
                seed, first = [int(part) for part in rows["seed"]], run.batches_done(rows)
        passes = self.passes.position["passes"]
        self._all_validate = all(each == b"1" for each in self._group.gather_bytes(b"1" if self._validate else b"0"))
        message = {"epochs": [epochs.start, epochs.stop], "passes": passes, "history": history.get_state()}
        message |= {"notes": state_as_text(self._noted(False)) if self.strategy.is_chief else ""}
        begun = self._broadcast({**message, "seed": seed, "first": first})
        self._notes = state_of_text(begun["notes"])
        self._seed_within, self._first = begun["seed"], begun["first"]
        if not self.strategy.is_chief:
            self.data.skip_passes(begun["passes"])
            for _ in range(0 if self._hands_out else begun["passes"]):
                self.passes.count_pass()
            history.set_state(begun["history"])
            self._shares = None if begun["passes"] or begun["seed"] else self._shares
        return range(*begun["epochs"])

    def _rows(self) -> dict[str, object]:
        """Return the account of the rows of the epoch that are done; see `TrainingRun.rows`."""
        shares = self.strategy.shares
        return {"seed": self._seed, "shares": shares, "done": [*range(self._at.done * shares)]}

    # --- epochs -----------------------------------------------------------------------------------------------------

    def _epoch(self, stop: int) -> None:
        """Make one epoch, or what is left of it."""
        at, hooks = self._at, self.hooks
        progress: Progress | None = None
        if at.stage == Stage.BEGINS:
            if not at.first:  # else the epoch was interrupted, and goes on
                self.model.reset_metrics()
            before = self._values()
            with self._whole_optimizer("on_epoch_begin"):
                self._hooks_at("begin of epoch", at.epoch).on_epoch_begin(at.epoch)
            self._share_changes(before)
            at.stage = Stage.STEPS
        if at.stage == Stage.STEPS:
            shares = self._next_shares() if at.shares is None or self._resumes is None else at.shares
            progress = self._progress(stop)
            self._run_epoch(shares, progress)
            if isinstance(shares, HandedOut):
                self.passes.exhausted = shares.is_exhausted
            at.logs = self._logs() if at.done else {}
            at.stage = Stage.VALIDATES
        before = self._values()
        if at.stage == Stage.VALIDATES:
            self._before = before
            with self._whole_optimizer("on_test_begin", "on_test_end"):
                logs = at.logs
                if self.strategy.is_chief:
                    logs = dict(sorted({**logs, **self.validation(at.epoch)}.items()))
                (progress or self._progress(stop)).close(at.done, logs)
                at.logs = self._agreed_logs(plain(logs))
            if not self._hands_out:
                self.passes.count_pass()
                self.data.on_epoch_end()
            at.stage = Stage.ENDS
        logs, names = at.logs, [*at.logs]
        with self._whole_optimizer("on_epoch_end"):
            called = self._hooks_at("end of epoch", at.epoch)
            called.on_epoch_end(at.epoch, logs)
        found = self._share_changes(before, plain({name: logs[name] for name in logs if name not in names}))
        noted = logs if called is hooks else names  # what the history has
        for name in [name for name in found if name not in noted]:  # such as a learning rate that a callback has noted
            self._history.history.setdefault(name, []).append(found[name])
        at.logs = logs | found

    def _progress(self, stop: int) -> Progress:
        verbosity = self.verbosity if self.strategy.is_chief else 0
        return make_progress(verbosity, f"Epoch {self._at.epoch + 1}/{stop}", self.passes.steps, self._logs)

    @contextmanager
    def _whole_optimizer(self, *names: str) -> Generator[None]:
        """Have the chief hold all of the optimizer's variables, if it has callbacks whose methods may use them.

        Callbacks may change it: the parts take their changes afterwards.

        Args:
            names: of the methods that are called.
        """
        shards = self._shards_of_optimizers
        if not shards or not self._broadcast(self.hooks.uses_optimizer(*names)):
            yield
            return
        for each in shards:
            each.gather(self.strategy.is_chief)
        yield
        for each in shards:
            each.scatter()

    def _agreed_logs(self, logs: Logs) -> Logs:
        """Give all workers the chief's logs; before that they join validation, if the chief has begun to share it."""
        shared = self._broadcast({"logs": logs})
        if "logs" not in shared:
            self.validation(self._at.epoch, GroupWay(self._together, shared["most"]))
            shared = self._broadcast(None)
        return shared["logs"]

    def _shared_weights(self) -> list[Array]:
        values = {id(v): value for v, value in zip(self._shared, self._before, strict=True)}
        return [values[id(variable)] for variable in self._weights()]

    def _begin_validation(self, batches: int) -> GroupWay | None:
        if not self._all_validate:
            return None
        most = self._group.size
        self._broadcast({"batches": batches, "most": most})
        return GroupWay(self._together, most)

    def _next_shares(self) -> Shares | HandedOut:
        """Return the rows of the epoch, in the order that the chief draws."""
        at = self._at
        if at.shares is None:
            at.shares = self._ordered()
        if not self._share_states() and not self.strategy.is_chief and not at.has_states:
            self.plan.begin_epoch(at.epoch)
        at.has_states = True
        return at.shares

    def _ordered(self) -> Shares | HandedOut:
        """Return the rows of the epoch; their order is drawn now."""
        if self._hands_out:
            passes = self.passes if self.strategy.is_chief else None
            return HandedOut(self._together, passes, self._at.first, self._position)
        seed = self._seed_within
        if seed is not None:  # an interrupted epoch goes on
            self._seed_within, self._shares = None, None
            return self._shares_in_order(self.strategy.shares, seed)
        found = self._shares_of_epoch() if self.strategy.is_chief else self._shares
        self._seed, self._shares = self._broadcast(self._seed), None
        return Shares(self.data, self.strategy.shares, self._seed) if found is None else found

    def _run_epoch(self, shares: Shares | HandedOut, progress: Progress) -> None:
        """Make the steps of an epoch, of which some may have been made before."""
        at, hooks, model = self._at, self.hooks, self.model
        watches, begins, steps = self._agreed_on_steps()
        reads_logs = watches and hooks.reads_batch_logs("train")
        together = model.steps_per_execution

        def end_group() -> None:
            before = self._values()
            called = self._hooks_at("end of batch", at.done)
            called.end_batch("train", at.done - 1, self._logs() if reads_logs else {})
            self._share_changes(before, is_within=True)
            at.ended = at.done

        def begin_group() -> None:
            before = self._values() if begins else []
            self._hooks_at("begin of batch", at.done).begin_batch("train", at.done)
            if begins:
                self._share_changes(before, is_within=True)

        has_taken_over, self._has_taken_over = self._has_taken_over, False
        if has_taken_over and watches and at.ended < at.done:
            self._new.begin_batch("train", max((at.done - 1) // together * together, at.first))
            if ends_group(at.done - 1, together, steps):
                end_group()
                if model.stop_training:
                    return
        while True:
            self._admit()
            if not shares.has(at.done):
                break
            if self._is_leaving:
                raise LeavingError
            if watches and (at.done % together == 0 or at.done == at.first):
                begin_group()
            self._step(at.done, shares)
            if ends_group(at.done - 1, together, steps):
                if watches:
                    end_group()
                if model.stop_training:  # as the chief has set it: before, a callback may have in one worker alone
                    return
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(at.done)
        if watches and at.ended < at.done:  # data without a length have ended
            end_group()

    # --- what the chief sends ---------------------------------------------------------------------------------------

    def _values(self) -> list[Array]:
        """Return the values of all variables now, in the chief."""
        return [np.array(variable.numpy()) for variable in self._shared] if self.strategy.is_chief else []

    def _share_changes(self, before: Sequence[Array], logs: Logs | None = None, is_within: bool = False) -> Logs:
        """Have what the chief's callbacks have changed hold everywhere; return what they have added to the logs.

        Args:
            before: the values of variables before they were called.
            logs: what they have added.
            is_within: whether steps of the epoch have begun, and not all are made.
        """
        data = self._changes(before, logs or {}, is_within) if self.strategy.is_chief else b""
        head, values = parted_bytes(self._run_together(lambda: self._group.gather_bytes(data)[0]))
        found = read_message(head.decode())
        self.model.stop_training = found["stop"]
        if not self.strategy.is_chief:
            self._take_changes(found, values)
        return found["logs"]

    def _changes(self, before: Sequence[Array], logs: Logs, is_within: bool) -> bytes:
        """Write what the callbacks have changed, and what another worker needs that takes over behind this message."""
        pairs = zip(self._shared, before, strict=True)
        changed = [n for n, (variable, value) in enumerate(pairs) if not same(variable.numpy(), value)]
        texts = [n for n in changed if self._shared[n].dtype.kind == "T"]  # a vocabulary, which has no fixed size
        numbers = [n for n in changed if n not in texts]
        message: Logs = {"stop": bool(self.model.stop_training), "logs": logs, "numbers": numbers}
        message["texts"] = [[n, np.asarray(self._shared[n].numpy()).tolist()] for n in texts]
        if self._has_notes:
            message["notes"] = state_as_text(self._noted(is_within))
            if not is_within:
                message |= {"generator": seed_now(), "position": place_of(self.passes)}
        values = packed([np.asarray(self._shared[n].numpy()) for n in numbers])
        return joined_bytes([write_message(message).encode(), values])

    def _take_changes(self, found: Logs, values: bytes) -> None:
        for number, value in zip(found["numbers"], unpacked(values), strict=True):
            self._shared[number].assign(value)
        for number, texts in found["texts"]:
            self._shared[number].assign(texts)
        if "notes" in found:
            self._notes |= state_of_text(found["notes"])
        if "generator" in found:
            global_generator().state = np.array(found["generator"], "int64")
            self._position = found["position"]


__all__ = ["ParallelFit"]
