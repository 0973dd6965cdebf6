"""State that a task held is lost with it for its clients, until it is assigned or restored."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from shared.tasks import PS, WORKER, Running, restarted, tasks

import anabranch as ab

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.fixture
def cluster() -> Generator[Running]:
    """A cluster of its own, of which a test may end tasks."""
    with tasks() as running:
        yield running


def restart(running: Running) -> None:
    """Start the ps task again."""
    running[PS].kill()
    again = restarted(running[PS])
    running[PS].end()
    running[PS] = again


def test_a_session_whose_preparing_was_cut_off_has_lost_nothing(graph: ab.Graph, cluster: Running):
    with ab.device(PS):
        w = ab.Variable(1.0, name="w")
        double = w * 2.0
    with ab.Graph().as_default() as other, ab.device(PS):
        there = ab.constant([1.0]) + 1.0
    first = ab.Session(other, target=cluster[WORKER].target)
    first.run(there)  # the master is connected to the ps task, so that the graph of the next session is sent there
    session = ab.Session(graph, target=cluster[WORKER].target)
    here = ab.constant(3.0) + 1.0
    cluster[PS].stop()
    with pytest.raises(ab.errors.DeadlineExceededError, match=f"{PS} prepares its part"):
        session.run(double, timeout=0.5)
    assert session.run(here) == 4  # another step that can be prepared does not say that `w` was made
    restart(cluster)
    try:
        assert session.run(double) == 2
        assert w.numpy() == 1
    finally:
        session.close()
        first.close()
        cluster[PS].end()
