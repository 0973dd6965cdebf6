"""`Epochs`: the passes over data out of which `fit` makes its epochs, and where in them a run is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from ...engine.ops.random.keys import global_generator
from ..data.adapters import Batch, Data
from .limits import limited_steps


class Epochs:
    """Passes over data, or runs of `steps_per_epoch` batches that go on where the last one stopped.

    An epoch ends with the pass that it runs in, as in Keras: steps that are left are left out, with a warning.
    """

    def __init__(self, data: Data, steps_per_epoch: int | None = None) -> None:
        if steps_per_epoch is not None and steps_per_epoch < 1:
            raise ValueError(f"The number of steps must be at least 1, got {steps_per_epoch}.")
        self.data = data
        self.steps_per_epoch = limited_steps(steps_per_epoch, data.batches)
        self.exhausted = False
        self.done_before = 0
        """How many batches of the next epoch were run before an interruption, and are left out."""
        self.note_random_state: Callable[[], object] | None = None
        """Getter of the random state with which a pass begins, where it is wanted."""
        self._running: Iterator[Batch] | None = None
        self._peeked: Iterator[Batch] | None = None
        """The next pass, if its first batch was looked at and it is kept."""
        self._handed_out: Generator[Batch] | None = None
        self._passes = 0
        self._in_pass = 0
        self._is_between = False  # two epochs of one pass that has no end
        self._has_given = False  # a batch, ever
        self._random_state: object = None

    @property
    def steps(self) -> int | None:
        """The number of steps in an epoch, if it is known."""
        return self.data.batches if self.steps_per_epoch is None else self.steps_per_epoch

    @property
    def position(self) -> dict[str, Any]:
        """The number of passes begun, the number of batches of the running one, and the random state before it."""
        return {"passes": self._passes, "batches": self._in_pass, "random": self._random_state}

    def go_to(self, batch: int, position: Mapping[str, Any]) -> Batch | None:
        """Go on at batch number `batch` of the next epoch, and at a `position` of the data; return the one before.

        Raises:
            ValueError: the data end before that.
        """
        self.done_before, skipped = batch, position["batches"]
        self._passes = position["passes"] - (1 if skipped else 0)
        self.data.skip_passes(self._passes)
        latest = None
        if skipped:
            running = self._running = self._begin_pass()
            for done in range(skipped):
                self._note_epoch(done)
                latest = next(running, None)
                if latest is None:
                    raise ValueError(
                        f"The data gave {done} batches, but the run that is taken up had got {skipped} from them. Call "
                        "fit with the same data; a generator has to start from its beginning."
                    )
            self._in_pass = skipped
            self._has_given = True
            if not batch:
                self._end_epoch()
        return latest

    def _note_epoch(self, done: int) -> None:
        """Call the hooks of data without end where one epoch of a run before an interruption followed another."""
        if self.data.is_endless() and done and done % (self.steps_per_epoch or done) == 0:
            self.data.on_epoch_end()
            self.data.begin_pass()

    def peek(self) -> Batch | None:
        """Return the first batch of the next pass, which is not used up.

        The next epoch goes on with the same pass where a second one would have other batches: data are read once, or
        draw an order by themselves. Other data begin a pass again, with the same random numbers.
        """
        generator = global_generator()
        state = generator.state
        is_kept = self.data.draws_order or not self.data.restartable or self.data.batches is None
        begin = self.data.epoch if is_kept else self.data.look
        running = begin() if self._peeked is None else self._peeked
        batch = next(running, None)
        if is_kept and batch is not None:
            self._peeked = itertools.chain([batch], running)
            return batch
        if isinstance(running, Generator):
            running.close()
        generator.state = state
        return batch

    def count_pass(self) -> None:
        """Take note of a pass that was made without `epoch`, by workers that share its batches."""
        self._passes += 1

    def epoch(self) -> Generator[Batch]:
        """Return the batches of one epoch. If data end that can't be started again, `exhausted` is set."""
        steps, first = self.steps_per_epoch, self.done_before
        self.done_before = 0
        self._handed_out = self._whole_pass() if steps is None else self._steps(first, steps)
        return self._handed_out

    def _begin_pass(self) -> Iterator[Batch]:
        if self.note_random_state is not None:
            self._random_state = self.note_random_state()
        self._passes += 1
        self._in_pass = 0
        peeked, self._peeked = self._peeked, None
        return self.data.epoch() if peeked is None else peeked

    def _end_pass(self) -> None:
        self._in_pass, self._random_state = 0, None
        self.data.on_epoch_end()

    def _whole_pass(self) -> Generator[Batch]:
        running = self._running or self._begin_pass()
        self._running = None
        for batch in running:
            self._in_pass += 1
            self._has_given = True
            yield batch
        if not self._in_pass:
            self._ran_out("The data gave no batch")
        self._end_pass()

    def _steps(self, first: int, steps: int) -> Generator[Batch]:
        for step in range(first, steps):
            batch = self._next(may_begin=step == 0)
            if batch is not None:
                yield batch
                continue
            ended = f"The data ended after {step} of {steps} steps"
            if step and self.data.restartable:
                self._cut_short(ended)
            else:
                self._ran_out(ended)
            return
        self._end_epoch()

    def _end_epoch(self) -> None:
        """End the pass where it ends with an epoch. A pass without end goes on, with the hooks of its data called."""
        if self.data.is_endless():
            self._is_between = True
            self.data.on_epoch_end()
        elif self.data.ends_by_count and self._in_pass == self.data.batches:
            self._close_pass()
            self._end_pass()

    def finish(self) -> None:
        """End a pass that no further epoch reads."""
        if self._running is not None and not self._is_between:
            self._close_pass()
            self._end_pass()

    def _close_pass(self) -> None:
        running, self._running = self._running, None
        if isinstance(running, Generator):
            running.close()

    def _next(self, may_begin: bool) -> Batch | None:
        """Return the next batch of the running pass or, as an epoch begins, of a new one; None if that has ended."""
        if self._is_between:
            self._is_between = False
            self.data.begin_pass()
        for _ in range(2):  # the pass that is running, then, if it is over, a new one
            if self._running is None:
                may_not = not may_begin if self.data.restartable else self._passes > 0
                if may_not:
                    return None
                self._running = self._begin_pass()
            batch = next(self._running, None)
            if batch is not None:
                self._in_pass += 1
                self._has_given = True
                return batch
            self._running = None
            self._end_pass()
        return None

    def close(self) -> None:
        """Let go of an epoch and a pass that are under way, and of the threads that prepare batches."""
        under_way = self._handed_out, self._running, self._peeked
        self._handed_out = self._running = self._peeked = None
        for iterator in under_way:
            if isinstance(iterator, Generator):
                iterator.close()

    def _cut_short(self, what: str) -> None:
        batches = "batches" if self.data.batches is None else f"{self.data.batches} batches"
        warnings.warn(
            f"{what}; this epoch ends here, and the next one starts over with them. Leave the number of steps out, or "
            f"choose one that divides the {batches} of the data.",
            stacklevel=3,
        )

    def _ran_out(self, what: str) -> None:
        if not self._has_given and not self.data.restartable:
            raise ValueError(
                "The data gave no batch: there is nothing to run on. A generator yields each batch once: one that was "
                "read before, such as by an earlier fit, has none left."
            )
        self.exhausted = True
        remedy = (
            "Give an object that can be iterated again, or a generator that yields at least epochs * steps batches."
        )
        warnings.warn(f"{what}; training or evaluation stops here. {remedy}", stacklevel=3)
