"""`vectorize` against NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.loops import number, run
from shared.examples import examples

import anabranch as ab

ops = ab.ops
RNG = np.random.default_rng(2)
X = RNG.normal(size=(5, 3))


@pytest.fixture(autouse=True)
def graph() -> Iterator[ab.Graph]:
    with ab.Graph().as_default() as graph:
        yield graph


@given(
    st.lists(st.sampled_from([1, 2, 3]), max_size=3),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=examples(10, 40), deadline=None)
def test_vectorize_like_numpy(loop: list[int], ones: list[bool], cut_a: int, cut_b: int, known: bool):
    """Matrix times vector over axes that broadcast."""
    shape_a = [1 if one else d for d, one in zip(loop, ones[:3], strict=False)][cut_a:]
    shape_b = [1 if one else d for d, one in zip(loop, ones[3:], strict=False)][cut_b:]
    a, b = RNG.normal(size=(*shape_a, 2, 3)), RNG.normal(size=(*shape_b, 3))
    expected = np.vectorize(lambda a, b: a @ b, signature="(m,n),(n)->(m)")(a, b)
    with ab.Graph().as_default():
        x, y = (ab.placeholder(v.shape if known else (None,) * v.ndim, "float64") for v in (a, b))
        found = ab.vectorize(lambda a, b: a @ b, signature="(m,n),(n)->(m)")(x, y)
        (value,) = run([found], {x: a, y: b})
    np.testing.assert_allclose(value, expected)
    assert value.shape == expected.shape


def test_vectorize_of_scalars_with_branches():
    larger = ops.vectorize(lambda a, b: ab.cond(a > b, lambda: a, lambda: b))
    np.testing.assert_array_equal(run([larger([[1.0], [4.0]], [2.0, 3.0, 5.0])])[0], [[2, 3, 5], [4, 4, 5]])
    assert run([larger(1.0, 2.0)]) == [2.0]


def test_vectorize_with_excluded_and_named_arguments():
    def polynomial(x: Any, coefficients: Any, *, scale: Any, label: Any = None) -> Any:
        assert len(coefficients) == 2
        assert label == "kept"
        return (coefficients[0] + coefficients[1] * x) * scale

    f = ab.vectorize(polynomial, excluded={1, "label"})
    found = f(ab.constant([1.0, 2.0]), [10.0, 1.0], scale=ab.constant([1.0, 3.0]), label="kept")
    np.testing.assert_array_equal(run([found])[0], [11, 36])
    assert f.__name__ == "polynomial"


def test_vectorize_with_several_results_and_none():
    f = ab.vectorize(lambda x, y, n: (ops.sum(x), x + 1.0), signature="(n)->(),(n)", excluded={1, 2})
    total, more = f(ab.constant(X), None, 3)
    values = run([total, more])
    np.testing.assert_allclose(values[0], X.sum(axis=1))
    np.testing.assert_allclose(values[1], X + 1)


def test_vectorize_is_differentiable():
    x = number()
    y = ab.vectorize(lambda a, b: a * a * b)(x, ab.constant([1.0, 2.0], "float64"))
    assert run(ab.gradients(y, [x]), {x: 3.0}) == [18.0]


@pytest.mark.parametrize(
    ("signature", "arguments", "message"),
    [
        ("(m,n->(m)", [], "is not of the form"),
        ("(n)->(n)", [np.ones(2), np.ones(2)], "has 1 arguments, but 2 were given"),
        ("(m,n)->(n)", [np.ones(2)], r"shape \[2\] has no axes \(m,n\)"),
        (
            "(n),(n)->()",
            [np.ones(2), np.ones(3)],
            "axis n of the signature .* has size 2 in one place and 3 in an argument",
        ),
        ("(3)->()", [np.ones(2)], "axis 3 of the signature .* has size 3 in one place and 2"),
        ("(n)->(n)", [np.ones((4, 2))], r"has a result \(n\), but pyfunc returned one of shape \[\]"),
        ("(n)->(),()", [np.ones((4, 2))], "has 2 results, but pyfunc returned 1"),
        ("(),()->()", [np.ones(2), np.ones(3)], r"shapes \[2\], \[3\] do not broadcast"),
    ],
)
def test_signatures_that_do_not_fit(signature: str, arguments: Any, message: str):
    with pytest.raises(ValueError, match=message):
        ab.vectorize(lambda *args: ops.sum(args[0]), signature=signature)(*arguments)


def test_vectorize_needs_a_function_and_ranks():
    with pytest.raises(TypeError, match="pyfunc must be a function, got 3"):
        ab.vectorize(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="needs arguments of known rank"):
        ab.vectorize(lambda x: x)(ab.placeholder(None, "float32"))
