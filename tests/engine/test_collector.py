"""The garbage collector waits while programs are made, and is afterwards as it was."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import anabranch as ab
from anabranch.__main__ import main
from anabranch.engine.runtime.collector import make_old, without_collector
from anabranch.engine.runtime.program import Program


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def was_enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def _step() -> tuple[ab.Graph, list[Any], list[Any]]:
    with ab.Graph().as_default() as graph:
        x = ab.placeholder((3,), "float32")
        return graph, [ab.ops.exp(x) * x], [x]


def test_it_waits_while_a_program_is_made(was_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    prepare = Program._prepare
    monkeypatch.setattr(Program, "_prepare", lambda self: seen.append(gc.isenabled()) or prepare(self))
    Program(*_step())
    assert seen == [False]
    assert gc.isenabled() == was_enabled


def test_it_goes_on_after_an_error(was_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Program) -> None:
        raise ValueError("no step")

    monkeypatch.setattr(Program, "_prepare", fail)
    with pytest.raises(ValueError, match="no step"):
        Program(*_step())
    assert gc.isenabled() == was_enabled


def test_calls_inside_calls_leave_it_to_the_outermost(was_enabled: bool) -> None:
    @without_collector
    def inner(value: int, *, factor: int = 1) -> list[Any]:
        return [value * factor, gc.isenabled()]

    @without_collector
    def outer() -> list[Any]:
        return [*inner(3, factor=2), gc.isenabled()]

    assert outer() == [6, False, False]
    assert gc.isenabled() == was_enabled
    assert inner.__name__ == "inner"


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """Let go of what the test suite has frozen."""
    was_frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    (gc.freeze if was_frozen else gc.unfreeze)()


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_become_old_and_are_still_collected() -> None:
    class Node:
        itself: Any = None

    node = Node()
    node.itself = node
    gone = weakref.ref(node)
    make_old()
    assert any(each is node for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0
    del node
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_that_a_program_has_frozen_stay_so() -> None:
    gc.freeze()
    make_old()
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("nothing_frozen")
def test_a_command_leaves_its_modules_out_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["launch", "no_such_script.py"]
    assert main(command) == 2
    assert gc.get_freeze_count() == 0
    monkeypatch.setattr(sys, "argv", ["anabranch", *command])
    assert main() == 2
    assert gc.get_freeze_count() > 0
