"""Golden layer cases: outputs and gradients of Keras layers from given weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from loader import find, resolve
from pack import Pack, normal, seeded, spec

# Weights that start at fixed values, whatever the seed.
FIXED = ("bias", "gamma", "beta", "moving_mean", "moving_variance")
ACTIVATIONS = ("linear", "relu", "tanh", "sigmoid", "softmax", "gelu", "silu", "swish", "elu", "selu", "softplus")
ACTIVATIONS += ("softsign", "leaky_relu", "exponential", "hard_sigmoid", "relu6", "log_softmax", "mish")

Inputs = dict[str, np.ndarray]
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]], dtype=bool)


def make(versions: dict[str, str]) -> None:
    """Writes ``layers.npz`` and ``layers.json``."""
    pack = Pack("layers", versions)
    for case in cases():
        add(pack, **case)
    pack.write()


def fill(value: Any, arrays: dict[str, Any]) -> Any:
    """Replaces ``{"input": name}`` by the array of that name."""
    if isinstance(value, list):
        return [fill(item, arrays) for item in value]
    return arrays[value["input"]] if isinstance(value, dict) else value


def add(
    pack: Pack,
    name: str,
    target: str,
    kwargs: dict[str, Any],
    inputs: Inputs,
    call_args: list[Any],
    call_kwargs: dict[str, Any],
    output_mask: bool,
) -> None:
    """Builds the layer, gives it weights, calls it and differentiates."""
    rng = seeded("weights of " + name)
    keras.utils.clear_session()  # names start again at lstm_cell, not at lstm_cell_7
    layer = find(target, keras.layers)(**resolve(kwargs, keras.layers))
    layer(*fill(call_args, inputs), **fill_kwargs(call_kwargs, inputs))
    names = [weight.path.split("/", 1)[1] for weight in layer.weights]
    initial = {
        str(index): np.asarray(weight)
        for index, weight in enumerate(layer.weights)
        if weight.path.split("/")[-1] in FIXED
    }
    weights = [draw(rng, path, weight.shape) for path, weight in zip(names, layer.weights, strict=True)]
    layer.set_weights(weights)

    trainable = [np.asarray(variable) for variable in layer.trainable_variables]
    fixed = [np.asarray(variable) for variable in layer.non_trainable_variables]

    def call(trainable_values: list[Any], float_inputs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        arrays = {**inputs, **float_inputs}
        result, after = layer.stateless_call(
            trainable_values, fixed, *fill(call_args, arrays), **fill_kwargs(call_kwargs, arrays)
        )
        return jax.tree.leaves(result), after

    floats = {key: array for key, array in inputs.items() if array.dtype == np.float32}
    outputs, after = jax.jit(call)(trainable, floats)
    outputs = [np.asarray(output) for output in outputs]
    cotangents = [normal(rng, *output.shape) for output in outputs]

    def total(trainable_values: list[Any], float_inputs: dict[str, Any]) -> Any:
        results, _ = call(trainable_values, float_inputs)
        return sum((out * seed).sum() for out, seed in zip(results, cotangents, strict=True))

    weight_gradients, gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(trainable, floats)
    after_weights = changed(layer, fixed, after)
    pack.add(
        name=name,
        target=target,
        kwargs=kwargs,
        inputs=pack.arrays(inputs),
        call_args=call_args,
        call_kwargs=call_kwargs,
        weights=pack.arrays(weights),
        weight_names=names,
        initial_weights=pack.arrays(initial),
        outputs=pack.arrays(outputs),
        output_mask=mask_of(pack, layer, fill(call_args, inputs), inputs.get("mask")) if output_mask else None,
        cotangents=pack.arrays(cotangents),
        gradients=pack.arrays(gradients),
        weight_gradients=pack.arrays(weight_gradients),
        weights_after=pack.arrays(after_weights) if after_weights else None,
    )


def fill_kwargs(kwargs: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """`fill` over the values of keyword arguments."""
    return {key: fill(value, arrays) for key, value in kwargs.items()}


def draw(rng: np.random.Generator, path: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight's value: nothing at its initial value, so that a forgotten bias shows; variances are positive."""
    value = normal(rng, *shape, scale=0.5)
    if path.endswith("moving_variance"):
        return np.abs(value) + np.float32(0.5)
    return value


def changed(layer: Any, before: list[np.ndarray], after: list[Any]) -> list[np.ndarray]:
    """All weights after the call, if the call changed any, else nothing."""
    if all(np.array_equal(old, new) for old, new in zip(before, after, strict=True)):
        return []
    new_values = {id(var): np.asarray(new) for var, new in zip(layer.non_trainable_variables, after, strict=True)}
    return [new_values.get(id(weight), np.asarray(weight)) for weight in layer.weights]


def mask_of(pack: Pack, layer: Any, args: list[Any], previous: np.ndarray | None) -> str:
    """Return what ``compute_mask`` gives for the inputs."""
    return pack.array(np.asarray(layer.compute_mask(*args, previous)))


def case(
    name: str,
    target: str,
    kwargs: dict[str, Any],
    inputs: np.ndarray | Inputs,
    *,
    call_kwargs: dict[str, Any] | None = None,
    merge: bool = False,
    output_mask: bool = False,
) -> dict[str, Any]:
    """One case: inputs called ``mask``, ``state*`` are passed as keywords, the others by position (merge: one list)."""
    inputs = inputs if isinstance(inputs, dict) else {"x": inputs}
    data: list[Any] = [{"input": key} for key in inputs if key != "mask" and not key.startswith("state")]
    states = [{"input": key} for key in inputs if key.startswith("state")]
    extra: dict[str, Any] = dict(call_kwargs or {})
    if "mask" in inputs:
        extra["mask"] = {"input": "mask"}
    if states:
        extra["initial_state"] = states
    return {
        "name": name,
        "target": target,
        "kwargs": kwargs,
        "inputs": inputs,
        "call_args": [data] if merge else data,
        "call_kwargs": extra,
        "output_mask": output_mask,
    }


def cases() -> Iterator[dict[str, Any]]:
    """Every layer case, in file order."""
    for group in (dense, embedding, normalisation, recurrent, wrapped, shaping, merging, pointwise):
        yield from group()


def dense() -> Iterator[dict[str, Any]]:
    rng = seeded("dense")
    x = normal(rng, 3, 4, scale=2.0)
    for activation in ACTIVATIONS:
        yield case(f"Dense/{activation}", "Dense", {"units": 3, "activation": activation}, x)
    yield case("Dense/default", "Dense", {"units": 2}, x)
    yield case("Dense/no_bias", "Dense", {"units": 2, "use_bias": False}, x)
    yield case("Dense/3d", "Dense", {"units": 2, "activation": "tanh"}, normal(rng, 2, 3, 4))


def embedding() -> Iterator[dict[str, Any]]:
    ids = np.array([[1, 2, 0], [4, 1, 1]], dtype=np.int32)
    yield case("Embedding/default", "Embedding", {"input_dim": 5, "output_dim": 3}, ids)
    kwargs = {"input_dim": 5, "output_dim": 3, "mask_zero": True}
    yield case("Embedding/mask_zero", "Embedding", kwargs, ids, output_mask=True)


def normalisation() -> Iterator[dict[str, Any]]:
    rng = seeded("normalisation")
    x, x3 = normal(rng, 3, 4), normal(rng, 2, 3, 4)
    for name, kwargs, data in (
        ("default", {}, x),
        ("3d", {}, x3),
        ("axis_list", {"axis": [1, 2]}, x3),
        ("axis_1", {"axis": 1}, x3),
        ("no_center", {"center": False}, x),
        ("no_scale", {"scale": False}, x),
        ("neither", {"center": False, "scale": False}, x),
        ("epsilon", {"epsilon": 0.1}, x),
    ):
        yield case(f"LayerNormalization/{name}", "LayerNormalization", kwargs, data)
    mask = {"x": normal(rng, 3, 4, 2), "mask": MASK}
    for name, kwargs, data, training in (
        ("inference", {}, x, False),
        ("training", {}, x, True),
        ("training_3d", {"momentum": 0.9, "epsilon": 0.01}, x3, True),
        ("training_axis_1", {"axis": 1}, x3, True),
        ("training_mask", {}, mask, True),
        ("training_neither", {"center": False, "scale": False}, x, True),
        ("inference_neither", {"center": False, "scale": False}, x, False),
    ):
        yield case(f"BatchNormalization/{name}", "BatchNormalization", kwargs, data, call_kwargs={"training": training})


def recurrent() -> Iterator[dict[str, Any]]:
    rng = seeded("recurrent")
    data: Inputs = {"x": normal(rng, 3, 4, 2)}
    states: Inputs = {"state0": normal(rng, 3, 3), "state1": normal(rng, 3, 3)}
    masked: Inputs = {**data, "mask": MASK}
    for target, kinds in (
        ("SimpleRNN", {"": {}}),
        ("LSTM", {"": {}}),
        ("GRU", {"": {}, "/reset_before": {"reset_after": False}}),
    ):
        state = {key: states[key] for key in (("state0", "state1") if target == "LSTM" else ("state0",))}
        for suffix, kind in kinds.items():
            for name, kwargs, inputs in (
                ("default", {}, data),
                ("return_sequences", {"return_sequences": True}, data),
                ("return_state", {"return_state": True}, data),
                ("sequences_and_state", {"return_sequences": True, "return_state": True}, data),
                ("go_backwards", {"go_backwards": True, "return_sequences": True}, data),
                ("mask", {}, masked),
                ("mask_sequences_state", {"return_sequences": True, "return_state": True}, masked),
                ("mask_zero_output", {"return_sequences": True, "zero_output_for_mask": True}, masked),
                ("mask_backwards", {"return_sequences": True, "go_backwards": True}, masked),
                ("initial_state", {"return_sequences": True, "return_state": True}, {**data, **state}),
                ("no_bias", {"use_bias": False}, data),
                ("relu", {"activation": "relu"}, data),
            ):
                yield case(f"{target}/{name}{suffix}", target, {"units": 3, **kind, **kwargs}, inputs)
    yield case("LSTM/no_unit_forget_bias", "LSTM", {"units": 3, "unit_forget_bias": False}, data)
    yield case("LSTM/hard_sigmoid", "LSTM", {"units": 3, "recurrent_activation": "hard_sigmoid"}, data)
    yield case("LSTM/unroll", "LSTM", {"units": 3, "unroll": True}, data)
    yield from cells(data, states, masked)


def cells(data: Inputs, states: Inputs, masked: Inputs) -> Iterator[dict[str, Any]]:
    lstm, gru, simple = spec("LSTMCell", units=3), spec("GRUCell", units=2), spec("SimpleRNNCell", units=3)
    stack = spec("StackedRNNCells", cells=[lstm, gru])
    for name, kwargs, inputs in (
        ("lstm_cell", {"cell": lstm, "return_sequences": True, "return_state": True}, data),
        ("lstm_cell_initial_state", {"cell": lstm}, {**data, **states}),
        ("gru_cell", {"cell": gru}, data),
        ("simple_cell_mask", {"cell": simple, "return_sequences": True}, masked),
        ("stacked", {"cell": stack}, data),
        ("stacked_state", {"cell": stack, "return_sequences": True, "return_state": True}, data),
        ("stacked_mask", {"cell": stack, "return_sequences": True}, masked),
        ("cell_list", {"cell": [simple, gru], "return_sequences": True}, data),
    ):
        yield case(f"RNN/{name}", "RNN", kwargs, inputs)


def wrapped() -> Iterator[dict[str, Any]]:
    rng = seeded("wrapped")
    data: Inputs = {"x": normal(rng, 3, 4, 2)}
    masked: Inputs = {**data, "mask": MASK}
    lstm = spec("LSTM", units=2)
    sequences = spec("LSTM", units=2, return_sequences=True)
    states = spec("LSTM", units=2, return_sequences=True, return_state=True)
    for name, kwargs, inputs in (
        ("concat", {"layer": lstm, "merge_mode": "concat"}, data),
        ("sum", {"layer": lstm, "merge_mode": "sum"}, data),
        ("mul", {"layer": lstm, "merge_mode": "mul"}, data),
        ("ave", {"layer": lstm, "merge_mode": "ave"}, data),
        ("none", {"layer": lstm, "merge_mode": None}, data),
        ("sequences", {"layer": sequences}, data),
        ("states", {"layer": states}, data),
        ("mask", {"layer": sequences}, masked),
        ("gru", {"layer": spec("GRU", units=2)}, data),
        ("two_layers", {"layer": lstm, "backward_layer": spec("LSTM", units=3, go_backwards=True)}, data),
    ):
        yield case(f"Bidirectional/{name}", "Bidirectional", kwargs, inputs)
    dense_layer = spec("Dense", units=3, activation="tanh")
    yield case("TimeDistributed/dense", "TimeDistributed", {"layer": dense_layer}, data)


def shaping() -> Iterator[dict[str, Any]]:
    rng = seeded("shaping")
    x2, x3 = normal(rng, 2, 6), normal(rng, 2, 3, 4)
    x3_pooled = normal(rng, 3, 4, 2)
    yield case("Flatten/default", "Flatten", {}, x3)
    yield case("Flatten/1d", "Flatten", {}, normal(rng, 3))
    yield case("Reshape/default", "Reshape", {"target_shape": [3, 2]}, x2)
    yield case("Reshape/unknown", "Reshape", {"target_shape": [2, -1, 3]}, x3)
    yield case("Permute/default", "Permute", {"dims": [2, 1]}, x3)
    yield case("RepeatVector/default", "RepeatVector", {"n": 3}, x2)
    steps = normal(rng, 2, 3, 2)
    steps[0, 1] = 0.0
    steps[1, 2] = [0.0, 1.0]
    yield case("Masking/default", "Masking", {}, steps, output_mask=True)
    yield case("Masking/value", "Masking", {"mask_value": 1.0}, np.round(steps), output_mask=True)
    yield case("GlobalAveragePooling1D/default", "GlobalAveragePooling1D", {}, x3_pooled)
    yield case("GlobalAveragePooling1D/keepdims", "GlobalAveragePooling1D", {"keepdims": True}, x3_pooled)
    yield case("GlobalAveragePooling1D/mask", "GlobalAveragePooling1D", {}, {"x": x3_pooled, "mask": MASK})
    yield case("GlobalMaxPooling1D/default", "GlobalMaxPooling1D", {}, x3_pooled)


def merging() -> Iterator[dict[str, Any]]:
    rng = seeded("merging")
    two: Inputs = {"a": normal(rng, 2, 3), "b": normal(rng, 2, 3)}
    three: Inputs = {**two, "c": normal(rng, 2, 3)}
    uneven: Inputs = {"a": normal(rng, 2, 3, 2), "b": normal(rng, 2, 3, 1)}
    longer: Inputs = {"a": uneven["a"], "b": normal(rng, 2, 1, 2)}
    yield case("Concatenate/default", "Concatenate", {}, uneven, merge=True)
    yield case("Concatenate/axis_1", "Concatenate", {"axis": 1}, longer, merge=True)
    for target in ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"):
        yield case(f"{target}/two", target, {}, two, merge=True)
    for target in ("Add", "Multiply", "Average"):
        yield case(f"{target}/three", target, {}, three, merge=True)
    yield case("Add/broadcast", "Add", {}, uneven, merge=True)
    yield case("Dot/default", "Dot", {"axes": 1}, two, merge=True)


def pointwise() -> Iterator[dict[str, Any]]:
    rng = seeded("pointwise")
    x, x3 = normal(rng, 3, 4, scale=2.0), normal(rng, 2, 3, 4)
    inference = {"training": False}
    yield case("Activation/tanh", "Activation", {"activation": "tanh"}, x)
    yield case("Dropout/inference", "Dropout", {"rate": 0.5}, x, call_kwargs=inference)
    yield case("Dropout/rate_0_training", "Dropout", {"rate": 0.0}, x, call_kwargs={"training": True})
    yield case("SpatialDropout1D/inference", "SpatialDropout1D", {"rate": 0.5}, x3, call_kwargs=inference)
    yield case("GaussianNoise/inference", "GaussianNoise", {"stddev": 0.5}, x, call_kwargs=inference)
    yield case("ReLU/default", "ReLU", {}, x)
    kwargs = {"max_value": 1.5, "negative_slope": 0.1, "threshold": 0.5}
    yield case("ReLU/options", "ReLU", kwargs, x)
    yield case("LeakyReLU/default", "LeakyReLU", {}, x)
    yield case("LeakyReLU/slope", "LeakyReLU", {"negative_slope": 0.1}, x)
    yield case("ELU/default", "ELU", {}, x)
    yield case("PReLU/default", "PReLU", {}, x)
    yield case("Softmax/default", "Softmax", {}, x3)
    yield case("Softmax/axis_1", "Softmax", {"axis": 1}, x3)
    mask = np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 0, 0, 0]], dtype=bool)
    yield case("Softmax/mask", "Softmax", {}, {"x": x, "mask": mask})
    yield case("Rescaling/default", "Rescaling", {"scale": 0.5, "offset": 1.0}, x)
