"""`Trainer`: `compile`, `fit`, `evaluate`, `predict` and their single-step forms, the training half of `Model`.

A step is one compiled program: forward pass, loss, gradients, the optimizer's updates, and the running averages of loss
and metrics, which live in variables. `fit` only feeds it batches, and reads the averages when somebody looks at them:
at the end of an epoch, or when a callback or the progress bar asks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import optim
from ...distribute.strategies.strategy import current_strategy, strategy_around, warn_of_forgotten_scope
from ...engine.graph.provenance import user_stacklevel
from ...engine.graph.tracebacks import short_tracebacks
from ...engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ..data.adapters import (
    Batch,
    as_data,
    batch_of,
    convert_structure,
    is_array_like,
    train_validation_split,
)
from ..data.class_weights import class_weights_to_sample_weights
from ..metrics.reduction import Mean
from ..saving.checkpointing import TrainingRun
from ..training.contract import check_class_weight
from ..training.epochs import Epochs
from ..training.fit_data import batch_of_x, batch_size_of, validation_data_of
from ..training.limits import check_counts, limited_epochs
from ..training.nan_report import guard_restored
from ..training.objectives import CompiledLoss, CompiledMetrics, check_names, object_name
from ..training.passes import PassMethods, packed
from ..training.progress import make_progress, resolve_verbose
from .fit_callbacks import Callback, CallbackList, History

if TYPE_CHECKING:
    from ...distribute.strategies.strategy import Strategy
    from ...engine.common.nest import Nest
    from ..model_types import Losses, Metrics, ModelData
    from ..structures import Array, OptimizerLike, Rows
    from ..training.base_callback import BaseCallbackList
    from ..training.base_model import CutSteps

Logs = dict[str, Any]
Callbacks = Callback | Sequence[Callback] | CallbackList | None


class Trainer(PassMethods):
    """The training half of a model: `compile`, `fit` and their like."""

    history: History | None = None

    # --- compile --------------------------------------------------------------------------------------------

    @short_tracebacks
    def compile(
        self,
        optimizer: OptimizerLike = "rmsprop",
        loss: Losses = None,
        loss_weights: Nest[float | None] | None = None,
        metrics: Metrics = None,
        weighted_metrics: Metrics = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
    ) -> None:
        """Configure the model for training: its optimizer, losses and metrics.

        Args:
            optimizer: an optimizer or its name.
            loss: a loss, its name, or a function of (y_true, y_pred); for several outputs one for all, or a list or
                dict of them. None where layers add their own with `add_loss`.
            loss_weights: a factor for each output's loss, in a list or dict.
            metrics: a list of metrics, names or functions; for several outputs a list or dict of such lists.
            weighted_metrics: the same, for metrics that sample weights apply to.
            run_eagerly: let Python compute each step of training, testing and predicting, on values, and compile
                nothing: to look at values in `call` and `train_step` by `print`, `float` or a debugger. It is slower.
                Steps under a strategy that cuts batches into parts are compiled all the same, with a warning.
            steps_per_execution: how many steps of training or testing are made in one call of the engine, as a loop in
                the graph. Results are those of single steps; callbacks' batch methods are called once for each call.
                It pays for small models, where what is between two steps counts.
            jit_compile: accepted as in Keras, and kept for the config: steps are compiled either way.
            auto_scale_loss: put a `LossScaleOptimizer` around the optimizer where layers compute in float16 with
                weights in float32 (the dtype policy ``"mixed_float16"``).

        Raises:
            ValueError: a name is not known.
            TypeError: something is not an optimizer, or `train_step` takes more than the data.

        Which variables are trained is found out when a step is built: `layer.trainable` takes effect if it is set
        before the first step, before `compile`, or between two calls of `fit`.
        """
        self._check_step_signatures()
        self.distribute_strategy = strategy_around() or self._made_under or current_strategy()
        check_names(loss, metrics, weighted_metrics)
        self._compile_arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution or 1,  # Keras up to 2.15 wrote None
            "jit_compile": jit_compile,
        }
        self.optimizer = optim.get(optimizer)
        if not auto_scale_loss:  # written only then, as Keras does not write it
            self._compile_arguments["auto_scale_loss"] = False
        elif _needs_scaled_loss(self):
            self.optimizer = optim.LossScaleOptimizer(self.optimizer, name="loss_scale_optimizer")
        if loss is not None or self.loss is self._given_loss:
            self.loss = loss
        self._given_loss = loss
        self._cut_steps = self._found_cut_steps()
        self.run_eagerly = run_eagerly
        if run_eagerly and self._is_on_several():
            what = f"run_eagerly=True: training steps under {type(self.distribute_strategy).__name__} are compiled."
            warnings.warn(what, stacklevel=user_stacklevel())
        self.steps_per_execution = max(int(steps_per_execution or 1), 1)
        self.jit_compile = jit_compile
        names = getattr(self, "output_names", None)
        self._compiled_loss = None if loss is None else CompiledLoss(loss, loss_weights, names)
        self._compiled_metrics = CompiledMetrics(metrics, weighted_metrics, names)
        self._loss_tracker = Mean(name="loss")
        self.stop_training = False
        self._checked_batch = False
        self.compiled = True
        self._forget_programs()

    def _found_cut_steps(self) -> CutSteps | None:
        """Return what builds the steps of a model on several devices of this process; None for other models."""
        strategy = self.distribute_strategy
        if strategy is None:
            return None
        from ...distribute.strategies.data_parallel import DataParallel  # few need it, and what it brings
        from ...distribute.strategies.model_parallel import ModelParallel
        from ...distribute.strategies.pipeline import Pipeline

        if isinstance(strategy, DataParallel) and strategy.of is not None:
            strategy = strategy.of
        if isinstance(strategy, Pipeline):
            if strategy is self.distribute_strategy:
                strategy.check_alone()
            from ..pipeline.steps import PipelineSteps

            return PipelineSteps(self, strategy)
        if isinstance(strategy, DataParallel) and strategy.has_local_replicas:
            from ..replicas.local import LocalSteps

            return LocalSteps(self, strategy)
        if isinstance(strategy, ModelParallel):
            from ..replicas.model_parallel import PartSteps

            return PartSteps(self, strategy)
        if strategy is not None and strategy.is_distributed:
            from ..replicas.checks import check_compiled

            check_compiled(self, strategy)
        return None

    def _is_on_several(self) -> bool:
        """Test whether several devices or processes share the training steps."""
        strategy = self.distribute_strategy
        return self._cut_steps is not None or (strategy is not None and strategy.is_distributed)

    def _note_steps(self, count: int) -> None:
        if self.distribute_strategy is not None:
            self.distribute_strategy.note_steps(count)

    def _renew_optimizer(self) -> None:
        """Put an optimizer without state in the place of one that has some."""
        if self.optimizer is None or not self.optimizer.built or self._compile_arguments is None:
            return
        self.optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
        self._compile_arguments = {**self._compile_arguments, "optimizer": self.optimizer}

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return the arguments of `compile`, for JSON; None if the model is not compiled."""
        if self._compile_arguments is None:
            return None
        given = {**self._compile_arguments, "optimizer": self.optimizer}
        return {name: serialize_keras_object(value) for name, value in given.items()}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile as `get_compile_config` says."""
        if type(self).compile is not Trainer.compile and type(self).get_compile_config is Trainer.get_compile_config:
            warnings.warn(
                f"Model {self.name!r} was loaded without being compiled: {type(self).__name__} has a compile() of its "
                "own. Call compile(), or let the class define get_compile_config() and compile_from_config(config).",
                stacklevel=2,
            )
            return
        known = {
            name: value
            for name, value in config.items()
            if name in Trainer.compile.__annotations__ and name != "return"
        }
        self.compile(**deserialize_keras_object(known))
        if self.optimizer is not None and getattr(self, "built", False):
            self.optimizer.build(self.trainable_variables)

    # --- fit ------------------------------------------------------------------------------------------------

    @short_tracebacks
    def fit(
        self,
        x: ModelData | None = None,
        y: Rows | None = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Callbacks = None,
        validation_split: float = 0.0,
        validation_data: ModelData | None = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Rows | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> History:
        """Train the model.

        Args:
            x: inputs ``[rows, ...]``: an array, a list or dict of arrays (for several inputs), a generator or iterable
                of batches ``(x, y[, sample_weight])``, or a `utils.PyDataset`.
            y: targets ``[rows, ...]``, or a list or dict of them; not with generators and datasets.
            batch_size: rows in a step, 32 by default.
            epochs: the epoch (counted from 1) after which training ends.
            verbose: 0 nothing, 1 a progress bar, 2 one line an epoch, "auto" a bar in terminals and notebooks, else
                lines. All go to standard output.
            callbacks: callbacks, or one.
            validation_split: the share of the rows, taken from the end before shuffling, to validate on.
            validation_data: ``(x, y[, sample_weight])``, a generator or a dataset to validate on.
            shuffle: draw a new order of the rows for each epoch; "batch" shuffles batches only.
            class_weight: a weight for each class of the targets.
            sample_weight: a weight for each row, or for each value of the targets.
            initial_epoch: the epoch (counted from 0) to begin with.
            steps_per_epoch: steps in an epoch; needed for endless generators. An epoch ends with the data, too.
            validation_steps, validation_batch_size: the same for validation.
            validation_freq: validate after every this many epochs, or after the epochs of a list.

        Returns:
            A `callbacks.History` with the averages of each epoch.

        Raises:
            ValueError: the model is not compiled, or data and model do not fit.

        Threads make the next batches of a `utils.PyDataset` (its `workers`) or a `utils.Prefetch` while a step runs.
        What goes wrong there is raised here, and no thread outlives the call.
        """
        self._prepare("fit")
        check_counts("fit", batch_size=batch_size, epochs=epochs, steps_per_epoch=steps_per_epoch)
        check_counts("fit", validation_batch_size=validation_batch_size, validation_steps=validation_steps)
        labels = self._label_form()
        if validation_split and validation_data is None:
            if not is_array_like(x, y):
                raise ValueError(
                    "validation_split works on arrays only; for generators and datasets give validation_data."
                )
            (x, y, sample_weight), validation_data = train_validation_split(
                _converted(x, y, sample_weight), validation_split
            )
        if class_weight is not None:
            check_class_weight(y, labels)
        data = as_data(
            x, y, sample_weight, batch_size=batch_size, shuffle=shuffle, class_weight=class_weight, labels=labels
        )
        epochs_of_data, epochs = Epochs(data, steps_per_epoch), limited_epochs(epochs)
        validation = validation_data_of(validation_data, validation_batch_size or batch_size_of(data, batch_size))
        verbosity = resolve_verbose(verbose)

        def validate(epoch: int, hooks: BaseCallbackList) -> Logs:
            if validation is None or not _is_due(epoch, validation_freq):
                return {}
            found = self._evaluate(Epochs(validation, validation_steps), hooks, None)
            return {f"val_{name}": value for name, value in found.items()}

        span = range(initial_epoch, epochs)
        if self.distribute_strategy is not None and self.distribute_strategy.is_distributed:
            given = None if validation is None else validate
            return self._fit_on_cluster(self.distribute_strategy, epochs_of_data, callbacks, span, verbosity, given)
        if self.distribute_strategy is None:
            warn_of_forgotten_scope(self.name)
        return self._fit_alone(epochs_of_data, callbacks, span, verbosity, validate)

    def _fit_on_cluster(
        self,
        strategy: Strategy,
        data: Epochs,
        callbacks: Any,
        epochs: range,
        verbosity: int,
        validate: Callable[[int, BaseCallbackList], Logs] | None,
    ) -> History:
        """Train with the other workers of a cluster, as `fit` does."""
        from ..replicas.fitting import check_callbacks, fit_replicas  # few need it

        given = CallbackList(callbacks).callbacks
        own = given if strategy.is_chief else [callback for callback in given if callback.on_all_workers]
        check_callbacks(own, strategy, data)
        hooks = self._callback_list(own, verbose=verbosity, epochs=epochs.stop, steps=data.steps)
        history = self._begin_history(hooks)
        shown = 0 if hooks.shows_progress else verbosity
        validated = None if validate is None else lambda epoch: validate(epoch, hooks)
        fit_replicas(self, strategy, data, hooks, given, epochs, shown, validated)
        return history

    def _begin_history(self, hooks: CallbackList) -> History:
        history = next(item for item in hooks.callbacks if isinstance(item, History))
        self.history = history
        self.stop_training = False
        return history

    def _fit_alone(
        self,
        data: Epochs,
        callbacks: Callbacks,
        epochs: range,
        verbosity: int,
        validate: Callable[[int, BaseCallbackList], Logs],
    ) -> History:
        """Train on this process alone, as `fit` does."""
        hooks = self._callback_list(callbacks, verbose=verbosity, epochs=epochs.stop, steps=data.steps)
        history = self._begin_history(hooks)
        run, shown = TrainingRun(self, hooks, data), 0 if hooks.shows_progress else verbosity
        hooks.on_begin("train")
        logs: Logs = {}
        with closing(data), guard_restored():
            for epoch in run.epochs(epochs.start, epochs.stop):
                self.reset_metrics()
                hooks.on_epoch_begin(epoch)
                run.enter_epoch()
                title = f"Epoch {epoch + 1}/{epochs.stop}"
                progress = make_progress(shown, title, data.steps, partial(self._logs, "train"))
                before = data.done_before
                done = self._run_steps("train", data, hooks, progress)
                self._note_steps(done - before)
                logs = self._logs("train") if done else {}
                logs = dict(sorted({**logs, **validate(epoch, hooks)}.items()))
                progress.close(done, logs)
                hooks.on_epoch_end(epoch, logs)
                if self.stop_training or data.exhausted:
                    break
            data.finish()
        self.optimizer.finalize_variable_values(self._trained_variables)
        hooks.on_end("train", logs)
        return history

    def _callback_list(self, callbacks: Callbacks, **params: Any) -> CallbackList:
        if isinstance(callbacks, CallbackList):
            return callbacks
        return CallbackList(callbacks, add_history=True, model=self, **params)

    def _label_form(self) -> str:
        """Return the form of labels that the compiled loss takes: class numbers, one-hot rows, or nothing."""
        given = self._given_loss
        name = given if isinstance(given, str) else object_name(given) if given is not None else ""
        if "sparse" in name:
            return "indices"
        return "one_hot" if name.startswith("categorical") else "guess"

    # --- evaluate -------------------------------------------------------------------------------------------

    @short_tracebacks
    def evaluate(
        self,
        x: ModelData | None = None,
        y: Rows | None = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Rows | None = None,
        steps: int | None = None,
        callbacks: Callbacks = None,
        return_dict: bool = False,
    ) -> Any:
        """Compute loss and metrics on data, averaged over all rows.

        Args:
            x, y, batch_size, verbose, sample_weight, callbacks: as in `fit`.
            steps: how many steps to run; by default one pass.
            return_dict: return a dict by name.

        Returns:
            The loss, or a list ``[loss, metrics...]`` (in the order of `metrics_names`), or a dict.
        """
        self._prepare("evaluate")
        check_counts("evaluate", batch_size=batch_size, steps=steps)
        data = Epochs(as_data(x, y, sample_weight, batch_size=batch_size), steps)
        verbosity = resolve_verbose(verbose)
        hooks = self._callback_list(callbacks, verbose=verbosity, epochs=1, steps=data.steps)
        shown = 0 if hooks.shows_progress else verbosity
        progress = make_progress(shown, "", data.steps, partial(self._logs, "test"))
        logs = self._evaluate(data, hooks, progress)
        return logs if return_dict else self._in_order(logs)

    # --- predict --------------------------------------------------------------------------------------------

    @short_tracebacks
    def predict(
        self,
        x: ModelData,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> Array | Any:
        """Compute the model's outputs for data, batch by batch.

        The first three shapes of batches are computed by programs for exactly these, later ones by one program for all
        shapes, which may round otherwise. So the last bits of a result can depend on what was predicted before; those
        of a model that was exported (`ab.serving.load`) depend on the shapes of its inputs alone.

        Args:
            x: inputs, as in `fit`.
            batch_size: rows in a step, 32 by default.
            verbose: as in `fit`; "auto" shows a bar in terminals and notebooks if there are several batches.
            steps: how many steps to run; by default one pass.
            callbacks: callbacks, or one.

        Returns:
            An array ``[rows, ...]``, or the model's structure of such arrays.
        """
        check_counts("predict", batch_size=batch_size, steps=steps)
        limit = 32 if batch_size is None else batch_size
        if type(x) is np.ndarray and callbacks is None and steps is None and 0 < len(x) <= limit and x.ndim:
            return self._predict_batch(batch_of_x(x))  # one batch: no adapter, no bar, no callbacks
        data = Epochs(as_data(x, batch_size=batch_size), steps)
        verbosity = resolve_verbose(verbose)
        if verbose == "auto" and (verbosity == 2 or data.steps == 1):
            verbosity = 0
        hooks = self._callback_list(callbacks, verbose=verbosity, epochs=1, steps=data.steps)
        progress = make_progress(0 if hooks.shows_progress else verbosity, "", data.steps, dict)
        self.stop_predicting = False
        hooks.on_begin("predict")
        with closing(data):
            structure, columns = self._outputs(data, hooks, progress)
            data.finish()
        hooks.on_end("predict")
        return packed(structure, columns)

    @short_tracebacks
    def predict_on_batch(self, x: Rows) -> Array | Any:
        """Compute the model's outputs for one batch."""
        return self._predict_batch(batch_of_x(x))

    def _predict_batch(self, batch: Batch) -> Array | Any:
        values = self._steps["predict"].run(batch)
        return packed(self._output_structure[batch.layout.key], list(values))

    # --- single batches -------------------------------------------------------------------------------------

    @short_tracebacks
    def train_on_batch(
        self,
        x: Rows,
        y: Rows | None = None,
        sample_weight: Rows | None = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """Make one training step on one batch. Running averages start again, so the results are those of this batch.

        Args:
            x, y, sample_weight: inputs, targets and weights, all rows of the batch.
            class_weight: a weight for each class of the targets; not together with `sample_weight`.
            return_dict: return a dict by name.

        Returns:
            The loss, or a list ``[loss, metrics...]``, or a dict, as `evaluate` gives them.
        """
        self._prepare("train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError("class_weight and sample_weight can't be given at the same time.")
            check_class_weight(y, self._label_form())
            sample_weight = class_weights_to_sample_weights(convert_structure(y, "y"), class_weight, self._label_form())
        return self._one_step("train", batch_of(x, y, sample_weight), return_dict)

    @short_tracebacks
    def test_on_batch(
        self, x: Rows, y: Rows | None = None, sample_weight: Rows | None = None, return_dict: bool = False
    ) -> Any:
        """Compute loss and metrics of one batch, without training; see `train_on_batch`."""
        self._prepare("test_on_batch")
        return self._one_step("test", batch_of(x, y, sample_weight), return_dict)

    def _one_step(self, mode: str, batch: Batch, return_dict: bool) -> object:
        if not self._checked_batch:
            self._check_batch(batch)
        strategy = self.distribute_strategy
        if mode == "train" and strategy is not None and strategy.is_distributed:
            from ..replicas.single_steps import train_on_cluster  # few need it

            logs = train_on_cluster(self, strategy, batch)
            return logs if return_dict else self._in_order(logs)
        self.reset_metrics()
        self._latest[mode] = (batch.layout.key, self._steps[mode].run(batch))
        if mode == "train":
            self._note_steps(1)
        logs = self._logs(mode)
        return logs if return_dict else self._in_order(logs)


# --- helpers --------------------------------------------------------------------------------------------------------


def _converted(x: object, y: object, sample_weight: object) -> tuple[Rows, Rows | None, Rows | None]:
    return convert_structure(x, "x"), convert_structure(y, "y"), convert_structure(sample_weight, "sample_weight")


def _needs_scaled_loss(model: Trainer) -> bool:
    """Test whether gradients of the model pass through float16, and its optimizer does nothing about it yet."""
    if model.optimizer is None or isinstance(model.optimizer, optim.LossScaleOptimizer):
        return False
    return any(layer._own_policy.name == "mixed_float16" for layer in model._flatten_layers())


def _is_due(epoch: int, validation_freq: int | Sequence[int]) -> bool:
    if isinstance(validation_freq, int):
        return (epoch + 1) % validation_freq == 0
    return epoch + 1 in validation_freq
