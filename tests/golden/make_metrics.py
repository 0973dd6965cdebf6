"""Golden metric cases: results after one and after two updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from pack import Pack, normal, seeded

WEIGHTS = [np.array([0.5, 1.0, 0.0, 2.0], dtype=np.float32), np.array([1.0, 3.0, 0.25, 0.5], dtype=np.float32)]
Updates = list[dict[str, np.ndarray]]


def make(versions: dict[str, str]) -> None:
    """Writes ``metrics.npz`` and ``metrics.json``."""
    pack = Pack("metrics", versions)
    for label, target, kwargs, updates in metrics():
        add(pack, label, target, kwargs, updates)
        if label.endswith(("/1d", "/counts")):
            continue  # Keras averages a 1-D batch away before it weights it, and then refuses the weights
        weighted = [{**update, "sample_weight": weight} for update, weight in zip(updates, WEIGHTS, strict=True)]
        add(pack, f"{label}/weighted", target, kwargs, weighted)
    steps = step_updates(seeded("steps"))
    add(pack, "SparseCategoricalAccuracy/steps", "SparseCategoricalAccuracy", {}, steps)
    weight = np.array([[1.0, 0.5], [0.0, 1.0], [2.0, 2.0], [0.5, 0.0]], dtype=np.float32)
    weighted = [{**update, "sample_weight": weight} for update in steps]
    add(pack, "SparseCategoricalAccuracy/steps/weighted", "SparseCategoricalAccuracy", {}, weighted)
    pack.write()


def add(pack: Pack, name: str, target: str, kwargs: dict[str, Any], updates: Updates) -> None:
    metric = getattr(keras.metrics, target)(**kwargs)
    results = []
    for update in updates:
        metric.update_state(**update)
        results.append(np.asarray(metric.result()))
    pack.add(
        name=name,
        target=target,
        kwargs=kwargs,
        updates=[pack.arrays(update) for update in updates],
        results=pack.arrays(results),
    )


def pairs(y_true: list[np.ndarray], y_pred: list[np.ndarray]) -> Updates:
    return [{"y_true": true, "y_pred": pred} for true, pred in zip(y_true, y_pred, strict=True)]


def step_updates(rng: np.random.Generator) -> Updates:
    labels = [rng.integers(0, 3, (4, 2)).astype(np.int32) for _ in range(2)]
    return pairs(labels, [normal(rng, 4, 2, 3) for _ in range(2)])


def metrics() -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    """Every metric with its two updates of four samples."""
    rng = seeded("metrics")
    values = [{"values": normal(rng, 4)}, {"values": normal(rng, 4)}]
    yield "Mean", "Mean", {}, values
    yield "Sum", "Sum", {}, values
    yield from regression(rng)
    yield from accuracies(rng)
    yield from binary(rng)
    yield from overlaps(seeded("overlaps"))
    yield from scores(seeded("scores"))
    yield from tradeoffs(seeded("tradeoffs"))
    yield from gains(seeded("gains"))


def gains(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    """Precision-recall-gain curves. R2Score(num_regressors=2) is no case: Keras 3.15.1 counts values, not samples."""
    updates = pairs(
        [(rng.random(4) > 0.4).astype(np.float32) for _ in range(2)],
        [rng.random(4).astype(np.float32) for _ in range(2)],
    )
    for method in ("interpolation", "minoring", "majoring"):
        kwargs = {"curve": "PRGAIN", "summation_method": method, "num_thresholds": 20}
        yield f"AUC/prgain/{method}", "AUC", kwargs, updates


def overlaps(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    """Intersection over union. Weights of the other cases are fractions, which only float matrices keep."""
    labels = [rng.integers(-1, 4, 4).astype(np.int32) for _ in range(2)]  # -1 and 3 are out of range
    guesses = [np.where(rng.random(4) < 0.6, index, 1).astype(np.int32) for index in labels]
    known = pairs([np.array([0, 1, 2, 0], np.int32), np.array([2, 2, 1, 0], np.int32)], guesses)
    updates = pairs(labels, guesses)
    maps = pairs(
        [rng.integers(0, 3, (2, 3, 2)).astype(np.int32) for _ in range(2)],
        [rng.integers(0, 3, (2, 3, 2)).astype(np.int32) for _ in range(2)],
    )
    some = {"num_classes": 3, "target_class_ids": [0, 2], "dtype": "float32"}
    every = {"num_classes": 3, "dtype": "float32"}
    yield "IoU", "IoU", some, known
    yield "IoU/out_of_range", "IoU", some, updates
    yield "IoU/ignore", "IoU", {**some, "ignore_class": 2}, known
    yield "IoU/maps/counts", "IoU", {"num_classes": 3, "target_class_ids": [1]}, maps
    yield "MeanIoU", "MeanIoU", every, known
    yield "MeanIoU/counts", "MeanIoU", {"num_classes": 3, "ignore_class": 0}, maps
    one_hot = [np.eye(3, dtype=np.float32)[np.clip(index, 0, 2)] for index in labels]
    chances = [rng.random((4, 3)).astype(np.float32) for _ in range(2)]
    yield "OneHotIoU", "OneHotIoU", some, pairs(one_hot, chances)
    yield "OneHotMeanIoU", "OneHotMeanIoU", every, pairs(one_hot, chances)
    found = [np.argmax(array, axis=-1).astype(np.int32) for array in chances]
    yield "OneHotMeanIoU/numbers", "OneHotMeanIoU", {**every, "sparse_y_pred": True}, pairs(one_hot, found)
    true = [(rng.random(4) > 0.5).astype(np.float32) for _ in range(2)]
    rates = [rng.random(4).astype(np.float32) for _ in range(2)]
    yield "BinaryIoU", "BinaryIoU", {"dtype": "float32"}, pairs(true, rates)
    kwargs = {"dtype": "float32", "target_class_ids": [1], "threshold": 0.3}
    yield "BinaryIoU/threshold", "BinaryIoU", kwargs, pairs(true, rates)


def scores(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    true = [(rng.random((4, 3)) > 0.5).astype(np.float32) for _ in range(2)]
    rates = [rng.random((4, 3)).astype(np.float32) for _ in range(2)]
    for average in (None, "micro", "macro", "weighted"):
        yield f"FBetaScore/{average}", "FBetaScore", {"average": average, "beta": 2.0}, pairs(true, rates)
        yield f"F1Score/{average}", "F1Score", {"average": average, "threshold": 0.4}, pairs(true, rates)
    updates = pairs([normal(rng, 4, 3), normal(rng, 4, 3)], [normal(rng, 4, 3), normal(rng, 4, 3)])
    for aggregation in (None, "uniform_average", "variance_weighted_average"):
        yield f"R2Score/{aggregation}", "R2Score", {"class_aggregation": aggregation}, updates
    yield "R2Score/too_many_regressors", "R2Score", {"num_regressors": 30}, updates
    for target in ("PearsonCorrelation", "ConcordanceCorrelation"):
        yield target, target, {}, updates


def tradeoffs(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    true = [np.array([0, 1, 1, 0], dtype=np.float32), np.array([1, 0, 1, 1], dtype=np.float32)]
    rates = [rng.random(4).astype(np.float32) for _ in range(2)]
    wide = pairs(
        [(rng.random((4, 2)) > 0.5).astype(np.float32) for _ in range(2)],
        [rng.random((4, 2)).astype(np.float32) for _ in range(2)],
    )
    for target, argument in (
        ("PrecisionAtRecall", "recall"),
        ("RecallAtPrecision", "precision"),
        ("SensitivityAtSpecificity", "specificity"),
        ("SpecificityAtSensitivity", "sensitivity"),
    ):
        yield target, target, {argument: 0.6}, pairs(true, rates)
        yield f"{target}/few", target, {argument: 0.5, "num_thresholds": 4}, pairs(true, rates)
        yield f"{target}/one", target, {argument: 0.5, "num_thresholds": 1}, pairs(true, rates)
        yield f"{target}/class_id", target, {argument: 0.4, "class_id": 1, "num_thresholds": 11}, wide


def regression(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    updates = pairs([normal(rng, 4, 3), normal(rng, 4, 3)], [normal(rng, 4, 3), normal(rng, 4, 3)])
    for target in (
        "MeanSquaredError",
        "RootMeanSquaredError",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "LogCoshError",
        "CosineSimilarity",
    ):
        yield target, target, {}, updates
    positive = [{key: np.abs(array) + np.float32(0.1) for key, array in update.items()} for update in updates]
    yield "MeanSquaredLogarithmicError", "MeanSquaredLogarithmicError", {}, positive
    yield "Poisson", "Poisson", {}, positive
    flat = [{key: array[:, 0] for key, array in update.items()} for update in updates]
    yield "MeanSquaredError/1d", "MeanSquaredError", {}, flat


def accuracies(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    labels = [rng.integers(0, 5, 4).astype(np.int32) for _ in range(2)]
    logits = [normal(rng, 4, 5, scale=2.0) for _ in range(2)]
    powers = [np.exp(array) for array in logits]
    chances = [(array / array.sum(-1, keepdims=True)).astype(np.float32) for array in powers]
    one_hot = [np.eye(5, dtype=np.float32)[index] for index in labels]
    guesses = [np.where(rng.random(4) < 0.5, index, 0).astype(np.int32) for index in labels]
    yield "Accuracy", "Accuracy", {}, pairs(labels, guesses)
    yield "CategoricalAccuracy", "CategoricalAccuracy", {}, pairs(one_hot, chances)
    yield "SparseCategoricalAccuracy", "SparseCategoricalAccuracy", {}, pairs(labels, chances)
    columns = [index[:, None] for index in labels]
    yield "SparseCategoricalAccuracy/column", "SparseCategoricalAccuracy", {}, pairs(columns, chances)
    for k in (1, 2, 3):
        yield f"TopKCategoricalAccuracy/{k}", "TopKCategoricalAccuracy", {"k": k}, pairs(one_hot, chances)
        sparse = pairs(labels, chances)
        yield f"SparseTopKCategoricalAccuracy/{k}", "SparseTopKCategoricalAccuracy", {"k": k}, sparse
    yield "CategoricalCrossentropy", "CategoricalCrossentropy", {}, pairs(one_hot, chances)
    smooth = {"from_logits": True, "label_smoothing": 0.1}
    yield "CategoricalCrossentropy/logits", "CategoricalCrossentropy", smooth, pairs(one_hot, logits)
    yield "SparseCategoricalCrossentropy", "SparseCategoricalCrossentropy", {}, pairs(labels, chances)
    for name, kwargs in (("logits", {}), ("ignore", {"ignore_class": int(labels[0][0])})):
        config = {"from_logits": True, **kwargs}
        yield f"SparseCategoricalCrossentropy/{name}", "SparseCategoricalCrossentropy", config, pairs(labels, logits)
    yield "KLDivergence", "KLDivergence", {}, pairs(chances[::-1], chances)
    for target in ("Precision", "Recall"):
        yield f"{target}/top_k", target, {"top_k": 2}, pairs(one_hot, chances)
        yield f"{target}/class_id", target, {"class_id": 1, "thresholds": 0.2}, pairs(one_hot, chances)


def binary(rng: np.random.Generator) -> Iterator[tuple[str, str, dict[str, Any], Updates]]:
    y_true = [np.array([0, 1, 1, 0], dtype=np.float32), np.array([1, 0, 1, 1], dtype=np.float32)]
    y_pred = [np.array([0.1, 0.6, 0.4, 0.5], dtype=np.float32), np.array([0.9, 0.7, 0.2, 0.55], dtype=np.float32)]
    updates = pairs(y_true, y_pred)
    columns = pairs([array[:, None] for array in y_true], [array[:, None] for array in y_pred])
    wide = pairs(
        [(rng.random((4, 2)) > 0.5).astype(np.float32) for _ in range(2)],
        [rng.random((4, 2)).astype(np.float32) for _ in range(2)],
    )
    yield "BinaryAccuracy", "BinaryAccuracy", {}, columns
    yield "BinaryAccuracy/1d", "BinaryAccuracy", {}, updates
    yield "BinaryAccuracy/threshold", "BinaryAccuracy", {"threshold": 0.3}, wide
    yield "BinaryCrossentropy", "BinaryCrossentropy", {}, columns
    logits = [{"y_true": update["y_true"], "y_pred": update["y_pred"] * 4 - 2} for update in wide]
    yield "BinaryCrossentropy/logits", "BinaryCrossentropy", {"from_logits": True}, logits
    for target in ("Precision", "Recall"):
        yield target, target, {}, updates
        yield f"{target}/thresholds", target, {"thresholds": [0.3, 0.6]}, updates
    for target in ("TruePositives", "FalsePositives", "TrueNegatives", "FalseNegatives"):
        yield target, target, {}, updates
    for name, kwargs, data in (
        ("default", {}, updates),
        ("pr", {"curve": "PR"}, updates),
        ("few_thresholds", {"num_thresholds": 5}, updates),
        ("minoring", {"num_thresholds": 5, "summation_method": "minoring"}, updates),
        ("majoring", {"num_thresholds": 5, "summation_method": "majoring"}, updates),
        ("thresholds", {"thresholds": [0.25, 0.5, 0.75]}, updates),
        ("column", {}, columns),
        ("flattened", {}, wide),
        ("from_logits", {"from_logits": True, "num_thresholds": 10}, logits),
        ("multi_label", {"multi_label": True, "num_labels": 2, "num_thresholds": 10}, wide),
    ):
        yield f"AUC/{name}", "AUC", kwargs, data
