"""Each run of the tests prints its processor time, and the files that took most of it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
from shared.processor_time import ProcessorTime, lines, spent


def report(name: str, seconds: float) -> SimpleNamespace:
    return SimpleNamespace(nodeid=name, processor_seconds=seconds)


def test_phases_of_tests_are_added_up_by_file() -> None:
    reports = [report("a.py::test_1", 3.0), report("b.py::test_1", 4.0), report("a.py::test_2[x::y]", 2.5)]
    printed = lines([*reports, report("c.py::test_1", 0.9), SimpleNamespace()], 90.0, 30.0)
    assert printed == [
        "processor time: 1.5 minutes, of which 0.5 before the first test",
        "     5.5 s a.py",
        "     4.0 s b.py",
    ]


def test_no_more_than_ten_files_are_named() -> None:
    printed = lines([report(f"{number}.py::test", number) for number in range(1, 21)], 210.0, 0.0)
    assert [line.split()[-1] for line in printed[1:]] == [f"{number}.py" for number in range(20, 10, -1)]


def test_processes_that_a_test_waits_for_count() -> None:
    before = spent()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    assert spent() - before >= 0.25  # in whole ticks of the clock


def test_this_run_has_the_plugin(pytestconfig: pytest.Config) -> None:
    assert any(isinstance(each, ProcessorTime) for each in pytestconfig.pluginmanager.get_plugins())
