"""`ParameterServer` where a ps task is absent: how long a worker waits for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from shared.members import addresses

import anabranch as ab
from anabranch.distribute import ParameterServer
from anabranch.distribute.config import ServerConfig
from anabranch.distribute.tasks import server
from anabranch.distribute.tasks.system import System

pytestmark = pytest.mark.xdist_group("tasks")


def test_a_worker_without_a_ps_task_waits_for_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited three times as long: again to read statistics, and to leave."""
    monkeypatch.setattr(server, "ServerConfig", partial(ServerConfig, connect_timeout=0.1))
    asked: list[str] = []
    found = System.ask

    def ask(system: System, address: str, name: str, *given: Any) -> None:
        asked.append(name)
        found(system, address, name, *given)

    monkeypatch.setattr(System, "ask", ask)
    ps, chief, own = addresses(3)
    strategy = ParameterServer(cluster={"ps": [ps], "worker": [chief, own]}, job_name="worker", task_index=1)
    with strategy.scope():
        model = ab.Sequential([ab.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ab.errors.TaskFailedError, match=r"/job:ps/task:0 did not answer at .* Start it"):
        model.fit(np.zeros((4, 3)), np.zeros((4, 1)), verbose=0)
    strategy.close()
    assert asked == ["/job:ps/task:0"]
