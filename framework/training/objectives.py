"""Prepare what `compile` was given: one loss and a list of metrics for each output.

`compile` checks that all names are known. They are resolved at the first batch, when the shapes of targets and
predictions are known: ``"accuracy"`` becomes binary, categorical or sparse categorical accuracy, as in Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...engine import ops
from ...engine.common.nest import flatten, map_structure
from ...engine.graph.tensor import Tensor
from ...engine.objects.registry import is_serialized
from ..losses import api as losses_module
from ..metrics.base import Metric
from ..metrics.reduction import Mean, MeanMetricWrapper
from .contract import check_not_applied_twice

if TYPE_CHECKING:
    from ...engine.common.nest import Nest
    from ..model_types import Losses, Metrics
    from ..structures import Tensors


Names = Sequence[str]
LossOfOutput = Callable[..., Tensor]  # of targets, predictions and weights of one output


# --- outputs --------------------------------------------------------------------------------------------------------


class _NestedNames(list[str]):
    """Names of outputs that are given in a nested structure, which is kept with them."""

    structure: Nest[int]


def output_names(y_pred: Tensors, layer_names: Names | None) -> list[str]:
    """Return a name for each output, in flat order: dict keys, else names of the output layers, else ``output_1``...

    In a structure of structures the ways to them, as Keras writes them: ``p/q`` for ``{"p": {"q": ...}}``; of a list it
    is the layer's name at the end, and the position before that.
    """
    if _is_nested(y_pred):
        flat = iter(layer_names if layer_names is not None and len(layer_names) == len(flatten(y_pred)) else ())
        names = _NestedNames(_paths(y_pred, "", flat))
        names.structure = map_structure(lambda _: 0, y_pred)
        return names
    if isinstance(y_pred, dict):
        return [str(key) for key in sorted(y_pred)]
    count = len(flatten(y_pred))
    if layer_names is not None and len(layer_names) == count:
        return list(layer_names)
    return [f"output_{position + 1}" for position in range(count)]


def _items(structure: object) -> list[tuple[Any, object]]:
    """Return what is directly inside, in flat order, by keys or positions; nothing for a leaf."""
    if isinstance(structure, dict):
        return [(key, structure[key]) for key in sorted(structure)]
    return list(enumerate(structure)) if isinstance(structure, (list, tuple)) else []


def _is_nested(structure: object) -> bool:
    return any(_items(item) for _, item in _items(structure))


def _paths(structure: object, before: str, layer_names: Iterator[str]) -> Iterator[str]:
    for key, item in _items(structure):
        if _items(item):
            yield from _paths(item, f"{before}{key}/", layer_names)
            continue
        layer = next(layer_names, None)
        yield f"{before}{key if isinstance(structure, dict) or layer is None else layer}"


def _spread(value: Any, structure: Any) -> list[Any] | None:
    """Return the item of a structure for each output, None where it has none; None if it is not like the outputs'."""
    if not (items := _items(structure)):
        return [value]
    if value is None:
        return [None] * len(flatten(structure))
    if isinstance(structure, dict):
        alike = isinstance(value, dict) and not value.keys() - structure.keys()
    else:
        alike = isinstance(value, (list, tuple)) and len(value) == len(structure)
    if not alike:
        return None
    parts = [_spread(value.get(key) if isinstance(value, dict) else value[key], item) for key, item in items]
    return None if any(part is None for part in parts) else [each for part in parts for each in part or ()]


def per_output(value: object, names: Names, keys: Names | None, what: str) -> list[Any]:
    """Return one entry of `value` for each output; None where it has none.

    Args:
        value: a single entry (if there is one output), a list or dict of them, or a structure like the outputs'.
        names: the outputs.
        keys: other names by which a dict may call them (those of the output layers).
        what: the user's word for the argument.

    Raises:
        ValueError: a list of the wrong length, or a dict with unknown keys.
    """
    if isinstance(names, _NestedNames) and (found := _spread(value, names.structure)) is not None:
        return found
    if isinstance(value, dict):
        return _by_name(value, names, keys, what)
    if isinstance(value, (list, tuple)):
        if len(value) != len(names):
            raise ValueError(
                f"{what}: the model has {len(names)} outputs ({', '.join(names)}), but a list of {len(value)} was "
                "given. Give one entry for each output, or a dict with some of their names."
            )
        return list(value)
    if len(names) == 1:
        return [value]
    kind = "array" if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(
        f"{what}: the model has {len(names)} outputs ({', '.join(names)}), but a single {kind} was given. Give a list "
        "with one entry for each output, or a dict with their names."
    )


def _by_name(value: dict[str, object], names: Names, keys: Names | None, what: str) -> list[object]:
    aliases = list(keys) if keys is not None and len(keys) == len(names) else list(names)
    unknown = [key for key in value if key not in names and key not in aliases]
    if unknown:
        raise ValueError(f"{what}: {unknown} name no output of the model; its outputs are {', '.join(names)}.")
    return [value.get(name, value.get(alias)) for name, alias in zip(names, aliases, strict=True)]


def _is_binary_or_sparse(y_true: Tensor, y_pred: Tensor) -> tuple[bool, bool]:
    """Test whether one unit separates two classes; whether the targets are class numbers."""
    true: tuple[int | None, ...] = y_true.shape or ()
    pred: tuple[int | None, ...] = y_pred.shape or ()
    binary = pred[-1:] == (1,)
    sparse = len(true) < len(pred) or (true[-1:] == (1,) and not binary)
    return binary, sparse


_BY_SHAPES = ("accuracy", "acc", "crossentropy", "ce")  # names that stand for several classes, until shapes are known


def check_names(loss: Losses, *metrics: Metrics) -> None:
    """Check that all names of losses and metrics are known.

    Raises:
        ValueError: one is not.
    """
    for name in _names_in(loss):
        losses_module.get(name)
    for name in _names_in(metrics):
        from ..metrics import api  # many models have none

        api.get(name)


def _names_in(given: object) -> Iterator[str]:
    """Yield the names in a structure that still have to be looked up."""
    if isinstance(given, str) and given.lower() not in _BY_SHAPES:
        yield given
    elif isinstance(given, (list, tuple)) or (isinstance(given, dict) and not is_serialized(given)):
        for item in given.values() if isinstance(given, dict) else given:
            yield from _names_in(item)


# --- losses ---------------------------------------------------------------------------------------------------------


def _make_loss(identifier: object, y_true: Tensor, y_pred: Tensor) -> LossOfOutput | None:
    if isinstance(identifier, (list, tuple)):  # several losses of one output count as their sum
        made = [_make_loss(item, y_true, y_pred) for item in identifier if item is not None]
        parts = [part for part in made if part is not None]
        return parts[0] if len(parts) == 1 else _SumOfLosses(parts) if parts else None
    if str(identifier).lower() in ("crossentropy", "ce"):
        binary, sparse = _is_binary_or_sparse(y_true, y_pred)
        kind = "binary" if binary else "sparse_categorical" if sparse else "categorical"
        identifier = f"{kind}_crossentropy"
    found = losses_module.get(identifier)
    if found is None or isinstance(found, losses_module.Loss):
        return found
    name = identifier if isinstance(identifier, str) else object_name(found)
    return losses_module.LossFunctionWrapper(found, name=name)


class _SumOfLosses:
    """The sum of several losses of one output."""

    def __init__(self, parts: list[LossOfOutput]) -> None:
        self.name = "_and_".join(object_name(part) for part in parts)
        self._parts = parts

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return sum_of([part(y_true, y_pred, sample_weight) for part in self._parts])


def object_name(item: object) -> str:
    """Return the name of a metric, loss or function, for the logs."""
    return getattr(item, "name", None) or getattr(item, "__name__", None) or type(item).__name__


class CompiledLoss:
    """The losses of all outputs as one.

    Args:
        loss: what `compile` got: one loss for every output, or a list or dict of them; None where an output has none.
        loss_weights: a factor for each output's loss, in a list or dict; or one for all.
        layer_names: the names of the output layers.

    Attributes:
        trackers: with several outputs, the average of each one's loss.
    """

    def __init__(
        self, loss: Losses, loss_weights: Nest[float | None] | None = None, layer_names: Names | None = None
    ) -> None:
        self.loss = loss
        self.loss_weights = loss_weights
        self.layer_names = layer_names
        self.trackers: list[Mean] = []
        self._losses: list[LossOfOutput | None] | None = None
        self._weights: list[float | None] = []

    def __call__(
        self,
        y_true: Tensors | None,
        y_pred: Tensors,
        sample_weight: Tensors | None = None,
        rows: float | Tensor | None = None,
    ) -> Tensor | None:
        """Return the weighted sum of the losses; None if no output has one.

        Args:
            y_true, y_pred, sample_weight: a tensor, or a structure with one for each output.
            rows: the number of rows, by which the averages of single outputs are weighted.
        """
        names = output_names(y_pred, self.layer_names)
        predictions = flatten(y_pred)
        if y_true is None:
            raise ValueError(f"The model was compiled with loss={self.loss!r}, but no targets (y) were given.")
        targets = self._targets(y_true, predictions, names)
        weights = _weights_per_output(sample_weight, names, self.layer_names)
        if self._losses is None:
            self._build(targets, predictions, names)
        assert self._losses is not None
        _check_targets(targets, names, self._losses, "loss")
        trackers = iter(self.trackers)
        terms: list[Tensor] = []
        for loss, factor, target, prediction, weight in zip(
            self._losses, self._weights, targets, predictions, weights, strict=True
        ):
            if loss is None:
                continue
            value = loss(target, prediction, weight)
            if self.trackers:
                next(trackers).update_state(value, sample_weight=rows)
            terms.append(value if factor is None else value * factor)
        return sum_of(terms)

    def _targets(self, y_true: Tensors, predictions: list[object], names: Names) -> list[Any]:
        if not isinstance(y_true, (dict, list, tuple)) and len(predictions) > 1 and not self._is_per_output():
            raise ValueError(
                f"The model has {len(predictions)} outputs ({', '.join(names)}), but y is one array. Give a list or a "
                "dict with the targets of each output."
            )
        given = list(y_true) if isinstance(y_true, (list, tuple)) else None if isinstance(y_true, dict) else [y_true]
        if self._is_per_output() and given is not None and len(given) < len(names):
            wanted = [loss is not None for loss in per_output(self.loss, names, self.layer_names, "loss")]
            if sum(wanted) == len(given):  # y has targets for the outputs with a loss only
                left = iter(given)
                return [next(left) if used else None for used in wanted]
        return per_output(y_true, names, self.layer_names, "y")

    def _is_per_output(self) -> bool:
        return isinstance(self.loss, (dict, list, tuple))

    def _build(self, targets: list[Any], predictions: list[Any], names: Names) -> None:
        given = per_output(self.loss, names, self.layer_names, "loss") if self._is_per_output() else None
        chosen = given or [self.loss] * len(names)
        _check_targets(targets, names, chosen, "loss")
        losses = [
            None if item is None else _make_loss(item, target, prediction)
            for item, target, prediction in zip(chosen, targets, predictions, strict=True)
        ]
        for loss, prediction, name in zip(losses, predictions, names, strict=True):
            if loss is not None:
                check_not_applied_twice(loss, prediction, name)
        self._weights = self._factors(names)
        if sum(loss is not None for loss in losses) > 1:
            pairs = zip(names, losses, strict=True)
            self.trackers = [Mean(name=f"{name}_loss") for name, loss in pairs if loss is not None]
        self._losses = losses

    def _factors(self, names: Names) -> list[float | None]:
        if self.loss_weights is None:
            return [None] * len(names)
        given = self.loss_weights
        if isinstance(given, (int, float)):
            return [float(given)] * len(names)
        factors = per_output(given, names, self.layer_names, "loss_weights")
        if any(isinstance(factor, str) or not isinstance(factor, (int, float, type(None))) for factor in factors):
            raise ValueError(
                f"compile(loss_weights={self.loss_weights!r}): expected a number for each output. "
                "If these are metrics, pass them by name: metrics=[...]."
            )
        return [None if factor is None else float(factor) for factor in factors]


def _check_targets(targets: Sequence[object], names: Names, wanted: Sequence[object], what: str) -> None:
    """Check that outputs with a loss or a metric have targets.

    Raises:
        ValueError: one has none.
    """
    given = zip(names, targets, wanted, strict=True)
    missing = [name for name, target, item in given if target is None and any(_as_list(item))]
    if missing:
        raise ValueError(
            f"y has no targets for the outputs {missing}, for which there is a {what}. "
            f"Give them in y, or compile with no {what} for these outputs."
        )


def _weights_per_output(sample_weight: Tensors | None, names: Names, keys: Names | None) -> list[object]:
    if sample_weight is None or not isinstance(sample_weight, (dict, list, tuple)):
        return [sample_weight] * len(names)  # the same rows weigh the same for every output
    return per_output(sample_weight, names, keys, "sample_weight")


def sum_of(terms: Sequence[Tensor]) -> Any:
    """Return the sum of tensors; None if there are none."""
    total: Tensor | None = None
    for term in terms:
        total = term if total is None else total + term
    return total


# --- metrics --------------------------------------------------------------------------------------------------------


def _make_metric(identifier: object, y_true: Tensor, y_pred: Tensor) -> Metric:
    from ..metrics import api

    text = str(identifier).lower() if isinstance(identifier, str) else ""
    if text in ("accuracy", "acc"):
        kinds = ("BinaryAccuracy", "SparseCategoricalAccuracy", "CategoricalAccuracy")
        found = _by_shapes(kinds, y_true, y_pred)(name=str(identifier))
    elif text in ("crossentropy", "ce"):
        kinds = ("BinaryCrossentropy", "SparseCategoricalCrossentropy", "CategoricalCrossentropy")
        found = _by_shapes(kinds, y_true, y_pred)(name=str(identifier))
    else:
        found = api.get(identifier)
    if not isinstance(found, Metric):
        found = MeanMetricWrapper(found, name=object_name(found))
    if isinstance(identifier, str):
        found.name = identifier
    return found


def _by_shapes(kinds: tuple[str, str, str], y_true: Tensor, y_pred: Tensor) -> type[Metric]:
    """Return the class, of (binary, sparse, one-hot), that suits the shapes."""
    from ..metrics import api

    binary, sparse = _is_binary_or_sparse(y_true, y_pred)
    return getattr(api, kinds[0] if binary else kinds[1] if sparse else kinds[2])


class CompiledMetrics:
    """The metrics of all outputs.

    Args:
        metrics, weighted_metrics: what `compile` got: a list of metrics, or, for several outputs, a list or dict of
            (lists of) metrics. Only the weighted ones see sample weights.
        layer_names: the names of the output layers.
    """

    def __init__(self, metrics: Metrics, weighted_metrics: Metrics, layer_names: Names | None = None) -> None:
        self.given = {"metrics": metrics, "weighted_metrics": weighted_metrics}
        self.layer_names = layer_names
        self._entries: list[_Entry] | None = None

    name = "compile_metrics"

    @property
    def built(self) -> bool:
        return self._entries is not None

    @property
    def is_given(self) -> bool:
        """Test whether `compile` got any metric at all."""
        return any(flatten(given) for given in self.given.values())

    @property
    def metrics(self) -> list[Metric]:
        """All metrics; none before the first batch."""
        return [entry.metric for entry in self._entries or ()]

    @property
    def named(self) -> dict[str, Metric]:
        """The metrics by the names that they have in the logs."""
        return {entry.name: entry.metric for entry in self._entries or ()}

    def update_state(self, y_true: Tensors | None, y_pred: Tensors, sample_weight: Tensors | None = None) -> None:
        """Let every metric take in a batch."""
        if not self.is_given:
            self._entries = []
            return
        names = output_names(y_pred, self.layer_names)
        predictions = flatten(y_pred)
        if y_true is None:
            raise ValueError("The model was compiled with metrics, but no targets (y) were given.")
        targets = per_output(y_true, names, self.layer_names, "y")
        weights = _weights_per_output(sample_weight, names, self.layer_names)
        for argument, given in self.given.items():
            _check_targets(targets, names, _lists_per_output(given, names, self.layer_names, argument), "metric")
        if self._entries is None:
            self._entries = self._build(targets, predictions, names)
        for entry in self._entries:
            weight = weights[entry.output] if entry.weighted else None
            entry.metric.update_state(targets[entry.output], predictions[entry.output], sample_weight=weight)

    def result(self) -> dict[str, object]:
        """Return the results by the names that they have in the logs."""
        return {entry.name: entry.metric.result() for entry in self._entries or ()}

    def reset_state(self) -> None:
        """Let every metric forget all batches."""
        for metric in self.metrics:
            metric.reset_state()

    def _build(self, targets: list[Any], predictions: list[Any], names: Names) -> list[_Entry]:
        entries: list[_Entry] = []
        used: dict[str, int] = {}
        for argument, given in self.given.items():
            lists = _lists_per_output(given, names, self.layer_names, argument)
            of_layers = isinstance(names, _NestedNames) and self.layer_names is not None  # as in Keras
            prefixes = self.layer_names if of_layers and len(self.layer_names or ()) == len(names) else names
            for output, identifiers in enumerate(lists):
                for identifier in identifiers:
                    metric = _make_metric(identifier, targets[output], predictions[output])
                    prefix = f"{(prefixes or names)[output]}_" if len(names) > 1 else ""
                    weighted = argument == "weighted_metrics"
                    name = _log_name(metric.name, prefix, weighted, used)
                    entries.append(_Entry(name, metric, output, weighted))
        return entries


class _Entry:
    """A metric of one output."""

    def __init__(self, name: str, metric: Metric, output: int, weighted: bool) -> None:
        self.name = name
        self.metric = metric
        self.output = output
        self.weighted = weighted


def _lists_per_output(given: object, names: Names, keys: Names | None, what: str) -> list[list[object]]:
    if given is None or given == [] or given == {}:
        return [[] for _ in names]
    if len(names) == 1 and not isinstance(given, dict):
        return [_as_list(given)]
    return [_as_list(item) for item in per_output(given, names, keys, what)]


def _as_list(given: object) -> list[object]:
    if given is None:
        return []
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    return [item for inner in items for item in (inner if isinstance(inner, (list, tuple)) else [inner])]


def _log_name(metric_name: str, prefix: str, weighted: bool, used: dict[str, int]) -> str:
    """Return the name in the logs: a weighted metric like an unweighted one is ``weighted_...``; then numbers."""
    name = prefix + metric_name
    if name in used and weighted:
        name = f"{prefix}weighted_{metric_name}"
    count = used.get(name)
    used[name] = 1 if count is None else count + 1
    return name if count is None else f"{name}_{count}"


def row_count(x: Tensors) -> float | Tensor:
    """Return the number of rows of a batch: a float where it is static, else a tensor."""
    first = flatten(x)[0]
    rows = first.shape[0] if first.shape else None
    return ops.cast(ops.shape(first)[0], "float32") if rows is None else float(rows)
