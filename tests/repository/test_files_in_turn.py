"""Processes of pytest-xdist import the files of tests that they run, and no others; what is reported is the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shared.sample import first_of

CONFTEST = """
import pytest
from shared.files_in_turn import FilesInTurn, are_collected_in_turn
from shared.processor_time import OneReport

@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["dist"] = node.config.option.dist

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: is left out")
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(OneReport())
    if are_collected_in_turn(config):
        config.pluginmanager.register(FilesInTurn())

@pytest.fixture(scope="module")
def of_file(request):
    yield
    print("end of", request.path.name)
"""
# Each notes that it is imported.
IMPORTED = """
import os, pathlib, pytest
with open(pathlib.Path(__file__).with_suffix(".imported"), "a") as file:
    file.write(f"{os.getpid()} ")
"""
FILES = {
    "all": """
@pytest.fixture
def end():
    yield
    raise ValueError
def test_passes(of_file): pass
@pytest.mark.parametrize("case", range(3))
def test_cases(of_file, case): assert case < 2
def test_fails_at_its_end(end): pass
def test_is_skipped(): pytest.skip("why")
@pytest.mark.slow
def test_is_slow(): assert 0
""",
    "broken": "import no_such_module\n",
    "last": "def test_last(): pass\n",
    "left_out": "pytest.skip('why', allow_module_level=True)\n",
    "slow": "@pytest.mark.slow\ndef test_is_slow(): assert 0\n",
}


KINDS = ("failed", "passed", "skipped", "error", "errors")


def run(folder: Path, *options: str) -> str:
    """Run pytest in the folder, and return what it prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, cwd=folder)
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, text in FILES.items():
        (tmp_path / f"test_{name}.py").write_text(IMPORTED + text)
    return tmp_path


def counts(printed: str) -> dict[str, int]:
    """Return what the last line counts, but for the tests that are left out: processes count these by themselves."""
    last = printed.splitlines()[-1]
    return {kind.rstrip("s"): int(count) for count, kind in re.findall(r"(\d+) ([a-z]+)", last) if kind in KINDS}


def test_reports_are_those_of_one_process_and_each_file_is_imported_once(folder: Path) -> None:
    options = ("-m", "not slow", "--continue-on-collection-errors")
    alone = counts(run(folder, *options, "-n", "0"))
    for file in folder.glob("*.imported"):
        file.unlink()
    printed = run(folder, *options, "-n", "2", "--dist", "loadfile")
    assert counts(printed) == alone == {"failed": 1, "passed": 5, "skipped": 2, "error": 2}, printed
    assert "ModuleNotFoundError: No module named 'no_such_module'" in printed
    assert "FAILED test_all.py::test_cases[2]" in printed
    imported = {file.stem.removeprefix("test_"): file.read_text().split() for file in folder.glob("*.imported")}
    assert imported.keys() == FILES.keys()
    assert [len(processes) for processes in imported.values()] == [1] * len(FILES)
    assert 1 <= len({process for processes in imported.values() for process in processes}) <= 2


@pytest.mark.parametrize("choice", first_of([["-k", "last"], ["test_last.py::test_last"], ["test_last.py"]]))
def test_tests_that_are_named_are_run(folder: Path, choice: list[str]) -> None:
    """All tests are collected first if names choose among them."""
    (folder / "test_broken.py").unlink()
    printed = run(folder, "-n", "2", "--dist", "loadfile", *choice)
    assert counts(printed)["passed"] == 1, printed


def test_a_run_ends_with_its_first_failure(folder: Path) -> None:
    printed = run(folder, "-n", "1", "--dist", "loadfile", "-x", "test_all.py", "test_last.py")
    assert "stopping after 1 failures" in printed
    assert counts(printed) == {"failed": 1, "passed": 3}, printed
