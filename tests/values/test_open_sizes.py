"""Ops that look at sizes which are known only when a step runs: symbols, which they must not compare with numbers."""

from typing import Any

import numpy as np
import pytest

import anabranch as ab
from anabranch import ops


@pytest.mark.parametrize("mode", ["constant", "reflect", "symmetric"])
def test_padding_by_symbols(mode: Any) -> None:
    x = np.arange(12, dtype="float32").reshape(3, 4)
    with ab.Graph().as_default() as graph:
        fed, n = ab.placeholder((None, 4)), ab.placeholder((), "int32")
        padded = ops.pad(fed, [[0, 0], [n, 1]], mode=mode)
    for width in (0, 2):
        found = ab.Session(graph).run(padded, {fed: x, n: width})
        np.testing.assert_array_equal(found, np.pad(x, [[0, 0], [width, 1]], mode=mode))


@pytest.mark.parametrize(
    "options", [{}, {"interpolation": "nearest"}, {"crop_to_aspect_ratio": True}, {"pad_to_aspect_ratio": True}]
)
def test_resizing_images_of_open_sizes(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).uniform(size=(2, 6, 4, 3)).astype("float32")
    with ab.Graph().as_default() as graph:
        fed = ab.placeholder((2, None, None, 3))
        resized = ops.image.resize(fed, (3, 5), **options)
    found = ab.Session(graph).run(resized, {fed: x})
    np.testing.assert_allclose(found, ops.image.resize(x, (3, 5), **options), rtol=1e-6)


def test_convolutions_by_filters_of_a_batch_of_open_size() -> None:
    rng = np.random.default_rng(0)
    x, filters = (rng.normal(size=shape).astype("float32") for shape in ((3, 2, 5, 5, 3), (3, 3, 3, 3, 4)))
    with ab.Graph().as_default() as graph:
        feeds = ab.placeholder((None, *x.shape[1:])), ab.placeholder((None, *filters.shape[1:]))
        found = ab.vectorized_map(lambda pair: ops.conv(*pair), feeds)
    run = ab.Session(graph).run(found, dict(zip(feeds, (x, filters), strict=True)))
    expected = [ops.conv(each, own) for each, own in zip(x, filters, strict=True)]
    np.testing.assert_allclose(run, expected, rtol=1e-4, atol=1e-5)
