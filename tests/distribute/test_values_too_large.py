"""Values for which a task has no memory: an error for the client that asked for them, and for nobody else."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from shared.tasks import PS, TOKEN, WORKER

import anabranch as ab

HUGE = (2**20, 2**25)  # 128 TiB of float32, as a view of one number


@pytest.fixture(scope="module")
def target() -> Generator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", TOKEN)
        with ab.distribute.Server({"ps": ["localhost:0"]}) as ps:
            cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
            with ab.distribute.Server(cluster, "worker", 0) as worker:
                yield worker.target


def huge(device: str) -> Any:
    with ab.device(device):
        return ab.ops.broadcast_to(ab.placeholder((), "float32", "x"), HUGE)


@pytest.mark.parametrize("device", [PS, WORKER])
def test_a_fetch_that_has_no_room_fails_alone(target: str, graph: ab.Graph, device: str):
    value = huge(device)
    small = value[0, :2]
    with ab.Session(graph, target=target) as session, ab.Session(ab.Graph(), target=target) as other:
        with other.graph.as_default(), ab.device(device):
            y = ab.constant(1.0) + 1.0
        for _ in range(2):
            with pytest.raises(
                MemoryError, match=r"float32\[1048576,33554432\], takes 140,737,488,355,328 bytes"
            ) as caught:
                session.run([small, value], {"x:0": 1.0})
            assert f"on {device}, which sends" in caught.value.__notes__[0]
        assert other.run(y) == 2
        assert session.run(small, {"x:0": 1.0}).tolist() == [1, 1]


@pytest.mark.parametrize(("source", "taker"), [(PS, WORKER), (WORKER, PS)])
def test_a_value_for_another_task_that_has_no_room_fails_alone(target: str, graph: ab.Graph, source: str, taker: str):
    value = huge(source)
    with ab.device(taker):
        first = (value * 2.0)[0, 0]
    with ab.Session(graph, target=target) as session, ab.Session(ab.Graph(), target=target) as other:
        with other.graph.as_default(), ab.device(source):
            y = ab.constant(1.0) + 1.0
        with pytest.raises(MemoryError):
            session.run(first, {"x:0": 1.0})
        assert other.run(y) == 2
