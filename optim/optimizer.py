"""`Optimizer`, the base of all optimizers: from gradients to assignments in the graph."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Unpack

import numpy as np

from ..engine import ops
from ..engine.autodiff import gradients
from ..engine.common.dtypes import DTypeLike
from ..engine.common.keywords import ChecksKeywords
from ..engine.graph import (
    IndexedSlices,
    Operation,
    ShardedVariable,
    Symbol,
    Tensor,
    Variable,
    VariableRows,
    colocate_with,
    flatten,
    graph_for,
    in_explicit_graph,
    in_stateless_scope,
)
from ..engine.graph.context import without_tapes
from ..engine.graph.provenance import building_part
from ..engine.graph.spec import shape_text, shapes_compatible
from ..engine.graph.state.sharded import expanded
from ..engine.graph.tracebacks import short_tracebacks
from ..engine.objects import initializers
from ..engine.objects.arguments import check_numbers, check_optional_numbers
from ..engine.objects.names import name_for
from ..engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ..engine.queues.writing import writing_together
from ..engine.session import Function
from .clipping import Clipping, Gradient, as_arrays, on_values, rows_once
from .options import OptimizerOptions, check_option_names
from .replicas import share_of_loss, who_takes
from .saved_state import SavedState
from .schedules import LearningRateSchedule
from .stateless import StatelessSteps, step_where
from .updates import Updates, constrain, of_shards

LearningRate = float | LearningRateSchedule | Callable[[], Any]

_replaced_rates = 0


def replaced_rates() -> int:
    """Return how often optimizers of this process got other schedules, which steps that were built do not have."""
    return _replaced_rates


class Optimizer(ChecksKeywords, SavedState, StatelessSteps, Updates):
    """An optimizer: it turns gradients into assignments. Subclasses define `build` and `update_step`.

    Args:
        learning_rate: a number, a schedule, or a function without arguments that gives a number or a tensor.
        weight_decay: in each step, variables shrink by this share times the learning rate.
        clipnorm: clip each gradient to this norm.
        clipvalue: clip each element of each gradient to this size.
        global_clipnorm: clip all gradients together to this norm.
        use_ema: keep moving averages of the variables, which `finalize_variable_values` puts in their places.
        ema_momentum: of these averages.
        ema_overwrite_frequency: put them in place after every this many steps, too.
        loss_scale_factor: gradients are divided by it; `scale_loss` multiplies a loss by it.
        gradient_accumulation_steps: add gradients up over this many steps, and then make one step with their mean.
        name: for its variables; by default from the class.

    In a graph that is being built (or given tensors), `apply` adds the assignments to it; given arrays it acts at
    once. An optimizer of your own:

    >>> import anabranch as ab
    >>> class SignDescent(ab.optim.Optimizer):
    ...     def update_step(self, gradient, variable, learning_rate):
    ...         variable.assign(variable - learning_rate * ab.ops.sign(gradient))
    >>> w = ab.Variable([1.0, 2.0])
    >>> SignDescent(learning_rate=0.5).apply([[3.0, -4.0]], [w])
    >>> w.numpy()
    array([0.5, 2.5], dtype=float32)

    Where ``updates_wholes`` is true, an element's update depends on the whole variable, as by a norm: of variables in
    shards (`ShardedVariable`) `update_step` gets the whole, joined, or `update_whole` the shards together. Otherwise
    each shard is updated by itself.

    Where ``updates_rows`` is true, `update_step` may be called with some rows of a table: `variable` is a
    `VariableRows` then, and `slot_for` gives the same rows of the optimizer's variables. Otherwise, and with weight
    decay or accumulated gradients, the gradients of tables are made dense.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ()  # attributes that get_config writes as constructor arguments
    # Whether `update_step` leaves alone what has a gradient of zero, the optimizer's own variables included. Then of a
    # table of which a step uses some rows (its gradient is an `IndexedSlices`) nothing but these rows is touched.
    updates_rows: bool = False
    updates_wholes: bool = False
    steps_by_gradients: ClassVar[bool] = True  # or by computing the loss at several points, as `LBFGS` does

    def __init__(self, learning_rate: LearningRate = 0.001, **options: Unpack[OptimizerOptions]) -> None:
        check_option_names(type(self), options, ())
        Updates.__init__(self)
        self.name: str = options.get("name") or name_for(self)
        self.weight_decay = options.get("weight_decay")
        self.clipping = Clipping(options.get("clipnorm"), options.get("clipvalue"), options.get("global_clipnorm"))
        self.use_ema = bool(options.get("use_ema", False))
        self.ema_momentum = options.get("ema_momentum", 0.99)
        self.ema_overwrite_frequency = options.get("ema_overwrite_frequency")
        self.loss_scale_factor = options.get("loss_scale_factor")
        self.gradient_accumulation_steps = options.get("gradient_accumulation_steps")
        self._check_options()
        self.built = False
        self._variables: list[Variable] = []
        self._trainable_variables: list[Variable] = []
        self._indices: dict[Variable, int] = {}
        self._averages: list[Variable] = []
        self._accumulated: list[Variable] = []
        self._not_decayed: tuple[frozenset[Variable], str] = frozenset(), ""
        self._iterations = self.add_variable((), dtype="int32", name="iteration")
        self._learning_rate: Any = self._as_learning_rate(learning_rate)
        self._compiled: dict[str, Function] = {}
        self._shards: dict[Any, dict[int, Variable]] = {}  # by whole and slot, those made for its shards

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle keeps: all but the compiled steps, which are made again."""
        return {**self.__dict__, "_compiled": {}}

    def _check_options(self) -> None:
        owner = type(self).__name__
        check_numbers(owner, ema_momentum=self.ema_momentum)
        options = ("weight_decay", "loss_scale_factor", "gradient_accumulation_steps")
        check_optional_numbers(owner, **{name: getattr(self, name) for name in options})
        steps, frequency = self.gradient_accumulation_steps, self.ema_overwrite_frequency
        if steps is not None and steps < 2:
            raise ValueError(f"gradient_accumulation_steps must be at least 2, or None; got {steps}.")
        if not 0 <= self.ema_momentum <= 1:
            raise ValueError(f"ema_momentum must be in [0, 1]; got {self.ema_momentum}.")
        if frequency is not None and (not isinstance(frequency, int) or frequency < 1):
            raise ValueError(f"ema_overwrite_frequency must be a positive integer, or None; got {frequency!r}.")

    # --- to be defined ----------------------------------------------------------------------------------------------

    def build(self, variables: Sequence[Variable]) -> None:
        """Make the optimizer's own variables for `variables`. Subclasses call this first, then make theirs."""
        variables = expanded(variables)
        if self.built:
            self._check_known(variables)
            return
        for position, variable in enumerate(variables):
            if variable in self._indices:
                raise ValueError(f"{self.name}: variable {path_of(variable)!r} was given twice.")
            self._indices[variable] = position
        self._trainable_variables = list(variables)
        if self.use_ema:
            self._averages = self.add_optimizer_variables(variables, "average")
        if self.gradient_accumulation_steps:
            self._accumulated = self.add_optimizer_variables(variables, "gradient_accumulator")
        self.built = True

    def begin_step(self, learning_rate: Tensor) -> Any:
        """Compute once what all variables share in a step: `update_step` gets it as its third argument."""
        return learning_rate

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        """Assign to `variable`, and to the optimizer's variables for it.

        Args:
            gradient: of the variable's shape.
            variable: a `Variable`, or with `updates_rows` maybe a `VariableRows`, with `updates_wholes` maybe a
                `ShardedVariable`, which is read and assigned like a variable.
            learning_rate: what `begin_step` returned.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update_step(gradient, variable, learning_rate).")

    @property
    def makers(self) -> list[Optimizer]:
        """The optimizers that make the updates: itself, or those that it is around."""
        return [self]

    # --- its variables ----------------------------------------------------------------------------------------------

    def add_variable(
        self, shape: Any, initializer: Any = "zeros", dtype: DTypeLike = None, name: str | None = None
    ) -> Variable:
        """Return a variable of the optimizer."""
        value = initializers.first_value(initializer, tuple(shape), dtype or "float32")
        variable = Variable(value, dtype=dtype or "float32", trainable=False, name=f"{self.name}/{name or 'variable'}")
        self._variables.append(variable)
        return variable

    def add_variable_from_reference(
        self, reference_variable: Variable, name: str | None = None, initializer: Any = "zeros"
    ) -> Variable:
        """Return a variable of the optimizer with the shape and dtype of a model's variable."""
        full_name = f"{path_of(reference_variable).replace('/', '_')}_{name or 'variable'}"
        shape = reference_variable.shape
        if shape is None or None in shape:
            shape = reference_variable.numpy().shape
        with colocate_with(reference_variable):
            made = self.add_variable(shape, initializer, reference_variable.dtype, full_name)
        if reference_variable.whole is not None:
            self._add_shard(made, reference_variable, name or "variable")
        return made

    def _add_shard(self, made: Variable, reference: Variable, name: str) -> None:
        """Take note of a variable for a shard; those for all shards are a whole, too."""
        whole = reference.whole
        shards = self._shards.setdefault((id(whole), name), {})
        shards[next(number for number, shard in enumerate(whole.shards) if shard is reference)] = made
        if len(shards) == len(whole.shards):
            path = f"{self.name}/{whole.path.replace('/', '_')}_{name}"
            ShardedVariable.of([shards[number] for number in sorted(shards)], whole.layout, path, path)

    def add_optimizer_variables(
        self, trainable_variables: Sequence[Variable], name: Any, initializer: Any = "zeros"
    ) -> Any:
        """Return a variable of the optimizer for each model variable, as a list; for several names, a list for each."""
        self._note(self._in_attributes())
        if isinstance(name, str):
            return [self.add_variable_from_reference(each, name, initializer) for each in trainable_variables]
        firsts = initializer if isinstance(initializer, (list, tuple)) else [initializer] * len(name)
        rows = [
            [self.add_variable_from_reference(each, *pair) for pair in zip(name, firsts, strict=True)]
            for each in trainable_variables
        ]
        return tuple([row[column] for row in rows] for column in range(len(name)))

    def _get_variable_index(self, variable: Variable) -> int:
        """Return the position of a model's variable in the lists that `add_optimizer_variables` made."""
        return self._indices[variable]

    def slot_for(self, variable: Any, slots: Sequence[Variable]) -> Any:
        """Return the optimizer's variable for a model's variable, out of a list that `add_optimizer_variables` made.

        For some rows of a variable it is the same rows, for a variable in shards the whole of those of the shards.
        """
        if isinstance(variable, ShardedVariable):
            return slots[self._indices[variable.shards[0]]].whole
        if isinstance(variable, VariableRows):
            return variable.rows_of(slots[self._indices[variable.variable]])
        return slots[self._indices[variable]]

    @property
    def variables(self) -> list[Variable]:  # pyrefly: ignore[bad-override] - parts of this class only read it
        """Its state, in the order in which it is saved: iteration, learning rate (unless scheduled), slots."""
        return self._own_variables()

    @property
    def iterations(self) -> Any:
        """The number of steps made; accumulated gradients make one step together."""
        if not self.gradient_accumulation_steps:
            return self._iterations
        if in_explicit_graph():
            return ops.floor_divide(self._iterations, self.gradient_accumulation_steps)
        return self._iterations.numpy() // np.int32(self.gradient_accumulation_steps)

    # --- the learning rate ------------------------------------------------------------------------------------------

    def _as_learning_rate(self, learning_rate: Any) -> Any:
        if isinstance(learning_rate, LearningRateSchedule) or callable(learning_rate):
            return learning_rate
        if isinstance(learning_rate, (int, float, np.number)):
            if not learning_rate >= 0:
                raise ValueError(
                    f"{type(self).__name__}(learning_rate={learning_rate}): expected 0 or more. Steps of a negative "
                    "rate make the loss larger; if that is wanted, negate the loss."
                )
            return self.add_variable((), initializers.Constant(float(learning_rate)), name="learning_rate")
        got = f"got {learning_rate!r} of type {type(learning_rate).__name__}."
        if isinstance(learning_rate, Iterable) and not isinstance(learning_rate, str):
            got += (
                f" Variables are given to each step: {type(self).__name__}(learning_rate=0.001), then "
                "apply(gradients, variables) or minimize(loss, variables)."
            )
        raise ValueError(
            f"learning_rate must be a number, a LearningRateSchedule or a function without arguments; {got}"
        )

    @property
    def learning_rate(self) -> Any:
        """The variable that holds it, or the current value of the schedule."""
        if isinstance(self._learning_rate, Variable) or in_explicit_graph():
            return self._current_learning_rate()
        return self._at_once("learning_rate", self._current_learning_rate)()

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value):
            global _replaced_rates
            _replaced_rates += 1
            self._compiled.pop("learning_rate", None)
            self._compiled.pop("apply", None)
            self._forget(self._learning_rate)
            self._learning_rate = value
            return
        if not isinstance(self._learning_rate, Variable):
            raise TypeError(
                f"The learning rate of {self.name} comes from {self._learning_rate!r}, so that it can't be set to "
                f"{value!r}. Make the optimizer with a number as learning_rate to set it later."
            )
        self._learning_rate.assign(value)

    def _current_learning_rate(self) -> Any:
        if isinstance(self._learning_rate, LearningRateSchedule):
            return self._learning_rate(self._iterations)
        return self._learning_rate if isinstance(self._learning_rate, Variable) else self._learning_rate()

    # --- a step -----------------------------------------------------------------------------------------------------

    def minimize(self, loss: Any, var_list: Sequence[Any], tape: Any = None) -> Any:
        """Make a step that reduces `loss`.

        Args:
            loss: a scalar tensor, to whose graph the step is added; or a function without arguments that gives one,
                of which a step is made at once unless a graph is being built.
            var_list: the variables to change.
            tape: the `GradientTape` under which `loss` was computed, if gradients are to stop where it says so.

        Returns:
            In a graph, the operation to run; None where it acted at once.

        >>> import anabranch as ab
        >>> with ab.Graph().as_default():
        ...     w = ab.Variable(4.0)
        ...     step = ab.optim.SGD(learning_rate=0.25).minimize(w * w, [w])
        ...     ab.Session().run(step)
        >>> float(w)
        2.0
        """
        if callable(loss) and not isinstance(loss, Tensor):
            if in_explicit_graph():
                return self.minimize(loss(), var_list, tape)
            name = ("minimize", loss, *var_list)
            return self._at_once(name, lambda: self.minimize(loss(), var_list))()
        scaled = self.scale_loss(loss)
        if tape is None:
            return self.apply(gradients(scaled, list(var_list)), var_list)
        return self.apply(tape.gradient(scaled, list(var_list)), var_list)

    def scale_loss(self, loss: Any) -> Any:
        """Return `loss` times `loss_scale_factor`, if there is one."""
        return loss if self.loss_scale_factor is None else share_of_loss(self, loss) * self.loss_scale_factor

    @short_tracebacks
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> Any:
        """Apply gradients as `apply`, but with gradients and variables in pairs."""
        pairs = list(grads_and_vars)
        return self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])

    @short_tracebacks
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Make a step.

        Args:
            grads: a gradient for each variable, tensors, arrays or `IndexedSlices` of these; None for those on which
                the loss does not depend.
            trainable_variables: the variables; by default those that the optimizer was built for. For a
                `ShardedVariable` the gradient is that of the whole, or a list of those of its shards.

        Returns:
            In a graph, the operation that runs when all assignments have; None where it acted at once.

        Raises:
            ValueError: there are no gradients, or all are None; their number or shapes do not fit; a variable is not
                known.
        """
        given, wanted = list(grads), None if trainable_variables is None else list(trainable_variables)
        if not given:
            raise ValueError(
                "No gradients: the list of gradients is empty. (Were the variables listed before the model had any? "
                "It has them after build() or its first call.)"
            )
        if wanted is not None and any(isinstance(variable, ShardedVariable) for variable in wanted):
            given, wanted = of_shards(given, wanted)
        variables = self._targets(given, wanted)
        if in_explicit_graph() or any(isinstance(part, Symbol) for part in flatten(given)):
            graph_for([part for part in flatten(given) if isinstance(part, Symbol)]).root.optimizers[self] = None
            take = who_takes()
            return self._add_step(given, variables) if take is None else take(self, given, variables)
        arrays = [None if gradient is None else as_arrays(gradient) for gradient in given]
        if not any(array is not None for array in arrays):
            raise ValueError(NO_GRADIENTS)
        if in_stateless_scope():
            return self._apply_in_scope(given, variables)
        with without_tapes():  # what is assigned has no gradient
            return self._at_once("apply", self._add_step)(arrays, variables)

    def _apply_in_scope(self, given: list[Any], variables: list[Variable]) -> None:
        """Make a step on the values that the variables have in the blocks of `StatelessScope` around."""
        if [id(variable) for variable in variables] != [id(variable) for variable in self._trainable_variables]:
            found = {id(variable): gradient for variable, gradient in zip(variables, given, strict=True)}
            variables, given = self._trainable_variables, [found.get(id(v)) for v in self._trainable_variables]
        state = [variable.value for variable in self.variables]
        after, state = self.stateless_apply(state, given, [variable.value for variable in variables])
        for variable, value in zip([*variables, *self.variables], [*after, *state], strict=True):
            variable.assign(value)

    def _at_once(self, name: Any, python_function: Callable[..., Any]) -> Function:
        if name not in self._compiled:
            self._compiled[name] = Function(python_function)
        return self._compiled[name]

    def _targets(self, given: list[Any], variables: list[Variable] | None) -> list[Variable]:
        if variables is None and not self.built:
            raise ValueError(f"{self.name} was not built: give apply() the variables, or call build(variables) first.")
        if variables is None:
            variables = self._trainable_variables
        if len(given) != len(variables):
            raise ValueError(f"{self.name}: {len(given)} gradients were given for {len(variables)} variables.")
        if len(set(variables)) != len(variables):
            twice = next(v for place, v in enumerate(variables) if v in set(variables[:place]))
            raise ValueError(f"{self.name}: variable {path_of(twice)!r} was given twice.")
        if self.built:
            self._check_known(variables)
        else:
            self.build(variables)
        return variables

    def _check_known(self, variables: Sequence[Variable]) -> None:
        unknown = [path_of(variable) for variable in variables if variable not in self._indices]
        if unknown:
            raise ValueError(
                f"{self.name} has no state for the variables {unknown}: it was built for "
                f"{[path_of(variable) for variable in self._trainable_variables]}. If layers were made trainable, call "
                "model.compile() again with a new optimizer, or build one for all variables: optimizer.build(...)."
            )

    def _add_step(self, given: list[Any], variables: list[Variable]) -> Operation:
        graph = graph_for([part for part in flatten(given) if isinstance(part, Symbol)])
        first = len(graph.operations)
        with graph.entered(), graph.name_scope(self.name), building_part("optimizer"):
            pairs = [self._checked(g, v) for g, v in zip(given, variables, strict=True) if g is not None]
            self._report_missing([v for g, v in zip(given, variables, strict=True) if g is None], len(pairs))
            found, known = [g for g, _ in pairs], [v for _, v in pairs]
            if self.loss_scale_factor is not None:
                found = [on_values(gradient, self._unscaled) for gradient in found]
            make = self._accumulate_or_update if self.gradient_accumulation_steps else self._update
            is_made = make(found, known)
            self._update_averages(is_made)
            for variable in () if self._is_guarded else known:
                constrain(variable)
            writes = [operation for operation in graph.operations[first:] if operation.writes]
            undone = 1 - (self.gradient_accumulation_steps or 1)
            with graph.control_dependencies(writes):
                count = 1 if is_made is None else ops.where(is_made, 1, undone)
                return self._iterations.assign_add(count).operation

    def _checked(self, gradient: Any, variable: Variable) -> tuple[Gradient, Variable]:
        by_rows = isinstance(gradient, IndexedSlices)
        checked = rows_once(gradient, variable) if by_rows else ops.convert_to_tensor(gradient, variable.dtype)
        if not shapes_compatible(checked.shape, variable.shape):
            raise ValueError(
                f"{self.name}: the gradient for variable {path_of(variable)!r} has shape {shape_text(checked.shape)}, "
                f"the variable {shape_text(variable.shape)}."
            )
        return checked, variable

    def _unscaled(self, gradient: Tensor) -> Tensor:
        return gradient / self.loss_scale_factor

    def _report_missing(self, missing: list[Variable], present: int) -> None:
        if not present:
            raise ValueError(NO_GRADIENTS)
        if missing:
            warnings.warn(
                f"Gradients do not exist for the variables {[path_of(variable) for variable in missing]}, which are "
                "left as they are: the loss does not depend on them.",
                stacklevel=4,
            )

    def _accumulate_or_update(self, found: Sequence[Gradient], variables: list[Variable]) -> Tensor | None:
        """Update as `_update` does, or only add gradients up; nothing is left out of the sums."""
        steps = self.gradient_accumulation_steps
        assert steps is not None
        sums = [self._accumulated[self._indices[variable]] for variable in variables]

        def update() -> Tensor | None:
            means = [(total + gradient) / steps for total, gradient in zip(sums, found, strict=True)]
            is_made = self._update(means, variables)
            for total in self._accumulated:
                total.assign(ops.zeros(total.shape, total.dtype))
            return is_made

        def accumulate() -> Any:
            for total, gradient in zip(sums, found, strict=True):
                if isinstance(gradient, IndexedSlices):
                    VariableRows(total, gradient.indices).assign_add(gradient.values)
                else:
                    total.assign(total + gradient)
            return None if self._least_norm is None else True

        is_made = step_where(ops.equal((self._iterations + 1) % steps, 0), update, accumulate)
        return None if self._least_norm is None else is_made

    # --- weight decay and moving averages ---------------------------------------------------------------------------

    def exclude_from_weight_decay(
        self, var_list: Iterable[Variable] | None = None, var_names: Iterable[str] | None = None
    ) -> None:
        """Choose variables that `weight_decay` leaves alone.

        Args:
            var_list: the variables.
            var_names: patterns; variables in whose names one is found.

        Raises:
            ValueError: the optimizer was built already.
        """
        if self.built:
            raise ValueError(f"{self.name} was built already: call exclude_from_weight_decay() before the first step.")
        self._not_decayed = frozenset(expanded(list(var_list or ()))), "|".join(var_names or ())

    def _is_decayed(self, variable: Variable) -> bool:
        return bool(self.weight_decay) and not self._is_excluded(variable)

    def _is_excluded(self, variable: Variable) -> bool:
        listed, pattern = self._not_decayed
        return variable in listed or (bool(pattern) and re.search(pattern, variable.name) is not None)

    def _decay(self, variables: Sequence[Variable], learning_rate: Tensor) -> None:
        if not self.weight_decay:
            return
        kept = 1.0 - self.weight_decay * learning_rate
        for variable in variables:
            if self._is_decayed(variable):
                variable.assign(variable * kept)

    def _update_averages(self, is_made: Tensor | None) -> None:
        if self.use_ema and is_made is not None:
            step_where(is_made, self._take_averages)
        elif self.use_ema:
            self._take_averages()

    def _take_averages(self) -> None:
        not_first = ops.cast(ops.not_equal(self.iterations, 0), self.shared_dtype)  # the first step is copied
        momentum = not_first * self.ema_momentum
        for variable, average in zip(self._trainable_variables, self._averages, strict=True):
            average.assign(momentum * average + (1.0 - momentum) * variable)
        if self.ema_overwrite_frequency:
            due = ops.equal((self.iterations + 1) % self.ema_overwrite_frequency, 0)
            step_where(due, self._assign_averages)

    def _assign_averages(self) -> None:
        for variable, average in zip(self._trainable_variables, self._averages, strict=True):
            variable.assign(average)

    def finalize_variable_values(self, var_list: Iterable[Variable] | None = None) -> None:
        """Put the moving averages in the places of the variables, if `use_ema`; at the end of training."""
        if not self.use_ema:
            return
        variables = self._trainable_variables if var_list is None else expanded(list(var_list))
        averages = [self._averages[self._indices[variable]].numpy() for variable in variables]
        with writing_together(variables):
            for variable, average in zip(variables, averages, strict=True):
                variable.assign(average)

    # --- saving -----------------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        rate = self._learning_rate
        own = {name: getattr(self, name) for name in self.hyperparameters}
        return {
            "name": self.name,
            "learning_rate": float(rate.numpy()) if isinstance(rate, Variable) else serialize_keras_object(rate),
            "weight_decay": self.weight_decay,
            "clipnorm": self.clipping.clipnorm,
            "global_clipnorm": self.clipping.global_clipnorm,
            "clipvalue": self.clipping.clipvalue,
            "use_ema": self.use_ema,
            "ema_momentum": self.ema_momentum,
            "ema_overwrite_frequency": self.ema_overwrite_frequency,
            "loss_scale_factor": self.loss_scale_factor,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            **own,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        config = dict(config)
        if isinstance(config.get("learning_rate"), dict):
            config["learning_rate"] = deserialize_keras_object(config["learning_rate"], custom_objects)
        return cls(**config)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"


NO_GRADIENTS = (
    "No gradients: each of them is None, so the loss does not depend on any of the variables. "
    "(Did stop_gradient, an integer op or argmax cut the way? Was the loss computed from the model's output?)"
)


def path_of(variable: Variable) -> str:
    """Return the name by which a variable is known among all: weights of layers have a path."""
    return getattr(variable, "path", variable.name)
