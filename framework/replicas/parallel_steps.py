"""`ParallelSteps`: steps of workers under `DataParallel`, and what the chief sends between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...distribute.collectives.elastic import Elastic
from ...distribute.collectives.group import ProcessGroup
from ...distribute.strategies.data_parallel import DataParallel
from ...engine import ops
from ...engine.graph import Graph, Op, TensorSpec, Variable
from ...engine.ops.collectives import AllReduce, all_reduce
from ...engine.ops.random.keys import global_generator
from ...engine.ops.random.rows import Window, drawing_rows
from ...engine.ops.replicas import replicated
from ...engine.queues.errors import TaskFailedError
from ...engine.session.programs import make_program
from ..data.adapters import ArrayData, Batch
from ..training.base_callback import BaseCallbackList
from ..training.kept_steps import key_of
from ..training.steps import StepPrograms
from .alike import check_alike, facts_of_data, facts_of_model
from .buckets import build_updates, nothing, weighted
from .cluster_fit import ClusterFit, Logs, read_message, seed_now, write_message
from .cut_steps import CutSteps, totals_of_batch
from .handed_out import HandedOut
from .optimizer_shards import OptimizerShards
from .programs import LeavingError
from .shares import Place, Shares, part_of
from .traced import StepTracer, placeholders
from .ways import joined_bytes, packed, parted_bytes, unpacked

if TYPE_CHECKING:
    from ...engine.graph import Tensor
    from ..data.adapters import Layout
    from ..structures import Array
    from ..training.base_model import BaseModel

_SMALL = 1 << 16  # bytes of values that are sent in one message with others


class ParallelSteps(ClusterFit):
    """The part of `ParallelFit` that makes steps."""

    strategy: DataParallel
    _is_leaving = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        found = self.strategy.joiner or self._group
        self._together = Elastic(found, self.strategy.use_group, self._state, self._set_state)
        self._at = Place(0)
        self._notes: Logs = {}  # the states of the chief's callbacks
        self._new = BaseCallbackList(())  # those that this worker calls since it is the chief
        self._has_taken_over = False  # and has not come to a step since then
        self._position: Logs = {}  # of data that the chief reads, when the epoch began

    @property
    def _group(self) -> ProcessGroup:
        assert self.strategy.group is not None
        return self.strategy.group

    def _run_together(self, work: Callable[[], bytes]) -> bytes:
        """Make an operation of all workers; see `Elastic.run`."""
        if self._is_leaving and not self.strategy.is_chief:  # whose callbacks have seen what it is about to send
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

    # --- single steps -------------------------------------------------------------------------------------------------

    def send_values(self) -> None:
        """Give all workers the chief's values of variables: small ones, and texts, which have no fixed size, in one."""
        values = [np.asarray(variable.numpy()) for variable in self._shared] if self.strategy.is_chief else []
        texts = {n: value.tolist() for n, value in enumerate(values) if value.dtype.kind == "T"}
        small = [n for n, value in enumerate(values) if n not in texts and value.nbytes <= _SMALL]
        head = write_message({"texts": [*texts.items()], "small": small}).encode() if values else b""
        data = joined_bytes([head, packed([values[n] for n in small])]) if values else b""
        head, packed_values = parted_bytes(self._run_together(lambda: self._group.gather_bytes(data)[0]))
        found = read_message(head.decode())
        arrays = zip(found["small"], unpacked(packed_values), strict=True)
        given: dict[int, object] = dict(found["texts"]) | dict(arrays)
        for number, variable in enumerate(self._shared):
            if number not in given:
                value = np.asarray(variable.numpy())
                given[number] = unpacked(self._run_together(partial(self._packed_of_chief, value)))[0]
            if not self.strategy.is_chief:
                variable.assign(given[number])
            del given[number]

    def _packed_of_chief(self, value: Array) -> bytes:
        return packed([self._group.broadcast(value, 0)])

    def step_on(self, data: ArrayData) -> Logs:
        """Make a step on a batch that all workers have, each on its rows; return its logs."""
        shares = Shares(data, self.strategy.shares, seed_now())
        self._share_states()
        self.model.reset_metrics()
        self._step(0, shares)
        return self._logs()

    # --- steps --------------------------------------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Trace the step and agree on what all workers need for it, with this worker's `data`."""
        facts: dict[str, object] = {"data are read by the chief": self._hands_out}
        self._compare(facts if self._hands_out else facts | facts_of_data(self.data))
        self._seed = self._broadcast(seed_now())
        # As in one process: the order of the first epoch is drawn before the first values of a model that is not built.
        self._shares = None if self._hands_out else Shares(self.data, self.strategy.shares, self._seed)
        self._find_steps(self._first_part() if self._shares is None else self._shares.batch(0))
        self._compare(facts_of_model(self.model, self.plan.variables))
        self._made.use_order(self._broadcast(self.plan.order))  # shares of other sizes might make them in another order

    def begin_steps_alone(self) -> None:
        """Trace the step, in a worker that joins the others later; it compares its facts with those of the chief then.

        Raises:
            ValueError: there is no batch.
        """
        self._seed = seed_now()
        if self._hands_out:
            whole = self.passes.peek()
            if whole is None:
                raise ValueError("fit() got no data: x gave no batch.")
            first = part_of(whole, 0, self.strategy.shares)
        else:
            first = Shares(self.data, self.strategy.shares, self._seed).batch(0)
        self._find_steps(first)

    def _facts(self) -> dict[str, object]:
        """Return what all workers have in common, also those that join."""
        facts: dict[str, object] = {"data are read by the chief": self._hands_out}
        facts |= {"validation": self._validate is not None}
        facts |= {} if self._hands_out else facts_of_data(self.data)
        return facts | facts_of_model(self.model, self.plan.variables)

    def _find_steps(self, first: Batch) -> None:
        """Take the steps that the model has kept, or build others.

        Args:
            first: this worker's part of the first batch.
        """
        strategy = self.strategy
        self._key = partial(key_of, self.model, strategy, first, strategy.group if strategy.shard else None)
        found, self._version = self.model._kept_steps.take(ParallelPrograms, self._key())
        self._made = ParallelPrograms(self.model, strategy, first) if found is None else found
        if found is not None:
            self._made.begin_again()
        self.plan, self._axes, self._shared = self._made.plan, self._made.axes, self._made.shared
        self._shards_of_optimizers = self._made.shards
        strategy.optimizer_bytes = sum(each.nbytes for each in self._made.shards)

    def keep_steps(self) -> None:
        """Have the model keep the steps for its next `fit`, without what they hold."""
        for each in self._made.shards:
            each.release_parts()
        self.model._kept_steps.give_back(self._key(), self._made, self._version)

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

    def _share_states(self) -> bool:
        """Have all workers draw with the keys that the chief has; return whether they draw by row."""
        if self._axes:
            self._set_drawn(self._broadcast(self._drawn()))
        return bool(self._axes)

    def _step(self, number: int, shares: Shares | HandedOut) -> None:
        states = self._drawn()
        # Some worker, perhaps. All have to find the same here, also those that have begun the step when there were more
        # workers, or fewer.
        leaves_out = shares.size_of(number) < self._group.started

        def made() -> None:
            try:
                self._make_step(number, shares)
            except TaskFailedError:
                self._set_drawn(states)  # nothing else was changed
                raise

        self._together.change(made)
        self._at.done += 1
        if leaves_out:  # whoever had no rows has taken no keys
            if self._axes and self.plan.keys:
                pairs = zip(states, self.plan.keys, strict=False)
                self.plan.set_states([[seed, counter + count] for (seed, counter), count in pairs])
            self._share_states()
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
            self._made.run(Batch(batch.layout, [*batch.leaves, weight, *rows], batch.size))
        else:
            self._refuse_idle(number)
            self._made.run_idle()

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

    # --- what the chief sends -----------------------------------------------------------------------------------------

    def _broadcast(self, message: object) -> Any:
        """Give all workers a message that the chief has; what others pass does not count."""
        text = write_message(message) if self.strategy.is_chief else ""
        return read_message(self._run_together(lambda: self._group.gather_bytes(text.encode())[0]).decode())


class ParallelPrograms:
    """The steps of one model under `DataParallel`, as this worker runs them. The model keeps them from call to call.

    They do not depend on which workers there are, unless each has a part of the optimizer.

    Args:
        model: a compiled model.
        strategy: with a cluster.
        first: this worker's part of the first batch, of which nothing but shapes and dtypes is used.

    Attributes:
        plan: of the step.
        axes: those of random numbers that have rows, where workers draw by row.
        shards: for each application of an optimizer the part that this worker has, if they are spread.
        shared: the variables that all workers have whole; the others are in parts.
    """

    def __init__(self, model: BaseModel, strategy: DataParallel, first: Batch) -> None:
        self._strategy = strategy
        leaves: list[Any] = [TensorSpec(leaf.shape, leaf.dtype) for leaf in first.leaves]
        self._first_specs = Batch(first.layout, leaves, first.size)
        with replicated() if strategy.of is None else nullcontext():  # stages compute losses of microbatches
            self.plan = StepTracer(model, strategy, first)
            # Replicas of stages draw for microbatches, each by itself.
            self.axes = self.plan.find_axes(first) if strategy.of is None else []
        spread = strategy.shard == "optimizer"
        self.shards = [OptimizerShards(*each) for each in self.plan.applications] if spread else []
        slots = {id(slot) for each in self.shards for slot in each.slots}
        self.shared = [variable for variable in self.plan.variables if id(variable) not in slots]
        self.order = self.plan.order
        self._programs = StepPrograms(self._build_step)
        self._programs_lead = strategy.is_chief
        self._idle: Callable[..., object] | None = None

    def begin_again(self) -> None:
        """Begin a further training by these steps."""
        self.plan.begin_again()

    def use_order(self, order: list[int]) -> None:
        """Sum in an order that all workers have; programs that were built for another one are forgotten.

        Args:
            order: the numbers of the plan's entries.
        """
        if order != self.order:
            self.order = order
            self._programs.clear()
            self._idle = None

    def run(self, batch: Batch) -> None:
        """Make a step on rows of this worker; behind the arrays of the batch are its weight and its window."""
        self._forget_those_of_others()
        self._programs.run(batch)

    def run_idle(self) -> None:
        """Make a step of which this worker has no row."""
        if self._idle is None:
            self._idle = self._build_idle()
        self._idle()

    def close(self) -> None:
        """Give up the steps: there is nothing outside of this process."""

    def _forget_those_of_others(self) -> None:
        """Forget programs of steps that were built before this worker led, if the chief gives more than the others."""
        if self._programs_lead != self._strategy.is_chief:
            self._programs_lead = self._strategy.is_chief
            if any(entry.part.reduction == "first" for entry in self.plan.entries):
                self._programs.clear()

    def _build_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        *feeds, weight, first, count, total = tensors
        parts = None if self._strategy.of is None else cast("CutSteps", self.plan.model._cut_steps)
        with nullcontext() if parts is None else parts.placed():
            if parts is None:
                with replicated(weight), drawing_rows(self.axes, Window(first, count, total)):
                    entries = self.plan.traced_entries(layout, feeds, weight)
            else:
                with replicated(weight):
                    entries = parts.entries(self.plan, layout, feeds, weight)
            given = [weighted(entry, tensors, weight, self._strategy.is_chief) for entry, tensors in entries]
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
        if self._strategy.of is None:
            return [spec for _, spec in self.plan.collectives if isinstance(spec, TensorSpec)]
        with Graph().as_default():
            found = totals_of_batch(self.plan, self._first_specs.layout, placeholders(self._first_specs))
        return [TensorSpec(total.shape, total.dtype) for total in found if total is not None]

    def _build_updates(self, given: list[list[Tensor]], gradients_at: int | None = None) -> None:
        """Build the sums over all workers of what each gives, and the updates by them; see `build_updates`."""
        strategy, most = self._strategy, self._strategy.bucket_bytes if self._strategy.of is None else None
        build_updates(self.plan, self.shards, given, self.order, most, strategy.gradient_dtype, gradients_at)


def _takes_nothing(op: Op, spec: TensorSpec | None) -> bool:
    """Test whether a worker that has no rows can take part in a collective, by zeros."""
    is_sum = isinstance(op, AllReduce) and op.reduce_op == "sum" and op.group is None
    return is_sum and spec is not None and spec.shape is not None and None not in spec.shape


__all__ = ["ParallelPrograms", "ParallelSteps"]
