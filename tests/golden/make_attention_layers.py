"""Golden cases of attention, normalisation and noise layers, and of what recurrent layers do at the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from make_layers import MASK, Inputs, add, case
from pack import Pack, normal, seeded, spec

QUERY_MASK = np.array([[1, 1, 0], [1, 1, 1]], dtype=bool)
VALUE_MASK = np.array([[1, 0, 1, 0], [1, 1, 1, 1]], dtype=bool)
PAIRS = np.array([[[1, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 0]], [[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1]]], dtype=bool)


def make(versions: dict[str, str]) -> None:
    """Writes ``attention_layers.npz`` and ``attention_layers.json``."""
    pack = Pack("attention_layers", versions)
    for group in (attention, heads, grouped, einsum, normalisation, renormalisation, pointwise, recurrent, wrapped):
        for found in group():
            add(pack, **found)
    pack.write()


def call(
    name: str, target: str, kwargs: dict[str, Any], inputs: Inputs, args: list[Any], call_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """One case with explicit arguments of the call; text is the name of an input."""
    return {
        "name": name,
        "target": target,
        "kwargs": kwargs,
        "inputs": inputs,
        "call_args": [named(item) for item in args],
        "call_kwargs": {key: named(value) for key, value in call_kwargs.items()},
        "output_mask": False,
    }


def named(value: Any) -> Any:
    """Names of inputs as the json refers to them, at any depth."""
    if isinstance(value, list):
        return [named(item) for item in value]
    return {"input": value} if isinstance(value, str) else value


def attention() -> Iterator[dict[str, Any]]:
    rng = seeded("attention")
    pair: Inputs = {"query": normal(rng, 2, 3, 5), "value": normal(rng, 2, 4, 5)}
    triple: Inputs = {**pair, "key": normal(rng, 2, 4, 5)}
    masks: Inputs = {"query_mask": QUERY_MASK, "value_mask": VALUE_MASK}
    scores = {"return_attention_scores": True}
    both = {"mask": ["query_mask", "value_mask"]}
    for target, kinds in (
        ("Attention", {"": {}, "/scale": {"use_scale": True}, "/concat": {"score_mode": "concat"}}),
        ("Attention", {"/concat_scale": {"score_mode": "concat", "use_scale": True}}),
        ("AdditiveAttention", {"": {}, "/no_scale": {"use_scale": False}}),
    ):
        for suffix, kwargs in kinds.items():
            yield call(f"{target}/two{suffix}", target, kwargs, pair, [["query", "value"]], {})
            yield call(f"{target}/three{suffix}", target, kwargs, triple, [["query", "value", "key"]], scores)
            arguments = {**both, **scores, "use_causal_mask": True}
            yield call(f"{target}/causal{suffix}", target, kwargs, {**pair, **masks}, [["query", "value"]], arguments)
    for name, inputs, arguments in (
        ("masks", masks, both),
        ("value_mask", {"value_mask": VALUE_MASK}, {"mask": [None, "value_mask"]}),
        ("query_mask", {"query_mask": QUERY_MASK}, {"mask": ["query_mask", None]}),
        ("causal_only", {}, {"use_causal_mask": True}),
        ("dropout_inference", {}, {"training": False}),
    ):
        kwargs = {"dropout": 0.5} if name.startswith("dropout") else {}
        yield call(f"Attention/{name}", "Attention", kwargs, {**pair, **inputs}, [["query", "value"]], arguments)


def heads() -> Iterator[dict[str, Any]]:
    rng = seeded("heads")
    same: Inputs = {"query": normal(rng, 2, 3, 5)}
    pair: Inputs = {**same, "value": normal(rng, 2, 4, 6)}
    triple: Inputs = {**pair, "key": normal(rng, 2, 4, 7)}
    masks: Inputs = {"pairs": PAIRS, "value_mask": VALUE_MASK, "key_mask": VALUE_MASK[::-1].copy()}
    per_head: Inputs = {"pairs": np.stack([PAIRS, ~PAIRS], axis=1)}
    two: Inputs = {"query": normal(rng, 2, 3, 2, 4), "value": normal(rng, 2, 3, 2, 4)}
    base = {"num_heads": 2, "key_dim": 3}
    yield call("MultiHeadAttention/self", "MultiHeadAttention", base, same, ["query", "query"], {})
    for scores in (False, True):
        suffix, wanted = ("/scores", {"return_attention_scores": True}) if scores else ("", {})
        other_size = {"value_dim": 4} if scores else {}  # the backend's fused attention wants one size
        for name, kwargs, inputs, args, arguments in (
            ("pair", {}, pair, ["query", "value"], {}),
            ("key", other_size, triple, ["query", "value", "key"], {}),
            ("causal", {}, same, ["query", "query"], {"use_causal_mask": True}),
            ("causal_pair", {}, pair, ["query", "value"], {"use_causal_mask": True}),
            ("mask", {}, {**pair, "pairs": PAIRS}, ["query", "value"], {"attention_mask": "pairs"}),
            ("head_mask", {}, {**pair, **per_head}, ["query", "value"], {"attention_mask": "pairs"}),
            (
                "masks",
                {},
                {**triple, **masks},
                ["query", "value", "key"],
                {"attention_mask": "pairs", "value_mask": "value_mask", "key_mask": "key_mask"},
            ),
            ("window", {"sliding_window": 2}, pair, ["query", "value"], {}),
            ("window_causal", {"sliding_window": 2}, same, ["query", "query"], {"use_causal_mask": True}),
            ("gate", {"use_gate": True, **other_size}, pair, ["query", "value"], {}),
            ("no_bias", {"use_bias": False}, pair, ["query", "value"], {}),
            ("output_shape", {"output_shape": [2, 3]}, pair, ["query", "value"], {}),
            ("axes_1", {"attention_axes": 1}, two, ["query", "value"], {}),
            ("axes_2", {"attention_axes": [2]}, two, ["query", "value"], {}),
            ("axes_both", {}, two, ["query", "value"], {}),
        ):
            kwargs, arguments = {**base, **kwargs}, {**arguments, **wanted}
            yield call(f"MultiHeadAttention/{name}{suffix}", "MultiHeadAttention", kwargs, inputs, args, arguments)
    kwargs = {**base, "dropout": 0.5}
    yield call(
        "MultiHeadAttention/dropout_inference",
        "MultiHeadAttention",
        kwargs,
        {**pair, "pairs": PAIRS},
        ["query", "value"],
        {"attention_mask": "pairs", "training": False},
    )


def grouped() -> Iterator[dict[str, Any]]:
    rng = seeded("grouped")
    pair: Inputs = {"query": normal(rng, 2, 3, 5), "value": normal(rng, 2, 4, 5)}
    base = {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2}
    for scores in (False, True):
        suffix, wanted = ("/scores", {"return_attention_scores": True}) if scores else ("", {})
        for name, kwargs, inputs, arguments in (
            ("default", {}, pair, {}),
            ("one_head", {"num_key_value_heads": 1}, pair, {}),
            ("causal", {}, pair, {"use_causal_mask": True}),
            ("mask", {}, {**pair, "pairs": PAIRS}, {"attention_mask": "pairs"}),
            ("window", {"sliding_window": 1}, pair, {}),
            ("gate", {"use_gate": True}, pair, {}),
            ("no_bias", {"use_bias": False}, pair, {}),
        ):
            kwargs, arguments = {**base, **kwargs}, {**arguments, **wanted}
            args: list[Any] = ["query", "value"]
            yield call(f"GroupQueryAttention/{name}{suffix}", "GroupQueryAttention", kwargs, inputs, args, arguments)


def einsum() -> Iterator[dict[str, Any]]:
    rng = seeded("einsum")
    x2, x3, x4 = normal(rng, 3, 4), normal(rng, 2, 3, 4), normal(rng, 2, 3, 4, 5)
    for name, data, equation, output_shape, bias_axes in (
        ("dense", x2, "ab,bc->ac", 5, "c"),
        ("no_bias", x2, "ab,bc->ac", [5], None),
        ("steps", x3, "abc,cd->abd", [None, 5], "d"),
        ("two_outputs", x3, "abc,cde->abde", [None, 2, 3], "de"),
        ("two_inputs", x4, "abcd,cde->abe", [None, 6], "e"),
        ("shared_axis", x3, "abc,bcd->abd", [3, 2], "bd"),
        ("bias_on_steps", x3, "abc,cd->abd", [3, 5], "b"),
        ("transposed", x3, "abc,dc->adb", [2, 3], "d"),
        ("ellipsis", x3, "...x,xy->...y", 5, "y"),
        ("ellipsis_4d", x4, "...x,xy->...y", 2, "y"),
        ("ellipsis_right", x4, "ab...,bc->ac...", 2, "c"),
    ):
        kwargs = {"equation": equation, "output_shape": output_shape, "bias_axes": bias_axes, "activation": "tanh"}
        yield case(f"EinsumDense/{name}", "EinsumDense", kwargs, data)


def normalisation() -> Iterator[dict[str, Any]]:
    rng = seeded("more normalisation")
    x2, x3, x4 = normal(rng, 3, 4), normal(rng, 2, 3, 4), normal(rng, 2, 4, 3, 6)
    for name, kwargs, data in (
        ("groups_2", {"groups": 2}, x3),
        ("2d", {"groups": 2}, x2),
        ("instance", {"groups": -1}, x4),
        ("one_group", {"groups": 1}, x4),
        ("axis_1", {"groups": 2, "axis": 1}, x4),
        ("neither", {"groups": 3, "center": False, "scale": False, "epsilon": 0.1}, x4),
    ):
        yield case(f"GroupNormalization/{name}", "GroupNormalization", kwargs, data)
    for name, kwargs, data in (
        ("default", {}, x3),
        ("axis_list", {"axis": [2, 1], "epsilon": 0.1}, x3),
    ):
        yield case(f"RMSNormalization/{name}", "RMSNormalization", kwargs, data)
    for name, kwargs in (("default", {}), ("axis_1", {"axis": 1}), ("axis_list", {"axis": [1, 2]})):
        yield case(f"UnitNormalization/{name}", "UnitNormalization", kwargs, x3)
    yield case("LayerNormalization/axis_list_unsorted", "LayerNormalization", {"axis": [2, 1]}, x3)
    kwargs = {"layer": spec("Dense", units=3), "power_iterations": 2}
    inference = {"training": False}
    yield case("SpectralNormalization/dense", "SpectralNormalization", kwargs, x2, call_kwargs=inference)


def renormalisation() -> Iterator[dict[str, Any]]:
    rng = seeded("renormalisation")
    x, masked = normal(rng, 6, 4), {"x": normal(rng, 3, 4, 2), "mask": MASK}
    nothing = {"x": normal(rng, 3, 4, 2), "mask": np.zeros((3, 4), dtype=bool)}
    clipped = {"renorm_clipping": {"rmin": 0.8, "rmax": 1.2, "dmax": 0.3}, "momentum": 0.9}
    for name, kwargs, data, training in (
        ("renorm", {"renorm": True}, x, True),
        ("renorm_clipped", {"renorm": True, "renorm_momentum": 0.8, **clipped}, x, True),
        ("renorm_neither", {"renorm": True, "center": False, "scale": False}, x, True),
        ("renorm_mask", {"renorm": True}, masked, True),
        ("renorm_inference", {"renorm": True}, x, False),
        ("mask_of_nothing", {"momentum": 0.5}, nothing, True),
    ):
        yield case(f"BatchNormalization/{name}", "BatchNormalization", kwargs, data, call_kwargs={"training": training})


def pointwise() -> Iterator[dict[str, Any]]:
    rng = seeded("more pointwise")
    x, x3 = normal(rng, 3, 4, scale=2.0), normal(rng, 2, 3, 4)
    rows = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=bool)
    yield case("Softmax/mask_of_nothing", "Softmax", {}, {"x": x, "mask": rows})
    yield case("Softmax/mask_broadcasts", "Softmax", {}, {"x": x, "mask": rows[:1]})
    yield case("Softmax/mask_two_axes", "Softmax", {"axis": [-1, -2]}, {"x": x3, "mask": rows[None]})
    for name, target, kwargs in (
        ("GaussianDropout/inference", "GaussianDropout", {"rate": 0.3}),
        ("AlphaDropout/inference", "AlphaDropout", {"rate": 0.3}),
        ("ActivityRegularization/default", "ActivityRegularization", {"l1": 0.1, "l2": 0.2}),
    ):
        yield case(name, target, kwargs, x)


def recurrent() -> Iterator[dict[str, Any]]:
    rng = seeded("more recurrent")
    x = normal(rng, 3, 4, 2)
    states: Inputs = {"state0": normal(rng, 3, 3), "state1": normal(rng, 3, 3)}
    masked: Inputs = {"x": x, "mask": MASK}
    nothing: Inputs = {"x": x, "mask": np.array([[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]], dtype=bool)}
    both = {"return_sequences": True, "return_state": True}
    for target in ("SimpleRNN", "LSTM", "GRU"):
        state = {key: states[key] for key in (("state0", "state1") if target == "LSTM" else ("state0",))}
        for name, kwargs, inputs in (
            ("zero_output_last", {"zero_output_for_mask": True}, masked),
            ("zero_output_state", {"zero_output_for_mask": True, **both}, nothing),
            ("unroll", {"unroll": True, **both}, {"x": x}),
            ("unroll_mask", {"unroll": True, "go_backwards": True, **both}, masked),
            ("backwards_state", {"go_backwards": True, **both}, {**nothing, **state}),
            ("mask_state_last", {"return_state": True}, {**nothing, **state}),
            ("dropout_inference", {"dropout": 0.5, "recurrent_dropout": 0.5, "implementation": 1}, {"x": x}),
        ):
            if target == "SimpleRNN":
                kwargs = {key: value for key, value in kwargs.items() if key != "implementation"}
            options = {"training": False} if name.startswith("dropout") else {}
            yield case(f"{target}/edge_{name}", target, {"units": 3, **kwargs}, inputs, call_kwargs=options)
    cells = [spec("SimpleRNNCell", units=3), spec("LSTMCell", units=2)]
    for name, kwargs in (("backwards", {"go_backwards": True}), ("unroll", {"unroll": True})):
        yield case(f"RNN/stacked_{name}", "RNN", {"cell": cells, **both, **kwargs}, masked)


def wrapped() -> Iterator[dict[str, Any]]:
    rng = seeded("more wrapped")
    x, frames = normal(rng, 3, 4, 2), normal(rng, 2, 3, 4, 5)
    masked: Inputs = {"x": x, "mask": MASK}
    states: Inputs = {f"state{index}": normal(rng, 3, 2) for index in range(4)}
    for name, kwargs, inputs in (
        ("mask_states", {"layer": spec("GRU", units=2, return_sequences=True, return_state=True)}, masked),
        ("mask_none", {"layer": spec("GRU", units=2, return_sequences=True), "merge_mode": None}, masked),
        ("mask_last", {"layer": spec("LSTM", units=2)}, masked),
        ("initial_state", {"layer": spec("LSTM", units=2)}, {**masked, **states}),
        ("none_states", {"layer": spec("LSTM", units=2, return_state=True), "merge_mode": None}, {"x": x}),
    ):
        yield case(f"Bidirectional/edge_{name}", "Bidirectional", kwargs, inputs)
    for name, layer in (
        ("frames", spec("Dense", units=2)),
        ("lstm", spec("LSTM", units=2)),
        ("normalisation", spec("LayerNormalization")),
    ):
        yield case(f"TimeDistributed/{name}", "TimeDistributed", {"layer": layer}, frames)
    yield case("TimeDistributed/mask", "TimeDistributed", {"layer": spec("Dense", units=2)}, masked)
