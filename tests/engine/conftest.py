"""Counts of the generated cases, printed at the end of a run."""

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

_PROPERTY = "generated cases"


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Note how many cases a generated test went through."""
    properties = request.node.user_properties  # travels with the report, from the workers of pytest-xdist too

    def note(count: int) -> None:
        properties.append((_PROPERTY, count))

    return note


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        if report.when == "call":
            function = report.nodeid.partition("::")[2].partition("[")[0]
            counts[function.removeprefix("test_")] += sum(n for name, n in report.user_properties if name == _PROPERTY)
    counts = +counts
    if counts:
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        terminalreporter.write_line(f"generated op cases: {sum(counts.values())} ({listed})")
