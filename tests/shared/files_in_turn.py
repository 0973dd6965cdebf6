"""A plugin for processes of pytest-xdist, which collect the tests of a file when it is the file's turn to run.

Otherwise each process collects all files, though it runs only its share of them: it imports their modules, makes their
tests, and rewrites their assertions where these are not kept as bytecode.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest


class LaterFile(pytest.File):
    """A file of tests that has not been imported."""

    def collect(self) -> Iterator[pytest.Item]:
        yield AllTests.from_parent(self, name="all")


class AllTests(pytest.Item):
    """Stands for the tests of a file until they are collected."""

    def collected(self) -> list[pytest.Item]:
        """Collect the tests of the file, and return those that run."""
        assert self.parent is not None
        gc.disable()  # all that is made stays while the file's tests run
        try:
            module = pytest.Module.from_parent(self.parent.parent, path=self.path)
            items = list(self.session.genitems(module))
            self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=items)
        finally:
            self.session._collection_cache.clear()  # else it holds the tests of all files
            gc.enable()
        return items

    def runtest(self) -> None:
        raise AssertionError("The tests of the file run in its place.")


class FilesInTurn:
    """Has tests collected by file. Processes are still handed out files, as with all `--dist=loadfile`."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> LaterFile:
        return LaterFile.from_parent(parent, path=module_path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if not isinstance(item, AllTests):
            return None
        session, items = item.session, item.collected()
        place = session.items.index(item)
        for test, following in zip(items, [*items[1:], nextitem], strict=False):
            session.items[place] = test  # pytest-xdist compares the name of each report with it
            item.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = item
        return True


def are_collected_in_turn(config: pytest.Config) -> bool:
    """Test whether this process gets whole files from pytest-xdist, and nothing else chooses among their tests.

    An expression that asks for marks, or for parts of names, would leave out the files themselves.
    """
    option = config.option
    is_by_file = getattr(config, "workerinput", {}).get("dist") == "loadfile"
    is_of_files = not option.keyword and not any("::" in argument for argument in config.args)
    return is_by_file and is_of_files and option.markexpr in ("", "not slow")


__all__ = ["AllTests", "FilesInTurn", "LaterFile", "are_collected_in_turn"]
