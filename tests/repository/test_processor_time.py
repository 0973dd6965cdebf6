"""Each run of the tests prints its processor time, and the files that took most of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from shared.processor_time import ProcessorTime, lines, one_report, spent


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


def phases(*outcomes: str) -> list[SimpleNamespace]:
    names = ("setup", "call", "teardown") if len(outcomes) == 3 else ("setup", "teardown")
    found = zip(names, outcomes, strict=True)
    return [SimpleNamespace(when=name, passed=end == "passed", processor_seconds=2.0) for name, end in found]


@pytest.mark.parametrize(
    ("outcomes", "sent"),
    [
        (("passed", "passed", "passed"), ["call"]),
        (("passed", "failed", "passed"), ["call"]),
        (("passed", "passed", "failed"), ["call", "teardown"]),
        (("skipped", "passed"), ["setup"]),
        (("failed", "failed"), ["setup", "teardown"]),
    ],
)
def test_phases_that_passed_are_sent_with_the_call(outcomes: tuple[str, ...], sent: list[str]) -> None:
    reports = one_report(phases(*outcomes))
    assert [report.when for report in reports] == sent
    assert sum(report.processor_seconds for report in reports) == 2.0 * len(outcomes)


@pytest.mark.parametrize("options", [["-n", "1"], ["-n", "0"]])
def test_each_test_is_reported_once(options: list[str], tmp_path: Path) -> None:
    """Those that pass, fail, fail at their ends, and are skipped."""
    (tmp_path / "conftest.py").write_text(
        "from shared.processor_time import OneReport, ProcessorTime\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(ProcessorTime())\n"
        "    if hasattr(config, 'workerinput'):\n"
        "        config.pluginmanager.register(OneReport())\n"
    )
    (tmp_path / "test_all.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def end():\n"
        "    yield\n"
        "    raise ValueError\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert 0\n"
        "def test_fails_at_its_end(end): pass\n"
        "def test_is_skipped(): pytest.skip('why')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([*command, *options, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert "1 failed, 2 passed, 1 skipped, 1 error" in done.stdout, done.stdout + done.stderr


def test_processes_that_a_test_waits_for_count() -> None:
    before = spent()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", busy], check=True)
    assert spent() - before >= 0.25  # in whole ticks of the clock


def test_this_run_has_the_plugin(pytestconfig: pytest.Config) -> None:
    assert any(isinstance(each, ProcessorTime) for each in pytestconfig.pluginmanager.get_plugins())
