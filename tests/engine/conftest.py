"""Thousands of generated tests: their coverage is reported."""

from collections.abc import Callable

import pytest


@pytest.fixture
def cases(request: pytest.FixtureRequest, tell: Callable[..., None]) -> Callable[[int], None]:
    """Note how many cases a generated test went through."""
    function = request.node.name.partition("[")[0].removeprefix("test_")
    return lambda count: tell("generated op cases", {function: count})
