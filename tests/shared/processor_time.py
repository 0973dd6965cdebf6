"""A plugin for pytest which prints the processor time of a run at its end, and the files that take most of it.

Time on the clock depends on what else the machine does, processor time much less. So each run of `make test` shows when
tests have become slow. Processes that tests start count once they were waited for.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

_FILES = 10


def spent() -> float:
    """Return the processor seconds of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class ProcessorTime:
    """Notes processor seconds with each report; adds up those of all reports and processes."""

    def __init__(self) -> None:
        self._last = 0.0
        self._workers = self._collecting = 0.0

    def pytest_collection_finish(self) -> None:
        self._collecting = self._last = spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = spent()
        report.processor_seconds = now - self._last  # travels with the report, from the workers of pytest-xdist too
        self._last = now
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["processor_seconds"] = spent(), self._collecting

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        total, collecting = getattr(node, "workeroutput", {}).get("processor_seconds", (0.0, 0.0))
        self._workers += total
        self._collecting += collecting

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        reports = [report for found in terminalreporter.stats.values() for report in found]
        # The workers' processes were waited for: what they took, and what they waited for, is this process's, too.
        for line in lines(reports, max(spent(), self._workers), self._collecting):
            terminalreporter.write_line(line)


class OneReport:
    """Has processes of pytest-xdist send one report of a test that passes, in place of three reports and two notes.

    To send and receive these would take longer than most of the tests.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        for report in one_report(reports):
            item.ihook.pytest_runtest_logreport(report=report)
        return True


def one_report(reports: Iterable[Any]) -> list[Any]:
    """Return the reports of a test's phases without those that say no more than that the phase passed.

    The call's report has the processor time of the phases that are left out.
    """
    reports = list(reports)
    kept = [report for report in reports if report.when == "call" or not report.passed]
    total = sum(getattr(report, "processor_seconds", 0.0) for report in reports)
    for report in kept:
        report.processor_seconds = total if report is kept[0] else 0.0
    return kept


def lines(reports: Iterable[Any], total: float, collecting: float) -> list[str]:
    """Return what is printed: all processor time, and that of the files which took most.

    Args:
        reports: of the phases of tests; others are passed over.
        total, collecting: processor seconds of all processes, and those of them before the first test.
    """
    files: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        files[getattr(report, "nodeid", "").partition("::")[0]] += getattr(report, "processor_seconds", 0.0)
    head = f"processor time: {total / 60:.1f} minutes, of which {collecting / 60:.1f} before the first test"
    most = sorted(files.items(), key=lambda file: file[1], reverse=True)[:_FILES]
    return [head, *[f"  {seconds:6.1f} s {name}" for name, seconds in most if seconds >= 1]]
