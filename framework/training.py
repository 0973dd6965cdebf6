"""`Trainer`: `compile`, `fit`, `evaluate`, `predict` and their single-step forms, the training half of `Model`.

A step is one compiled program: forward pass, loss, gradients, the optimizer's updates, and the running averages of loss
and metrics, which live in variables. `fit` only feeds it batches, and reads the averages when somebody looks at them:
at the end of an epoch, or when a callback or the progress bar asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from .. import optim
from ..engine import ops
from ..engine.autodiff import gradients
from ..engine.graph import Tensor, Variable, flatten, in_explicit_graph, pack_as
from ..engine.objects.registry import deserialize_keras_object, serialize_keras_object
from ..engine.place.devices import devices_version
from . import metrics as metrics_module
from .callbacks import Callback, CallbackList, History
from .config import floatx
from .data import (
    X_ONLY,
    ArrayData,
    Batch,
    Data,
    Epochs,
    Layout,
    as_data,
    batch_of,
    class_weights_to_sample_weights,
    convert_structure,
    is_array_like,
    train_validation_split,
    unpack_x_y_sample_weight,
)
from .objectives import CompiledLoss, CompiledMetrics, object_name, row_count, sum_of
from .progress import Progress, make_progress, resolve_verbose
from .steps import Program, StepPrograms, compile_step

Logs = dict[str, Any]
Callbacks = Callback | Sequence[Callback] | CallbackList | None


class Trainer:
    """The training half of a model. `Model` joins it to `Layer`."""

    # What Layer gives:
    name: str
    losses: list[Any]
    trainable_variables: list[Variable]
    __call__: Callable[..., Any]

    def _init_trainer(self) -> None:
        self.optimizer: Any = None
        self.loss: Any = None
        self.compiled = False
        self.stop_training = False
        self.history: History | None = None
        self.steps_per_execution = 1
        self.run_eagerly = False
        self.jit_compile: bool | str = "auto"
        self._compile_arguments: dict[str, Any] | None = None
        self._compiled_loss: CompiledLoss | None = None
        self._compiled_metrics: CompiledMetrics | None = None
        self._loss_tracker: Any = None
        self._read_logs_program: tuple[Program, list[str], Any, int] | None = None
        self._trained_variables: list[Variable] = []
        self._steps = {
            "train": StepPrograms(self._build_train_step),
            "test": StepPrograms(self._build_test_step),
            "predict": StepPrograms(self._build_predict_step),
        }
        self._output_structure: dict[str, Any] = {}

    # --- compile --------------------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
    ) -> None:
        """Say how the model is trained.

        Args:
            optimizer: an optimizer or its name.
            loss: a loss, its name, or a function of (y_true, y_pred); for several outputs one for all, or a list or
                dict of them. None where layers add their own with `add_loss`.
            loss_weights: a factor for each output's loss, in a list or dict.
            metrics: a list of metrics, names or functions; for several outputs a list or dict of such lists.
            weighted_metrics: the same, for metrics that sample weights apply to.
            run_eagerly: accepted as in Keras; steps are always compiled.
            steps_per_execution: how many steps lie between calls of the callbacks' batch methods.
            jit_compile: accepted as in Keras; steps are always compiled.

        Raises:
            ValueError: a name is not known. TypeError: something is no optimizer.
        """
        if getattr(type(self), "train_step", None) is not None:
            raise NotImplementedError(
                f"{type(self).__name__} defines train_step(), which fit() does not call in this version. Override "
                "compute_loss() instead, or train with an optimizer's minimize() in a graph of your own."
            )
        self._compile_arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "loss_weights": loss_weights,
            "metrics": metrics,
            "weighted_metrics": weighted_metrics,
            "run_eagerly": run_eagerly,
            "steps_per_execution": steps_per_execution,
            "jit_compile": jit_compile,
        }
        self.optimizer = optim.get(optimizer)
        self.loss = loss
        self.run_eagerly = run_eagerly
        self.steps_per_execution = max(int(steps_per_execution), 1)
        self.jit_compile = jit_compile
        names = getattr(self, "output_names", None)
        self._compiled_loss = None if loss is None else CompiledLoss(loss, loss_weights, names)
        self._compiled_metrics = CompiledMetrics(metrics, weighted_metrics, names)
        self._loss_tracker = metrics_module.Mean(name="loss")
        self.stop_training = False
        self.compiled = True
        self._forget_programs()

    def _forget_programs(self) -> None:
        for steps in self._steps.values():
            steps.clear()
        self._output_structure.clear()
        self._read_logs_program = None

    def _prepare(self, what: str) -> None:
        """Check that the model is compiled; drop programs that were built for other trainable variables."""
        if not self.compiled:
            raise ValueError(f"Model {self.name!r} must be compiled before {what}(): call model.compile(...) first.")
        if in_explicit_graph():
            raise RuntimeError(
                f"{what}() runs at once, but a graph is being built here, in which assignments would only be noted. "
                "Call it outside of the `with graph.as_default():` or `with Session():` block."
            )
        if not what.endswith("_on_batch"):  # single steps must be quick; after a change of `trainable`, compile again
            variables = self.trainable_variables
            if [id(v) for v in variables] != [id(v) for v in self._trained_variables]:
                self._steps["train"].clear()
                self._trained_variables = variables

    def get_compile_config(self) -> dict[str, Any] | None:
        """The arguments of `compile`, for JSON; None if the model is not compiled."""
        if self._compile_arguments is None:
            return None
        given = {**self._compile_arguments, "optimizer": self.optimizer}
        return {name: serialize_keras_object(value) for name, value in given.items()}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile as `get_compile_config` says."""
        known = {
            name: value
            for name, value in config.items()
            if name in Trainer.compile.__annotations__ and name != "return"
        }
        self.compile(**deserialize_keras_object(known))
        if self.optimizer is not None and getattr(self, "built", False):
            self.optimizer.build(self.trainable_variables)

    # --- metrics --------------------------------------------------------------------------------------------

    @property
    def metrics(self) -> list[Any]:
        """The running averages: of the loss, the compiled metrics (once a batch was seen), single outputs' losses."""
        return list(self._named_metrics().values())

    @property
    def metrics_names(self) -> list[str]:
        return list(self._named_metrics())

    def _named_metrics(self) -> dict[str, Any]:
        if not self.compiled:
            return {}
        trackers = self._compiled_loss.trackers if self._compiled_loss is not None else []
        assert self._compiled_metrics is not None
        named = {"loss": self._loss_tracker, **{tracker.name: tracker for tracker in trackers}}
        return {**named, **self._compiled_metrics.named}

    def reset_metrics(self) -> None:
        """Start all running averages anew."""
        for metric in self.metrics:
            metric.reset_state()

    def get_metrics_result(self) -> Logs:
        """The running averages by name, as floats."""
        named = self._named_metrics()
        known = self._read_logs_program
        if known is None or known[1] != list(named) or known[3] != devices_version():
            known = self._read_logs_program = _compile_results(named)
        program, names, structure, _ = known
        values = pack_as(structure, [_plain(value) for value in program()])
        logs: Logs = {}
        for name, value in zip(names, values, strict=True):
            logs.update(value if isinstance(value, dict) else {name: value})
        return dict(sorted(logs.items()))

    # --- building steps -------------------------------------------------------------------------------------

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """The loss of a batch, a scalar tensor: the compiled losses, and what layers and regularizers add.

        Override it to train on something else; it is called once for each kind of batch, to build the step.
        """
        terms: list[Any] = []
        if self._compiled_loss is not None:
            value = self._compiled_loss(y, y_pred, sample_weight, rows=row_count(x))
            terms += [] if value is None else [value]
        terms += [loss if getattr(loss, "shape", None) == () else ops.sum(loss) for loss in self.losses]
        return sum_of(terms)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Let the compiled metrics take in a batch."""
        assert self._compiled_metrics is not None
        self._compiled_metrics.update_state(y, y_pred, sample_weight)

    def _build_train_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        x, y, sample_weight = layout.pack(tensors)
        y_pred = self(x, training=True)
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=True)
        if loss is None:
            raise ValueError(
                f"Model {self.name!r} has no loss to minimise: pass loss=... to compile(), or add one in a layer with "
                "add_loss()."
            )
        variables = self.trainable_variables
        if not variables:
            raise ValueError(f"Model {self.name!r} has no trainable variables, so there is nothing that fit() can do.")
        self._loss_tracker.update_state(loss, sample_weight=row_count(x))
        self._trained_variables = variables
        self.optimizer.apply(gradients(self.optimizer.scale_loss(loss), variables), variables)
        self.compute_metrics(x, y, y_pred, sample_weight)
        return []

    def _build_test_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        x, y, sample_weight = layout.pack(tensors)
        y_pred = self(x, training=False)
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=False)
        if loss is not None:
            self._loss_tracker.update_state(loss, sample_weight=row_count(x))
        self.compute_metrics(x, y, y_pred, sample_weight)
        return []

    def _build_predict_step(self, layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        x, _, _ = layout.pack(tensors)
        outputs = self(x, training=False)
        self._output_structure[layout.key] = outputs
        return flatten(outputs)

    # --- fit ------------------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Callbacks = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
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
            steps_per_epoch: steps in an epoch; needed for endless generators.
            validation_steps, validation_batch_size: the same for validation.
            validation_freq: validate after each so many epochs, or after the epochs of a list.

        Returns:
            A `callbacks.History` with the averages of each epoch.

        Raises:
            ValueError: the model is not compiled, or data and model do not fit.

        Threads make the next batches of a `utils.PyDataset` (its `workers`) or a `utils.Prefetch` while a step runs.
        What goes wrong there is raised here, and no thread outlives the call.
        """
        self._prepare("fit")
        labels = self._label_form()
        if validation_split and validation_data is None:
            if not is_array_like(x, y):
                raise ValueError(
                    "validation_split works on arrays only; for generators and datasets give validation_data."
                )
            (x, y, sample_weight), validation_data = train_validation_split(
                _converted(x, y, sample_weight), validation_split
            )
        data = as_data(
            x, y, sample_weight, batch_size=batch_size, shuffle=shuffle, class_weight=class_weight, labels=labels
        )
        epochs_of_data = Epochs(data, steps_per_epoch)
        validation = _validation_data(validation_data, validation_batch_size or _batch_size(data, batch_size))
        verbosity = resolve_verbose(verbose)
        hooks = self._callback_list(callbacks, verbose=verbosity, epochs=epochs, steps=epochs_of_data.steps)
        history = next(item for item in hooks.callbacks if isinstance(item, History))
        self.history = history
        self.stop_training = False
        hooks.on_begin("train")
        logs: Logs = {}
        with closing(epochs_of_data):
            for epoch in range(initial_epoch, epochs):
                self.reset_metrics()
                hooks.on_epoch_begin(epoch)
                title = f"Epoch {epoch + 1}/{epochs}"
                progress = make_progress(verbosity, title, epochs_of_data.steps, self.get_metrics_result)
                done = self._run_steps("train", epochs_of_data, hooks, progress)
                logs = self.get_metrics_result() if done else {}
                if validation is not None and _is_due(epoch, validation_freq):
                    found = self._evaluate(Epochs(validation, validation_steps), hooks, None)
                    logs = dict(sorted({**logs, **{f"val_{name}": value for name, value in found.items()}}.items()))
                progress.close(done, logs)
                hooks.on_epoch_end(epoch, logs)
                if self.stop_training or epochs_of_data.exhausted:
                    break
        self.optimizer.finalize_variable_values(self._trained_variables)
        hooks.on_end("train", logs)
        return history

    def _run_steps(self, mode: str, epoch: Epochs, hooks: CallbackList, progress: Progress) -> int:
        """Run one epoch's steps; returns how many there were."""
        if hooks.wants_batches(mode):
            return self._run_steps_with_hooks(mode, epoch, hooks, progress)
        run, clock = self._steps[mode].run, time.perf_counter
        done = 0
        for batch in epoch.epoch():
            run(batch)
            done += 1
            if clock() >= progress.next_redraw:
                progress.redraw(done)
        return done

    def _run_steps_with_hooks(self, mode: str, epoch: Epochs, hooks: CallbackList, progress: Progress) -> int:
        run, together = self._steps[mode].run, self.steps_per_execution
        done = 0
        for batch in epoch.epoch():
            if done % together == 0:
                hooks.on_batch_begin(mode, done)
            run(batch)
            done += 1
            if done % together == 0:
                hooks.on_batch_end(mode, done - 1, self.get_metrics_result())
            if time.perf_counter() >= progress.next_redraw:
                progress.redraw(done)
            if self.stop_training:
                break
        if done % together:
            hooks.on_batch_end(mode, done - 1, self.get_metrics_result())
        return done

    def _callback_list(self, callbacks: Callbacks, **params: Any) -> CallbackList:
        if isinstance(callbacks, CallbackList):
            return callbacks
        return CallbackList(callbacks, add_history=True, model=self, **params)

    def _label_form(self) -> str:
        """What the compiled loss says about labels: class numbers, one-hot rows, or nothing."""
        name = self.loss if isinstance(self.loss, str) else object_name(self.loss) if self.loss is not None else ""
        if "sparse" in name:
            return "indices"
        return "one_hot" if name.startswith("categorical") else "guess"

    # --- evaluate -------------------------------------------------------------------------------------------

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Callbacks = None,
        return_dict: bool = False,
    ) -> Any:
        """Loss and metrics on data, averaged over all rows.

        Args:
            x, y, batch_size, verbose, sample_weight, callbacks: as in `fit`.
            steps: how many steps to run; by default one pass.
            return_dict: return a dict by name.

        Returns:
            The loss, or a list ``[loss, metrics...]`` (in the order of `metrics_names`), or a dict.
        """
        self._prepare("evaluate")
        data = Epochs(as_data(x, y, sample_weight, batch_size=batch_size), steps)
        verbosity = resolve_verbose(verbose)
        hooks = self._callback_list(callbacks, verbose=verbosity, epochs=1, steps=data.steps)
        progress = make_progress(verbosity, "", data.steps, self.get_metrics_result)
        logs = self._evaluate(data, hooks, progress)
        return logs if return_dict else self._in_order(logs)

    def _evaluate(self, data: Epochs, hooks: CallbackList, progress: Progress | None) -> Logs:
        self.reset_metrics()
        hooks.on_begin("test")
        shown = progress or make_progress(0, "", None, self.get_metrics_result)
        with closing(data):
            done = self._run_steps("test", data, hooks, shown)
        logs = self.get_metrics_result() if done else {}
        shown.close(done, logs)
        hooks.on_end("test", logs)
        return logs

    def _in_order(self, logs: Logs) -> Any:
        """The values of logs as Keras orders them: the loss, losses of single outputs, then metrics by name."""
        trackers = self._compiled_loss.trackers if self._compiled_loss is not None else []
        first = [name for name in ("loss", *(tracker.name for tracker in trackers)) if name in logs]
        values = [logs[name] for name in [*first, *sorted(logs.keys() - set(first))]]
        return values[0] if len(values) == 1 else values

    # --- predict --------------------------------------------------------------------------------------------

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
    ) -> Any:
        """The model's outputs for data, batch by batch.

        Args:
            x: inputs, as in `fit`.
            batch_size: rows in a step, 32 by default.
            verbose: as in `fit`; "auto" shows a bar in terminals and notebooks if there are several batches.
            steps: how many steps to run; by default one pass.
            callbacks: callbacks, or one.

        Returns:
            An array ``[rows, ...]``, or the model's structure of such arrays.
        """
        limit = 32 if batch_size is None else batch_size
        if type(x) is np.ndarray and callbacks is None and steps is None and 0 < len(x) <= limit and x.ndim:
            return self._predict_batch(batch_of_x(x))  # one batch: no adapter, no bar, no callbacks
        data = Epochs(as_data(x, batch_size=batch_size), steps)
        verbosity = resolve_verbose(verbose)
        if verbose == "auto" and (verbosity == 2 or data.steps == 1):
            verbosity = 0
        hooks = self._callback_list(callbacks, verbose=verbosity, epochs=1, steps=data.steps)
        progress = make_progress(verbosity, "", data.steps, dict)
        hooks.on_begin("predict")
        parts, structure, done = [], None, 0
        wanted = hooks.wants_batches("predict")
        with closing(data):
            for batch in data.epoch():
                only_x = _without_targets(batch)
                if wanted:
                    hooks.on_batch_begin("predict", done)
                parts.append(self._steps["predict"].run(only_x))
                structure = self._output_structure[only_x.layout.key]
                done += 1
                if wanted:
                    hooks.on_batch_end("predict", done - 1, {"outputs": pack_as(structure, list(parts[-1]))})
                if time.perf_counter() >= progress.next_redraw:
                    progress.redraw(done)
        progress.close(done, {})
        hooks.on_end("predict")
        if not parts:
            raise ValueError("predict() got no data: x gave no batch.")
        columns = [column[0] if len(column) == 1 else _joined(column) for column in zip(*parts, strict=True)]
        return _packed(structure, columns)

    def predict_on_batch(self, x: Any) -> Any:
        """The model's outputs for one batch."""
        return self._predict_batch(batch_of_x(x))

    def _predict_batch(self, batch: Batch) -> Any:
        values = self._steps["predict"].run(batch)
        return _packed(self._output_structure[batch.layout.key], list(values))

    # --- single batches -------------------------------------------------------------------------------------

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """One training step. Returns the averages since `reset_metrics`, as `evaluate` does."""
        self._prepare("train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError("class_weight and sample_weight can't be given at the same time.")
            sample_weight = class_weights_to_sample_weights(convert_structure(y, "y"), class_weight, self._label_form())
        self._steps["train"].run(batch_of(x, y, sample_weight))
        logs = self.get_metrics_result()
        return logs if return_dict else self._in_order(logs)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """Take one batch into the averages, without training. Returns them, as `evaluate` does."""
        self._prepare("test_on_batch")
        self._steps["test"].run(batch_of(x, y, sample_weight))
        logs = self.get_metrics_result()
        return logs if return_dict else self._in_order(logs)


# --- helpers --------------------------------------------------------------------------------------------------------


def batch_of_x(x: Any) -> Batch:
    """A batch of inputs only."""
    if type(x) is np.ndarray and x.ndim:
        return Batch(X_ONLY, [x.astype(floatx()) if x.dtype.kind == "f" and x.dtype.name != floatx() else x], len(x))
    return batch_of(x)


def _without_targets(batch: Batch) -> Batch:
    if batch.layout.y is None and batch.layout.sample_weight is None:
        return batch
    x, _, _ = batch.layout.pack(batch.leaves)
    return batch_of(x)


def _joined(column: Sequence[Any]) -> Any:
    try:
        return np.concatenate(column)
    except ValueError as error:
        shapes = sorted({tuple(array.shape[1:]) for array in column})
        raise ValueError(
            f"predict(): the outputs of batches differ in shape beyond the batch ({shapes}), so they can't be joined. "
            "Call predict_on_batch on each batch."
        ) from error


def _packed(structure: Any, values: list[Any]) -> Any:
    return values[0] if isinstance(structure, Tensor) else pack_as(structure, values)


def _compile_results(named: dict[str, Any]) -> tuple[Program, list[str], Any, int]:
    """A program that reads the results of metrics; with their names, structure, and the devices for which it is."""
    found: dict[str, Any] = {}

    def build(layout: Layout, tensors: list[Tensor]) -> list[Tensor]:
        found.update({name: metric.result() for name, metric in named.items()})
        return [ops.convert_to_tensor(leaf) for leaf in flatten(list(found.values()))]

    program = compile_step(build, X_ONLY, [])
    return program, list(found), list(found.values()), devices_version()


def _plain(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else np.asarray(value)


def _converted(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    return convert_structure(x, "x"), convert_structure(y, "y"), convert_structure(sample_weight, "sample_weight")


def _batch_size(data: Data, given: int | None) -> int | None:
    return data.batch_size if isinstance(data, ArrayData) else given


def _validation_data(given: Any, batch_size: int | None) -> Data | None:
    if given is None:
        return None
    if isinstance(given, (tuple, list)) and not is_batches(given):
        x, y, sample_weight = unpack_x_y_sample_weight(given)
        return as_data(x, y, sample_weight, batch_size=batch_size if is_array_like(x, y) else None)
    return as_data(given, batch_size=batch_size if is_array_like(given) else None)


def is_batches(given: Any) -> bool:
    """Whether a list is one of batches ``[(x, y), ...]``, not ``[x, y]``."""
    return isinstance(given, list) and bool(given) and all(isinstance(item, tuple) for item in given)


def _is_due(epoch: int, validation_freq: int | Sequence[int]) -> bool:
    if isinstance(validation_freq, int):
        return (epoch + 1) % validation_freq == 0
    return epoch + 1 in validation_freq
