"""`fit` on the workers of a cluster: weights, logs and numbers of steps are those of one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE
from shared.trained import assert_same

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.xdist_group("tasks")


def of_worker(files: Any, worker: int) -> set[str]:
    """The names of what a worker writes: the chief alone has the optimizer's variables."""
    return {name for name in files if not worker or ": optimizer " not in name}


def run(*command: str, status: int = 0) -> str:
    """Run Python; in `make test` without kernels, which compute the same, and which tests of lost replicas compile."""
    kernels = os.environ.get("ANABRANCH_KERNELS", "1")
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "ANABRANCH_KERNELS": "0" if kernels == "quick" else kernels},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def launch(workers: int, ps: int, script: str, *arguments: str, status: int = 0, option: str = "") -> str:
    """Run a script in workers: under `ParameterServer` where there are ps tasks, else under `DataParallel`."""
    counts = ["-n", str(workers), "--ps", str(ps)]
    kind = ("ParameterServer" if ps else "DataParallel") + option
    return run("-m", "anabranch", "launch", *counts, str(SCRIPTS / script), kind, *arguments, status=status)


# Of `make test`: most of a process's time goes to its start, so one start of processes goes through several runs.
WITH_PS = {
    "ParameterServer": ["several steps a call", "own step", "texts", "synchronized"],
    "ParameterServer:arriving": ["accumulated", "table"],
    "ParameterServer:3": ["table"],
}
ALL_REDUCE = {
    "DataParallel": ["cell", "two outputs", "synchronized", "texts", "clipped"],
    "DataParallel:1": ["clipped"],
}


def in_turn(folder: Path, runs: dict[str, list[str]]) -> list[str]:
    """Make a folder for each run, named by its strategy; return the script's arguments after the first strategy."""
    for kind in runs:
        (folder / kind).mkdir()
    arguments = [["--", kind, str(folder / kind / "found"), *models] for kind, models in runs.items()]
    return [argument for each in arguments for argument in each][2:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the results of one process, in `make test` of the models that are compared there."""
    folder = tmp_path_factory.mktemp("alone")
    compared = sorted({model for runs in (WITH_PS, ALL_REDUCE) for models in runs.values() for model in models})
    all_models = [] if request.config.option.markexpr == "not slow" else ["--", "ParameterServer", str(folder / "all")]
    run(str(SCRIPTS / "train_models.py"), "ParameterServer", str(folder / "compared"), *compared, *all_models)
    return {name: values for path in folder.iterdir() for name, values in np.load(path).items()}


@pytest.fixture(scope="module")
def with_ps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what two workers have found with two ps tasks, by strategy; the last run is refused.

    Workers that have no row of a batch are in other tests, such as those of counted losses and of supplied rows.
    """
    folder = tmp_path_factory.mktemp("with_ps")
    refused = ["--", "ParameterServer:arriving", str(folder / "refused"), "synchronized", "rows", "unlike"]
    launch(2, 2, "train_models.py", *in_turn(folder, WITH_PS), *refused)
    return folder


@pytest.fixture(scope="module")
def all_reduce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with what three workers have found by all-reduce; the last run is refused."""
    folder = tmp_path_factory.mktemp("all_reduce")
    refused = ["--", "DataParallel", str(folder / "refused"), "rows", "unlike"]
    launch(3, 0, "train_models.py", *in_turn(folder, ALL_REDUCE), *refused)
    return folder


def assert_found(folder: Path, workers: int, alone: dict[str, Any], models: Sequence[str]) -> None:
    """The workers have found what one process finds of these models, or of all."""
    expected = {name for name in alone if (not models and "synch" not in name) or name.partition(":")[0] in models}
    assert expected
    for worker in range(workers):
        found = np.load(folder / f"found-{worker}.npz")
        assert set(found.files) == of_worker(expected, worker)
        assert_same(found, alone)


def test_replicas_with_ps_tasks_find_what_one_process_finds(with_ps: Path, alone: Any) -> None:
    assert_found(with_ps / "ParameterServer", 2, alone, WITH_PS["ParameterServer"])


def test_replicas_by_all_reduce_find_what_one_process_finds(all_reduce: Path, alone: Any) -> None:
    assert_found(all_reduce / "DataParallel", 3, alone, ALL_REDUCE["DataParallel"])


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "ps"), [(2, 2), (3, 1), (3, 0)])
def test_replicas_of_all_models(workers: int, ps: int, alone: Any, tmp_path: Path) -> None:
    launch(workers, ps, "train_models.py", str(tmp_path / "found"))
    assert_found(tmp_path, workers, alone, [])


def test_gradients_that_are_added_as_they_arrive(with_ps: Path, alone: Any) -> None:
    assert_found(with_ps / "ParameterServer:arriving", 2, alone, WITH_PS["ParameterServer:arriving"])


@pytest.mark.slow
def test_gradients_of_all_models_that_are_added_as_they_arrive(alone: Any, tmp_path: Path) -> None:
    launch(3, 2, "train_models.py", str(tmp_path / "found"), option=":arriving")
    assert_found(tmp_path, 3, alone, [])


def test_shards_of_weights_find_what_one_process_finds(with_ps: Path, alone: Any) -> None:
    assert_found(with_ps / "ParameterServer:3", 2, alone, WITH_PS["ParameterServer:3"])


@pytest.mark.slow
def test_shards_of_weights_of_more_models(alone: Any, tmp_path: Path) -> None:
    launch(2, 2, "train_models.py", str(tmp_path / "found"), "table", "float64", option=":3")
    assert_found(tmp_path, 2, alone, ["table", "float64"])


def test_synchronized_statistics_are_those_of_the_whole_batch(all_reduce: Path, alone: Any) -> None:
    assert_found(all_reduce / "DataParallel", 3, alone, ALL_REDUCE["DataParallel"])
    first, *others = (np.load(all_reduce / "DataParallel" / f"found-{worker}.npz") for worker in range(3))
    for other in others:
        for name in other.files:
            assert first[name].tobytes() == other[name].tobytes(), name


def test_synchronized_statistics_are_refused_where_a_step_can_not_begin_again(with_ps: Path) -> None:
    for worker in range(2):
        with np.load(with_ps / f"refused-{worker}.npz") as found:
            said = str(found["synchronized: refused in compile"])
        assert "are synchronized, which takes workers that compute each step together, but with deterministic" in said


def test_losses_of_each_row_are_refused_in_compile(with_ps: Path, all_reduce: Path) -> None:
    for folder, workers in ((with_ps, 2), (all_reduce, 3)):
        for worker in range(workers):
            with np.load(folder / f"refused-{worker}.npz") as found:
                assert "has reduction='none', so that it has a value" in str(found["rows: refused in compile"])


def test_workers_with_other_data_are_refused(with_ps: Path, all_reduce: Path) -> None:
    for folder, workers in ((with_ps, [1]), (all_reduce, [0, 1, 2])):
        for worker in workers:
            with np.load(folder / f"refused-{worker}.npz") as found:
                said = str(found["unlike: refused"])
            own = worker if folder == with_ps else 1
            rows = re.search(r"rows: (\d+) in /job:worker/task:(\d), and (\d+) in /job:worker/task:0[;.]", said)
            assert rows is not None, said
            assert int(rows[2]) == own
            assert int(rows[3]) - int(rows[1]) == own
    with np.load(with_ps / "refused-0.npz") as found:
        assert "unlike: loss" in found.files, "the chief has trained without them"


@pytest.mark.slow
def test_gradients_may_be_sent_in_bfloat16(tmp_path: Path) -> None:
    for name, option in (("exact", ""), ("rounded", ":bfloat16"), ("again", ":bfloat16")):
        launch(3, 0, "train_models.py", str(tmp_path / name), "table", "averaged", option=option)
    exact, rounded, again = (np.load(tmp_path / f"{name}-0.npz") for name in ("exact", "rounded", "again"))
    other = np.load(tmp_path / "rounded-1.npz")
    for name in exact.files:
        assert rounded[name].tobytes() == again[name].tobytes(), name
        assert_close(rounded[name], exact[name], 2e-2, name)
    for name in other.files:
        assert rounded[name].tobytes() == other[name].tobytes(), name
    assert any(rounded[name].tobytes() != exact[name].tobytes() for name in exact.files if "weight" in name)


@pytest.mark.slow
def test_half_precision_leaves_out_the_steps_that_one_process_leaves_out(tmp_path: Path) -> None:
    names = ("mixed_float16", "mixed_bfloat16")
    run(str(SCRIPTS / "train_models.py"), "DataParallel", str(tmp_path / "alone"), *names)
    launch(3, 0, "train_models.py", str(tmp_path / "all-reduce"), *names)
    launch(3, 1, "train_models.py", str(tmp_path / "ps"), *names)
    of_three = ["-m", "anabranch", "launch", "-n", "3", "--ps", "0"]
    run(*of_three, str(SCRIPTS / "train_models.py"), "ZeRO", str(tmp_path / "ZeRO"), *names)
    alone, *others = (np.load(tmp_path / f"{name}-0.npz") for name in ("alone", "all-reduce", "ps", "ZeRO"))
    scale = alone["mixed_float16: steps"]
    assert scale < 10, "some of ten steps overflow"
    for found in others:
        for name in alone.files:
            precision = 0.0 if name.endswith(": steps") else 4e-3 if name.startswith("mixed_float16") else 3e-2
            assert_close(found[name], alone[name], precision, name)


@pytest.mark.slow
def test_what_a_worker_without_rows_has_no_part_in_is_refused(tmp_path: Path) -> None:
    printed = launch(3, 0, "train_models.py", str(tmp_path / "refused"), "exchanging", status=1)
    assert "Batch 3 has no row for worker 2 of 3, but the step of model 'exchanging' runs ['all_reduce']" in printed


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_each_worker_gets_rows_where_there_are_few(rows: int, tmp_path: Path) -> None:
    """Four workers, of which three count in a step: with fewer rows some shares are empty."""
    output = tmp_path / "receipts.json"
    launch(4, 1, "train_few_rows.py", str(output), str(rows))
    taken = [each["taken"] for each in json.loads(output.read_text()).values()]
    assert len(taken) == 4
    assert min(taken) > 0
    assert sum(taken) == 3 * 30


def assert_close(found: np.ndarray, expected: np.ndarray, precision: float, name: str) -> None:
    """Compare arrays of numbers within a relative and absolute precision, and arrays of text exactly."""
    if expected.dtype.kind in "US":
        np.testing.assert_array_equal(found, expected, err_msg=name)
    else:
        np.testing.assert_allclose(found, expected, precision, precision, err_msg=name)


def assert_same_bits(first: Path, second: Path, model: str) -> None:
    with np.load(first) as one, np.load(second) as other:
        names = [name for name in one.files if name.startswith(model)]
        assert names
        for name in names:
            assert one[name].tobytes() == other[name].tobytes(), name


def test_two_runs_give_the_same_bits(all_reduce: Path) -> None:
    """Also in other buckets: one for each gradient."""
    first, second = (all_reduce / kind / "found-0.npz" for kind in ALL_REDUCE)
    assert_same_bits(first, second, "clipped")


@pytest.mark.slow
@pytest.mark.parametrize("ps", [0, 1])
def test_two_runs_of_two_workers_give_the_same_bits(ps: int, tmp_path: Path) -> None:
    for name, option in (("first", ""), ("second", "" if ps else ":1")):
        launch(2, ps, "train_models.py", str(tmp_path / name), "table", "clipped", option=option)
    for model in ("table", "clipped"):
        assert_same_bits(tmp_path / "first-0.npz", tmp_path / "second-0.npz", model)


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
        assert [entry[:2] for entry in each["batches"]] == [entry[:2] for entry in alone["batches"]]
        assert each["batches"] == results[0]["batches"], "the same logs"
        assert each["stopped"] == [0]
        np.testing.assert_allclose(each["on shuffled"], alone["on shuffled"], 1e-5)
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
    port = addresses(1)[0].rpartition(":")[2]  # the next one of what a launcher gives
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(int(port) - 1)}
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
