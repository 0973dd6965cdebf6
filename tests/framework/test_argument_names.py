"""Errors for arguments of wrong types name the argument: of all public optimizers, losses, metrics and layers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers
from anabranch.engine.common.keywords import keywords_of
from anabranch.engine.objects.arguments import check_axis, check_numbers, check_optional_numbers, floats, listed

Maker = Callable[[], Any]


class Arbitrary:
    """An object that stands for nothing."""


# What classes need beside their defaults: the first numbers that are allowed, and objects that are made for each call.
NUMBERS: dict[str, Any] = {
    "average_period": 1, "axes": 1, "dims": (2, 1), "embedding_dim": 3, "equation": "ab,bc->ac", "factor": 1,
    "filters": 3, "head_dim": 4, "height": 4, "height_factor": 0.2, "input_dim": 5, "intermediate_dim": 4,
    "kernel_size": 3, "key_dim": 4, "least_norm": 0.1, "max_number": 3, "n": 2, "num_bins": 4, "num_classes": 3,
    "num_experts": 3, "num_heads": 2, "num_key_value_heads": 2, "num_proj": 2, "num_query_heads": 2,
    "num_sampled": 2, "output_dim": 3, "output_shape": (4,), "output_size": 2, "pool_size": 2, "precision": 0.5,
    "rank": 1, "rate": 0.5, "recall": 0.5, "sensitivity": 0.5, "sequence_length": 4, "size": 2, "specificity": 0.5,
    "stddev": 0.1, "target_class_ids": [0], "target_shape": (4,), "units": 3, "vocabulary_size": 9, "width": 4,
    "width_factor": 0.2,
}  # fmt: skip
OBJECTS: dict[str, Maker] = {
    "cell": lambda: layers.LSTMCell(2),
    "cells": lambda: [layers.LSTMCell(2)],
    "expert": lambda: lambda: layers.Dense(2),
    "fn": lambda: ab.losses.mean_squared_error,
    "function": lambda: abs,
    "layer": lambda: layers.Dense(2),
    "layers": lambda: [layers.Rescaling(2.0)],
    "optimizer": lambda: ab.optim.SGD(),
    "optimizer_map": lambda: ab.optim.OptimizerMap(ab.optim.SGD()),
    "default_optimizer": lambda: ab.optim.SGD(),
    "inner_optimizer": lambda: ab.optim.SGD(),
}
OF_CLASSES: dict[str, dict[str, Maker]] = {
    "AttentionRNN": {"cell": lambda: layers.AttentionCell(layers.LSTMCell(2), 3)},
    "Bidirectional": {"layer": lambda: layers.LSTM(2)},
    "CategoryEncoding": {"num_tokens": lambda: 4},
    "DeviceCell": {"device": lambda: "cpu:0"},
    "Discretization": {"num_bins": lambda: 3},
    "Frozen": {"when": lambda: {"a": [(0, 1)]}},
    "InceptionBlock": {"filters": lambda: (1, (1, 1), (1, 1), 1)},
    "InputLayer": {"shape": lambda: (3,)},
    "TransformerDecoderCell": {"decoder": lambda: layers.TransformerDecoder(4, 2), "max_length": lambda: 4},
}
# Arguments of every class, which have tests of their own.
COMMON = {"autocast", "dtype", "name", "seed", "trainable"}


def public_classes() -> Iterator[type[Any]]:
    """Yield the classes that are public, each once, those that have arguments."""
    modules: list[ModuleType] = [ab.optim, ab.losses, ab.metrics, layers]
    names = [(module, name) for module in modules for name in dir(module) if not name.startswith("_")]
    found = [getattr(module, name) for module, name in names]
    yield from dict.fromkeys(each for each in found if inspect.isclass(each) and set(keywords_of(each)) - COMMON)


def needed(cls: type[Any]) -> dict[str, Any]:
    """Return arguments that are enough to make an object of `cls`."""
    without_default = [
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    own = OF_CLASSES.get(cls.__name__, {})
    made = {name: OBJECTS[name]() if name in OBJECTS else NUMBERS.get(name) for name in without_default}
    return {**made, **{name: make() for name, make in own.items()}}


def is_number(cls: type[Any], name: str) -> bool:
    """Test whether an argument is annotated as a number."""
    for each in cls.__mro__:
        annotations = getattr(vars(each).get("__init__"), "__annotations__", {})
        if name in annotations:
            return bool(re.fullmatch(r"(int|float)( \| None)?", str(annotations[name])))
    return False


@pytest.mark.parametrize("cls", [*public_classes()], ids=lambda cls: f"{cls.__module__.split('.')[1]}.{cls.__name__}")
def test_errors_for_arguments_of_wrong_types_name_them(cls: type[Any]) -> None:
    cls(**needed(cls))  # so that what fails below fails by the wrong argument
    silent, nameless = [], []
    for name in set(keywords_of(cls)) - COMMON:
        for wrong in ("x", Arbitrary()):
            try:
                cls(**{**needed(cls), name: wrong})
            except (AttributeError, TypeError, ValueError) as error:
                if name.lower() not in str(error).lower():
                    nameless.append(f"{name}={wrong!r}: {type(error).__name__}: {error}")
            else:
                if is_number(cls, name):
                    silent.append(f"{name}={wrong!r}")
    assert not silent, "Accepted, though annotated as numbers"
    assert not nameless, "Refused without a name"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ab: ab.optim.Adam(beta_1="x"), "Adam: beta_1 must be a number; got 'x' of type str."),
        (lambda ab: ab.optim.Adam(epsilon=None), "Adam: epsilon must be a number; got None of type NoneType."),
        (lambda ab: ab.optim.SGD(momentum=[0.9]), "SGD: momentum must be a number; got [0.9] of type list."),
        (lambda ab: ab.layers.Dropout("x"), "Dropout: rate must be a number or a floating-point scalar, got 'x'."),
        (lambda ab: ab.layers.LSTM(3, dropout="x"), "LSTMCell: dropout must be a number; got 'x' of type str."),
        (lambda ab: ab.layers.Dense(3, bias_regularizer="x"), "Unknown bias_regularizer 'x'. Expected one of: l1"),
        (lambda ab: ab.layers.GRU(3, recurrent_activation="x"), "Unknown recurrent_activation 'x'. Expected one of"),
        (lambda ab: ab.layers.Conv2D(3, 3, bias_constraint=3), "3 of type int is no bias_constraint: expected a name"),
        (lambda ab: ab.metrics.Precision("x"), "Precision: thresholds must be a number; got 'x' of type str."),
    ],
)
def test_messages(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(ab)


def test_scalars_that_are_no_python_numbers_serve_as_numbers() -> None:
    half = np.float32(0.5)
    for value in (half, np.asarray(half), np.int64(1), ab.ops.convert_to_tensor(half), ab.Variable(half)):
        check_numbers("Owner", value=value)
    check_optional_numbers("Owner", value=None)
    any_ab: Any = ab
    assert any_ab.optim.Adam(beta_1=half, epsilon=np.float64(1e-8)).beta_1 == half
    with pytest.raises(ValueError, match="Owner: value must be a number, or None; got 'x' of type str"):
        check_optional_numbers("Owner", value="x")


def test_arguments_of_several_values() -> None:
    check_axis("Owner", -1)
    check_axis("Owner", (np.int64(0), 1))
    with pytest.raises(ValueError, match=r"Owner: axis must be an int, or several; got \(0, 'x'\) of type tuple"):
        check_axis("Owner", (0, "x"))
    assert listed("Owner", "parts", (1, 2), "a list") == [1, 2]
    with pytest.raises(ValueError, match="Owner: parts must be a list; got 'ab' of type str"):
        listed("Owner", "parts", "ab", "a list")
    assert floats("Owner", "mean", [1, 2]).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="Owner: mean must be a number, or an array of numbers; got 'ab' of type str"):
        floats("Owner", "mean", "ab")
