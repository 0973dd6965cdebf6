"""Numbers of examples that hypothesis draws for tests that take long for each."""

from hypothesis import settings


def examples(quick: int, thorough: int) -> int:
    """The first number in `make test`, the second in `make test-all`."""
    return quick if settings().max_examples < 1000 else thorough
