"""`StepTracer`: the training step of a model as replicas run it.

A training step is traced as in one process, with two differences. Optimizers hand their gradients over. What is
assigned to other variables is kept aside: each replica gives it with its gradients, and the reduced values are assigned
once. Metrics begin each step with their first values, and what they have added is summed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...engine import ops
from ...engine.common.dtypes import DTypeLike
from ...engine.common.quick_dataclass import dataclass
from ...engine.control_flow.grouping import no_op
from ...engine.graph import Graph, IndexedSlices, Placeholder, StatelessScope, Symbol, TensorSpec, Variable
from ...engine.graph.graph import get_default_graph
from ...engine.ops.random.keys import SeedGenerator, noting_keys
from ...engine.ops.random.rows import Axes, finding_axes
from ...engine.ops.replicas import building_step, noting_totals
from ...engine.queues.replica_gradients import Part
from ...optim.clipping import on_values
from ...optim.replicas import handing_over, has_scaled
from ..data.adapters import X_ONLY, Batch
from ..metrics.replicas import handing_updates
from ..saving.checkpointing import stateful_parts
from ..training.base_model import plain
from ..training.running_logs import LogKey, RunningLog, find_running
from ..training.steps import compile_step
from .buckets import exchanged
from .checks import check_model
from .metric_updates import MetricUpdate, MetricUpdates

if TYPE_CHECKING:
    from ...engine.graph import Operation, Tensor
    from ...engine.ops.base import TensorLike
    from ...optim import Optimizer
    from ...optim.clipping import Gradient
    from ..data.adapters import Layout
    from ..structures import Array
    from ..training.base_model import BaseModel
    from ..training.steps import Program
    from .optimizer_shards import OptimizerShards


@dataclass(eq=False)
class TracedStep:
    """The results of one trace of a training step.

    Attributes:
        applications: each optimizer that was applied, with its gradients and variables.
        state: the new values of other variables; of metrics what they have added.
        names: of what the step logs, where it has a say in that.
        logs: what replicas give of that: values by name, and those that `running` takes.
        running: those logs that depend on the states of metrics.
        made: for each application, the places of its gradients in the graph.
        updates: those of metrics that are made of the rows of all replicas.
    """

    applications: list[tuple[Optimizer, list[Gradient | None], list[Variable]]]
    state: dict[Variable, Tensor]
    names: list[str]
    logs: dict[LogKey, Any]
    running: dict[str, RunningLog]
    made: list[list[int]]
    updates: list[MetricUpdate]


@dataclass(frozen=True, eq=False)
class Entry:
    """One value that each replica gives.

    Attributes:
        place: the number of the ps task that reduces it; 0 where there are none.
        part: its spec, and how it is reduced.
        application, position: for a gradient, which application of an optimizer and which of its variables.
        variable: for state and logs, what gets the reduced value.
        update: for an argument of a metric, which update of the step; `position` is then that of the argument.
    """

    place: int
    part: Part
    application: int = -1
    position: int = -1
    variable: Variable | None = None
    update: int = -1

    @property
    def is_gradient(self) -> bool:
        """Test whether it is the gradient of a variable."""
        return self.application >= 0


class _StepScope(StatelessScope):
    """Keeps what a step assigns. As in one process no gradient goes through that to what it was computed of."""

    def assign(self, variable: Variable, value: TensorLike) -> None:
        super().assign(variable, ops.stop_gradient(value))


class Replica(Protocol):
    """The facts about a strategy that a tracer needs: which replica this process is."""

    task_index: int

    @property
    def is_chief(self) -> bool: ...


class StepTracer:
    """Traces the training step of one model. All replicas find the same.

    Args:
        model: a compiled model.
        replica: which one this process is.
        batch: a replica's part of a batch, of which nothing but shapes and dtypes is used.

    Raises:
        ValueError: the model or its training step can't be trained by replicas; the message says why.

    Attributes:
        variables: all that a step reads or changes, in an order that is the same in all replicas.
        entries: what each replica gives.
        order: the numbers of the entries, gradients first, in the order in which the backward pass makes them.
        gradients_at: how many operations the graph of the latest trace had when the first gradients were handed over.
        applications: each optimizer that is applied, with its variables.
        keys: how many keys of each generator a step takes; empty if that may depend on the data.
        generators: all whose keys it takes.
        totals: the specs of what losses sum over replicas, in the order of the step.
        collectives: those that a step runs with other processes, in its order, each with the spec of what it takes, if
            anything.
        log_names: of the step's logs, where it has a say in that.
        log_variables: the variables that get the means of what replicas log.
    """

    def __init__(self, model: BaseModel, replica: Replica, batch: Batch) -> None:
        self.model = model
        self._replica = replica
        self.gradients_at = 0
        self.keys: list[int] = []
        check_model(model)
        self._resets: dict[Variable, Array] = {}
        self.log_variables: dict[LogKey, Variable] = {}
        self._metric_updates: MetricUpdates | None = None
        self._read_logs: Program | None = None  # the program that computes what `train_step` logs
        with Graph().as_default() as graph:
            traced = self.trace(batch.layout, placeholders(batch))  # makes what the model makes at first
            for maker in [maker for optimizer, _, _ in traced.applications for maker in optimizer.makers]:
                ops.convert_to_tensor(maker._current_learning_rate())  # perhaps of variables that nothing else reads
            others = [variable for variable in graph.variables if isinstance(variable, Variable)]
        model.reset_metrics()
        metric_variables = [variable for metric in model.metrics for variable in metric.variables]
        self._resets = {variable: variable.numpy() for variable in metric_variables}
        self._metric_updates = MetricUpdates()
        self.log_names = traced.names
        self.log_variables = {key: _log_variable(key, value) for key, value in traced.logs.items()}
        optimizers = [optimizer for optimizer, _, _ in traced.applications]
        slots = [variable for optimizer in optimizers for variable in optimizer.variables]
        logs = list(self.log_variables.values())
        found = [*model.variables, *slots, *metric_variables, *logs, *traced.state, *others]
        self.variables = list({id(variable): variable for variable in found}.values())
        self.arrange()
        parts = [part for part in stateful_parts(model).values() if isinstance(part, SeedGenerator)]
        self._generators = {part: (number, part.seed) for number, part in enumerate(parts)}
        with Graph().as_default() as graph, finding_axes() as axes, noting_keys() as keys, noting_totals() as totals:
            traced = self.trace(batch.layout, placeholders(batch))
            self.entries = [entry for entry, _ in self.entries_of(traced)]
        self.totals = [TensorSpec(total.shape, total.dtype) for total in totals if total.graph is graph]
        self.collectives = [(each.op, each.inputs[0].spec if each.inputs else None) for each in exchanged(graph)]
        self._running = traced.running
        self._draws = len(axes)
        self.generators = list(dict.fromkeys(generator for generator, _ in keys))
        if all(graph is where and generator in self._generators for generator, where in keys):
            taken = [generator for generator, _ in keys]
            self.keys = [taken.count(generator) for generator in self._generators]
        places = [traced.made[e.application][e.position] if e.is_gradient else math.inf for e in self.entries]
        self.order = sorted(range(len(places)), key=places.__getitem__)
        self.applications = [(optimizer, variables) for optimizer, _, variables in traced.applications]
        self._updates = traced.updates

    def begin_again(self) -> None:
        """Begin a further training by the same steps."""
        self.model.reset_metrics()
        self._generators = {part: (number, part.seed) for part, (number, _) in self._generators.items()}

    def arrange(self) -> None:
        """Decide where the variables are kept: here all in one place."""

    def place_of(self, variable: Variable) -> int:
        """Return the number of the place where a variable is kept."""
        return 0

    def find_axes(self, batch: Batch) -> Axes:
        """Find which axes of the step's random numbers have rows of the batch; nothing if that can't be known.

        Args:
            batch: one that was traced.
        """
        if not self._draws:
            return []
        try:
            with Graph().as_default(), finding_axes() as found:
                self.trace(batch.layout, placeholders(batch, rows=None))
        except (ValueError, TypeError):  # a layer takes batches of known sizes only
            return []
        return found if len(found) == self._draws else []

    def states(self) -> list[list[int]]:
        """Return the states of the model's generators."""
        return [[int(part) for part in generator.state] for generator in self._generators]

    def set_states(self, states: Sequence[Sequence[int]]) -> None:
        """Set what `states` has given, in another replica."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.state = np.array(state, "int64")

    def begin_epoch(self, epoch: int) -> None:
        """Give the generators of a worker that isn't the chief the states of an epoch.

        They depend on nothing else, so that a worker that was started again draws what it would have drawn.
        """
        for generator, (_, seed) in self._generators.items():
            generator.state = (self.own_seed(seed, epoch), 0)

    def begin_share(self, epoch: int, share: int) -> None:
        """Give the generators the states of a share of an epoch: whichever worker computes it draws the same."""
        for generator, (_, seed) in self._generators.items():
            generator.state = (_mixed(seed, epoch, share), 0)

    def own_seed(self, seed: int, *more: int) -> int:
        """Return the seed of a generator for this worker: another one in each."""
        if self._replica.is_chief:
            return seed
        return _mixed(seed, self._replica.task_index, *more)

    def trace(self, layout: Layout, feeds: list[Tensor], share: float | Tensor = 1.0) -> TracedStep:
        """Build the training step in the current graph.

        Args:
            layout, feeds: what of a batch the replica has.
            share: which part of the batch's rows that is, about: where losses are scaled, as float16 takes it, theirs
                is multiplied by it, and their gradients are divided by it when they are handed over.

        Raises:
            ValueError: it uses variables after an optimizer was to change them.
        """
        applications: list[tuple[Optimizer, list[Gradient | None], list[Variable]]] = []
        changed: dict[Variable, Tensor] = {}
        assigned: dict[Variable, Tensor] = {}  # values that variables of optimizers had before that
        counted: dict[Variable, Tensor] = {}  # counts of optimizers that were applied, as they are behind that
        made: list[list[int]] = []
        # Each metric's first values are a tensor of their own, by which logs are found that depend on them.
        scope = _StepScope((variable, ops.stop_gradient(value)) for variable, value in self._resets.items())
        given = {variable: scope.get_current_value(variable) for variable in scope.variables}

        def take(
            optimizer: Optimizer, gradients: Sequence[Gradient | None], variables: Sequence[Variable]
        ) -> Operation | None:
            twice = [variable.path for variable in variables if variable in changed]
            if twice:
                raise ValueError(f"train_step of model {self.model.name!r} updates {twice} twice. {_ONE_UPDATE}")
            self.gradients_at = len(get_default_graph().operations) if not made else self.gradients_at
            made.append([_place_of(gradient) for gradient in gradients])
            found = [_as_variable(gradient, variable) for gradient, variable in zip(gradients, variables, strict=True)]
            if has_scaled(optimizer):
                found = [None if gradient is None else _of_whole(gradient, share) for gradient in found]
            applications.append((optimizer, found, list(variables)))
            for variable in variables:  # whoever reads it from now on would read the value of before
                value = scope.get_current_value(variable)
                if value is not None:  # a layer has assigned it, as `SpectralNormalization` does
                    assigned[variable] = value
                changed[variable] = ops.stop_gradient(variable.value)
                scope.add_update((variable, changed[variable]))
            for variable in _counts_of(optimizer):
                if scope.get_current_value(variable) is None:
                    counted[variable] = ops.stop_gradient(variable.value)
                    scope.add_update((variable, counted[variable]))
            return no_op()

        updates = self._metric_updates
        if updates is not None:
            updates.taken = []
        update = None if updates is None else updates.take
        with building_step(), scope, handing_over(take, share), handing_updates(update):
            fetches = self.model._build_train_step(layout, feeds)
        _refuse_late_reads(self.model.name, scope, changed)
        names = self.model._log_names.get(("train", layout.key), [])
        state = assigned
        for variable in scope.variables:
            value = scope.get_current_value(variable)
            if variable not in changed and value is not counted.get(variable, given.get(variable)):
                first = self._resets.get(variable)
                state[variable] = value if first is None or not np.any(first) else value - first
        taken = [] if updates is None else updates.taken
        _refuse_late_counts(self.model.name, counted, [*state.values(), *[t for each in taken for t in each.tensors]])
        logs, running = self._found_logs(dict(zip(names, fetches, strict=True)), scope, given, counted)
        return TracedStep(applications, state, list(names), logs, running, made, taken)

    def _found_logs(
        self,
        values: Mapping[str, Tensor],
        scope: StatelessScope,
        first: Mapping[Variable, object],
        counted: Iterable[Variable],
    ) -> tuple[dict[LogKey, object], dict[str, RunningLog]]:
        """Divide a step's logs into what replicas give, and what depends on the states of metrics and optimizers."""
        variables = [v for metric in self.model.metrics for v in metric.variables] if values else []
        variables += counted
        tensors = {variable: scope.get_current_value(variable) for variable in variables}
        logs: dict[LogKey, object] = {}
        running: dict[str, RunningLog] = {}
        for name, value in values.items():
            found = find_running(value, tensors, first)
            if found is None:
                logs[name, -1] = value
            else:
                running[name] = found
                logs.update({(name, number): given for number, given in enumerate(found.given)})
        return logs, running

    @property
    def read_by_logs(self) -> list[Variable]:
        """The variables of which logs are computed."""
        found = [variable for log in self._running.values() for variable in log.state.values()]
        return [*found, *self.log_variables.values()]

    def read_logs(self) -> dict[str, object]:
        """Return what the step logs, of the values that variables have now; see `log_names`."""
        if self._read_logs is None:
            self._read_logs = compile_step(lambda _layout, _tensors: self.build_logs({}), X_ONLY, [])
        return dict(sorted(zip(self.log_names, map(plain, self._read_logs()), strict=True)))

    def build_logs(self, values: Mapping[Any, TensorLike]) -> list[Tensor]:
        """Build what the step logs of all replicas' rows in the current graph, behind its updates; see `log_names`.

        Args:
            values: of variables that are not to be read.
        """
        found: list[Tensor] = []
        for name in self.log_names:
            log, variables = self._running.get(name), self.log_variables
            if log is not None:
                found.append(log.build(values, [variables[name, number] for number in range(len(log.given))]))
            else:
                variable = variables[name, -1]
                found.append(ops.convert_to_tensor(values.get(variable, variable)))
        return found

    def entries_of(self, traced: TracedStep) -> list[tuple[Entry, list[Tensor]]]:
        """Return what is put, with its tensors."""
        found: list[tuple[Entry, list[Tensor]]] = []
        for number, (_, gradients, variables) in enumerate(traced.applications):
            for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
                if gradient is None:
                    continue
                has_rows = isinstance(gradient, IndexedSlices)
                values = gradient.values if has_rows else gradient
                part = Part(_name_of(values), variable.shape, "mean", has_rows)
                tensors = [ops.cast(gradient.indices, "int64"), values] if has_rows else [values]
                found.append((Entry(self.place_of(variable), part, number, position), tensors))
        for variable, value in traced.state.items():
            part = Part(_name_of(variable), variable.shape, self._reduction(variable))
            found.append((Entry(self.place_of(variable), part, variable=variable), [value]))
        for key, value in traced.logs.items():
            variable = self.log_variables[key]
            part = Part(_name_of(variable), variable.shape, "mean" if variable.spec.differentiable else "first")
            if key[1] >= 0 and tuple(value.shape) != variable.shape:
                raise _depends_on_rows(key[0], value)
            tensors = [ops.cast(ops.reshape(ops.convert_to_tensor(value), variable.shape), variable.dtype)]
            found.append((Entry(self.place_of(variable), part, variable=variable), tensors))
        for number, update in enumerate(traced.updates):
            place = self.place_of(update.metric.variables[0])
            for position, (part, tensors) in enumerate(update.parts()):
                found.append((Entry(place, part, position=position, update=number), tensors))
        return found

    def traced_entries(
        self, layout: Layout, feeds: list[Tensor], share: float | Tensor = 1.0
    ) -> list[tuple[Entry, list[Tensor]]]:
        """Build a step in the current graph; return what the replica gives, with its tensors. See `trace`.

        Raises:
            ValueError: it gives other values than for the first batch.
        """
        with noting_totals() as totals:
            found = self.entries_of(self.trace(layout, feeds, share))
        is_same = [(e.place, e.part) for e, _ in found] == [(e.place, e.part) for e in self.entries]
        if not is_same or len([total for total in totals if total.graph is get_default_graph()]) != len(self.totals):
            raise ValueError(
                f"train_step of model {self.model.name!r} computes other gradients, losses, metrics or logs for this "
                "batch than for the first one. Let it do the same for all batches."
            )
        return found

    def variables_of(self, application: int) -> list[Variable]:
        """Return the variables of an application of an optimizer."""
        return self.applications[application][1]

    def build_updates(self, values: Sequence[Gradient], shards: Sequence[OptimizerShards] = ()) -> None:
        """Build the updates by reduced values: of state and metrics, then by the optimizers.

        Args:
            values: for each of `entries` a tensor, or `IndexedSlices`.
            shards: for each application of an optimizer what makes the update of gradients that are not reduced yet.
        """
        gradients: list[list[Gradient | None]] = [[None] * len(variables) for _, variables in self.applications]
        given: list[list[Gradient]] = [[] for _ in self._updates]
        for entry, value in zip(self.entries, values, strict=True):
            if entry.update >= 0:
                given[entry.update].append(value)
            elif entry.variable is None:
                variable = self.applications[entry.application][1][entry.position]
                gradients[entry.application][entry.position] = on_values(
                    value, lambda g, v=variable: ops.cast(g, v.dtype)
                )
            else:
                change = entry.variable.assign_add if self.is_sum(entry.variable) else entry.variable.assign
                change(value)
        for update, arguments in zip(self._updates, given, strict=True):
            update.make(arguments)
        if shards:
            for each, found in zip(shards, gradients, strict=True):
                each.apply(found)
            return
        for (optimizer, variables), found in zip(self.applications, gradients, strict=True):
            optimizer.apply(found, variables)

    def is_sum(self, variable: Variable) -> bool:
        """Test whether what workers put is added to a variable, as to those of metrics."""
        return variable in self._resets

    def _reduction(self, variable: Variable) -> str:
        if variable in self._resets or variable.aggregation == "sum":
            return "sum"
        if variable.aggregation == "only_first_replica":
            return "first"
        return "mean" if variable.spec.differentiable else "first"


def _mixed(seed: int, *more: int) -> int:
    """Return a seed made of another one and of what distinguishes who uses it."""
    return int(np.random.SeedSequence([seed % 2**64, *more]).generate_state(1, "uint64")[0] >> np.uint64(1))


_ONE_UPDATE = (
    "Replicas compute all gradients of a step before any variable changes. Compute them first, then call the "
    "optimizers, each variable in one of them."
)


def placeholders(batch: Batch, **rows: None) -> list[Any]:
    """Make a placeholder for each array of a batch in the current graph; with ``rows=None`` their number is unknown."""
    graph = get_default_graph()
    shapes = [(*rows.values(), *leaf.shape[len(rows) :]) for leaf in batch.leaves]
    specs = [TensorSpec(shape, leaf.dtype) for shape, leaf in zip(shapes, batch.leaves, strict=True)]
    return [graph.add(Placeholder(spec), (), f"leaf_{n}").outputs[0] for n, spec in enumerate(specs)]


def _refuse_late_reads(name: str, scope: StatelessScope, changed: Mapping[Variable, Tensor]) -> None:
    stand_ins = {id(tensor): variable for variable, tensor in changed.items()}
    used = {id(tensor) for operation in get_default_graph().operations for tensor in operation.inputs}
    late = [variable.path for key, variable in stand_ins.items() if key in used]
    late += [v.path for v, tensor in changed.items() if scope.get_current_value(v) is not tensor]
    if late:
        raise ValueError(
            f"train_step of model {name!r} uses {sorted(set(late))} after an optimizer was to update them. "
            f"{_ONE_UPDATE}"
        )


def _counts_of(optimizer: Optimizer) -> list[Variable]:
    """Return the numbers that an optimizer changes with each step, such as how many it has made."""
    rates = [each._learning_rate for each in (optimizer, *optimizer.makers)]
    return [v for v in optimizer.variables if v.shape == () and not any(v is rate for rate in rates)]


def _refuse_late_counts(name: str, counted: Mapping[Variable, Tensor], values: Iterable[Tensor]) -> None:
    found = [find_running(value, counted, {}) for value in values]
    late = {variable.path for each in found if each is not None for variable in each.state.values()}
    if late:
        raise ValueError(
            f"train_step of model {name!r} uses {sorted(late)} after an optimizer was to update them, for a "
            "variable or a metric. Under a strategy they are updated behind the whole step. Use them before the "
            "optimizer's step; or log what is computed of them."
        )


def _log_variable(key: LogKey, value: Any) -> Variable:
    """Make the variable for the mean of a value that steps log, or of which they compute a log.

    The value that is logged is a scalar, and its mean has fractions.
    """
    name, number = key
    is_whole = number < 0
    shape = () if is_whole else tuple(value.shape or ())
    if not is_whole and (value.shape is None or None in shape):
        raise _depends_on_rows(name, value)
    dtype = "float32" if is_whole and not value.spec.differentiable else value.spec.dtype
    return Variable(np.zeros(shape), dtype=dtype, name=f"logs/{name}", trainable=False)


def _depends_on_rows(name: str, value: Tensor) -> ValueError:
    """Return the error for a log that is computed of metrics' results and of values for the rows of one replica."""
    return ValueError(
        f"train_step logs {name!r}, which is computed of results of metrics and of {value.name!r}, {value.spec}, whose "
        "shape depends on the rows of a replica. Results of metrics are those of all replicas' rows, so that what else "
        "is needed has to have one shape in all replicas: reduce it over its rows first, for example by ops.mean."
    )


def _place_of(gradient: object) -> int:
    """Return the place in its graph of the operation that makes a gradient; 0 for one that is a value."""
    values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
    return values.operation.index if isinstance(values, Symbol) else 0


def _as_variable(gradient: Gradient | None, variable: Variable) -> Gradient | None:
    """Return a gradient in the dtype of its variable; None stays."""
    if gradient is None or isinstance(gradient, IndexedSlices):
        return gradient
    return ops.convert_to_tensor(gradient, variable.dtype)


def _of_whole(gradient: Gradient, share: float | Tensor) -> Gradient:
    """Return the gradient of a loss by that of a share of it; in float32 where that was in half precision."""
    wide = _cast(gradient, "float32") if gradient.dtype.itemsize < 4 else gradient
    if isinstance(share, float) and share in (0.0, 1.0):  # without rows there is nothing that counts
        return wide
    return on_values(wide, lambda values: values / ops.cast(share, values.dtype))


def _cast(gradient: Gradient, dtype: DTypeLike) -> Gradient:
    return on_values(gradient, lambda values: ops.cast(values, dtype))


def _name_of(value: Tensor | IndexedSlices | Variable) -> str:
    return TensorSpec((), value.dtype).dtype.name


__all__ = ["Entry", "StepTracer", "TracedStep", "placeholders"]
