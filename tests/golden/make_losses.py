"""Golden loss cases: each loss as a function and as a class with every reduction, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from pack import Pack, normal, seeded

REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "none")


class Loss(NamedTuple):
    """A loss with its arguments and data; `gradient` is off where Keras's own is at a kink."""

    name: str
    function: str
    class_name: str
    kwargs: dict[str, Any]
    y_true: np.ndarray
    y_pred: np.ndarray
    sample_weight: np.ndarray
    gradient: bool = True


def make(versions: dict[str, str]) -> None:
    """Writes ``losses.npz`` and ``losses.json``."""
    pack = Pack("losses", versions)
    for loss in losses():
        add_function(pack, loss)
        for reduction in REDUCTIONS:
            add_class(pack, loss, reduction, None)
            add_class(pack, loss, reduction, loss.sample_weight)
        add_class(pack, loss, "mean_with_sample_weight", loss.sample_weight)
    pack.write()


def add_function(pack: Pack, loss: Loss) -> None:
    function = getattr(keras.losses, loss.function)
    pack.add(
        name=f"{loss.name}/function",
        target=loss.function,
        form="function",
        kwargs=loss.kwargs,
        y_true=pack.array(loss.y_true),
        y_pred=pack.array(loss.y_pred),
        output=pack.array(function(loss.y_true, loss.y_pred, **loss.kwargs)),
    )


def add_class(pack: Pack, loss: Loss, reduction: str, sample_weight: np.ndarray | None) -> None:
    kwargs = {**loss.kwargs, "reduction": reduction}
    instance = getattr(keras.losses, loss.class_name)(**kwargs)

    def total(y_pred: Any) -> Any:
        return jnp.sum(instance(loss.y_true, y_pred, sample_weight))

    weighted = "" if sample_weight is None else "/weighted"
    pack.add(
        name=f"{loss.name}/{reduction}{weighted}",
        target=loss.class_name,
        form="class",
        kwargs=kwargs,
        y_true=pack.array(loss.y_true),
        y_pred=pack.array(loss.y_pred),
        sample_weight=None if sample_weight is None else pack.array(sample_weight),
        output=pack.array(instance(loss.y_true, loss.y_pred, sample_weight)),
        gradient=pack.array(jax.grad(total)(jnp.asarray(loss.y_pred))) if loss.gradient else None,
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)


def losses() -> Iterator[Loss]:
    """Every loss with its data: four samples, or two samples of three steps."""
    yield from regression()
    yield from probabilistic()
    yield from sparse()
    yield from structures()


def regression() -> Iterator[Loss]:
    rng = seeded("regression")
    weight = np.array([0.5, 1.0, 0.0, 2.0], dtype=np.float32)
    y_true, y_pred = normal(rng, 4, 3), normal(rng, 4, 3, scale=2.0)
    positive_true, positive_pred = np.abs(y_true) + np.float32(0.1), np.abs(y_pred) + np.float32(0.1)
    signs = np.where(y_true > 0, 1.0, -1.0).astype(np.float32)
    for function, name, kwargs in (
        ("mean_squared_error", "MeanSquaredError", {}),
        ("mean_absolute_error", "MeanAbsoluteError", {}),
        ("mean_absolute_percentage_error", "MeanAbsolutePercentageError", {}),
        ("huber", "Huber", {}),
        ("huber", "Huber", {"delta": 0.5}),
        ("log_cosh", "LogCosh", {}),
        ("cosine_similarity", "CosineSimilarity", {}),
        ("cosine_similarity", "CosineSimilarity", {"axis": 0}),
    ):
        label = "_".join([name, *(f"{key}_{value}" for key, value in kwargs.items())])
        loss_weight = weight[:3] if kwargs.get("axis") == 0 else weight
        yield Loss(label, function, name, kwargs, y_true, y_pred, loss_weight)
    for function, name in (
        ("mean_squared_logarithmic_error", "MeanSquaredLogarithmicError"),
        ("poisson", "Poisson"),
    ):
        yield Loss(name, function, name, {}, positive_true, positive_pred, weight)
    for function, name in (("hinge", "Hinge"), ("squared_hinge", "SquaredHinge")):
        yield Loss(name, function, name, {}, signs, y_pred, weight)
    yield Loss("Hinge_01_labels", "hinge", "Hinge", {}, (signs + 1) / 2, y_pred, weight)
    yield Loss(
        "CategoricalHinge", "categorical_hinge", "CategoricalHinge", {}, np.eye(4, 3, dtype=np.float32), y_pred, weight
    )
    # Ranks that differ by one trailing 1 are squeezed, not broadcast.
    yield Loss(
        "MeanSquaredError_squeezed", "mean_squared_error", "MeanSquaredError", {}, y_true[:, 0], y_pred[:, :1], weight
    )
    steps_true, steps_pred = normal(rng, 2, 3, 2), normal(rng, 2, 3, 2)
    step_weight = np.array([[1.0, 0.5, 0.0], [2.0, 0.0, 1.0]], dtype=np.float32)
    yield Loss(
        "MeanSquaredError_steps", "mean_squared_error", "MeanSquaredError", {}, steps_true, steps_pred, step_weight
    )
    column = weight[:, None]
    yield Loss(
        "MeanAbsoluteError_column_weight", "mean_absolute_error", "MeanAbsoluteError", {}, y_true, y_pred, column
    )


def probabilistic() -> Iterator[Loss]:
    rng = seeded("probabilistic")
    weight = np.array([0.5, 1.0, 0.0, 2.0], dtype=np.float32)
    binary = (rng.random((4, 3)) > 0.5).astype(np.float32)
    logits = normal(rng, 4, 3, scale=2.0)
    probabilities = (1 / (1 + np.exp(-logits))).astype(np.float32)
    for label, kwargs, y_pred in (
        ("", {}, probabilities),
        ("_logits", {"from_logits": True}, logits),
        ("_smoothing", {"label_smoothing": 0.1}, probabilities),
        ("_logits_smoothing", {"from_logits": True, "label_smoothing": 0.1}, logits),
    ):
        yield Loss(
            f"BinaryCrossentropy{label}", "binary_crossentropy", "BinaryCrossentropy", kwargs, binary, y_pred, weight
        )
    certain = np.array([[0.0, 1.0, 0.5]] * 4, dtype=np.float32)
    yield Loss(
        "BinaryCrossentropy_certain", "binary_crossentropy", "BinaryCrossentropy", {}, binary, certain, weight, False
    )
    one_hot = np.eye(3, dtype=np.float32)[[0, 2, 1, 2]]
    distribution = softmax(logits)
    unnormalised = distribution * np.array([[1.0], [0.5], [2.0], [1.5]], dtype=np.float32)
    for label, kwargs, y_true, y_pred in (
        ("", {}, one_hot, distribution),
        ("_logits", {"from_logits": True}, one_hot, logits),
        ("_smoothing", {"label_smoothing": 0.2}, one_hot, distribution),
        ("_logits_smoothing", {"from_logits": True, "label_smoothing": 0.2}, one_hot, logits),
        ("_soft_labels", {}, softmax(normal(rng, 4, 3)), distribution),
        ("_unnormalised", {}, one_hot, unnormalised),
        ("_axis_0", {"axis": 0, "from_logits": True}, one_hot, logits),
    ):
        loss_weight = weight[:3] if "axis" in kwargs else weight
        name = f"CategoricalCrossentropy{label}"
        yield Loss(name, "categorical_crossentropy", "CategoricalCrossentropy", kwargs, y_true, y_pred, loss_weight)
    yield Loss("KLDivergence", "kl_divergence", "KLDivergence", {}, softmax(normal(rng, 4, 3)), distribution, weight)


def structures() -> Iterator[Loss]:
    """Losses of regions, sequences and embeddings, and those that make cross-entropy milder."""
    rng = seeded("structures")
    weight = np.array([0.5, 1.0, 0.0, 2.0], dtype=np.float32)
    masks = (rng.random((4, 3, 2)) > 0.5).astype(np.float32)
    chances = rng.random((4, 3, 2)).astype(np.float32)
    for label, axis in (("", None), ("_axes", (1, 2))):
        yield Loss(f"Dice{label}", "dice", "Dice", {"axis": axis}, masks, chances, weight)
        kwargs = {"axis": axis, "alpha": 0.3, "beta": 0.7}
        yield Loss(f"Tversky{label}", "tversky", "Tversky", kwargs, masks, chances, weight)
    labels = np.array([0, 1, 0, 1], dtype=np.int32)
    vectors = normal(rng, 4, 3)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    for label, kwargs in (
        ("", {}),
        ("_mild", {"gamma": 4.0, "margin": 0.25}),
        ("_with_itself", {"gamma": 4.0, "remove_diagonal": False}),
    ):
        yield Loss(f"Circle{label}", "circle", "Circle", kwargs, labels, vectors, weight)
    one_hot, logits = np.eye(3, dtype=np.float32)[[0, 2, 1, 2]], normal(rng, 4, 3, scale=2.0)
    distribution, classes = softmax(logits), np.array([0, 2, 1, 2], dtype=np.int32)
    name, function = "CategoricalFocalCrossentropy", "categorical_focal_crossentropy"
    for label, kwargs, y_pred in (
        ("", {}, distribution),
        ("_logits", {"from_logits": True, "gamma": 1.5}, logits),
        ("_smoothing", {"label_smoothing": 0.2, "alpha": 0.5}, distribution),
        ("_alphas", {"alpha": [0.2, 0.5, 0.3]}, distribution),
        ("_axis_0", {"axis": 0, "from_logits": True}, logits),
    ):
        loss_weight = weight[:3] if "axis" in kwargs else weight
        yield Loss(f"{name}{label}", function, name, kwargs, one_hot, y_pred, loss_weight)
    name, function = "BinaryFocalCrossentropy", "binary_focal_crossentropy"
    binary = (rng.random((4, 3)) > 0.5).astype(np.float32)
    for label, kwargs, y_pred in (
        ("", {}, (1 / (1 + np.exp(-logits))).astype(np.float32)),
        ("_balanced_logits", {"from_logits": True, "apply_class_balancing": True, "label_smoothing": 0.1}, logits),
    ):
        yield Loss(f"{name}{label}", function, name, kwargs, binary, y_pred, weight)
    name, function = "CategoricalGeneralizedCrossEntropy", "categorical_generalized_cross_entropy"
    for q in (0.3, 0.7):
        yield Loss(f"{name}_{q}", function, name, {"q": q}, classes, distribution, weight)
    sequences = np.array([[1, 2, 0], [2, 2, 1], [3, 0, 0], [1, 3, 2]], dtype=np.int32)
    yield Loss("CTC", "ctc", "CTC", {}, sequences, normal(rng, 4, 6, 4), weight)


def sparse() -> Iterator[Loss]:
    rng = seeded("sparse")
    weight = np.array([0.5, 1.0, 0.0, 2.0], dtype=np.float32)
    step_weight = np.array([[1.0, 0.5, 0.0], [2.0, 0.0, 1.0]], dtype=np.float32)
    labels = np.array([0, 2, 1, 2], dtype=np.int32)
    step_labels = np.array([[0, 1, 3], [3, 2, 0]], dtype=np.int32)
    logits, step_logits = normal(rng, 4, 3, scale=2.0), normal(rng, 2, 3, 4, scale=2.0)
    certain = np.eye(3, dtype=np.float32)[[0, 2, 2, 0]]
    for label, kwargs, y_true, y_pred, loss_weight, gradient in (
        ("", {}, labels, softmax(logits), weight, True),
        ("_logits", {"from_logits": True}, labels, logits, weight, True),
        ("_ignore", {"ignore_class": 2}, labels, softmax(logits), weight, True),
        ("_logits_ignore", {"from_logits": True, "ignore_class": 0}, labels, logits, weight, True),
        ("_logits_ignore_minus_1", {"from_logits": True, "ignore_class": -1}, labels - 1, logits, weight, True),
        ("_column_labels", {}, labels[:, None], softmax(logits), weight, True),
        ("_float_labels", {"from_logits": True}, labels.astype(np.float32), logits, weight, True),
        ("_steps", {}, step_labels, softmax(step_logits), step_weight, True),
        ("_steps_logits", {"from_logits": True}, step_labels, step_logits, step_weight, True),
        ("_steps_ignore", {"from_logits": True, "ignore_class": 3}, step_labels, step_logits, step_weight, True),
        ("_certain", {}, labels, certain, weight, False),
    ):
        name = "SparseCategoricalCrossentropy"
        function = "sparse_categorical_crossentropy"
        yield Loss(f"{name}{label}", function, name, kwargs, y_true, y_pred, loss_weight, gradient)
