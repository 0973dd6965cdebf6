"""Masks of the outputs of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers, ops
from anabranch.engine.graph import flatten
from anabranch.layers.core.layer import Layer

TOKENS = np.array([[1, 2, 0], [3, 0, 0]])


class Passing(Layer):
    """Passes its input's mask on, and gives what `function` makes of its input."""

    def __init__(self, function: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


class Saying(Passing):
    """Says itself which mask its outputs have."""

    def __init__(self, function: Any, masks: Any) -> None:
        super().__init__(function)
        self.masks = masks

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return self.masks(previous_mask)


@pytest.fixture
def embedded() -> Any:
    return layers.Embedding(5, 2, mask_zero=True)(ab.constant(TOKENS))


def masks(outputs: Any) -> list[Any]:
    found = [tensor.annotations.get("mask") for tensor in flatten(outputs)]
    return [None if mask is None else ab.Session().run(mask).tolist() for mask in found]


KEPT = (TOKENS != 0).tolist()


def test_a_single_mask_is_that_of_the_first_output(embedded: Any) -> None:
    assert masks(Passing(lambda x: (x * 2.0, ops.sum(x, 1)))(embedded)) == [KEPT, None]
    assert masks(Saying(lambda x: [x * 2.0, x], lambda mask: mask)(embedded)) == [KEPT, None]


def test_each_output_gets_the_mask_that_is_returned_for_it(embedded: Any) -> None:
    assert masks(Saying(lambda x: [x * 2.0, x], lambda mask: [None, mask])(embedded)) == [None, KEPT]
    pair = Saying(lambda x: {"b": x * 2.0, "a": x + 1.0}, lambda mask: {"a": None, "b": mask})
    assert masks(pair(embedded)) == [None, KEPT]  # in the order of the keys
    assert masks(Saying(lambda x: x * 2.0, lambda mask: [mask, None])(embedded)) == [KEPT]
    assert masks(Saying(lambda x: x * 2.0, lambda mask: None)(embedded)) == [None]


def test_the_masks_of_several_inputs_go_to_the_outputs_in_order(embedded: Any) -> None:
    plain = ab.constant(np.ones((2, 3, 2), "float32"))
    assert masks(Passing(lambda pair: [pair[0] + 1.0, pair[1] + 1.0])([plain, embedded])) == [None, KEPT]


def test_an_output_that_is_the_input(embedded: Any) -> None:
    outputs = Passing(lambda x: x)(embedded)
    assert masks(outputs) == [KEPT]
    silent = Saying(lambda x: x, lambda mask: ops.logical_not(mask))(embedded)
    assert masks(silent) == [np.logical_not(KEPT).tolist()]
    assert masks(embedded) == [KEPT]  # the input keeps its own


def test_what_a_layer_inside_says_of_its_output_counts(embedded: Any) -> None:
    masking = layers.Masking(mask_value=7.0)
    outer = Passing(lambda x: [masking(ops.ones_like(x)), x * 1.0])
    assert masks(outer(embedded)) == [np.ones((2, 3), bool).tolist(), None]
