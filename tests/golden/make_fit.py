"""Golden training cases: history and final weights of ``fit(shuffle=False)`` from given weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from loader import resolve
from pack import Pack, normal, seeded, spec

ADAM = spec("Adam", learning_rate=0.01)
MOMENTUM = spec("SGD", learning_rate=0.1, momentum=0.9)
MLP = [spec("Dense", units=5, activation="relu"), spec("Dense", units=3, activation="softmax")]
RECURRENT = [
    spec("Embedding", input_dim=7, output_dim=3),
    spec("LSTM", units=4),
    spec("Dense", units=3, activation="softmax"),
]
MASKED = [
    spec("Embedding", input_dim=7, output_dim=3, mask_zero=True),
    spec("GRU", units=4, return_sequences=True),
    spec("Dense", units=3, activation="softmax"),
]
BINARY = [spec("Dense", units=4, activation="tanh"), spec("Dense", units=1, activation="sigmoid")]
REGRESSION = [
    spec("Dense", units=4, activation="tanh"),
    spec("BatchNormalization", momentum=0.9),
    spec("Dense", units=2),
]
REGULARISED = [spec("Dense", units=4, activation="tanh", kernel_regularizer="l2"), spec("Dense", units=2)]
PENALISED = [
    spec(
        "Dense",
        units=4,
        activation="tanh",
        kernel_regularizer=spec("L1L2", l1=0.02, l2=0.03),
        bias_regularizer="l1",
        activity_regularizer="l2",
        kernel_constraint=spec("MaxNorm", max_value=0.7),
        bias_constraint="non_neg",
    ),
    spec("BatchNormalization", gamma_regularizer="l2", beta_constraint="unit_norm"),
    spec("Dense", units=2, kernel_constraint=spec("MinMaxNorm", min_value=0.5, rate=0.5)),
]
PENALISED_RECURRENT = [
    spec("Embedding", input_dim=7, output_dim=3, embeddings_regularizer="l2", embeddings_constraint="unit_norm"),
    spec("LSTM", units=4, kernel_regularizer="l1", recurrent_regularizer="l2", recurrent_constraint="max_norm"),
    spec("Dense", units=3, activation="softmax"),
]
SPARSE = "sparse_categorical_crossentropy"
ROWS = 14


def make(versions: dict[str, str]) -> None:
    """Writes ``fit.npz`` and ``fit.json``."""
    pack = Pack("fit", versions)
    for case in cases():
        add(pack, **case)
    pack.write()
    make_mixed(versions)


def make_mixed(versions: dict[str, str]) -> None:
    """Writes ``mixed.npz`` and ``mixed.json``: the part of a name before the slash is the dtype policy."""
    pack = Pack("mixed", versions)
    rng = seeded("mixed")
    x, labels = normal(rng, ROWS, 4), rng.integers(0, 3, ROWS).astype(np.int32)
    for policy in ("mixed_float16", "mixed_bfloat16"):
        keras.config.set_dtype_policy(policy)
        for name, layers, given, optimizer in (
            ("mlp", MLP, x, MOMENTUM),
            ("adam", MLP, x, ADAM),
            ("batch_norm", REGRESSION[:2] + MLP[1:], x, MOMENTUM),
            ("lstm", RECURRENT, rng.integers(0, 7, (ROWS, 5)).astype(np.int32), MOMENTUM),
        ):
            case = one(
                f"{policy}/{name}", layers, compiled(optimizer, SPARSE), {"batch_size": 7}, {"x": given, "y": labels}
            )
            add(pack, **case)
    keras.config.set_dtype_policy("float32")
    pack.write()


def add(
    pack: Pack,
    name: str,
    layers: list[Any],
    compile_kwargs: dict[str, Any],
    fit_kwargs: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> None:
    rng = seeded("weights of " + name.split("/")[0])
    keras.utils.clear_session()  # names start again at dense, not at dense_7
    namespaces = (keras.layers, keras.optimizers, keras.regularizers, keras.constraints)
    model = keras.Sequential(resolve(layers, *namespaces))
    model(arrays["x"][:1])
    initial = [
        np.asarray(weight)
        if weight.path.split("/")[-1].startswith("moving_")
        else normal(rng, *weight.shape, scale=0.5)
        for weight in model.weights
    ]
    model.set_weights(initial)
    model.compile(**resolve(compile_kwargs, *namespaces))
    fit_kwargs = {"epochs": 2, "shuffle": False, "verbose": 0, **fit_kwargs}
    history = model.fit(**arrays, **fit_kwargs).history
    scores = model.evaluate(arrays["x"], arrays["y"], batch_size=fit_kwargs["batch_size"], verbose=0, return_dict=True)
    pack.add(
        name=name,
        target="Sequential",
        kwargs={"layers": layers},
        compile_kwargs=compile_kwargs,
        fit_kwargs=fit_kwargs,
        arrays=pack.arrays(arrays),
        initial_weights=pack.arrays(initial),
        final_weights=pack.arrays([np.asarray(weight) for weight in model.weights]),
        weight_names=["/".join(weight.path.split("/")[1:]) for weight in model.weights],
        history={key: [float(value) for value in values] for key, values in history.items()},
        evaluate={key: float(value) for key, value in scores.items()},
        prediction=pack.array(model.predict(arrays["x"], verbose=0).astype(np.float32)),
    )


def compiled(optimizer: Any, loss: str, *metrics: str, weighted: tuple[str, ...] = ()) -> dict[str, Any]:
    result: dict[str, Any] = {"optimizer": optimizer, "loss": loss, "metrics": list(metrics)}
    return {**result, "weighted_metrics": list(weighted)} if weighted else result


def cases() -> Iterator[dict[str, Any]]:
    """Every training case; 14 rows in batches of 4 or 3 leave a partial batch."""
    rng = seeded("fit")
    x, labels = normal(rng, ROWS, 4), rng.integers(0, 3, ROWS).astype(np.int32)
    weight = rng.random(ROWS).astype(np.float32) * 2
    classes = {"class_weight": {"0": 0.5, "1": 2.0, "2": 1.0}}
    split = {"batch_size": 4, "validation_split": 0.3}
    adam = compiled(ADAM, SPARSE, "accuracy", weighted=("accuracy",))
    momentum = compiled(MOMENTUM, SPARSE, "accuracy")
    data = {"x": x, "y": labels}
    for name, compile_kwargs, fit_kwargs, arrays in (
        ("adam", adam, {"batch_size": 4}, data),
        ("momentum", momentum, {"batch_size": 4}, data),
        ("validation_split", momentum, split, data),
        ("sample_weight", adam, split, {**data, "sample_weight": weight}),
        ("class_weight", adam, {"batch_size": 4, **classes}, data),
        ("class_and_validation", adam, {**split, **classes}, data),
        ("clipnorm", compiled(spec("Adam", learning_rate=0.01, clipnorm=0.1), SPARSE), {"batch_size": 4}, data),
        ("one_batch", momentum, {"batch_size": 32}, data),
    ):
        yield one(f"mlp/{name}", MLP, compile_kwargs, fit_kwargs, arrays)
    one_hot = {"x": x, "y": np.eye(3, dtype=np.float32)[labels]}
    yield one("mlp/one_hot", MLP, compiled(ADAM, "categorical_crossentropy", "accuracy"), {"batch_size": 4}, one_hot)
    yield from recurrent(rng, adam, momentum, weight, classes, split)
    binary = {"x": x, "y": (labels > 0).astype(np.float32)[:, None]}
    loss = compiled(ADAM, "binary_crossentropy", "accuracy", "Precision", "Recall")
    yield one("binary/adam", BINARY, loss, split, binary)
    targets = {"x": x, "y": normal(rng, ROWS, 2)}
    loss = compiled(MOMENTUM, "mse", "mae", "RootMeanSquaredError")
    yield one("regression/batch_norm", REGRESSION, loss, split, targets)
    yield one("regularised/l2", REGULARISED, loss, split, targets)
    yield one("regularised/penalties_and_constraints", PENALISED, loss, split, targets)


def recurrent(
    rng: np.random.Generator,
    adam: dict[str, Any],
    momentum: dict[str, Any],
    weight: np.ndarray,
    classes: dict[str, Any],
    split: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    ids, labels = rng.integers(0, 7, (ROWS, 5)).astype(np.int32), rng.integers(0, 3, ROWS).astype(np.int32)
    data = {"x": ids, "y": labels}
    yield one("lstm/adam", RECURRENT, adam, {"batch_size": 4}, data)
    yield one("lstm/momentum", RECURRENT, momentum, split, data)
    yield one("lstm/sample_weight", RECURRENT, adam, {"batch_size": 4}, {**data, "sample_weight": weight})
    yield one("lstm/penalties_and_constraints", PENALISED_RECURRENT, momentum, split, data)
    yield one("lstm/class_weight", RECURRENT, momentum, {"batch_size": 3, **classes}, data)
    steps = {"x": ids, "y": rng.integers(0, 3, (ROWS, 5)).astype(np.int32)}
    # No metrics here: on JAX, Keras masks them in evaluate but not in fit.
    yield one("masked/adam", MASKED, compiled(ADAM, SPARSE), split, steps)


def one(
    name: str,
    layers: list[Any],
    compile_kwargs: dict[str, Any],
    fit_kwargs: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> dict[str, Any]:
    # Json has no int keys, Keras wants them: they are made ints here and by the loader.
    return {
        "name": name,
        "layers": layers,
        "compile_kwargs": compile_kwargs,
        "fit_kwargs": {key: int_keys(value) if key == "class_weight" else value for key, value in fit_kwargs.items()},
        "arrays": arrays,
    }


def int_keys(weights: dict[str, float]) -> dict[int, float]:
    return {int(label): value for label, value in weights.items()}
