"""`BaseModel`: a layer with what a step of training, testing or predicting computes, as methods to override.

Each method is called with tensors while a step is built, once for each kind of batch; after that the compiled step runs
without Python. Under `run_eagerly` it is called with values, once for each batch. What a step returns for the logs is
fetched only where a subclass has a say in it: otherwise the running averages are read from the metrics' variables when
somebody looks at them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ...distribute.strategies.strategy import Strategy, strategy_around
from ...engine import ops
from ...engine.autodiff import gradients
from ...engine.autodiff.tape import Tape
from ...engine.graph import Tensor, Variable, flatten, in_explicit_graph, pack_as
from ...engine.graph.provenance import building_part, user_stacklevel
from ...engine.graph.tensor import NoValueError
from ...engine.objects.tracking import held_by_attributes
from ...engine.ops.data_format import image_data_format
from ...engine.place.devices import devices_version
from ...engine.session.eager_functions import functions_run_eagerly
from ...engine.summaries.scopes import using_step
from ...layers.core.layer import Layer
from ..data.adapters import X_ONLY, Batch, Layout, unpack_x_y_sample_weight
from ..metrics.base import Metric
from .contract import check_numbers, check_probabilities
from .kept_steps import KeptSteps
from .objectives import CompiledLoss, CompiledMetrics, object_name, row_count, sum_of
from .steps import Program, StepPrograms, compile_step

if TYPE_CHECKING:
    from ...engine.session.targets import Remote
    from ..metrics.api import Mean
    from ..model_types import Losses
    from ..models.layer_graph import LayerGraph
    from ..structures import Array, Tensors
    from .base_callback import BaseHistory

Logs = dict[str, Any]
_FOR_PYTORCH = (
    "This step is written for Keras on PyTorch. Here gradients are tensors of the graph: "
    "gradients = ab.gradients(loss, self.trainable_weights), or with ab.GradientTape; then "
    "self.optimizer.apply(gradients, self.trainable_weights)."
)
_FOR_VALUES = "With model.compile(..., run_eagerly=True) Python computes each step on values; that is slower."
_OF_COMPILE = frozenset({"_loss_tracker", "_compiled_loss", "_compiled_metrics", "_latest", "_found_metrics"})


class CutSteps(Protocol):
    """The builder of steps of a model on several devices, which get parts of the batches."""

    @property
    def remote(self) -> Remote | None: ...

    def build(self, mode: str, layout: Layout, tensors: list[Tensor]) -> list[Tensor]: ...


class BaseModel(Layer):
    """A layer with the methods out of which steps are built. `PassMethods` and `Trainer` add those that run them.

    Modules below `Model` take models as this type.
    """

    history: BaseHistory | None = None
    _known_graph: LayerGraph | None = None
    _seen_dtypes: Mapping[str, Any] | None = None  # of the first call, beside `_build_shapes`
    _exports_what_was_seen: ClassVar[bool] = True  # the first call has the sizes of inputs, but for that of the batch

    @property
    def _layer_graph(self) -> LayerGraph | None:
        """The layer calls between symbolic inputs and outputs; None where the model is Python code only."""
        return self._known_graph

    def _init_steps(self) -> None:
        self.optimizer: Any = None
        self.loss: Any = None
        self._given_loss: Losses = None  # the last argument of `compile`; `loss` may be a subclass's own
        self.distribute_strategy: Strategy | None = None
        self._made_under = strategy_around()
        self.compiled = False
        self.stop_training = self.stop_evaluating = self.stop_predicting = False
        self.steps_per_execution = 1
        self.run_eagerly = False
        self.jit_compile: bool | str = "auto"
        self._checked_batch = False
        self._compile_arguments: dict[str, Any] | None = None
        self._compiled_loss: CompiledLoss | None = None
        self._compiled_metrics: CompiledMetrics | None = None
        self._loss_tracker: Mean
        self._is_building_step = False
        self._trained_variables: list[Variable] = []
        self._trained_states: set[tuple[object, ...]] = set()  # for which training steps were built
        self._read_logs_program: tuple[Program, list[Metric], Logs, tuple[int, str]] | None = None
        self._steps_on_cluster: object = None  # what makes the steps of `train_on_batch` with other workers
        self._kept_steps = KeptSteps()  # those of `fit` with other workers
        self._splits: dict[tuple[str, str], bool] = {}  # by kind of step and layout: whether workers may share a pass
        modes = ("train", "test", "predict")
        self._steps = {
            mode: StepPrograms(partial(self._build_step, mode), self._remote, self._is_eager) for mode in modes
        }
        self._cut_steps: CutSteps | None = None  # what builds the steps of a model on several devices of this process
        self._output_structure: dict[str, Any] = {}
        self._log_names: dict[tuple[str, str], list[str]] = {}  # by kind of step and layout: what the step returns
        self._latest: dict[str, tuple[str, tuple[Array, ...]]] = {}  # by kind of step: layout and values of the latest
        self._found_metrics: tuple[list[Metric], dict[int, str]] | None = None  # so that single steps are quick

    def _prepare(self, what: str) -> None:
        """Check that the model is compiled; drop training steps that were built for other trainable layers."""
        if not self.compiled:
            raise ValueError(f"Model {self.name!r} must be compiled before {what}(): call model.compile(...) first.")
        if in_explicit_graph():
            raise RuntimeError(
                f"{what}() runs at once, but a graph is being built here, in which assignments would only be noted. "
                "Call it outside of the `with graph.as_default():` or `with Session():` block."
            )
        if not what.endswith("_on_batch"):  # single steps must be quick; after a change of `trainable`, compile again
            self._found_metrics = None
            self._trained_variables = self.trainable_variables
            if self._trained_states - {self._trained_state()}:
                self._steps["train"].clear()
                self._trained_states.clear()
                self._steps_on_cluster = None
                self._kept_steps.clear()

    def _check_batch(self, batch: Batch) -> None:
        self._checked_batch = True
        check_numbers(batch)
        given = self._given_loss
        if given is not None and not isinstance(given, (dict, list, tuple)):
            check_probabilities(batch, given if isinstance(given, str) else object_name(given))

    def _is_eager(self) -> bool:
        """Test whether Python computes each step on values, as `run_eagerly` asks for, or a switch for all models."""
        return (self.run_eagerly or functions_run_eagerly()) and self._cut_steps is None

    def _forget_programs(self) -> None:
        for steps in self._steps.values():
            steps.clear()
        self._output_structure.clear()
        self._log_names.clear()
        self._latest.clear()
        self._found_metrics = None
        self._read_logs_program = None
        self._splits.clear()
        self._trained_states.clear()
        self._steps_on_cluster = None
        self._kept_steps.clear()

    # --- what a subclass may override -----------------------------------------------------------------------

    def train_step(self, data: Any) -> Logs:
        """Make one step of training, on tensors. Override it to train in a way of your own.

        It is called once for each kind of batch, to build the step that `fit` and `train_on_batch` run: whatever it
        computes, assigns and updates is part of that step. Python's `print` and counters act once only. With
        ``compile(run_eagerly=True)`` it is called for each batch, on values.

        Args:
            data: what the batch holds: x, ``(x, y)`` or ``(x, y, sample_weight)``, of tensors.

        Returns:
            A dict of the values to log, mostly results of metrics.

        >>> import anabranch as ab
        >>> class Halving(ab.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = ab.layers.Dense(1)
        ...     def call(self, x):
        ...         return self.dense(x)
        ...     def train_step(self, data):
        ...         x, y = data
        ...         with ab.GradientTape() as tape:
        ...             loss = ab.ops.mean((y - self(x, training=True)) ** 2)
        ...         self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        ...         return {"loss": loss, "half": loss / 2}
        >>> model = Halving()
        >>> model.compile("sgd")
        >>> sorted(model.fit([[1.0], [2.0]], [[1.0], [3.0]], verbose=0).history)
        ['half', 'loss']
        """
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        with nullcontext() if in_explicit_graph() else Tape().watching(()):
            y_pred = self(x, training=True)
            loss = self._loss_of(x, y, y_pred, sample_weight, True)
            if loss is None:
                raise ValueError(
                    f"Model {self.name!r} has no loss to minimise: pass loss=... to compile(), or add one in a layer "
                    "with add_loss()."
                )
            self._loss_tracker.update_state(loss, sample_weight=row_count(x))
            variables = self.trainable_variables
            found = gradients(self.optimizer.scale_loss(loss), variables) if variables else []
        if variables:
            self.optimizer.apply(found, variables)
        else:
            what = f"Model {self.name!r} has no trainable variables: fit() changes nothing."
            warnings.warn(what, stacklevel=user_stacklevel())
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def test_step(self, data: Any) -> Logs:
        """Make one step of `evaluate` and `test_on_batch`; see `train_step`."""
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = self._loss_of(x, y, y_pred, sample_weight, False)
        if loss is not None:
            self._loss_tracker.update_state(loss, sample_weight=row_count(x))
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def predict_step(self, data: Any) -> Any:
        """Make one step of `predict` and `predict_on_batch`; return the outputs, a tensor or a structure of them."""
        x, _, _ = unpack_x_y_sample_weight(data)
        return self(x, training=False)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of a batch, a scalar tensor: the compiled losses, and what layers and regularizers add.

        Override it to train on something else; it is called once for each kind of batch, to build the step.

        Args:
            x, y, y_pred, sample_weight: inputs, targets, predictions and weights of the batch.
            training: whether the step is one of training.

        Returns:
            The loss; None where there is nothing to add up.
        """
        terms: list[Tensor] = []
        if self._compiled_loss is not None:
            value = self._compiled_loss(y, y_pred, sample_weight, rows=row_count(y_pred if x is None else x))
            terms += [] if value is None else [value]
        terms += [loss if getattr(loss, "shape", None) == () else ops.sum(loss) for loss in self.losses]
        return sum_of(terms)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Logs:
        """Let the compiled metrics take in a batch. Override it to update or add others.

        Returns:
            The results of all metrics by name, which is what the step logs.
        """
        if self._compiled_metrics is not None:
            self._compiled_metrics.update_state(y, y_pred, sample_weight)
        return self.get_metrics_result()

    def compiled_loss(
        self,
        y_true: Tensors,
        y_pred: Tensors,
        sample_weight: Tensors | None = None,
        regularization_losses: object = None,
    ) -> Any:
        """Return the loss, and take it into its average: for steps written for Keras 2. New ones call `compute_loss`.

        Args:
            y_true, y_pred, sample_weight: targets, predictions and weights.
            regularization_losses: not used: what layers and regularizers add is part of the loss anyway.
        """
        loss = self._loss_of(None, y_true, y_pred, sample_weight, True)
        self._loss_tracker.update_state(loss, sample_weight=row_count(y_pred))
        return loss

    @property
    def compiled_metrics(self) -> CompiledMetrics | None:
        """The metrics that `compile` got, as one object with an `update_state`; None before `compile`."""
        return self._compiled_metrics

    def _loss_of(
        self, x: Tensors | None, y: Tensors | None, y_pred: Tensors, sample_weight: Tensors | None, training: bool
    ) -> Any:
        """Call `compute_loss`, which an older subclass may have defined without `training`."""
        parameters = inspect.signature(self.compute_loss).parameters
        takes_training = "training" in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())
        named = {"training": training} if takes_training else {}
        with building_part("loss"):
            return self.compute_loss(x, y, y_pred, sample_weight, **named)

    # --- metrics --------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> list[Metric]:
        """The running averages: of the loss, the compiled metrics, single outputs' losses, and metrics of its own.

        Metrics that are attributes of the model or of a layer inside it are its own. The compiled metrics are listed
        one by one (once a batch was seen), except while a step is built: there they are one, ``compile_metrics``.
        """
        found: list[Any] = []
        if self.compiled:
            assert self._compiled_metrics is not None
            trackers = self._compiled_loss.trackers if self._compiled_loss is not None else []
            together = [self._compiled_metrics] if self._compiled_metrics.is_given else []
            compiled = together if self._is_building_step else self._compiled_metrics.metrics
            found = [self._loss_tracker, *trackers, *compiled]
        for layer in [self, *self._flatten_layers(include_self=False)]:
            if layer is self or not isinstance(layer, BaseModel):  # what a model inside trains with is not ours
                found += held_by_attributes(layer, Metric, Layer.untracked | _OF_COMPILE)
        return list({id(metric): metric for metric in found}.values())

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`, as the logs have them."""
        names = self._names_of_compiled()
        return [str(names.get(id(metric), metric.name)) for metric in self.metrics]

    def _names_of_compiled(self) -> dict[int, str]:
        named = {} if self._compiled_metrics is None else self._compiled_metrics.named
        return {id(metric): name for name, metric in named.items()}

    def _metrics_and_names(self) -> tuple[list[Metric], dict[int, str]]:
        """Return `metrics`, with the names of compiled ones; they are looked up again for each new step or call."""
        if self._is_building_step:
            return self.metrics, self._names_of_compiled()
        if self._found_metrics is None:
            self._found_metrics = self.metrics, self._names_of_compiled()
        return self._found_metrics

    def reset_metrics(self) -> None:
        """Start all running averages again."""
        for metric in self._metrics_and_names()[0]:
            metric.reset_state()

    def get_metrics_result(self) -> Logs:
        """Return the running averages by name: as floats, or, while a step is built, as tensors."""
        metrics, names = self._metrics_and_names()
        if self._is_building_step or in_explicit_graph():
            return _results(metrics, names)
        if self._is_eager():
            return {name: plain(np.asarray(value)) for name, value in sorted(_results(metrics, names).items())}
        known = self._read_logs_program
        if known is None or known[1] != metrics or known[3] != (devices_version(), image_data_format()):
            known = self._read_logs_program = _compile_results(metrics, names)
        program, _, structure, _ = known
        values = pack_as(structure, [plain(value) for value in program()])
        return dict(sorted(values.items()))

    # --- building steps -------------------------------------------------------------------------------------

    def _build_step(self, mode: str, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        """Build a step: where a strategy cuts batches into parts, by parts."""
        if self._cut_steps is None:
            return self._build_plain_step(mode, layout, tensors)
        return self._cut_steps.build(mode, layout, tensors)

    def _remote(self) -> Remote | None:
        """Return what runs the steps of a model that is on several tasks; None for other models."""
        return None if self._cut_steps is None else self._cut_steps.remote

    def _build_plain_step(self, mode: str, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        build = {"train": self._build_train_step, "test": self._build_test_step, "predict": self._build_predict_step}
        return build[mode](layout, tensors)

    def _build_train_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        fetches = self._build_logged_step("train", self.train_step, layout, tensors)
        self._note_trained()
        return fetches

    def _note_trained(self) -> None:
        """Keep for which variables and layers a training step was built just now."""
        self._trained_variables = self.trainable_variables
        self._trained_states.add(self._trained_state())

    def _trained_state(self) -> tuple[object, ...]:
        """Return which variables and layers are trained: a layer's call may depend on that, too."""
        layers = [(id(layer), layer.trainable) for layer in self._flatten_layers()]
        return (*[id(variable) for variable in self.trainable_variables], *layers)

    def _build_test_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        return self._build_logged_step("test", self.test_step, layout, tensors)

    def _build_predict_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        outputs = self._call_step(self.predict_step, layout, tensors)
        self._output_structure[layout.key] = outputs
        return flatten(outputs)

    def _build_logged_step(
        self, mode: str, step: Callable[[Any], object], layout: Layout, tensors: list[Tensor]
    ) -> list[Tensor]:
        logs = self._call_step(step, layout, tensors)
        own = (f"{mode}_step", "compute_metrics", "get_metrics_result")
        if all(getattr(type(self), method) is getattr(BaseModel, method) for method in own):
            return []  # the logs are the results of the metrics, which can be read at any time
        if not isinstance(logs, Mapping):
            raise TypeError(
                f"{type(self).__name__}.{mode}_step() must return a dict of the values to log, such as "
                f"{{m.name: m.result() for m in self.metrics}}; got {type(logs).__name__}."
            )
        flat = _flat_logs(logs)
        self._log_names[mode, layout.key] = list(flat)
        return [ops.convert_to_tensor(value) for value in flat.values()]

    def _call_step(self, step: Callable[[Any], object], layout: Layout, tensors: list[Tensor]) -> object:
        self._is_building_step, self._found_metrics = True, None
        try:
            with using_step(lambda: getattr(self.optimizer, "iterations", 0)):  # of summaries
                return step(_as_data(*layout.pack(tensors)))
        except AttributeError as error:
            if error.name in ("backward", "zero_grad"):
                error.add_note(_FOR_PYTORCH)
            raise
        except NoValueError as error:
            error.add_note(_FOR_VALUES)
            raise
        finally:
            self._is_building_step = False

    def _check_step_signatures(self) -> None:
        """Refuse steps that were written for a stateless backend.

        Raises:
            TypeError: `train_step` or `test_step` takes more than the data.
        """
        for method in ("train_step", "test_step"):
            parameters = list(inspect.signature(getattr(self, method)).parameters.values())
            needed = [p.name for p in parameters if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD]
            if len(needed) > 1:
                raise TypeError(
                    f"{type(self).__name__}.{method}({', '.join(['self', *needed])}): expected {method}(self, data). "
                    "Steps that hand the state around (as for Keras on JAX) are not needed here: variables are read "
                    "and assigned in place, and gradients come from ab.GradientTape or ab.gradients."
                )

    # --- logs -----------------------------------------------------------------------------------------------

    def _logs(self, mode: str) -> Logs:
        """Return what the latest step of a kind logged."""
        layout_key, values = self._latest.get(mode, ("", ()))
        names = self._log_names.get((mode, layout_key))
        if names is None:
            return self.get_metrics_result()
        return dict(sorted(zip(names, map(plain, values), strict=True)))

    def _in_order(self, logs: Logs) -> object:
        """Return the values of logs as Keras orders them: loss, the metrics of a single output, others by name."""
        compiled = [] if self._compiled_metrics is None else [metric.name for metric in self._compiled_metrics.metrics]
        trackers = [] if self._compiled_loss is None else [tracker.name for tracker in self._compiled_loss.trackers]
        own = [metric.name for metric in self._metrics_and_names()[0]]
        first = [name for name in dict.fromkeys(["loss", *compiled, *trackers, *own]) if name in logs]
        values = [logs[name] for name in [*first, *sorted(logs.keys() - set(first))]]
        return values[0] if len(values) == 1 else values


# --- helpers --------------------------------------------------------------------------------------------------------


def plain(value: Array) -> float | Array:
    """Return a fetched value as a float, or as an array if it has axes."""
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def _as_data(x: Tensors, y: Tensors | None, sample_weight: Tensors | None) -> object:
    """Return the batch as steps get it: what is absent at the end is left out."""
    if sample_weight is not None:
        return x, y, sample_weight
    if y is not None:
        return x, y
    return (x,) if isinstance(x, (tuple, list)) else x


def _results(metrics: list[Metric], names: Mapping[int, str]) -> Logs:
    """Return the results by name; a metric with a dict of results gives its entries."""
    return _flat_logs({names.get(id(metric), metric.name): metric.result() for metric in metrics})


def _flat_logs(logs: Mapping[str, object]) -> Logs:
    flat: Logs = {}
    for name, value in logs.items():
        flat.update(_flat_logs(value) if isinstance(value, Mapping) else {str(name): value})
    return flat


def _compile_results(
    metrics: list[Metric], names: Mapping[int, str]
) -> tuple[Program, list[Metric], Logs, tuple[int, str]]:
    """Compile a program that reads metrics' results; return also these, their structure, and what it was made for."""
    found: Logs = {}

    def build(layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        found.update(_results(metrics, names))
        return [ops.convert_to_tensor(leaf) for leaf in flatten(found)]

    program = compile_step(build, X_ONLY, [])
    return program, metrics, found, (devices_version(), image_data_format())
