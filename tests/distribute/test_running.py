"""Programs of a task, and the ways that their steps need."""

from __future__ import annotations

from typing import Any, cast

from anabranch.distribute.tasks.peers import Address
from anabranch.distribute.tasks.running import Program


class Way:
    """A connection that can be cut."""

    is_closed = False


def test_a_program_is_connected_when_each_value_has_a_way_that_is_open() -> None:
    program = Program(cast(Any, None), 1, cast(Any, None))
    assert program.is_connected, "it sends nothing"
    ways = [Way(), Way()]
    for edge in range(2):
        program.targets[edge] = Address(f"/job:ps/task:{edge}", "localhost", 1, edge)
    assert not program.is_connected, "it never was"
    program.ways[0] = cast(Any, ways[0])
    assert not program.is_connected
    program.ways[1] = cast(Any, ways[1])
    assert program.is_connected
    ways[0].is_closed = True
    assert not program.is_connected
