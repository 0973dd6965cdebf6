"""The sample of cases that `make test` takes holds what it promises."""

from collections.abc import Hashable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from shared.sample import first_of, rest

WORDS = st.frozensets(st.integers(0, 5), min_size=1, max_size=3)


def sample(words: Sequence[frozenset[Hashable]]) -> list[frozenset[Hashable]]:
    family = [(f"case {number}", number, each) for number, each in enumerate(words)]
    left = set(rest(family))
    assert left == set(rest(family[::-1])), "the order in which cases are collected does not matter"
    return [each for number, each in enumerate(words) if number not in left]


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_every_word_occurs_and_no_case_is_there_in_vain(words: list[frozenset[Hashable]]) -> None:
    taken = sample(words)
    assert frozenset().union(*taken) == frozenset().union(*words)
    assert len(taken) <= len(frozenset().union(*words))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 1), (4, 4), (7, 3)])
def test_a_product_is_about_as_long_as_its_longest_side(rows: int, columns: int) -> None:
    words = [frozenset([("row", row), ("column", column)]) for row, column in product(range(rows), range(columns))]
    assert max(rows, columns) <= len(sample(words)) < max(rows + columns, 2)


def test_the_first_parameters_are_no_slow_ones() -> None:
    marked = first_of(["a", "b", ("c", "d")], 2)
    assert [each.values for each in marked] == [("a",), ("b",), ("c", "d")]
    assert [bool(each.marks) for each in marked] == [False, False, True]


def test_generated_cases_depend_on_no_module_that_was_imported_before() -> None:
    """Hypothesis would draw numbers and texts that it finds in the package's files."""
    assert len(providers._get_local_constants()) == 0  # pyright: ignore[reportPrivateUsage]
