"""`ParallelJoins`: how a worker that was started again takes part in a `fit` under `DataParallel` that is under way."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import numpy as np

from ...distribute.collectives.membership_service import OverError
from ...distribute.environment import MEMBERSHIP
from ...engine.ops.random.keys import global_generator
from ..saving.run_files import state_as_text, state_of_text
from .alike import check_alike
from .cluster_fit import Logs, plain, read_message, seed_now, write_message
from .handed_out import HandedOut
from .parallel_steps import ParallelSteps
from .shares import Place, Stage
from .ways import joined_bytes, packed, parted_bytes, unpacked

if TYPE_CHECKING:
    from ...distribute.collectives.joiner import Joiner

_logger = logging.getLogger(__name__)


class ParallelJoins(ParallelSteps):
    """The part of `ParallelFit` by which workers join: in the chief, which has the state, and in those that get it."""

    _all_validate = False
    _seed_within: list[int] | None = None  # of the order of rows of an epoch that was interrupted
    _first = 0  # how many steps of the first epoch were done before
    # Whether the chief's callbacks watch steps, and may change something where one begins, and how many there are.
    _steps: tuple[bool, bool, int | None] = False, False, None
    _resumes: tuple[bool, bool, int | None] | None = None  # the same, in a worker that has just joined within an epoch
    _start = 0  # the first epoch
    _replayed = 0  # the epoch up to which callbacks have seen the ends of those that were over when this worker joined
    _seen_begin = -1  # the latest of which they have seen the begin

    # --- in the chief -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Take in those who wait to join; the chief is at a place that `_whole_state` describes."""
        if self.strategy.is_chief and self._together.has_joiners:
            self._together.admit(self._whole_state)

    def _agreed_on_steps(self) -> tuple[bool, bool, int | None]:
        """Agree on what `_steps` has, for an epoch."""
        found, self._resumes = self._resumes, None
        if found is None:
            begins = self.hooks.has_any("on_train_batch_begin", "on_batch_begin")
            watches, begins, steps = self._broadcast([self.hooks.wants_batches("train"), begins, self.passes.steps])
            found = watches, begins, steps
        self._steps = found
        return found

    @property
    def _has_notes(self) -> bool:
        """Test whether a worker that takes over needs notes."""
        return self.strategy.shard is None and self._group.size > 1 and MEMBERSHIP in os.environ

    def _noted(self, is_within: bool) -> Logs:
        """Return the states of the callbacks, for a worker that takes over.

        Args:
            is_within: whether an epoch is under way: then nothing has changed but callbacks that watch batches.
        """
        if not self._has_notes:
            return {}
        found: Logs = {}
        for callback in self.hooks.callbacks:
            name = type(callback).__name__
            key = f"{name}/{sum(each.startswith(f'{name}/') for each in found)}"
            found[key] = [name, callback]
        return {
            key: [name, callback.get_state()]
            for key, (name, callback) in found.items()
            if not is_within or name == "History" or callback.wants_batches("train")
        }

    def _note_of_end(self) -> str:
        """Write what a worker gets that comes to this training when it is over."""
        found = {"history": self._history.get_state(), "stop": bool(self.model.stop_training)}
        return state_as_text({**found, "start": self._start})

    def _whole_state(self) -> bytes:
        """Return all that a worker needs to go on from here."""
        at = self._at
        texts = [variable for variable in self._shared if variable.dtype.kind == "T"]
        position = at.shares.position if isinstance(at.shares, HandedOut) else {}
        head: Logs = {"facts": self._facts(), "order": self._made.order, "steps": self._steps, "seed": self._seed}
        head |= {"epoch": at.epoch, "done": at.done, "first": at.first, "ended": at.ended, "seen": at.seen}
        head |= {"is trained": at.stage == Stage.TRAINED, "logs": plain(at.logs), "all validate": self._all_validate}
        head |= {"passes": self.passes.position["passes"], "position": self._position, "read": position}
        head |= {"generator": seed_now(), "drawn": self._drawn(), "stop": bool(self.model.stop_training)}
        head |= {"start": self._start, "texts": [np.asarray(variable.numpy()).tolist() for variable in texts]}
        state = {"history": self._history.get_state(), "notes": self._noted(False)}
        values = packed([np.asarray(variable.numpy()) for variable in self._numbers()])
        return joined_bytes([write_message(head).encode(), state_as_text(state).encode(), values])

    # --- in a worker that joins -------------------------------------------------------------------------------------

    def _has_joined(self, joiner: Joiner) -> bool:
        """Join the others; return False if they have ended this training before."""
        joiner.trainings += 1
        self.begin_steps_alone()
        self.hooks.on_begin("train")
        try:
            self._together.join(self._take_whole_state)
        except OverError as over:
            self._take_end(joiner, str(over))
            return False
        name, at = joiner.names[joiner.rank], self._at
        _logger.warning("%s takes part behind step %d of epoch %d.", name, at.done, at.epoch + 1)
        return True

    def _take_end(self, joiner: Joiner, note: str) -> None:
        """Take what the others have left of a training that is over."""
        _logger.warning(
            "%s was started again when the others had ended this fit(): it gets their History, but not the values that "
            "they have trained. In the next fit() it gets the values of all variables of that.",
            joiner.names[joiner.rank],
        )
        if note:
            found = state_of_text(note)
            self._replay(found["history"], found["start"], sys.maxsize)
            self._history.set_state(found["history"])
            self.model.stop_training = found["stop"]
        self.hooks.on_end("train", {})

    def _take_whole_state(self, data: bytes) -> None:
        """Take what `_whole_state` has returned in the chief.

        Raises:
            ValueError: this worker trains another model, or on other data.
        """
        head, text, values = parted_bytes(data)
        found, state = read_message(head.decode()), state_of_text(text.decode())
        names, group = self._group.links.names, self._group
        check_alike(names[group.rank], self._facts(), names[0], found["facts"])
        self.strategy.chief_index = group.left[0]
        self._made.use_order(found["order"])
        self._seed, self._shares = found["seed"], None
        self._all_validate, self._notes, self._position = found["all validate"], state["notes"], found["position"]
        passes = found["passes"] - self.passes.position["passes"]  # it may have been taken in before
        if not self._hands_out:
            self.data.skip_passes(passes)
            for _ in range(passes):
                self.passes.count_pass()
        self._start = found["start"]
        self._replay(state["history"], found["start"], found["epoch"])
        if not found["is trained"]:
            self._replay_begin(found["epoch"])
        self._at = self._place_of(found)
        for variable, value in zip(self._numbers(), unpacked(values), strict=True):
            variable.assign(value)
        texts = [variable for variable in self._shared if variable.dtype.kind == "T"]
        for variable, value in zip(texts, found["texts"], strict=True):
            variable.assign(value)
        self._history.set_state(state["history"])
        self.model.stop_training = found["stop"]
        if self._axes:
            self._set_drawn(found["drawn"])
        else:
            self.plan.begin_epoch(found["epoch"])
        global_generator().state = np.array(found["generator"], "int64")

    def _place_of(self, found: Logs) -> Place:
        """Return the place at which the chief has taken this worker in."""
        moment, number = found["seen"]
        at = Place(found["epoch"], found["done"], found["first"], ended=found["ended"], logs=found["logs"])
        at.seen = moment, number
        if found["is trained"]:
            at.stage = Stage.TRAINED
            return at
        at.stage, at.has_states = Stage.STEPS, True
        watches, begins, steps = found["steps"]
        self._resumes = watches, begins, steps
        if self._hands_out:
            at.shares = HandedOut(self._together, None, at.done, found["read"])
        else:
            at.shares = self._shares_in_order(self.strategy.shares, found["seed"])
        return at

    def _replay(self, history: Logs, start: int, stop: int) -> None:
        """Have this worker's callbacks see the epochs that are over, with logs that every epoch has in the history.

        Args:
            history: the state of the chief's.
            start: the first epoch of this training.
            stop: the one behind the last that is over.
        """
        epochs = history["epoch"]
        for number, epoch in enumerate(epochs):
            if max(start, self._replayed) <= epoch < stop:
                of_all = {name: each for name, each in history["history"].items() if len(each) == len(epochs)}
                self._replay_begin(epoch)
                self.hooks.on_epoch_end(epoch, {name: each[number] for name, each in of_all.items()})
        self._replayed = max(self._replayed, stop)

    def _replay_begin(self, epoch: int) -> None:
        if self._seen_begin < epoch:
            self._seen_begin = epoch
            self.hooks.on_epoch_begin(epoch)


__all__ = ["ParallelJoins"]
