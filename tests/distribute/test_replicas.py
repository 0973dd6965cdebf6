"""`fit` on the workers of a cluster: weights, logs and numbers of steps are those of one process."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.xdist_group("tasks")


def of_worker(files: Any, worker: int) -> set[str]:
    """The names of what a worker writes: the chief alone has the optimizer's variables."""
    return {name for name in files if not worker or ": optimizer " not in name}


def run(*command: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def launch(workers: int, ps: int, script: str, *arguments: str, status: int = 0, option: str = "") -> str:
    """Run a script in workers: under `ParameterServer` where there are ps tasks, else under `DataParallel`."""
    counts = ["-n", str(workers), "--ps", str(ps)]
    kind = ("ParameterServer" if ps else "DataParallel") + option
    return run("-m", "anabranch", "launch", *counts, str(SCRIPTS / script), kind, *arguments, status=status)


QUICK = ("accumulated", "several steps a call", "own step", "cell", "two outputs", "table")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """Return the results of one process, in `make test` of the models that are compared there."""
    output = tmp_path_factory.mktemp("alone") / "found"
    models = QUICK if request.config.option.markexpr == "not slow" else ()
    run(str(SCRIPTS / "train_models.py"), "ParameterServer", str(output), *models)
    return np.load(f"{output}-0.npz")


def assert_found(folder: Path, workers: int, alone: Any, models: Sequence[str]) -> None:
    """The workers have found what one process finds of these models, or of all."""
    expected = {name for name in alone.files if not models or name.partition(":")[0] in models}
    assert expected
    for worker in range(workers):
        found = np.load(folder / f"found-{worker}.npz")
        assert set(found.files) == of_worker(expected, worker)
        for name in found.files:
            precision = 1e-10 if name.startswith("float64") else 2e-5
            np.testing.assert_allclose(found[name], alone[name], precision, precision, err_msg=name)


@pytest.mark.parametrize(
    ("workers", "ps", "models"),
    [
        (2, 2, ["accumulated", "several steps a call", "own step"]),
        (3, 0, ["cell", "two outputs"]),
        pytest.param(2, 2, [], marks=pytest.mark.slow),
        pytest.param(3, 1, [], marks=pytest.mark.slow),
        pytest.param(3, 0, [], marks=pytest.mark.slow),
    ],
)
def test_replicas_find_what_one_process_finds(
    workers: int, ps: int, models: list[str], alone: Any, tmp_path: Path
) -> None:
    launch(workers, ps, "train_models.py", str(tmp_path / "found"), *models)
    assert_found(tmp_path, workers, alone, models)


@pytest.mark.parametrize(
    "models", [["accumulated", "table"], pytest.param([], marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_gradients_that_are_added_as_they_arrive(models: list[str], alone: Any, tmp_path: Path) -> None:
    launch(3, 2, "train_models.py", str(tmp_path / "found"), *models, option=":arriving")
    assert_found(tmp_path, 3, alone, models)


@pytest.mark.parametrize("models", [["table"], pytest.param(["table", "float64"], marks=pytest.mark.slow)])
def test_shards_of_weights_find_what_one_process_finds(models: list[str], alone: Any, tmp_path: Path) -> None:
    command = ["launch", "-n", "2", "--ps", "2", str(SCRIPTS / "train_models.py"), "ParameterServer:3"]
    run("-m", "anabranch", *command, str(tmp_path / "found"), *models)
    assert_found(tmp_path, 2, alone, models)


def test_synchronized_statistics_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    run(str(SCRIPTS / "train_models.py"), "DataParallel", str(tmp_path / "alone"), "synchronized")
    launch(2, 0, "train_models.py", str(tmp_path / "found"), "synchronized")
    alone, first, second = (np.load(tmp_path / name) for name in ("alone-0.npz", "found-0.npz", "found-1.npz"))
    for name in alone.files:
        np.testing.assert_allclose(first[name], alone[name], 2e-5, 2e-5, err_msg=name)
    for name in second.files:
        assert first[name].tobytes() == second[name].tobytes(), name
    printed = launch(1, 1, "train_models.py", str(tmp_path / "refused"), "synchronized", status=1)
    assert "are synchronized, which takes workers that compute each step together" in printed


@pytest.mark.slow
def test_gradients_may_be_sent_in_bfloat16(tmp_path: Path) -> None:
    for name, option in (("exact", ""), ("rounded", ":bfloat16"), ("again", ":bfloat16")):
        launch(3, 0, "train_models.py", str(tmp_path / name), "table", "averaged", option=option)
    exact, rounded, again = (np.load(tmp_path / f"{name}-0.npz") for name in ("exact", "rounded", "again"))
    other = np.load(tmp_path / "rounded-1.npz")
    for name in exact.files:
        assert rounded[name].tobytes() == again[name].tobytes(), name
        np.testing.assert_allclose(rounded[name], exact[name], 2e-2, 2e-2, err_msg=name)
    for name in other.files:
        assert rounded[name].tobytes() == other[name].tobytes(), name
    assert any(rounded[name].tobytes() != exact[name].tobytes() for name in exact.files if "weight" in name)


@pytest.mark.slow
def test_half_precision_leaves_out_the_steps_that_one_process_leaves_out(tmp_path: Path) -> None:
    names = ("mixed_float16", "mixed_bfloat16")
    run(str(SCRIPTS / "train_models.py"), "DataParallel", str(tmp_path / "alone"), *names)
    launch(3, 0, "train_models.py", str(tmp_path / "all-reduce"), *names)
    launch(3, 1, "train_models.py", str(tmp_path / "ps"), *names)
    alone, *others = (np.load(tmp_path / f"{name}-0.npz") for name in ("alone", "all-reduce", "ps"))
    scale = alone["mixed_float16: steps"]
    assert scale < 10, "some of ten steps overflow"
    for found in others:
        for name in alone.files:
            precision = 0.0 if name.endswith(": steps") else 4e-3 if name.startswith("mixed_float16") else 3e-2
            np.testing.assert_allclose(found[name], alone[name], precision, precision, err_msg=name)


@pytest.mark.slow
def test_synchronized_statistics_need_rows_in_each_worker(tmp_path: Path) -> None:
    printed = launch(3, 0, "train_models.py", str(tmp_path / "refused"), "synchronized", status=0)
    assert "ValueError" not in printed, "6 rows for 3 workers"
    printed = launch(7, 0, "train_models.py", str(tmp_path / "refused"), "synchronized", status=1)
    assert "Batch 4 has no row for worker 6 of 7, but the layers ['batch_normalization'] are synchronized" in printed


@pytest.mark.parametrize(
    ("ps", "models"),
    [
        (0, ["clipped"]),
        pytest.param(1, ["table"], marks=pytest.mark.slow),
        *[pytest.param(ps, ["table", "clipped"], marks=pytest.mark.slow) for ps in (0, 1)],
    ],
)
def test_two_runs_give_the_same_bits(ps: int, models: list[str], tmp_path: Path) -> None:
    """By all-reduce also in other buckets: one for each gradient."""
    for name, option in (("first", ""), ("second", "" if ps else ":1")):
        launch(2, ps, "train_models.py", str(tmp_path / name), *models, option=option)
    first, second = (np.load(tmp_path / f"{name}-0.npz") for name in ("first", "second"))
    for name in first.files:
        assert first[name].tobytes() == second[name].tobytes(), name


def found(folder: Path, worker: int) -> Any:
    return json.loads((folder / f"found-{worker}.json").read_text())


def test_what_the_chiefs_callbacks_change_holds_in_all_workers(tmp_path: Path) -> None:
    run(str(SCRIPTS / "train_with_callbacks.py"), str(tmp_path))
    alone = found(tmp_path, 0)
    run("-m", "anabranch", "launch", "-n", "3", "--ps", "0", str(SCRIPTS / "train_with_callbacks.py"), str(tmp_path))
    results = [found(tmp_path, worker) for worker in range(3)]
    for each in results:
        assert each["history"] == results[0]["history"]
        assert each["weights"] == results[0]["weights"], "the same bits"
        assert (each["rate"], each["steps"], each["sum"]) == (0.5, 9, 6.0), "it stops in the second epoch"
        assert each["predicted"] == results[0]["predicted"], "all rows, in order"
        assert each["evaluated"] == results[0]["evaluated"]
        assert each["on batches"] == results[0]["on batches"]
        assert each["generated"] == results[0]["generated"]
    assert results[0]["seen"][-12:] == ["begin 0", "end 1", "begin 2", "end 3", "begin 4", "end 4"] * 2
    for one, other in zip(results[0]["generated"][0], alone["generated"][0], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], 1e-5)
    np.testing.assert_allclose(results[0]["generated"][1][0], alone["generated"][1][0], 1e-4, 1e-6)
    np.testing.assert_allclose(results[0]["on batches"], alone["on batches"], 1e-5)
    np.testing.assert_allclose(results[0]["evaluated"], alone["evaluated"], 1e-5)
    np.testing.assert_allclose(results[0]["predicted"], alone["predicted"], 1e-4, 1e-6)
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(results[0]["history"][name], alone["history"][name], 1e-5)
    assert alone["read"] == [0, 1, 2, 3, 4, 5]
    assert results[1]["read"] == [2, 3], "each reads its part of the batches"
    for weight, other in zip(results[0]["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(weight, other, 1e-4, 1e-6)
    assert results[0]["seen"] == alone["seen"]
    assert results[1]["seen"] == ["end of 0: ['loss', 'val_loss']", "end of 1: ['loss', 'val_loss']"]


@pytest.mark.slow
def test_replicas_in_stages_find_what_one_process_finds(tmp_path: Path) -> None:
    """Two workers, each with a pipeline on two CPUs; the last batch has one row, of which one worker has none."""
    script = str(SCRIPTS / "train_in_stages.py")
    run(script, str(tmp_path))
    alone = found(tmp_path, 0)
    run("-m", "anabranch", "launch", "-n", "2", "--ps", "0", script, str(tmp_path))
    for each in (found(tmp_path, worker) for worker in range(2)):
        assert each["devices"] == alone["devices"] == ["/device:CPU:0", "/device:CPU:1"]
        for name in ("loss", "mae"):
            np.testing.assert_allclose(each["history"][name], alone["history"][name], 1e-10)
        for weight, other in zip(each["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(weight, other, 1e-10, 1e-10)


def test_an_error_of_the_chief_ends_all_workers(tmp_path: Path) -> None:
    script = str(SCRIPTS / "train_with_callbacks.py")
    printed = run("-m", "anabranch", "launch", "-n", "2", "--ps", "0", script, str(tmp_path), "fail", status=1)
    own = re.sub(r"\[worker 1\] .*\n", "", printed)  # whose lines may come between what the chief writes in pieces
    assert "ValueError: this callback fails" in own
    assert "CancelledError: /job:worker/task:0 has ended what the group runs: this callback fails" in printed


def test_processes_that_a_launcher_has_numbered_find_each_other(tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port - 1)}
    command = [sys.executable, str(SCRIPTS / "train_with_callbacks.py"), str(tmp_path)]
    processes = [subprocess.Popen(command, env={**common, "RANK": str(rank)}) for rank in (1, 0)]
    try:
        assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    first, second = (found(tmp_path, worker) for worker in range(2))
    assert first["weights"] == second["weights"]
    assert first["sum"] == 3.0
