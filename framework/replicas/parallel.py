"""`ParallelFit`: `fit` under `DataParallel`, in one worker.

All workers run the same steps: each computes the gradients of its rows of a batch, all sum them, and each makes the
same update. What only the chief (worker 0) has, it sends between steps: which epoch begins, with which order of rows,
what callbacks have changed, and what the logs were.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...distribute.collectives.elastic import Elastic
from ...distribute.collectives.group import ProcessGroup
from ...distribute.strategies.data_parallel import DataParallel
from ...engine import ops
from ...engine.graph import Graph, IndexedSlices, Op, TensorSpec, Variable, control_dependencies
from ...engine.graph.graph import get_default_graph
from ...engine.ops.collectives import AllReduce, all_gather, all_reduce
from ...engine.ops.random.keys import global_generator
from ...engine.ops.random.rows import Window, drawing_rows
from ...engine.ops.replicas import replicated
from ...engine.queues.errors import TaskFailedError
from ...engine.session.programs import make_program
from ..callbacks.progress import make_progress
from ..data.adapters import ArrayData, Batch
from ..saving.checkpointing import TrainingRun
from ..training.steps import StepPrograms
from .alike import check_alike, facts_of_data, facts_of_model
from .buckets import exchanged, nothing, summed, weighted
from .cluster_fit import (
    ClusterFit,
    Logs,
    ends_group,
    plain,
    read_message,
    reason_of,
    same,
    seed_now,
    write_message,
)
from .cut_steps import CutSteps, totals_of_batch
from .handed_out import HandedOut
from .optimizer_shards import OptimizerShards
from .programs import LeavingError
from .shares import Shares
from .traced import Entry, StepTracer, placeholders
from .ways import GroupWay, packed, unpacked

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ...optim.clipping import Gradient
    from ..callbacks.progress import Progress
    from ..data.adapters import Layout
    from ..structures import Array

_logger = logging.getLogger(__name__)


class ParallelFit(ClusterFit):
    """One call of `fit` in one worker under `DataParallel`."""

    strategy: DataParallel
    _done = 0  # steps of the epoch, as callbacks see them
    _is_leaving = False
    _all_validate = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._together = Elastic(self._group, self.strategy.use_group, self._state, self._set_state)

    def run(self, epochs: range) -> None:
        """Train; afterwards the model has the trained values, in each worker.

        Args:
            epochs: those to make, if no interrupted run is taken up.

        Raises:
            CancelledError: another worker has ended the training; the message says why.
            TaskFailedError: another worker is gone.
        """
        try:
            with self.leaving_when_asked(self._is_asked_to_leave):
                self._train(epochs)
        except LeavingError:
            self._leave()
        except BaseException as error:
            self._group.abort(reason_of(error))
            raise
        finally:
            self.passes.close()

    @property
    def _group(self) -> ProcessGroup:
        assert self.strategy.group is not None
        return self.strategy.group

    # --- workers that are lost or leave -----------------------------------------------------------------------------

    def _is_asked_to_leave(self) -> None:
        if self.strategy.is_chief or not self._together.is_on:
            os.kill(os.getpid(), signal.SIGTERM)  # the others can't go on
        self._is_leaving = True

    def _leave(self) -> NoReturn:
        """End this process, as it was asked to; the others go on.

        Raises:
            SystemExit: always.
        """
        self._group.close()
        _logger.warning("%s leaves the training.", self._group.links.names[self._group.rank])
        raise SystemExit(0)

    def _may_go_on(self) -> bool:
        """Test whether the others go on when a worker other than the chief is lost: all of them have all state."""
        return self.strategy.shard is None

    def _run_together(self, work: Callable[[], bytes]) -> bytes:
        """Make an operation of all workers; see `Elastic.run`."""
        if self._is_leaving:
            raise LeavingError
        return self._together.run(work)

    def _drawn(self) -> list[list[int]]:
        return [*self.plan.states(), seed_now()]

    def _set_drawn(self, states: Sequence[Sequence[int]]) -> None:
        *others, own = states
        self.plan.set_states(others)
        global_generator().state = np.array(own, "int64")

    def _numbers(self) -> list[Variable]:
        """Return the variables that steps change: a vocabulary is text, which they do not."""
        return [variable for variable in self._shared if variable.dtype.kind != "T"]

    def _state(self) -> bytes:
        """Return the values behind a step, and the states of generators that are the same in all workers."""
        drawn = [np.array(each, "int64") for each in self._drawn()] if self._axes else []
        return packed([np.int64(len(drawn)), *drawn, *[np.asarray(each.numpy()) for each in self._numbers()]])

    def _set_state(self, data: bytes) -> None:
        count, *values = unpacked(data)
        drawn, values = values[: int(count)], values[int(count) :]
        if drawn:
            self._set_drawn([each.tolist() for each in drawn])
        for variable, value in zip(self._numbers(), values, strict=True):
            variable.assign(value)

    # --- single steps -----------------------------------------------------------------------------------------------

    def send_values(self) -> None:
        """Give all workers the chief's values of variables."""
        self._send(range(len(self._shared)))

    def step_on(self, data: ArrayData) -> Logs:
        """Make a step on a batch that all workers have, each on its rows; return its logs."""
        shares = Shares(data, self.strategy.shares, seed_now())
        self._share_states()
        self.model.reset_metrics()
        self._step(0, shares)
        return self._logs()

    # --- fit --------------------------------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Trace the step and agree on what all workers need for it, with this worker's `data`."""
        facts: dict[str, object] = {"data are read by the chief": self._hands_out}
        self._compare(facts if self._hands_out else facts | facts_of_data(self.data))
        self._seed = self._broadcast(seed_now())
        # As in one process: the order of the first epoch is drawn before the first values of a model that is not built.
        self._shares = None if self._hands_out else Shares(self.data, self.strategy.shares, self._seed)
        first = self._first_part() if self._shares is None else self._shares.batch(0)
        leaves: list[Any] = [TensorSpec(leaf.shape, leaf.dtype) for leaf in first.leaves]
        self._first_specs = Batch(first.layout, leaves, first.size)
        with replicated() if self.strategy.of is None else nullcontext():  # stages compute losses of microbatches
            self.plan = StepTracer(self.model, self.strategy, first)
            # Replicas of stages draw for microbatches, each by itself.
            self._axes = self.plan.find_axes(first) if self.strategy.of is None else []
        self._compare(facts_of_model(self.model, self.plan.variables))
        self._order = self._broadcast(self.plan.order)  # shares of other sizes might make them in another order
        spread = self.strategy.shard == "optimizer"
        self._shards_of_optimizers = [OptimizerShards(*each) for each in self.plan.applications] if spread else []
        slots = {id(slot) for each in self._shards_of_optimizers for slot in each.slots}
        self._shared = [variable for variable in self.plan.variables if id(variable) not in slots]
        self.strategy.optimizer_bytes = sum(each.nbytes for each in self._shards_of_optimizers)
        self._programs = StepPrograms(self._build_step)
        self._idle: Callable[..., object] | None = None

    def _compare(self, facts: Mapping[str, object]) -> None:
        """Check that all workers have the same facts about what they train.

        Raises:
            ValueError: they don't.
        """
        names = self._group.links.names
        leaders, *found = [json.loads(each) for each in self._group.gather_bytes(json.dumps(facts).encode())]
        for rank, each in enumerate(found, 1):
            check_alike(names[rank], each, names[0], leaders)

    def _first_part(self) -> Batch:
        """Return the first rows of the first batch, which the chief reads.

        Raises:
            ValueError: there is none.
        """
        found = HandedOut(self._together, None)
        whole = self.passes.peek() if self.strategy.is_chief else None
        if not found.give(whole, is_first_part=True):
            raise ValueError("fit() got no data: x gave no batch.")
        return found.batch(0)

    def _train(self, epochs: range) -> None:
        model, hooks = self.model, self.hooks
        self.begin_steps()
        run = TrainingRun(model, hooks, self.passes) if self.strategy.is_chief else None  # callbacks load a backup
        hooks.on_begin("train")
        epochs = self._begin(epochs, run)
        self.send_values()
        for each in self._shards_of_optimizers:
            each.scatter()
        logs: Logs = {}
        if self._may_go_on():
            self._together.begin()
        for epoch in epochs:
            logs = self._epoch(epoch, epochs.stop)
            if model.stop_training or self._broadcast(self.passes.exhausted):
                break
        for each in self._shards_of_optimizers:
            each.gather(self.strategy.is_chief or model.optimizer.use_ema)
        model.optimizer.finalize_variable_values(model._trained_variables)
        before = self._values()
        hooks.on_end("train", logs)
        self._share_changes(before)
        self._together.end()

    def _begin(self, epochs: range, run: TrainingRun | None) -> range:
        """Agree on the epochs to make, and on what came before; the chief has the run."""
        history = self.model.history
        seed, first = None, 0
        if run is not None:
            epochs = self._taken_up(run, epochs)
            rows = run.enter_epoch(None if self._hands_out else self.strategy.shares)
            first = self.passes.done_before
            run.rows = None if self._hands_out else self._rows
            if rows is not None:
                seed, first = [int(part) for part in rows["seed"]], run.batches_done(rows)
        passes = self.passes.position["passes"]
        self._all_validate = all(each == b"1" for each in self._group.gather_bytes(b"1" if self._validate else b"0"))
        message = {"epochs": [epochs.start, epochs.stop], "passes": passes, "history": history.get_state()}
        begun = self._broadcast({**message, "seed": seed, "first": first})
        self._seed_within, self._first = begun["seed"], begun["first"]
        if not self.strategy.is_chief:
            self.data.skip_passes(begun["passes"])
            history.set_state(begun["history"])
            self._shares = None if begun["passes"] or begun["seed"] else self._shares
        return range(*begun["epochs"])

    def _rows(self) -> dict[str, object]:
        """Return the account of the rows of the epoch that are done; see `TrainingRun.rows`."""
        shares = self.strategy.shares
        return {"seed": self._seed, "shares": shares, "done": [*range(self._done * shares)]}

    # --- epochs -----------------------------------------------------------------------------------------------------

    def _epoch(self, epoch: int, stop: int) -> Logs:
        """Make one epoch; return its logs."""
        model, hooks, is_chief = self.model, self.hooks, self.strategy.is_chief
        first, self._first = self._first, 0
        if not first:  # else the epoch was interrupted, and goes on
            model.reset_metrics()
        before = self._values()
        with self._whole_optimizer("on_epoch_begin"):
            hooks.on_epoch_begin(epoch)
        self._share_changes(before)
        shares = self._next_shares(epoch)
        progress = make_progress(
            self.verbosity if is_chief else 0, f"Epoch {epoch + 1}/{stop}", self.passes.steps, self._logs
        )
        done = self._run_epoch(shares, progress, first)
        before = self._values()
        logs = self._logs() if done else {}
        self._epoch_of_validation, self._before = epoch, before
        with self._whole_optimizer("on_test_begin", "on_test_end"):
            if is_chief:
                logs = dict(sorted({**logs, **self.validation(epoch)}.items()))
            progress.close(done, logs)
            logs = self._agreed_logs(plain(logs))
        if not self._hands_out:
            self.passes.count_pass()
            self.data.on_epoch_end()
        names = [*logs]
        with self._whole_optimizer("on_epoch_end"):
            hooks.on_epoch_end(epoch, logs)
        found = self._share_changes(before, plain({name: logs[name] for name in logs if name not in names}))
        for name in [name for name in found if name not in logs]:  # such as a learning rate that a callback has noted
            self.model.history.history.setdefault(name, []).append(found[name])
        return logs | found

    @contextmanager
    def _whole_optimizer(self, *names: str) -> Iterator[None]:
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
            self.validation(self._epoch_of_validation, GroupWay(self._together, shared["most"]))
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

    def _next_shares(self, epoch: int) -> Shares | HandedOut:
        """Return the rows of an epoch, in the order that the chief draws."""
        if self._hands_out:
            if not self._share_states() and not self.strategy.is_chief:
                self.plan.begin_epoch(epoch)
            return HandedOut(self._together, self.passes.epoch() if self.strategy.is_chief else None)
        seed, self._seed_within = self._seed_within, None
        if seed is not None:  # an interrupted epoch goes on
            shares, self._shares = self._shares_in_order(self.strategy.shares, seed), None
            if not self._share_states() and not self.strategy.is_chief:
                self.plan.begin_epoch(epoch)
            return shares
        if self.strategy.is_chief:
            shares = self._shares_of_epoch()
            self._broadcast(self._seed)
            self._share_states()
            return shares
        shares, self._shares, seed = self._shares, None, self._broadcast(None)
        if not self._share_states():
            self.plan.begin_epoch(epoch)
        return Shares(self.data, self.strategy.shares, seed) if shares is None else shares

    def _share_states(self) -> bool:
        """Have all workers draw with the keys that the chief has; return whether they draw by row."""
        if self._axes:
            self._set_drawn(self._broadcast(self._drawn()))
        return bool(self._axes)

    def _run_epoch(self, shares: Shares | HandedOut, progress: Progress, first: int) -> int:
        """Make the steps of an epoch, of which some may have been done before; return how many it has."""
        hooks, model = self.hooks, self.model
        watches = self._broadcast(hooks.wants_batches("train"))
        reads_logs = watches and hooks.reads_batch_logs("train")
        done, together, steps = first, model.steps_per_execution, self._broadcast(self.passes.steps)

        def end_group() -> None:
            before, self._done = self._values(), done
            hooks.end_batch("train", done - 1, self._logs() if reads_logs else {})
            self._share_changes(before)

        while shares.has(done):
            if watches and (done % together == 0 or done == first):
                hooks.begin_batch("train", done)
            self._step(done, shares)
            done += 1
            if ends_group(done - 1, together, steps):
                if watches:
                    end_group()
                if model.stop_training:  # as the chief has set it: before, a callback may have in one worker alone
                    return done
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)
        if watches and done % together and done != steps:  # data without a length have ended
            end_group()
        return done

    def _step(self, number: int, shares: Shares | HandedOut) -> None:
        states = self._drawn()
        leaves_out = shares.size_of(number) < self.strategy.shares  # some worker, as workers are when it begins

        def made() -> None:
            try:
                self._make_step(number, shares)
            except TaskFailedError:
                self._set_drawn(states)  # nothing else was changed
                raise

        if self._is_leaving:
            raise LeavingError
        self._together.change(made)
        if leaves_out:
            self._share_states()  # whoever had no rows has taken no keys
        self.strategy.steps += 1

    def _make_step(self, number: int, shares: Shares | HandedOut) -> None:
        if isinstance(shares, Shares):
            shares.parts = self.strategy.shares  # fewer than before, if workers were lost
        batch = shares.batch(number * self.strategy.shares + self._group.rank)
        if batch.size:
            if not self.model._checked_batch:
                self.model._check_batch(batch)
            share = number * self.strategy.shares + self._group.rank
            weight = np.asarray(shares.part(share, batch), "float64")
            rows = [np.asarray(each, "int64") for each in shares.window(share)]
            self._programs.run(Batch(batch.layout, [*batch.leaves, weight, *rows], batch.size))
        else:
            self._refuse_idle(number)
            if self._idle is None:
                self._idle = self._build_idle()
            self._idle()

    def _refuse_idle(self, number: int) -> None:
        """Refuse a batch that leaves a worker without rows, if the step exchanges more than sums of known shapes.

        Raises:
            ValueError: it does, in a layer of the user's own.
        """
        names = [op.type_name for op, spec in self.plan.collectives if not _takes_nothing(op, spec)]
        if names:
            raise ValueError(
                f"Batch {number} has no row for worker {self.strategy.task_index} of {self.strategy.num_workers}, but "
                f"the step of model {self.model.name!r} runs {names} with other workers, and of these a worker without "
                "rows can take part in sums of tensors of known shapes alone. Choose another batch_size, or leave the "
                "last rows out."
            )

    # --- what the chief sends ---------------------------------------------------------------------------------------

    def _broadcast(self, message: object) -> Any:
        """Give all workers a message that the chief has; what others pass does not count."""
        text = write_message(message) if self.strategy.is_chief else ""
        return read_message(self._run_together(lambda: self._group.gather_bytes(text.encode())[0]).decode())

    def _values(self) -> list[Array]:
        """Return the values of all variables now, in the chief."""
        return [np.array(variable.numpy()) for variable in self._shared] if self.strategy.is_chief else []

    def _share_changes(self, before: Sequence[Array], logs: Logs | None = None) -> Logs:
        """Have what the chief's callbacks have changed hold everywhere; return what they have added to the logs.

        Args:
            before: the values of variables before they were called.
            logs: what they have added.
        """
        model, variables = self.model, self._shared
        pairs = zip(variables, before, strict=False)
        changed = [number for number, (v, value) in enumerate(pairs) if not same(v.numpy(), value)]
        found = self._broadcast({"changed": changed, "stop": bool(model.stop_training), "logs": logs or {}})
        model.stop_training = found["stop"]
        self._send(found["changed"])
        return found["logs"]

    def _send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            variable = self._shared[number]
            value = np.asarray(variable.numpy())
            if value.dtype.kind == "T":  # a vocabulary, which has no fixed size
                value = self._broadcast(value.tolist())
            else:
                value = unpacked(self._run_together(partial(self._packed_of_chief, value)))[0]
            if not self.strategy.is_chief:
                variable.assign(value)

    def _packed_of_chief(self, value: Array) -> bytes:
        return packed([self._group.broadcast(value, 0)])

    # --- steps ------------------------------------------------------------------------------------------------------

    def _build_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        *feeds, weight, first, count, total = tensors
        parts: CutSteps | None = None if self.strategy.of is None else self.model._cut_steps
        with nullcontext() if parts is None else parts.placed():
            if parts is None:
                with replicated(weight), drawing_rows(self._axes, Window(first, count, total)):
                    entries = self.plan.traced_entries(layout, feeds, weight)
            else:
                with replicated(weight):
                    entries = parts.entries(self.plan, layout, feeds, weight)
            given = [weighted(entry, tensors, weight, self.strategy.is_chief) for entry, tensors in entries]
            self._build_updates(given, self.plan.gradients_at if parts is None else None)
        return []

    def _build_idle(self) -> Callable[..., object]:
        """Build the program of a worker that has no row of a batch: it takes part in the sums, and makes the update."""
        with Graph().as_default() as graph:
            for total in self._summed_within():  # of layers and losses, to which it adds nothing
                all_reduce(ops.zeros(total.shape or (), total.dtype))
            self._build_updates([nothing(entry) for entry in self.plan.entries])
            effects = [operation for operation in graph.operations if operation.writes]
        return make_program(graph, effects, [])

    def _summed_within(self) -> list[TensorSpec]:
        """Return what layers and losses sum over all workers, in the order of the step."""
        if self.strategy.of is None:
            return [spec for _, spec in self.plan.collectives if spec is not None]
        with Graph().as_default():
            found = totals_of_batch(self.plan, self._first_specs.layout, placeholders(self._first_specs))
        return [TensorSpec(total.shape, total.dtype) for total in found if total is not None]

    def _build_updates(self, given: list[list[Tensor]], gradients_at: int | None = None) -> None:
        """Build the sums over all workers of what each gives, and the updates by them.

        Args:
            given: for each entry its tensors.
            gradients_at: how many operations the graph had when the gradients were made, if sums may begin among them.
        """
        entries, shards = self.plan.entries, self._shards_of_optimizers
        dense = [n for n, e in enumerate(entries) if not e.part.has_rows and not (shards and e.is_gradient)]
        order = [dense.index(number) for number in self._order if number in dense]
        wire = [self.strategy.gradient_dtype if entries[number].is_gradient else None for number in dense]
        most = self.strategy.bucket_bytes if self.strategy.of is None else None
        sums = iter(summed([given[number][0] for number in dense], order, most, wire, gradients_at))
        values: list[Gradient] = []
        for entry, tensors in zip(entries, given, strict=True):
            if shards and entry.is_gradient:
                values.append(_whole(entry, tensors))
            elif entry.part.has_rows:
                whole = ops.convert_to_tensor(np.array(entry.part.shape, "int64"))
                wire_dtype = self.strategy.gradient_dtype if entry.is_gradient else None
                rows = ops.cast(tensors[1], wire_dtype or tensors[1].dtype)
                values.append(
                    IndexedSlices(ops.cast(all_gather(rows), tensors[1].dtype), all_gather(tensors[0]), whole)
                )
            else:
                values.append(ops.cast(next(sums), entry.part.dtype))
        # So all updates are made, or none, where a sum fails. Parts of an optimizer are gathered behind its updates.
        with control_dependencies([] if shards else exchanged(get_default_graph())):
            self.plan.build_updates(values, shards)


def _takes_nothing(op: Op, spec: TensorSpec | None) -> bool:
    """Test whether a worker that has no rows can take part in a collective, by zeros."""
    is_sum = isinstance(op, AllReduce) and op.reduce_op == "sum" and op.group is None
    return is_sum and spec is not None and spec.shape is not None and None not in spec.shape


def _whole(entry: Entry, tensors: list[Tensor]) -> Tensor:
    """Return a gradient of this worker, dense."""
    if not entry.part.has_rows:
        return tensors[0]
    whole = ops.convert_to_tensor(np.array(entry.part.shape, "int64"))
    return ops.convert_to_tensor(IndexedSlices(tensors[1], tensors[0], whole))


__all__ = ["ParallelFit"]
