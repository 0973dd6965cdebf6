"""The NaN guard in training."""

import numpy as np
import pytest

import anabranch as ab
from anabranch import layers


def test_names_the_layer():
    model = ab.Sequential([layers.Input((2,)), layers.Dense(2, name="fine"), layers.Dense(2, name="broken")])
    model.layers[-1].kernel.assign([[np.inf, 0], [0, 0]])
    model.compile(optimizer="sgd", loss="mse")
    with ab.debugging.check_numerics(), pytest.raises(FloatingPointError) as info:
        model.fit(np.ones((4, 2)), np.ones((4, 2)), verbose=0)
    assert "broken" in "\n".join([str(info.value), *info.value.__notes__])
