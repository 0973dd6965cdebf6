"""Each process of pytest-xdist rewrites the assertions of its share of the test files; pytest finds what it wrote."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from shared.rewritten import files_of, is_kept, nodes_below, rewrite_share


class Config:
    """The configuration of a process of pytest-xdist."""

    def __init__(self, real: pytest.Config, number: int, count: int, *arguments: Path) -> None:
        self._real = real
        self.workerinput = {"workerid": f"gw{number}", "workercount": count}
        self.args = [str(argument) for argument in arguments]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four test files, one of which can't be read, and others."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "inner").mkdir()
    for name in ("test_a.py", "inner/test_b.py", "test_c.py"):
        (tmp_path / name).write_text("def test_sum():\n    assert 1 + 1 == 2\n")
    (tmp_path / "test_d.py").write_text("def test_sum(:\n")
    for name in ("conftest.py", "helpers.py", "test_data.json"):
        (tmp_path / name).write_text("x = 1\n")
    return tmp_path


def kept(folder: Path) -> set[str]:
    return {path.name for path in files_of([str(folder)]) if is_kept(path)}


def rewrite_all(folder: Path, config: pytest.Config, count: int = 2) -> list[set[str]]:
    """Names of the files that are kept after each process."""
    found: list[set[str]] = []
    for number in range(count):
        made: Any = Config(config, number, count, folder)
        rewrite_share(made)
        found.append(kept(folder))
    return found


def test_each_process_rewrites_its_share(folder: Path, pytestconfig: pytest.Config) -> None:
    assert [path.relative_to(folder).as_posix() for path in files_of([f"{folder}::test_sum", str(folder)])] == [
        "inner/test_b.py",
        "test_a.py",
        "test_c.py",
        "test_d.py",
    ]
    assert rewrite_all(folder, pytestconfig) == [{"test_b.py", "test_c.py"}, {"test_a.py", "test_b.py", "test_c.py"}]
    path = folder / "test_a.py"
    code = rewrite._read_pyc(path, rewrite.get_cache_dir(path) / f"test_a{rewrite.PYC_TAIL}")
    assert code is not None
    assert "@pytest_ar" in code.co_names


def test_a_file_that_has_changed_is_rewritten_again(folder: Path, pytestconfig: pytest.Config) -> None:
    rewrite_all(folder, pytestconfig)
    path = folder / "test_a.py"
    later = path.stat().st_mtime + 60
    os.utime(path, (later, later))
    assert kept(folder) == {"test_b.py", "test_c.py"}


def test_alone_or_without_bytecode_nothing_is_rewritten_ahead(
    folder: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rewrite_all(folder, pytestconfig, count=1) == [set()]
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rewrite_all(folder, pytestconfig) == [set(), set()]


def test_nodes_below_are_those_of_pytest_that_have_a_place_or_parts() -> None:
    tree = ast.parse(Path(__file__).read_text())
    expected = [each for each in ast.walk(tree) if each._fields or each._attributes]
    found = nodes_below(tree)
    assert len(found) == len(expected)
    assert {*map(id, found)} == {*map(id, expected)}
