"""Assertions of test files are rewritten once in a run, not in each process of pytest-xdist.

Each process collects all files; to rewrite their assertions takes it as long as the rest of that. pytest keeps what is
rewritten as bytecode, but the processes go through the files side by side, so that each of them found next to none.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def nodes_below(node: ast.AST) -> list[ast.AST]:
    """Return a node and all below that have a place in the source, or parts that do: those above others come first.

    pytest's own generator for this recurses, and yields each `Load` and each operator, too. That takes half of what it
    takes to rewrite a file.
    """
    found = [node]
    for each in found:
        for value in vars(each).values():
            if type(value) is list:
                found += [item for item in value if isinstance(item, ast.AST) and (item._fields or item._attributes)]
            elif isinstance(value, ast.AST) and (value._fields or value._attributes):
                found.append(value)
    return found


def rewrite_share(config: pytest.Config) -> None:
    """Rewrite, in a process of pytest-xdist, its share of the files that are to be collected, and keep the bytecode."""
    given: dict[str, object] = getattr(config, "workerinput", {})
    count = given.get("workercount", 0)
    if sys.dont_write_bytecode or not isinstance(count, int) or count < 2:
        return
    number = int(str(given["workerid"]).removeprefix("gw"))
    for path in files_of(config.args)[number::count]:
        if not is_kept(path):
            _rewrite(path, config)


def files_of(arguments: Iterable[str]) -> Sequence[Path]:
    """Return the test files of what is given to pytest, in the order in which all processes see them."""
    paths = {Path(argument.partition("::")[0]).resolve() for argument in arguments}
    found = {file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])}
    return sorted(file for file in found if file.suffix == ".py" and file.is_file())


def is_kept(path: Path) -> bool:
    """Test whether bytecode of a file is there that is younger than the file; of other bytecode pytest finds out."""
    kept = _bytecode(path)
    return kept.exists() and kept.stat().st_mtime > path.stat().st_mtime


def _bytecode(path: Path) -> Path:
    return rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"


def rewrite_quickly() -> None:
    """Have pytest go through the nodes of a statement by `nodes_below`."""
    rewrite.traverse_node = nodes_below  # type: ignore[assignment]


def _rewrite(path: Path, config: pytest.Config) -> None:
    """Do what pytest does before it runs a module; a file that can't be read is its business."""
    try:
        source, code = rewrite._rewrite_test(path, config)
    except (OSError, SyntaxError, ValueError):
        return
    kept = _bytecode(path)
    if rewrite.try_makedirs(kept.parent):
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)
