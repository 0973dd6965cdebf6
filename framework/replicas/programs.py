"""`ReplicaPrograms`: the steps that a worker runs on the cluster, each built and prepared when it is first needed."""

from __future__ import annotations

import json
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...distribute.cluster import listens
from ...distribute.enrolment import Wish
from ...distribute.environment import chief_of_launcher, ended_workers
from ...engine import ops
from ...engine.common import dtypes
from ...engine.common.deadlines import deadline
from ...engine.graph import Graph, IndexedSlices, Placeholder, TensorSpec, Variable, control_dependencies
from ...engine.graph.scopes import device
from ...engine.ops.random.rows import Window
from ...engine.queues.errors import CancelledError, DeadlineExceededError, StateLostError, TaskFailedError
from ...engine.queues.replica_gradients import FORGET
from ...engine.queues.replica_requests import in_training
from ...engine.queues.replica_tickets import LEAVE_TEXT, Receipt, Ticket
from ..data.adapters import Batch
from .cluster_fit import read_message, write_message
from .plan import ReplicaPlan
from .shares import Totals
from .traced import placeholders

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ...engine.graph import Operation, Symbol, Tensor
    from ...optim.clipping import Gradient
    from ..structures import Array

_logger = logging.getLogger(__name__)
SAYS_SECONDS = 30.0  # after how long a worker logs which workers steps wait for, and from then on
BEGIN_SECONDS = 60.0  # after how long it logs that nobody has begun to train, and from then on; ps tasks may take 30
LOOK_SECONDS = 5.0  # after how long it looks whether a launcher says that the chief has ended, and from then on
ABSENT_SECONDS = 300.0  # after how long it waits no more for a chief that is not there
_NUMBER, _NUMBERS, _PART, _TEXT, _BYTES = (
    TensorSpec((), dtypes.int64),
    TensorSpec((None,), dtypes.int64),
    TensorSpec((), dtypes.float64),
    TensorSpec((), dtypes.string),
    TensorSpec((None,), dtypes.as_dtype("uint8")),
)
_GIVEN = (
    (_NUMBER, "training"),
    (_NUMBER, "ticket"),
    (_PART, "part"),
    (_NUMBER, "first"),
    (_NUMBER, "count"),
    (_NUMBER, "total"),
)
_ANY = Wish(0, False)  # any training
_NOTHING = np.zeros(0, "int64")
Run: TypeAlias = "Callable[..., tuple[Array, ...]]"


class LeavingError(Exception):
    """Raised in a worker that was asked to leave, once it has finished its step."""


class ReplicaPrograms:
    """Runs steps on the cluster for one worker.

    Args:
        plan: the devices of state.
        token: with which this worker led before.
        by_ps: whether ps task 0 is the master of the steps, and not this worker's own task. The own one is busy while
            an operation of it runs, however long that takes.

    Attributes:
        token: the fencing token with which this worker leads; 0 where it does not.
    """

    def __init__(self, plan: ReplicaPlan, token: int = 0, by_ps: bool = False) -> None:
        self.plan = plan
        self.client = plan.strategy.connect(plan.strategy.ps[0] if by_ps else None)
        self.client.places = plan.places
        self._worker = plan.strategy.task_index
        self._incarnation = plan.strategy.incarnation
        self.token = token
        self._heard = 0  # how many announcements
        self._known: dict[object, Run] = {}
        self._of_applier: ReplicaPrograms | None = None
        # Whoever deletes a model that has kept them does not close them. The client refers to the plan.
        self._end = weakref.finalize(self, self.client.end)

    def close(self) -> None:
        """Give up the connections."""
        self._end()
        if self._of_applier is not None:
            self._of_applier.close()

    def begin_again(self) -> bool:
        """Begin a further training; return False if ps tasks were lost since, so that others are needed."""
        self.token = self._heard = 0
        try:
            self.marks()
        except (TaskFailedError, StateLostError):
            return False
        return True

    def of_applier(self) -> ReplicaPrograms:
        """Return the programs of the thread that applies sets, with the token of these: they are closed with these."""
        if self._of_applier is None:
            self._of_applier = ReplicaPrograms(self.plan, by_ps=True)
        self._of_applier.token = self.token
        return self._of_applier

    # --- tickets ----------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin training, or begin it again: this worker leads, and all state that it pushes from now on counts."""
        task = self.plan.strategy.workers[self._worker]
        # A ps task that was started again has forgotten what tokens it gave: so they are made of the time, in seconds.
        (token,) = self._run(
            "lead",
            lambda least, known: [self.plan.steps.lead(self._worker, self._incarnation, least, known, task)],
            (_NUMBER, int(time.time())),
            (_NUMBER, self.token),
        )
        self.token = int(token)
        self._begin_on_ps()
        self._forget()

    def _begin_on_ps(self) -> None:
        """Have each ps task refuse leaders before this one, and keep the final values of the training before."""
        plan = self.plan

        def build(token: Symbol) -> list[Operation]:
            values = [[variable.value for variable in plan.variables_at(place)] for place in range(len(plan.gradients))]
            return [each.begin(token, found) for each, found in zip(plan.gradients, values, strict=True)]

        self._run("begin training", build, (_NUMBER, self.token))

    def _forget(self) -> None:
        """Have ps tasks forget gradients that no set will name, where these might be in a sum already."""
        if not self.plan.in_order:
            self._lead_on("forget", lambda token: self._fences(token, FORGET))

    def _fences(self, token: object, mark: object = -1) -> list[Operation]:
        return [each.fence(token, mark) for each in self.plan.gradients]

    def accept(self) -> int:
        """Take over as the leader; return the mark of a set that the one before may have applied in part, or -1."""
        found = self._run("accept", lambda: self.plan.steps.accept(self._worker, self._incarnation))
        self.token = int(found[0])
        self._begin_on_ps()
        return int(found[1])

    def marks(self) -> list[tuple[int, int]]:
        """Return the marks of the sets that each ps task has begun to write, and has written, last."""
        found = [int(n) for n in self._run("marks", lambda: [m for g in self.plan.gradients for m in g.marks()])]
        return list(zip(found[::2], found[1::2], strict=True))

    def note(self, text: str) -> None:
        """Keep what the next leader will need."""
        self._lead_on("note", self.plan.steps.note, (_TEXT, np.asarray(text, dtypes.string)))

    def notes(self) -> str:
        """Return the latest note; an empty text before there is one."""
        return str(self._run("notes", lambda: [self.plan.steps.notes()])[0])

    def current(self) -> int:
        """Return the number of the generation; 0 if nobody has begun to train."""
        return int(self._run("current", lambda: [self.plan.steps.current()])[0])

    def applied(self, step: int) -> None:
        """Note that the set of a step is applied."""
        self._lead_on("applied", self.plan.steps.applied, (_NUMBER, step))

    def enrol(self, wish: Callable[[], Wish] = lambda: _ANY, patience: float | None = None) -> int:
        """Take part in training, and wait for it; return its number.

        Args:
            wish: gives which training that may be. It is asked again and again: ps tasks may be back meanwhile.
            patience: after so many seconds this worker takes a leader that has not come for lost. None where none has
                led before: then it logs for whom it waits, and waits on as long as that one is there.

        Raises:
            TimeoutError: that one is not.
            CancelledError: that one has ended, as the launcher says.
        """
        begun = seen = time.monotonic()
        says_at = begun + BEGIN_SECONDS
        is_late = False
        while True:
            try:
                wished = wish()
                with deadline(min(BEGIN_SECONDS, LOOK_SECONDS)):
                    return self._enrolled(wished, is_late)
            except DeadlineExceededError:
                is_late = patience is not None and time.monotonic() >= begun + patience
            if patience is None:
                self._check_that_one_may_begin()
            if patience is None and time.monotonic() >= says_at:
                says_at += BEGIN_SECONDS
                seen = self._say_who_is_to_begin(begun, seen)

    def _check_that_one_may_begin(self) -> None:
        """Check that the chief has not ended: it would be waited for in vain.

        Raises:
            CancelledError: it has.
        """
        strategy = self.plan.strategy
        number = chief_of_launcher() or 0
        if number in ended_workers() and number != self._worker:
            raise CancelledError(
                f"{strategy.workers[self._worker]} waits for {strategy.workers[number]} to begin training, but that "
                "one has ended. Call fit as often in all workers: also where one of them goes on after an error."
            )

    def _say_who_is_to_begin(self, begun: float, seen: float) -> float:
        """Log for whom this worker has waited since it `begun`; return when that one was last `seen`.

        Raises:
            TimeoutError: that one has been absent for too long.
        """
        strategy, now = self.plan.strategy, time.monotonic()
        assert strategy.cluster is not None
        chief = strategy.workers[strategy.chief_index or 0]
        address = strategy.cluster.address(chief)
        text = f"{strategy.workers[self._worker]} has waited {now - begun:.0f} s for {chief} to begin training."
        if listens(address):
            ps = ", ".join(f"{task} at {strategy.cluster.address(task)}" for task in strategy.ps)
            _logger.warning("%s It is there, but has not called fit yet, or not with the same ps tasks: %s.", text, ps)
            return now
        text += f" Nothing answers at {address}. Start it with the same cluster, or see whether it has failed."
        if now - seen >= ABSENT_SECONDS:
            raise TimeoutError(text)
        _logger.warning("%s", text)
        return seen

    def _enrolled(self, wish: Wish, is_late: bool) -> int:
        task = self.plan.strategy.workers[self._worker]
        (found,) = self._run(
            "enrol",
            lambda after, is_late, is_whole: [
                self.plan.steps.enrol(self._worker, self._incarnation, after, is_late, task, is_whole)
            ],
            (_NUMBER, wish.after),
            (_NUMBER, is_late),
            (_NUMBER, wish.is_whole),
        )
        return int(found)

    def abandon(self, reason: str) -> None:
        """Notify all workers that state is lost."""
        self._lead_on("abandon", self.plan.steps.abandon, (_TEXT, np.asarray(reason, dtypes.string)))

    def leave(self) -> None:
        """Take part no more."""
        self._run("leave", lambda: self.plan.steps.leave(self._worker, self._incarnation))

    def retire(self) -> None:
        """Have this worker leave between steps; may be called by another thread."""
        self._run("retire", lambda: self.plan.steps.retire(self._worker, self._incarnation))

    def hand_over(self) -> bool:
        """Lead no more, and take part no more; return whether there is another worker, who leads then."""
        return bool(self._run("hand over", lambda: [self.plan.steps.hand_over(self._worker, self._incarnation)])[0])

    def take(self, epoch: int) -> Ticket:
        """Take a ticket; its number is -1 at the end of the epoch. While too few workers take part it is waited for."""
        is_bounded = self.plan.strategy.min_workers > 1
        while True:
            try:
                with deadline(SAYS_SECONDS if is_bounded else None):
                    return self._taken(epoch)
            except DeadlineExceededError:
                self._say_who_is_absent()

    def _taken(self, epoch: int) -> Ticket:
        found = self._run(
            "take",
            lambda epoch: self.plan.steps.take(self._worker, self._incarnation, epoch),
            (_NUMBER, epoch),
        )
        return Ticket(*map(int, found))

    def _say_who_is_absent(self) -> None:
        """Log for whom steps wait, if too few workers take part."""
        strategy, members = self.plan.strategy, self.statistics()["members"]
        if len(members) >= strategy.min_workers:
            return
        absent = [task for number, task in enumerate(strategy.workers) if number not in members]
        _logger.warning(
            "Training waits for %d of %s: min_workers=%d, and %d take part.",
            strategy.min_workers - len(members),
            ", ".join(absent),
            strategy.min_workers,
            len(members),
        )

    def train(self, ticket: int, batch: Batch, part: float, window: Sequence[int], totals: Totals) -> Receipt:
        """Compute the gradients of a batch and put them under a ticket; a batch without rows has none.

        Args:
            ticket: its number.
            batch: a share of a global batch.
            part: of the rows of that.
            window: the number of its first row there, how many it has, and how many the global batch has.
            totals: those of the global batch; see `ReplicaPlan.totals_of`.
        """
        if not batch.size:
            return self._commit_nothing(ticket)
        self.plan.begin_drawing()
        key = ("train", batch.layout.key, *[(leaf.shape, leaf.dtype) for leaf in batch.leaves])
        program = self._known.get(key)
        if program is None:
            program = self._known[key] = self._built_step(batch, totals)
        rows = [np.int64(each) for each in window]
        try:
            known = [total for total in totals if total is not None]
            given = [np.int64(self.plan.training), np.int64(ticket), np.float64(part), *rows, *known, *batch.leaves]
            return Receipt(int(program(*given)[0]))
        except CancelledError:  # the step has its set without this ticket; or all has ended, as the next request says
            return self._commit_nothing(ticket)

    def _built_step(self, batch: Batch, totals: Totals) -> Run:
        specs = [None if total is None else TensorSpec(total.shape, total.dtype) for total in totals]
        given = [*_GIVEN, *[(spec, "total") for spec in specs if spec is not None]]
        own = self.plan.strategy.workers[self._worker]
        with Graph().as_default() as graph, device(own):  # what touches state runs on its device nevertheless
            training, ticket, part, first, count, rows, *known = (
                graph.add(Placeholder(spec), (), name).outputs[0] for spec, name in given
            )
            feeds = placeholders(batch)
            rest = iter(known)
            whole = [None if spec is None else next(rest) for spec in specs]
            with in_training(training):
                puts = self.plan.trace_puts(batch, ticket, part, Window(first, count, rows), feeds, whole)
                with control_dependencies(puts):
                    receipt = self.plan.steps.commit(self._worker, self._incarnation, ticket, batch.size)
                if not self.plan.in_order:
                    for each in self.plan.gradients:
                        each.add(ticket, receipt, batch.size)
                effects = [operation for operation in graph.operations if operation.writes]
                if self.plan.strategy.backup_workers:  # a late worker stops at once, and is in time for the next step
                    with device(self.plan.strategy.ps[0]):
                        effects.append(self.plan.steps.watch(self._worker, self._incarnation, ticket))
        fed = [training, ticket, part, first, count, rows, *known, *feeds]
        found = [*[spec for spec, _ in given], *[TensorSpec(leaf.shape, leaf.dtype) for leaf in batch.leaves]]
        targets: list[Any] = [receipt, *effects]
        return self.client.program(graph, targets, fed, found, None)

    def _commit_nothing(self, ticket: int) -> Receipt:
        (receipt,) = self._run(
            "commit nothing",
            lambda ticket: [self.plan.steps.commit(self._worker, self._incarnation, ticket, 0)],
            (_NUMBER, ticket),
        )
        return Receipt(int(receipt))

    # --- what the chief does ----------------------------------------------------------------------------------------

    def begin_epoch(self, batches: int, shares: int, done: Array = _NOTHING) -> int:
        """Begin an epoch of so many global batches in shares, of which some are done; return its number."""
        self._forget()
        given = [(_NUMBER, batches), (_NUMBER, shares), (_NUMBERS, done)]
        return int(self._lead_on("begin", lambda *asked: [self.plan.steps.begin_epoch(*asked)], *given)[0])

    def supply(self, number: int, shares: Sequence[bytes], note: str) -> None:
        """Have ps task 0 keep the shares of the epoch's batch of a number, and a note on it."""
        given: list[tuple[TensorSpec, object]] = [(_NUMBER, number), (_NUMBERS, [len(share) for share in shares])]
        given += [(_BYTES, np.frombuffer(b"".join(shares), "uint8")), (_TEXT, np.asarray(note, dtypes.string))]
        self._lead_on("supply", self.plan.steps.supply, *given)

    def seal(self, note: str) -> None:
        """Note that the epoch has no further batch."""
        self._lead_on("seal", self.plan.steps.seal, (_TEXT, np.asarray(note, dtypes.string)))

    def supplied(self) -> str:
        """Return the latest note on what was supplied in the epoch; an empty text before there is one."""
        return str(self._lead_on("supplied", lambda token: [self.plan.steps.supplied(token)])[0])

    def rows(self, share: int) -> bytes:
        """Return the bytes of a share that was supplied; none if it is done."""
        return self._run("rows", lambda share: [self.plan.steps.rows(share)], (_NUMBER, share))[0].tobytes()

    def check_leads(self) -> None:
        """Check that this worker leads still, and that no state is lost."""
        self._lead_on("check", self.plan.steps.check_whole)

    def end_epoch(self) -> None:
        """End the epoch now."""
        self._lead_on("end", self.plan.steps.end_epoch)

    def end_all(self, reason: str) -> None:
        """Have all workers that wait, or ask later, fail with this reason."""
        self._lead_on("close", self.plan.steps.close, (_TEXT, np.asarray(reason, dtypes.string)))

    def choose(self) -> tuple[Array, ...]:
        """Wait for the set of the next step."""
        return self._lead_on("choose", self.plan.steps.choose)

    def end_choosing(self) -> None:
        """Have whoever waits for a set fail with `CancelledError`."""
        self._lead_on("end choosing", self.plan.steps.end_choosing)

    def apply(self, chosen: Sequence[Array]) -> None:
        """Apply the set of a step everywhere; then the next one may begin. A set without rows changes nothing."""
        specs = [_NUMBER, _NUMBERS, _NUMBERS, _NUMBER]
        step, tickets, rows, _ = chosen
        if np.any(rows):
            self._lead_on("apply", self._build_apply, *zip(specs, chosen, strict=True))
        else:
            self._lead_on("apply nothing", self._build_nothing, (_NUMBER, step), (_NUMBER, tickets[0]))

    def _build_nothing(self, token: object, step: Symbol, mark: object) -> Operation:
        with control_dependencies(self._fences(token, mark)):
            written = [each.end_writing(mark) for each in self.plan.gradients]
        with control_dependencies(written):
            return self.plan.steps.applied(token, step)

    def _build_apply(self, token: object, step: Symbol, tickets: Symbol, rows: object, horizon: object) -> Operation:
        with control_dependencies(self._fences(token, tickets[0])):
            return self._build_update(token, step, tickets, rows, horizon)

    def _build_update(self, token: object, step: Symbol, tickets: Symbol, rows: object, horizon: object) -> Operation:
        plan, graph = self.plan, step.graph
        taken = [iter(each.take(tickets, rows, horizon) if each.parts else ()) for each in plan.gradients]
        values: list[Gradient] = []
        for entry in plan.entries:
            value: Gradient = next(taken[entry.place])
            if entry.part.has_rows:
                whole = ops.convert_to_tensor(np.array(entry.part.shape, "int64"))
                value = IndexedSlices(next(taken[entry.place]), value, whole)
            values.append(value)
        plan.build_updates(values)
        with control_dependencies([operation for operation in graph.operations if operation.writes]):
            written = [each.end_writing(tickets[0]) for each in plan.gradients]
        with control_dependencies(written):
            return plan.steps.applied(token, step)

    def statistics(self) -> dict[str, Any]:
        """Return what was done so far, by worker."""
        return json.loads(str(self._run("statistics", lambda: [self.plan.steps.statistics()])[0]))

    # --- values and messages ----------------------------------------------------------------------------------------

    def pull(self, variables: Sequence[Variable]) -> list[Array]:
        """Return the values that variables have on the ps tasks."""
        if not variables:
            return []
        key = ("pull", *map(id, variables))
        return list(self._run(key, lambda: [variable.value for variable in variables]))

    def pull_final(self) -> dict[Variable, Array]:
        """Return the values at the end of the training, or those of now while it is under way.

        Those are left out that were lost with a ps task since then.
        """
        plan = self.plan
        held = [plan.variables_at(place) for place in range(len(plan.gradients))]

        def build() -> list[Tensor]:
            pairs = zip(plan.gradients, held, strict=True)
            return [tensor for each, found in pairs for tensor in each.final([v.value for v in found])]

        values: dict[Variable, Array] = {}
        given = iter(self._run("final", build))
        for variables in held:
            is_known = bool(next(given))
            found = zip(variables, [next(given) for _ in variables], strict=True)
            values |= found if is_known else ()
        return values

    def pull_with_account(self, variables: Sequence[Variable]) -> tuple[list[Array], Array]:
        """Return the values that variables have on the ps tasks, and which shares of the epoch are in them."""
        key = ("pull with account", *map(id, variables))
        *values, done = self._lead_on(
            key, lambda token: [*(variable.value for variable in variables), self.plan.steps.account(token)]
        )
        return values, done

    def push(self, variables: Sequence[Variable], values: Sequence[ArrayLike]) -> None:
        """Assign values to variables on the ps tasks."""
        if not variables:
            return
        pairs = [(TensorSpec(np.shape(value), v.dtype), value) for v, value in zip(variables, values, strict=True)]

        def build(token: Symbol, *given: Symbol) -> list[Operation]:
            with control_dependencies(self._fences(token)):
                return [variable.assign(value).operation for variable, value in zip(variables, given, strict=True)]

        key = "push", *[(id(v), spec.shape) for v, (spec, _) in zip(variables, pairs, strict=True)]
        self._lead_on(key, build, *pairs)

    def announce(self, message: object) -> None:
        """Announce a message to all workers; those that come later get it, too."""
        text = np.asarray(write_message(message), dtypes.string)
        self._lead_on("announce", self.plan.steps.announce, (_TEXT, text))

    def hear(self) -> Any:
        """Wait for the next announcement; None if this worker is to lead from now on.

        Raises:
            LeavingError: it is to leave.
        """
        (text,) = self._run(
            "hear",
            lambda number: [self.plan.steps.hear(self._worker, self._incarnation, number)],
            (_NUMBER, self._heard),
        )
        if str(text) == LEAVE_TEXT:
            raise LeavingError
        if not str(text):
            return None
        self._heard += 1
        return read_message(str(text))

    def assemble(self, least: int) -> int:
        """Wait until all other workers wait for an announcement, and so many have come; return how many take part."""
        return int(self._lead_on("assemble", lambda *asked: [self.plan.steps.assemble(*asked)], (_NUMBER, least))[0])

    # --- building ---------------------------------------------------------------------------------------------------

    def _lead_on(
        self, key: object, build: Callable[..., object], *given: tuple[TensorSpec, object]
    ) -> tuple[Array, ...]:
        """Run a step that only the leader may run; its token is the first placeholder."""
        return self._run(key, build, (_NUMBER, self.token), *given)

    def _run(self, key: object, build: Callable[..., Any], *given: tuple[TensorSpec, object]) -> tuple[Array, ...]:
        """Run a step on the ps tasks; it is built when it is first run.

        Args:
            key: distinguishes one step from others.
            build: makes what to fetch of placeholders.
            given: the spec and the value of each placeholder.
        """
        program = self._known.get(key)
        if program is None:
            specs = [_NUMBER, *[spec for spec, _ in given]]
            with Graph().as_default() as graph:
                feeds = [graph.add(Placeholder(s), (), f"given_{n}").outputs[0] for n, s in enumerate(specs)]
                with device(self.plan.strategy.ps[0]), in_training(feeds[0]):
                    made = build(*feeds[1:])
            targets = list(made) if isinstance(made, (list, tuple)) else [made]
            program = self._known[key] = self.client.program(graph, targets, feeds, specs, None)
        return program(np.int64(self.plan.training), *[np.asarray(value, spec.dtype) for spec, value in given])
