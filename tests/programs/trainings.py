"""Random trainings: models with losses, metrics, weights of rows, optimizers, data and callbacks that a seed draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from programs.models import RandomModel

import anabranch as ab
from anabranch import callbacks, layers, losses, metrics, ops, optim
from anabranch.engine.common.nest import flatten, map_structure

CLASSES = 3
_BEST = "best.weights.h5"
_KINDS = ("numbers", "classes", "labels")
# With an epsilon that is above rounding: gradients that are 0 but for it would be divided by their own size.
_OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {"epsilon": 0.01, "centered": True}),
    ("Adam", {"epsilon": 0.01, "amsgrad": True}),
    ("AdamW", {"epsilon": 0.01}),
    ("Adagrad", {"epsilon": 0.01}),
    ("Adadelta", {"epsilon": 0.01}),
    ("Nadam", {"epsilon": 0.01}),
    ("Adamax", {"epsilon": 0.01}),
    ("Ftrl", {"l1_regularization_strength": 0.01}),
    ("Lamb", {"epsilon": 0.01}),
    ("Adafactor", {"epsilon_1": 1e-4}),
]
_CLIPPINGS: list[dict[str, Any]] = [{}, {"clipnorm": 0.3}, {"clipvalue": 0.05}, {"global_clipnorm": 0.5}]
_OPTIONS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.02},
    {"use_ema": True, "ema_momentum": 0.7},
    {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    {"gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 3, "global_clipnorm": 0.5},
    {"loss_scale_factor": 8.0},
]


class Largest(metrics.Metric):
    """The largest error: a state that is no sum."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.value = self.add_variable(shape=(), name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        errors = ops.abs(ops.cast(y_true, y_pred.dtype) - y_pred)
        self.value.assign(ops.maximum(self.value, ops.max(errors)))

    def result(self) -> Any:
        return self.value


class Latest(metrics.Metric):
    """The mean of predictions that fades: depends on the order of the batches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.value = self.add_variable(shape=(2,), name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        rows = ops.mean(y_pred, axis=tuple(range(1, len(y_pred.shape))))
        if sample_weight is not None:
            weights = ops.cast(sample_weight, rows.dtype)
            rows = rows * ops.reshape(ops.mean(ops.reshape(weights, (ops.shape(weights)[0], -1)), axis=1), (-1,))
        self.value.assign(self.value * 0.5 + ops.stack([ops.mean(rows), ops.max(rows)]))

    def result(self) -> Any:
        return {"latest_mean": self.value[0], "latest_max": self.value[1]}


_METRICS: dict[str, list[Callable[..., metrics.Metric]]] = {
    "numbers": [
        Largest,
        Latest,
        metrics.MeanAbsoluteError,
        metrics.MeanSquaredError,
        metrics.RootMeanSquaredError,
        metrics.CosineSimilarity,
        metrics.LogCoshError,
        metrics.PearsonCorrelation,
        metrics.ConcordanceCorrelation,
    ],
    "classes": [
        metrics.SparseCategoricalAccuracy,
        metrics.SparseCategoricalCrossentropy,
        partial(metrics.SparseTopKCategoricalAccuracy, 2),
    ],
    "labels": [
        Largest,
        Latest,
        metrics.AUC,
        metrics.BinaryAccuracy,
        metrics.BinaryCrossentropy,
        metrics.TruePositives,
        metrics.FalseNegatives,
        partial(metrics.AUC, 20, curve="PR"),
        partial(metrics.AUC, 20, multi_label=True, num_labels=CLASSES),
        partial(metrics.Precision, [0.3, 0.6]),
        partial(metrics.Precision, class_id=1),
        partial(metrics.Recall, top_k=2),
        partial(metrics.PrecisionAtRecall, 0.5, 20),
        partial(metrics.SensitivityAtSpecificity, 0.4, 20),
        partial(metrics.TopKCategoricalAccuracy, 1),
    ],
}
# Whose weights, if there are any, are one for each position, not for each row.
_METRICS_OF_POSITIONS: dict[str, list[Callable[..., metrics.Metric]]] = {
    "numbers": [],
    "classes": [
        partial(metrics.MeanIoU, CLASSES, sparse_y_pred=False),
        partial(metrics.IoU, CLASSES, [0, 2], sparse_y_pred=False, ignore_class=1),
    ],
    "labels": [metrics.BinaryIoU],
}


class Penalised(layers.Layer):
    """Adds a loss and a metric of what it gets."""

    def build(self, input_shape: Any) -> None:
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")
        self.size = metrics.Mean(name=f"size_of_{self.name}")
        self.largest = Largest(name=f"largest_of_{self.name}")

    def call(self, x: Any) -> Any:
        scaled = x * self.scale
        self.add_loss(0.05 * ops.mean(ops.square(scaled)))
        self.size.update_state(ops.abs(scaled))
        self.largest.update_state(ops.zeros_like(scaled), scaled)
        return scaled


class Records(callbacks.Callback):
    """Keeps the calls of callbacks, with their logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, dict[str, Any]]] = []

    def _keep(self, name: str, number: int, logs: Any) -> None:
        self.calls.append((name, number, dict(logs or {})))

    def on_train_begin(self, logs: Any = None) -> None:
        self._keep("train begins", 0, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._keep("train ends", 0, logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._keep("epoch begins", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._keep("epoch ends", epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._keep("batch begins", batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._keep("batch ends", batch, logs)


class Rows(ab.utils.PyDataset):
    """Batches by number."""

    def __init__(self, arrays: Any, size: int) -> None:
        super().__init__()
        self.arrays, self.size = arrays, size
        self.count = len(flatten(arrays)[0])

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def __getitem__(self, number: int) -> Any:
        rows = slice(number * self.size, (number + 1) * self.size)
        return map_structure(lambda array: array[rows], self.arrays)


class RandomTraining(RandomModel):
    """A training that a seed draws.

    Args:
        seed: of the draws.
        draws: whether layers draw numbers by row.
        is_by_row: whether an output depends on no other row. If not, all batches have even numbers of rows, so that
            two replicas and two microbatches have the same.

    Attributes:
        text: what was drawn, for messages.
        steps: how many steps an epoch has at most, and how many epochs there are.
    """

    def __init__(self, seed: int, draws: bool = False, is_by_row: bool = True) -> None:
        ab.utils.clear_session()
        self._draws = draws
        self._kinds: list[str] = []
        rows = int(np.random.default_rng(seed + 50_000).integers(9, 20))
        super().__init__(seed, rows if is_by_row else rows // 2 * 2, is_by_row)
        self._seed = seed
        self._y = [self._target(kind, shape) for kind, shape in zip(self._kinds, self.shapes, strict=True)]
        self._names = list(self.model.output_names or ())
        self._by_name = self._happens(0.3)
        self._loss = [self._loss_of(kind) for kind in self._kinds]
        self._loss_weights = [float(self._rng.uniform(0.5, 1.5)) for _ in self._kinds] if self._happens(0.4) else None
        self._metrics = [[self._metric_of(kind) for _ in range(self._number(0, 3))] for kind in self._kinds]
        self._weighted = [[self._metric_of(kind, True) for _ in range(self._number(0, 2))] for kind in self._kinds]
        self._weights_of_rows()
        self._draw_optimizer()
        self._draw_fit()

    # --- the model ------------------------------------------------------------------------------------------

    def _outputs(self, values: list[Any]) -> list[Any]:
        values = values[-2:] if self._happens(0.5) else values[-1:]
        outputs: list[Any] = []
        for number, value in enumerate(values):
            kind = self._one_of(_KINDS)
            value = value if self._happens(0.3) and len(value.shape) == 3 else self._flat(value)
            if self._draws:
                value = layers.Dropout(0.3)(value)
            if self._happens(0.2):
                value = Penalised()(value)
            self._kinds.append(kind)
            activation = {"numbers": None, "classes": "softmax", "labels": "sigmoid"}[kind]
            # A value may be 0 but for rounding: predictions are not, since correlations of rounding are any number.
            bias = ab.initializers.RandomNormal(0.0, 0.3, seed=number)
            outputs.append(layers.Dense(CLASSES, activation, bias_initializer=bias, name=f"output_{number}")(value))
        return outputs

    def _target(self, kind: str, shape: tuple[int, ...]) -> Any:
        if kind == "numbers":
            return self._rng.normal(size=shape)
        if kind == "classes":
            return self._rng.integers(0, CLASSES, shape[:-1])
        return self._rng.integers(0, 2, shape)

    def _loss_of(self, kind: str) -> Any:
        reduction = self._one_of(("sum_over_batch_size",) * 3 + ("sum", "mean_with_sample_weight"))
        if kind == "numbers":
            name = self._one_of(("MeanSquaredError", "Huber", "LogCosh", "MeanAbsoluteError", "CosineSimilarity"))
            return lambda: getattr(losses, name)(reduction=reduction)
        if kind == "classes":
            ignored = self._one_of((None, 1))
            return lambda: losses.SparseCategoricalCrossentropy(ignore_class=ignored, reduction=reduction)
        name = self._one_of(("BinaryCrossentropy", "BinaryFocalCrossentropy", "Hinge", "Poisson"))
        return lambda: getattr(losses, name)(reduction=reduction)

    def _metric_of(self, kind: str, is_weighted: bool = False) -> Any:
        chosen = self._one_of(_METRICS[kind] + ([] if is_weighted else _METRICS_OF_POSITIONS[kind]))
        name = f"metric_{self._number(0, 10**9)}"
        return lambda: chosen(name=name)

    def _weights_of_rows(self) -> None:
        self._weights: Any = None
        self._class_weight: Any = None
        if self._happens(0.4):
            shapes = [shape[:-1] if self._happens(0.5) else shape[:1] for shape in self.shapes]
            self._weights = [self._rng.random(shape) * (self._rng.random(shape) < 0.8) for shape in shapes]
        elif len(self._kinds) == 1 and self._kinds[0] == "classes" and len(self.shapes[0]) == 2 and self._happens(0.5):
            self._class_weight = {0: 0.5, 1: 2.0, 2: 1.5}

    # --- how it is trained ----------------------------------------------------------------------------------

    def _draw_optimizer(self) -> None:
        name, options = self._one_of(_OPTIMIZERS)
        for choices in (_CLIPPINGS, _OPTIONS):
            options = {**options, **self._one_of(choices)}
        clips = [key for key in options if "clip" in key]
        for key in clips[1:]:
            del options[key]
        rate: Any = 0.02
        if self._happens(0.3):
            rate = self._one_of(
                (optim.schedules.ExponentialDecay(0.03, 2, 0.5), optim.schedules.CosineDecay(0.03, 5, warmup_steps=2))
            )
        self._is_split = self._happens(0.15)
        self._has_schedule = not isinstance(rate, float)
        self._has_ema = "use_ema" in options
        self._is_scaled = self._happens(0.1)
        self._optimizer = lambda: getattr(optim if hasattr(optim, name) else ab.optimizers, name)(rate, **options)
        self.text = f"{name} {options} schedule={self._has_schedule} scaled={self._is_scaled}"

    def _draw_fit(self) -> None:
        self._batch = self._number(2, 7) if self._is_by_row else 2 * self._number(1, 3)
        self._epochs = self._number(1, 3)
        self.steps = -(-self._rows // self._batch), self._epochs
        self._steps_per_execution = self._one_of((1, 1, 1, 2, 3))
        self._shuffle = self._happens(0.5)
        self._source = self._one_of(("arrays", "arrays", "dataset", "generator"))
        self._validation = self._one_of((None, "data", "split", "dataset"))
        if self._validation == "split" and (self._source != "arrays" or not self._is_by_row):
            self._validation = "data"
        self._validation_freq = self._one_of((1, 1, 2, [2]))
        self._first = self._number(0, 1) if self._epochs > 1 else 0
        names = ("plateau", "stopping", "checkpoint", "rates", "swap", "every")
        self._callbacks = [name for name in names if self._happens(0.25)]
        if self._has_schedule:
            self._callbacks = [name for name in self._callbacks if name not in ("plateau", "rates")]
        if not self._has_ema:
            self._callbacks = [name for name in self._callbacks if name != "swap"]
        self._is_recorded = self._happens(0.6)
        self.text += (
            f" kinds={self._kinds} shapes={self.shapes} weights={self._weights is not None} {self._class_weight} "
            f"batch={self._batch} epochs={self._epochs} execution={self._steps_per_execution} shuffle={self._shuffle} "
            f"{self._source} validation={self._validation} callbacks={self._callbacks} by_name={self._by_name} "
            f"records={self._is_recorded} split={self._is_split} freq={self._validation_freq} first={self._first}"
        )

    def compile(self) -> ab.Model:
        by_name = self._by_name and len(self._names) > 1

        def named(values: list[Any]) -> Any:
            if by_name:
                return dict(zip(self._names, values, strict=True))
            return values if len(values) > 1 else values[0]

        optimizer = self._optimizer()
        if self._is_split:
            optimizer = optim.MultiOptimizer(optim.OptimizerMap(optimizer, {".*bias": optim.SGD(0.03)}))
        elif self._is_scaled:
            optimizer = ab.optimizers.LossScaleOptimizer(optimizer, initial_scale=256.0)
        self.model.compile(
            optimizer,
            named([make() for make in self._loss]),
            loss_weights=self._loss_weights and (named(self._loss_weights) if by_name else self._loss_weights),
            metrics=named([[make() for make in each] for each in self._metrics]),
            weighted_metrics=named([[make() for make in each] for each in self._weighted]),
            steps_per_execution=self._steps_per_execution,
        )
        return self.model

    def _data_of_fit(self) -> tuple[Any, ...]:
        x: Any = self.inputs
        y: Any = self._y if len(self._y) > 1 else self._y[0]
        weights: Any = self._weights
        if self._by_name:
            x = dict(zip([each.name for each in self.model.inputs], self.arrays, strict=True))
            if len(self._y) > 1:
                y = dict(zip(self._names, y, strict=True))
                weights = weights and dict(zip(self._names, weights, strict=True))
        if weights is not None and len(self._y) == 1:
            weights = weights[0]

        def tupled(value: Any) -> Any:
            return tuple(value) if isinstance(value, list) else value

        return tuple(tupled(each) for each in ((x, y) if weights is None else (x, y, weights)))

    def _batches(self, arrays: Any) -> Iterator[Any]:
        while True:
            yield from [Rows(arrays, self._batch)[number] for number in range(-(-self._rows // self._batch))]

    def _fit(self, folder: Path, more: Any = (), **options: Any) -> Any:
        data = self._data_of_fit()
        given: dict[str, Any] = {"epochs": self._epochs, "verbose": 0, **options}
        steps = -(-self._rows // self._batch)
        if self._source == "arrays":
            given |= dict(zip(("x", "y", "sample_weight"), data, strict=False))
            given |= {"batch_size": self._batch, "shuffle": self._shuffle}
        elif self._source == "dataset":
            given |= {"x": Rows(data, self._batch), "shuffle": self._shuffle}
        else:
            given |= {"x": self._batches(data), "steps_per_epoch": steps}
        if self._class_weight:
            given["class_weight"] = self._class_weight
        given["initial_epoch"] = self._first
        cut = map_structure(lambda array: array[: self._rows // 2 + 1], data)
        if self._validation == "data":
            given |= {"validation_data": cut, "validation_batch_size": 4}
        elif self._validation == "dataset":
            given |= {"validation_data": Rows(cut, 3)}
        elif self._validation == "split":
            given |= {"validation_split": 0.3}
        if self._validation:
            given["validation_freq"] = self._validation_freq
        monitor = "val_loss" if self._validation and self._validation_freq == 1 else "loss"
        made = {
            "plateau": lambda: callbacks.ReduceLROnPlateau(monitor, 0.5, patience=0, min_delta=0.05),
            "stopping": lambda: callbacks.EarlyStopping(monitor, patience=1, restore_best_weights=True, min_delta=0.01),
            "checkpoint": lambda: callbacks.ModelCheckpoint(
                folder / _BEST, monitor, save_best_only=True, save_weights_only=True
            ),
            "rates": lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7 + 0.001 * epoch),
            "every": lambda: callbacks.Every(3, callbacks.EarlyStopping("val_loss", patience=2), validation_data=cut),
            "swap": lambda: callbacks.SwapEMAWeights(swap_on_epoch=self._seed % 2 == 0),
        }
        return self.model.fit(callbacks=[*(made[name]() for name in self._callbacks), *more], **given)

    def results(self, folder: Path, more: Sequence[callbacks.Callback] = ()) -> dict[str, Any]:
        """Train; return weights, logs, calls of callbacks, values of metrics and predictions, by name."""
        model, records = self.model, Records()
        history = self._fit(folder, [*([records] if self._is_recorded else []), *more])
        found: dict[str, Any] = {f"weight {n}": value for n, value in enumerate(model.get_weights())}
        found |= {f"log {name}": np.array(values) for name, values in history.history.items()}
        for number, (name, place, logs) in enumerate(records.calls):
            found[f"call {number}, {name} {place}"] = np.array(0.0)
            found |= {f"call {number}, {name} {place}: {key}": np.array(value) for key, value in logs.items()}
        for number, logs in enumerate(history.by_step):
            found |= {f"call of Every {number}: {key}": np.array(value) for key, value in logs.items()}
        x, y, *weights = self._data_of_fit()
        values = model.evaluate(x, y, 5, 0, weights[0] if weights else None, return_dict=True)
        found |= {f"evaluated {name}": np.array(value) for name, value in values.items()}
        predicted = flatten(model.predict(x, batch_size=4, verbose=0))
        found |= {f"predicted {n}": value for n, value in enumerate(predicted)}
        optimizer: Any = model.optimizer
        found |= {f"optimizer {n}": variable.numpy() for n, variable in enumerate(optimizer.saved_variables)}
        if (folder / _BEST).exists():
            model.load_weights(folder / _BEST)
            found |= {f"best {n}": value for n, value in enumerate(model.get_weights())}
        return found


def made(seed: int, strategy: Any = None, draws: bool = False, is_by_row: bool = True) -> RandomTraining:
    """Return the training that a seed draws, whose model is compiled under a strategy."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        drawn = RandomTraining(seed, draws, is_by_row)
        drawn.compile()
    return drawn


def assert_same(found: dict[str, Any], expected: dict[str, Any], hint: str = "", precision: float = 1e-9) -> None:
    """See that two trainings have the same results, in the same order."""
    assert list(found) == list(expected), hint
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, precision, precision, err_msg=f"{name}\n{hint}")


__all__ = ["RandomTraining", "assert_same", "made"]
