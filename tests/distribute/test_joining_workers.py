"""`fit` under `DataParallel` with workers that are started again: they join the others, and results are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared.worker_scripts import check_equal, found, run

SCRIPT = str(Path(__file__).parent / "scripts" / "train_on_fewer.py")
pytestmark = pytest.mark.xdist_group("tasks")


def launch(workers: int, folder: Path, *arguments: str, restarts: int = 3) -> str:
    counts = ["-n", str(workers), "--ps", "0", "--max-restarts", str(restarts)]
    return run("-m", "anabranch", "launch", *counts, SCRIPT, str(folder), *arguments)


@pytest.mark.parametrize(
    ("model", "lost", "leads"),
    [
        ("dense", ["0:3", "1:6:WAIT"], 1),
        *[
            pytest.param(*each, marks=pytest.mark.slow, id=f"{each[0]} {'+'.join(each[1])}")
            for each in (
                ("dense", ["1:3", "0:6:WAIT"], 0),
                ("dense", ["1:2", "0:4:WAIT"], 0),  # the last step of an epoch
                ("dense", ["1:2", "0:14:WAIT"], 0),  # the last of all
                ("dense", ["0:3:BUCKET", "1:9:WAIT"], 1),
                ("dense", ["0:2", "1:6:WAIT", "1:8"], 0),  # the chief that took over is lost, too, and joins or is late
                ("table", ["2:5:BUCKET", "0:8:WAIT"], 0),
                ("generated", ["1:4", "0:7:WAIT"], 0),
                ("generated", ["0:4", "1:7:WAIT"], 1),
                ("generated", ["0:2", "1:6:WAIT", "1:8"], 0),
                ("saved", ["1:3", "0:6:WAIT"], 0),
                ("saved", ["0:3", "1:6:WAIT"], 1),
                ("synchronized", ["1:3", "0:6:WAIT"], 0),
                ("synchronized", ["0:3", "1:8:WAIT"], 1),
            )
        ],
    ],
)
def test_who_was_started_again_joins(model: str, lost: list[str], leads: int, tmp_path: Path) -> None:
    """Dropout draws by row, so that any number of workers has the results of one process."""
    alone = tmp_path / "alone"
    alone.mkdir()
    run(SCRIPT, str(alone), model)
    expected = found(alone, 0)
    printed = launch(3, tmp_path, model, *lost)
    gone = [int(each.split(":")[0]) for each in lost if not each.endswith("WAIT")]
    first = gone[0]
    assert f"worker {first} ended with exit status -9 (SIGKILL); it is started again (restart 1 of 3)." in printed
    assert "all tasks are started again" not in printed
    assert f"/job:worker/task:{first} joins; training goes on with 3 workers." in printed
    assert f"/job:worker/task:{first} takes part behind step " in printed
    late = gone[1:]  # the training may have ended before these are there
    for worker in {0, 1, 2} - {*late}:
        mine = found(tmp_path, worker)
        check_equal(mine, expected)
        assert mine["leads"] == (worker == leads)
        assert {*mine["members"]} | {*late} == {0, 1, 2}
        seen = mine["seen"]
        assert seen == expected["seen"][len(expected["seen"]) - len(seen) :], "who joins sees the steps that are left"
        assert worker == first or len(seen) == len(expected["seen"])
    for worker in late:
        assert found(tmp_path, worker)["history"].keys() == expected["history"].keys()
    assert (tmp_path / "chief.txt").read_text() == (alone / "chief.txt").read_text()
