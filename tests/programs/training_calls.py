"""Random calls of a model: `fit`, single steps, passes and changes in turns, and the same made by hand on values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from programs.trainings import Largest, Latest, Penalised, RandomTraining

import anabranch as ab
from anabranch import callbacks, metrics, ops
from anabranch.engine.common.nest import flatten, map_structure

_KINDS = ("fit",) * 4 + ("train",) * 3 + ("test", "evaluate", "predict", "freeze", "compile", "rate", "save", "load")


class Call(NamedTuple):
    """A call of a model, or a change.

    Attributes:
        kind: the call, see `RandomCalls`.
        first, last: the first row, and that behind the last.
        batch, epochs: how many rows a step takes, and how many epochs there are.
        is_longer: whether `fit` validates, `freeze` compiles again, `load` undoes a step.
        number: chooses a layer or a learning rate.
    """

    kind: str
    first: int
    last: int
    batch: int
    epochs: int
    is_longer: bool
    number: int


class RandomCalls(RandomTraining):
    """Calls that a seed draws, of the model of a random training.

    Args:
        seed: of the draws.
        strategy: under which the model is compiled, or None.
        together: how many steps are made in one call of the engine.
        reloads: whether a model that is saved is read from the file again.
    """

    def __init__(self, seed: int, strategy: Any = None, together: int = 1, reloads: bool = False) -> None:
        self._strategy, self._reloads = strategy, reloads
        with self._scope():
            super().__init__(seed)
        self._steps_per_execution = together
        self._calls = [self._call() for _ in range(self._number(3, 7))]
        self.text += f"\n{self._calls}"
        self.compile()

    def _call(self) -> Call:
        first, last = sorted(int(row) for row in self._rng.choice(self._rows + 1, 2, replace=False))
        batch, epochs, number = self._number(2, 6), self._number(1, 2), self._number(0, 100)
        return Call(self._one_of(_KINDS), first, last, batch, epochs, self._happens(0.4), number)

    def _scope(self) -> Any:
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def compile(self) -> ab.Model:
        with self._scope():
            return super().compile()

    def results(self, folder: Path, more: Sequence[callbacks.Callback] = ()) -> dict[str, Any]:
        """Make the calls; return what each gives, and the weights and the optimizer's variables behind it, by name."""
        folder.mkdir(exist_ok=True)
        found: dict[str, Any] = {}
        for place, call in enumerate(self._calls):
            made = self._make(call, folder / f"{place}.weights.h5") or {}
            optimizer: Any = self.model.optimizer
            is_used = optimizer.built and int(optimizer.iterations) > 0  # that of a model that was read is built
            slots = [variable.numpy() for variable in optimizer.saved_variables] if is_used else []
            made |= {f"weight {n}": value for n, value in enumerate(self.model.get_weights())}
            made |= {f"optimizer {n}": value for n, value in enumerate(slots)}
            found |= {f"call {place}, {call.kind}: {name}": np.array(value) for name, value in made.items()}
        return found

    def _make(self, call: Call, file: Path) -> dict[str, Any] | None:
        data = self._some(call.first, call.last)
        match call.kind:
            case "fit":
                return self._fitted(call, *data)
            case "train":
                return self._trained(*data)
            case "test":
                return self._tested(*data)
            case "evaluate":
                return self._evaluated(call.batch, *data)
            case "predict":
                return {f"output {n}": value for n, value in enumerate(self._predicted(call.batch, data[0]))}
            case "freeze":
                self._freeze(call)
            case "compile":
                self.compile()
            case "rate":
                self._set_rate(0.01 + call.number / 3000)
            case "save":
                self._save(file.with_suffix(".keras"))
            case _:
                self.model.save_weights(file)
                if call.is_longer:
                    self._trained(*self._some(0, 4))
                    self.model.load_weights(file)
                self.model.set_weights([weight * 0.9 for weight in self.model.get_weights()])
        return None

    def _some(self, first: int, last: int) -> tuple[Any, Any, Any]:
        x, y, *weights = self._data_of_fit()
        x, y, given = map_structure(lambda array: array[first:last], (x, y, weights[0] if weights else None))
        return x, y, given

    def _freeze(self, call: Call) -> None:
        """Let a layer be trained that is not, or the reverse; where no step was made for it, compile again."""
        found = [layer for layer in self.model.layers if layer.weights]
        layer = found[call.number % len(found)]
        layer.trainable = not layer.trainable
        if not self.model.trainable_variables:
            layer.trainable = True
        if layer.trainable or call.is_longer:
            self.compile()
        else:
            self._fitted(call._replace(is_longer=False), *self._some(0, 3))

    def _set_rate(self, rate: float) -> None:
        optimizer: Any = self.model.optimizer
        if not self._has_schedule and not self._is_split:
            optimizer.learning_rate = rate

    # --- calls of the model -----------------------------------------------------------------------------------------

    def _save(self, file: Path) -> None:
        self.model.save(file)
        if self._reloads:
            own = {each.__name__: each for each in (Largest, Latest, Penalised)}
            with self._scope():
                self.model = ab.load_model(file, custom_objects=own)

    def _fitted(self, call: Call, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"batch_size": call.batch, "epochs": call.epochs, "shuffle": False, "verbose": 0}
        if call.is_longer:
            data = tuple(part for part in self._some(0, 5) if part is not None)
            given |= {"validation_data": data, "validation_batch_size": 3}
        given |= {"sample_weight": weights, "class_weight": self._class_weight}
        return self.model.fit(x, y, **given).history

    def _trained(self, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        return self.model.train_on_batch(x, y, weights, self._class_weight, return_dict=True)

    def _tested(self, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        return self.model.test_on_batch(x, y, weights, return_dict=True)

    def _evaluated(self, batch: int, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        return self.model.evaluate(x, y, batch, 0, weights, return_dict=True)

    def _predicted(self, batch: int, x: Any) -> list[Any]:
        return flatten(self.model.predict(x, batch, 0))


class CallsByHand(RandomCalls):
    """The calls of a seed as loops over batches, with steps on values under a tape and with metrics of their own."""

    def compile(self) -> ab.Model:
        self._losses = [make() for make in self._loss]
        self._kept = [[make() for make in each] for each in self._metrics]
        self._kept_weighted = [[make() for make in each] for each in self._weighted]
        return super().compile()

    def _reset(self) -> None:
        self._sums, self._count = np.zeros(1 + len(self._losses)), 0
        for metric in [m for each in (*self._kept, *self._kept_weighted) for m in each] + self._of_layers():
            metric.reset_state()

    def _of_layers(self) -> list[metrics.Metric]:
        found = [layer for layer in self.model.layers if isinstance(layer, Penalised)]
        return [metric for layer in found for metric in (layer.size, layer.largest)]

    def _per_output(self, given: Any) -> list[Any]:
        if given is None:
            return [None] * len(self._losses)
        if isinstance(given, dict):
            return [given[name] for name in self._names]
        return list(given) if isinstance(given, tuple) else [given]

    def _total(self, training: bool, x: Any, y: Any, weights: Any) -> Any:
        """Return the loss of a batch, and take it and the predictions into the averages."""
        outputs, rows = flatten(self.model(x, training=training)), len(flatten(x)[0])
        targets, weighed = self._per_output(y), self._per_output(weights)
        parts = [loss(*each) for loss, *each in zip(self._losses, targets, outputs, weighed, strict=True)]
        factors = self._loss_weights or [1.0] * len(parts)
        total: Any = sum(part * factor for part, factor in zip(parts, factors, strict=True))
        for added in self.model.losses:
            total = total + ops.sum(added)
        self._sums += rows * np.array([float(part) for part in (total, *parts)])
        self._count += rows
        for number, output in enumerate(outputs):
            for metric in self._kept[number]:
                metric.update_state(targets[number], output)
            for metric in self._kept_weighted[number]:
                metric.update_state(targets[number], output, sample_weight=weighed[number])
        return total

    def _step(self, x: Any, y: Any, weights: Any) -> None:
        optimizer: Any = self.model.optimizer
        with ab.GradientTape() as tape:
            scaled = optimizer.scale_loss(self._total(True, x, y, weights))
        variables = self.model.trainable_variables
        optimizer.apply(tape.gradient(scaled, variables), variables)

    def _logs(self) -> dict[str, Any]:
        means, found = self._sums / self._count, {}
        is_one = len(self._losses) == 1
        found["loss"] = means[0]
        for number, name in enumerate(self._names):
            prefix = "" if is_one else f"{name}_"
            found |= {} if is_one else {f"{name}_loss": means[1 + number]}
            for metric in self._kept[number] + self._kept_weighted[number]:
                found |= _named(prefix + metric.name, metric.result())
        for metric in self._of_layers():
            found |= _named(metric.name, metric.result())
        return dict(sorted(found.items()))

    def _weighed(self, y: Any, weights: Any) -> Any:
        given = self._class_weight
        return weights if given is None else np.vectorize(lambda label: float(given[label]))(y)

    def _save(self, file: Path) -> None:
        pass

    def _fitted(self, call: Call, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        optimizer: Any = self.model.optimizer
        history: dict[str, list[Any]] = {}
        for _ in range(call.epochs):
            self._reset()
            for batch in _batches(call.batch, x, y, self._weighed(y, weights)):
                self._step(*batch)
            logs = self._logs()
            if call.is_longer:
                logs |= {f"val_{name}": value for name, value in self._evaluated(3, *self._some(0, 5)).items()}
            for name, value in sorted(logs.items()):
                history.setdefault(name, []).append(value)
        optimizer.finalize_variable_values(self.model.trainable_variables)
        return history

    def _trained(self, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        self._reset()
        self._step(x, y, self._weighed(y, weights))
        return self._logs()

    def _tested(self, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        return self._evaluated(self._rows, x, y, weights)

    def _evaluated(self, batch: int, x: Any, y: Any, weights: Any) -> dict[str, Any]:
        self._reset()
        for each in _batches(batch, x, y, weights):
            self._total(False, *each)
        return self._logs()

    def _predicted(self, batch: int, x: Any) -> list[Any]:
        parts = [map(np.asarray, flatten(self.model(rows, training=False))) for (rows,) in _batches(batch, x)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _batches(size: int, *data: Any) -> Iterator[Any]:
    for first in range(0, len(flatten(data)[0]), size):
        yield tuple(map_structure(lambda array: array[first : first + size], part) for part in data)  # noqa: B023


def _named(name: str, value: Any) -> dict[str, Any]:
    found = value if isinstance(value, dict) else {name: value}
    return {key: np.array(each) for key, each in found.items()}  # a result may be the metric's variable


__all__ = ["CallsByHand", "RandomCalls"]
