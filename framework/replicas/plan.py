"""`ReplicaPlan`: which variables replicas of a model share, where these are, and what a worker puts in each step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...distribute.strategies.strategy import ParameterServer
from ...engine.graph import Graph, Variable
from ...engine.graph.scopes import device
from ...engine.ops.random.keys import SeedGenerator, global_generator
from ...engine.ops.random.rows import Window, drawing_rows
from ...engine.ops.replicas import replicated
from ...engine.queues.replica_gradients import ReplicaGradients
from ...engine.queues.replica_steps import ReplicaSteps
from ...engine.session.programs import make_program
from ..data.adapters import Batch
from .alike import unnumbered
from .checks import check_synchronized, synchronized_layers
from .cut_steps import totals_of_batch
from .shares import Shares, Totals
from .traced import StepTracer, placeholders

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...engine.graph import Operation, Symbol, Tensor
    from ..structures import Array
    from ..training.base_model import BaseModel
    from .handed_out import SuppliedRows


class ReplicaPlan(StepTracer):
    """The plan by which one model is trained with parameters on ps tasks. All workers make the same plan.

    Args:
        model: a compiled model.
        strategy: with a cluster.
        batch: a worker's part of a batch, of which nothing but shapes and dtypes is used.
        training: the number of the training; None for one whose state on the ps tasks no other training uses.

    Raises:
        ValueError: the model or its training step can't be trained by replicas; the message says why.

    Attributes:
        steps, gradients: the resources on the ps tasks.
        training: the number of the training that is under way, by which ps tasks distinguish those of a model.
        container: of the variables and gradients. Its name depends on what these are, so that it may serve all
            trainings of a model, whichever of them a worker has built its steps for.
        axes, draws_by_row: the axes of random numbers that have rows, and whether workers draw by these.
        begin_states: those that the chief's generators had at the beginning of the epoch.
        in_order: whether gradients are added in the order of workers.
        is_together: whether layers need sums over all workers, so that these compute each step together.
    """

    def __init__(self, model: BaseModel, strategy: ParameterServer, batch: Batch, training: int | None = None) -> None:
        self.strategy = strategy
        check_synchronized(model, strategy)
        self.is_together = bool(synchronized_layers(model))
        self.training = strategy.begin_fit() if training is None else training
        super().__init__(model, strategy, batch)
        with device(strategy.ps[0]):
            self.steps = ReplicaSteps(
                strategy.shares,
                strategy.sync,
                strategy.on_drop == "requeue",
                strategy.max_staleness,
                strategy.min_workers,
                strategy.backup_workers,
                strategy.num_workers,
                self.is_together,
                name="steps",
            )
        # Asynchronously each gradient is a set of its own.
        self.in_order = strategy.deterministic or not strategy.sync
        # Each has a name of its own: clients number equal ones in the order in which they use them, and a worker does
        # not use those of a ps task that has no values.
        self.gradients: list[ReplicaGradients] = []
        for number, task in enumerate(strategy.ps):
            with device(task):
                parts = [entry.part for entry in self.entries if entry.place == number]
                self.gradients.append(ReplicaGradients(parts, f"gradients_{number}", self.in_order))
        first = self.training if training is None else strategy.first_fit(model, training, self.steps.definition())
        self._steps_container = self.container = f"fit {first}: {unnumbered(model.name)}"
        if training is not None:
            self.container += f", {self._digest()}"
        self._stand_in = SeedGenerator(0, global_generator().name)  # for the global generator, in this worker
        self._has_drawn = False  # whether its state was set in this training
        self.axes = self.find_axes(batch)
        self.draws_by_row = bool(self.axes and self.keys)
        self.begin_states: list[list[int]] = []
        self._totals_programs: dict[object, tuple[Callable[..., Sequence[Array]], list[bool]]] = {}

    def begin_again(self) -> None:
        super().begin_again()
        self.begin_states, self._has_drawn = [], False

    def _digest(self) -> str:
        """Return a text that is another one if ps tasks are to hold other variables or gradients."""
        variables = [[self._path_of(v), str(v.spec), self._ps_of[v], v.trainable] for v in self.variables]
        described = repr([variables, [each.definition() for each in self.gradients]])
        return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()

    # --- random numbers ---------------------------------------------------------------------------------------------

    def begin_draws(self, states: Sequence[Sequence[int]] | None = None, batches: int = 0) -> None:
        """Begin an epoch with the states that the chief's generators had when it began.

        Args:
            states: these; None for those that the generators have now.
            batches: how many batches of the epoch were done by then.
        """
        if states is not None:
            self.begin_states = [[int(part) for part in state] for state in states]
        elif self.draws_by_row:
            pairs = zip(self.states(), self.keys, strict=True)
            self.begin_states = [[seed, counter - batches * count] for (seed, counter), count in pairs]
        else:
            self.begin_states = self.states()

    def draw_for(self, epoch: int, share: int, shares: Shares | SuppliedRows) -> None:
        """Have the generators give the keys for a share.

        They are those that one process would take for its batch; or if that can't be known, those of the share, except
        in the chief.
        """
        if self.draws_by_row:
            self.skip_to(share // shares.parts)
        elif not self.strategy.is_chief:
            self.begin_share(epoch, share)

    def begin_drawing(self) -> None:
        """Give this worker's stand-in for the global generator its state, before the first step of a training."""
        if not self._has_drawn:
            self._has_drawn = True
            seed, counter = (int(part) for part in global_generator().state)
            self._stand_in.state = (self.own_seed(seed), counter)

    def skip_to(self, batch: int) -> None:
        """Set the generators behind so many batches of the epoch."""
        if self.draws_by_row:
            pairs = zip(self.begin_states, self.keys, strict=True)
            self.set_states([[seed, counter + batch * count] for (seed, counter), count in pairs])

    # --- where things are -------------------------------------------------------------------------------------------

    def arrange(self) -> None:
        """Give each variable to the ps task that holds the fewest bytes; optimizers' are where the model's are."""
        held = [0] * len(self.strategy.ps)
        found: dict[Variable, int] = {}
        for variable in self.variables:
            near = [found[other] for other in variable.colocations if isinstance(other, Variable) and other in found]
            number = near[0] if near else min(range(len(held)), key=held.__getitem__)
            found[variable] = number
            held[number] += variable.nbytes
        self._ps_of = found
        self._numbers = {variable: number for number, variable in enumerate(self.variables)}

    def place_of(self, variable: Variable) -> int:
        return self._ps_of[variable]

    def places(self, resource: object) -> dict[str, str | list[int]]:
        """Return what tasks need about state; see `Client.places`."""
        if isinstance(resource, Variable) and resource in self._numbers:
            path, place = self._path_of(resource), self.strategy.ps[self._ps_of[resource]]
            return {"container": self.container, "path": path, "device": place}
        if isinstance(resource, SeedGenerator):  # each worker draws numbers of its own
            own = self.strategy.workers[self.strategy.task_index]
            # Its name stands in programs, which all tasks print alike, so that it is the container that differs.
            container, held = self.container, self._stand_in
            if resource in self._generators:  # else the global one, of which the order of rows is drawn, too
                container, held = f"{self.container}: generator {self._generators[resource][0]}", resource
            self.strategy.hold(container, resource.name, held)
            return {"container": container, "path": resource.name, "device": own}
        return {"container": self._steps_container if resource is self.steps else self.container}

    def _path_of(self, variable: Variable) -> str:
        return f"{self._numbers[variable]}: {unnumbered(variable.path)}"

    def variables_at(self, place: int) -> list[Variable]:
        """Return the variables that the ps task of a number has."""
        return [variable for variable in self.variables if self._ps_of[variable] == place]

    # --- steps ------------------------------------------------------------------------------------------------------

    def totals_of(self, whole: Batch) -> Totals:
        """Compute what losses are divided by, of the rows of a global batch.

        Args:
            whole: the batch.

        Returns:
            The totals in the order of the step; None for one that depends on random numbers, or on variables, which ps
            tasks have.
        """
        if not self.totals:
            return []
        key = whole.layout.key, tuple((leaf.shape, leaf.dtype) for leaf in whole.leaves)
        if key not in self._totals_programs:
            with Graph().as_default() as graph:
                feeds = placeholders(whole)
                totals = totals_of_batch(self, whole.layout, feeds, reads=False)
            known: list[Any] = [total for total in totals if total is not None]
            self._totals_programs[key] = make_program(graph, known, feeds), [total is not None for total in totals]
        program, is_known = self._totals_programs[key]
        found = iter(program(*whole.leaves))
        return [np.asarray(next(found)) if each else None for each in is_known]

    def trace_puts(
        self,
        batch: Batch,
        ticket: Symbol,
        part: Symbol,
        window: Window,
        feeds: list[Tensor],
        totals: Sequence[Tensor | None],
    ) -> list[Operation]:
        """Build a step of a worker in the current graph; return the operations that put its values.

        Args:
            batch: of which nothing but the layout is used.
            ticket: its number.
            part: of the rows of a global batch.
            window: which these are.
            feeds: placeholders of the rows.
            totals: what losses are divided by; see `totals_of`.

        Raises:
            ValueError: it puts other values than the plan says.
        """
        add = partial(self.steps.sum, ticket) if self.is_together else None
        with drawing_rows(self.axes if self.draws_by_row else [], window), replicated(part, totals, add):
            entries = self.traced_entries(batch.layout, feeds, part)
        puts: list[Operation] = []
        for number, gradients in enumerate(self.gradients):
            values = [tensor for entry, tensors in entries if entry.place == number for tensor in tensors]
            if values:
                puts.append(gradients.put(ticket, values))
        return puts


__all__ = ["ReplicaPlan"]
