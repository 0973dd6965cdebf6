"""`ParameterServer`: where it finds its cluster, what it refuses, and what one worker does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch import callbacks, layers
from anabranch.distribute import ParameterServer, Server, cluster_from_environment
from anabranch.distribute.environment import notify_launcher
from anabranch.engine.checkpoint.folders import Folder
from anabranch.framework.saving.run_files import read_backup

pytestmark = pytest.mark.xdist_group("tasks")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)).astype("float32"), RNG.normal(size=(20, 1)).astype("float32")


@pytest.fixture(scope="module")
def ps() -> Generator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
        with Server({"ps": ["localhost:0"]}, "ps", 0) as server:
            yield server


@pytest.fixture(params=[{}, {"sync": False}, {"sync": False, "max_staleness": 0}], ids=str)
def strategy(ps: Server, request: pytest.FixtureRequest) -> Generator[ParameterServer]:
    """The only worker of a cluster, in this process."""
    cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0"]}
    made = ParameterServer(cluster=cluster, job_name="worker", task_index=0, **request.param)
    yield made
    made.close()


synchronous = pytest.mark.parametrize("strategy", [{}], indirect=True)


def compiled(strategy: ParameterServer, *given: Any, loss: Any = "mse", **options: Any) -> ab.Sequential:
    with strategy.scope():
        model = ab.Sequential(list(given) or [layers.Dense(1)])
        model.compile("sgd", loss, **options)
    return model


def test_one_worker_finds_what_fit_without_a_strategy_finds(strategy: ParameterServer) -> None:
    results = []
    for each in (strategy, ParameterServer()):
        ab.utils.set_random_seed(2)
        model = compiled(each, layers.Dense(4, "tanh"), layers.Dense(1), metrics=["mae"])
        history = model.fit(X, Y, batch_size=6, epochs=2, verbose=0)
        results.append((history.history, model.get_weights()))
    for key, values in results[0][0].items():
        np.testing.assert_allclose(values, results[1][0][key], 1e-5)
    for mine, other in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(mine, other, 1e-5, 1e-6)
    found = strategy.statistics()
    assert found["step"] == 8
    assert found["receipts"] == {"0": {"taken": 8, "late": 0, "duplicate": 0, "refused": 0}}


@synchronous
def test_a_step_logs_how_many_steps_the_optimizer_has_made(strategy: ParameterServer) -> None:
    class Counted(ab.Sequential):
        def train_step(self, data: Any) -> Any:
            return {**super().train_step(data), "steps": self.optimizer.iterations}

    seen: list[int] = []
    note = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(int(logs["steps"])))
    with strategy.scope():
        model = Counted([layers.Dense(1)])
        model.compile("sgd", "mse")
    history = model.fit(X, Y, batch_size=5, epochs=2, verbose=0, callbacks=[note]).history
    assert history["steps"] == [4, 8]
    assert (seen[0], seen[-1]) == (1, 8)


def test_strategies_of_one_process_share_its_task(ps: Server) -> None:
    """One after the other, at once, and after a close; models have the same name, and none gets another's state."""
    cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": addresses(1)}

    def trained(strategy: ParameterServer) -> Any:
        ab.utils.set_random_seed(2)
        with strategy.scope():
            model = ab.Sequential([layers.Dense(1, name="dense")], name="model")
            model.compile("adam", "mse")
        model.fit(X, Y, batch_size=5, verbose=0, shuffle=False)
        return [*model.get_weights(), model.evaluate(X, Y, batch_size=5, verbose=0)]

    def made(**options: Any) -> ParameterServer:
        return ParameterServer(cluster=cluster, job_name="worker", task_index=0, **options)

    expected = trained(ParameterServer())
    first = made()
    found = [trained(first)]
    second = made(sync=False)
    found += [trained(second), trained(first)]
    other = {**cluster, "ps": addresses(1)}
    with pytest.raises(
        ValueError, match=r"already is /job:worker/task:0 at .* in another cluster. Close it first: strat"
    ):
        ParameterServer(cluster=other, job_name="worker", task_index=0)
    first.close()
    first.close()
    with pytest.raises(RuntimeError, match=r"This ParameterServer was closed. Make another one"):
        first.connect()
    found.append(trained(second))
    second.close()
    third = made()
    found.append(trained(third))
    third.close()
    for each in found:
        for value, expected_value in zip(each, expected, strict=True):
            np.testing.assert_allclose(value, expected_value, 1e-5, 1e-6)


@synchronous
def test_callbacks_change_a_variable_of_which_the_learning_rate_is_computed(strategy: ParameterServer) -> None:
    def trained(each: ParameterServer) -> Any:
        ab.utils.set_random_seed(2)
        rate = ab.Variable(0.1, trainable=False)

        def current() -> Any:
            return rate.value

        fall = callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: rate.assign(0.1 / (epoch + 1)))
        model = compiled(each)
        model.optimizer = ab.optim.SGD(current)
        model.fit(X, Y, batch_size=5, epochs=3, verbose=0, callbacks=[fall])
        return np.concatenate([np.ravel(weight) for weight in model.get_weights()])

    np.testing.assert_allclose(trained(strategy), trained(ParameterServer()), 1e-5, 1e-6)


@synchronous
def test_what_callbacks_change_holds_from_then_on(strategy: ParameterServer) -> None:
    seen: list[float] = []

    class Change(callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(np.abs(self.model.get_weights()[0]).sum()))
            if batch == 1:
                self.model.optimizer.learning_rate = 0.0
            if batch == 3:
                self.model.set_weights([np.full((3, 1), 7.0), np.zeros(1)])
            self.model.stop_training = batch == 5

    model = compiled(strategy)
    history = model.fit(X, Y, batch_size=2, epochs=4, verbose=0, callbacks=[Change()])
    assert len(history.epoch) == 1
    assert len(seen) >= 6, "a step that was under way when training was stopped may follow"
    assert seen[0] != seen[1] == seen[2] == seen[3], "the learning rate became 0 behind the second step"
    assert model.get_weights()[0].tolist() == [[7.0]] * 3
    assert float(model.optimizer.learning_rate) == 0.0


@synchronous
def test_callbacks_are_called_once_for_each_group_of_steps(strategy: ParameterServer) -> None:
    seen: list[str] = []
    note = callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(f"begin {batch}"),
        on_train_batch_end=lambda batch, logs: seen.append(f"end {batch}"),
    )
    model = compiled(strategy, steps_per_execution=3)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[note])
    assert seen == ["begin 0", "end 2", "begin 3", "end 4"]


@synchronous
def test_single_steps_are_made_between_calls_of_fit(strategy: ParameterServer) -> None:
    model = compiled(strategy)
    first = model.train_on_batch(X, Y)
    assert model.test_on_batch(X, Y) < first
    assert model.predict_on_batch(X).shape == (20, 1)
    seen: list[str] = []

    class Trains(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            with pytest.raises(RuntimeError, match=r"train_on_batch\(\) was called while fit\(\) runs on a cluster"):
                self.model.train_on_batch(X, Y)
            seen.append(str(self.model.evaluate(X, Y, verbose=0)))

    model.fit(X, Y, verbose=0, callbacks=[Trains()])
    assert seen


@synchronous
def test_losses_that_are_nan_reach_callbacks(strategy: ParameterServer) -> None:
    model = compiled(strategy)
    wrong = np.where(np.arange(20)[:, None] == 7, np.nan, Y)
    model.fit(X, wrong, batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=[callbacks.TerminateOnNaN()])
    assert model.stop_training
    assert int(model.optimizer.iterations) < 15


@synchronous
def test_the_progress_of_all_rows_is_shown_once(strategy: ParameterServer, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(strategy).fit(X, Y, batch_size=5, epochs=2, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" - ")[0] for line in lines] == ["Epoch 1/2", "Epoch 2/2"]
    assert all(" - 4/4 - " in line for line in lines)


def batches() -> Iterator[Any]:
    yield X, Y


def shuffled(**options: Any) -> Any:
    return ab.tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(100, seed=1, **options)


SHUFFLED_WINDOWS = ab.utils.timeseries_dataset_from_array(X, Y, 1, batch_size=4, shuffle=True, seed=1)


@synchronous
def test_a_dataset_that_is_shuffled_once_can_be_shared(strategy: ParameterServer) -> None:
    data = shuffled(reshuffle_each_iteration=False).batch(4)
    rows = [x.tolist() for x, _ in data]
    assert rows == [x.tolist() for x, _ in data]
    assert compiled(strategy).fit(data, verbose=0).history["loss"]


@pytest.mark.parametrize(
    ("data", "options", "steps"),
    [
        (lambda: (batches(),), {}, 1),
        (lambda: (shuffled().batch(4).prefetch(1),), {}, len(X) // 4),
        (lambda: (SHUFFLED_WINDOWS.map(lambda x, y: (x, y)),), {}, len(X) // 4),
        (lambda: (X, Y), {"steps_per_epoch": 2, "batch_size": 5}, 2),
    ],
)
@synchronous
def test_data_that_the_chief_reads(
    strategy: ParameterServer, data: Callable[[], Any], options: Any, steps: int
) -> None:
    model = compiled(strategy)
    (loss,) = model.fit(*data(), verbose=0, **options).history["loss"]
    assert np.isfinite(loss)
    assert int(model.optimizer.iterations) == steps


@synchronous
def test_layers_that_keep_state_of_rows_are_refused(strategy: ParameterServer) -> None:
    with pytest.raises(ValueError, match=r"the layers \['memory'\] are stateful, and each row of their state belongs"):
        compiled(strategy, ab.Input(batch_shape=(4, 5, 3)), layers.SimpleRNN(2, stateful=True, name="memory"))


@synchronous
def test_losses_of_each_row_are_refused(strategy: ParameterServer) -> None:
    with pytest.raises(ValueError, match=r"Loss 'each' .*reduction='none'.* a value for each row.*use reduction='sum'"):
        compiled(strategy, loss=ab.losses.MeanSquaredError(reduction="none", name="each"))


class OwnStep(ab.Model):
    """A step that updates, then reads what it has updated, or updates it again."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.dense = layers.Dense(1, name="dense")
        self.again = again

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        loss = ab.ops.mean(ab.ops.square(self(x) - y))
        gradients = ab.gradients(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        if self.again:
            self.optimizer.apply(gradients, self.trainable_variables)
        return {"after": ab.ops.mean(self(x))}


@pytest.mark.parametrize(("again", "match"), [(False, "after an optimizer was to update them"), (True, "twice")])
@synchronous
def test_steps_that_need_what_they_have_updated_are_refused(strategy: ParameterServer, again: bool, match: str) -> None:
    with strategy.scope():
        model = OwnStep(again)
        model.compile("sgd")
    with pytest.raises(
        ValueError, match=rf"train_step of model .*dense/kernel.*{match}.*Replicas compute all gradients"
    ):
        model.fit(X, Y, verbose=0)


# --- places ---------------------------------------------------------------------------------------------------------


MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)"}


@pytest.mark.parametrize(
    ("environment", "rank", "addresses"),
    [
        (
            {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "::1", "MASTER_PORT": "80", "LOCAL_WORLD_SIZE": "3"},
            2,
            ["[::1]:81", "[::1]:82", "[::1]:83"],
        ),
        (
            {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "LOCAL_WORLD_SIZE": "2"},
            2,
            ["a:29501", "localhost:0", "localhost:0"],
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 0, ["localhost:29501", "localhost:0"]),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            1,
            ["localhost:29501", "localhost:29502"],
        ),
        (  # MPICH and Intel MPI; SLURM numbers the processes that start theirs, one on each node
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n1", **MPICH},
            1,
            ["localhost:29501", "localhost:29502"],
        ),
        ({**MPICH, "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "a"}, 1, ["a:29501", "localhost:0"]),
        (  # srun --mpi=pmi2, without MPICH's own launcher
            {**SLURM, "SLURM_STEP_NODELIST": "n[08-09],m", "PMI_RANK": "1", "PMI_SIZE": "4"},
            1,
            ["n08:29501", "n08:29502", "n09:29503", "m:29504"],
        ),
        (
            {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "job-0.job"},
            1,
            ["job-0.job:29501", "job-1.job:29502", "job-2.job:29503"],
        ),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, 1, ["a:29501", "localhost:0"]),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "n[08-09],m"},
            1,
            ["n08:29501", "n08:29502", "n09:29503", "m:29504"],
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "n[08-09],m", "SLURM_DISTRIBUTION": "cyclic", "MASTER_ADDR": "n08"},
            1,
            ["n08:29501", "localhost:0", "localhost:0", "localhost:0"],
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "n[08-09],m", "SLURM_DISTRIBUTION": "plane=2"},
            1,
            ["n08:29501", "localhost:0", "localhost:0", "localhost:0"],
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "n[08-09],m", "SLURM_DISTRIBUTION": "arbitrary"},
            1,
            ["localhost:29501", "localhost:0", "localhost:0", "localhost:0"],
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "MASTER_PORT": "65533"},
            0,
            ["localhost:65534", "localhost:65535", "localhost:0"],
        ),
        (
            {**SLURM, "SLURM_STEP_NODELIST": "n[1]", "SLURM_STEP_TASKS_PER_NODE": "4"},
            1,
            ["localhost:29501", "localhost:29502", "localhost:29503", "localhost:29504"],
        ),
        ({**SLURM, "MASTER_ADDR": "a"}, 1, ["a:29501", "localhost:0", "localhost:0", "localhost:0"]),
    ],
)
def test_launchers_number_processes(environment: dict[str, str], rank: int, addresses: list[str]) -> None:
    place = cluster_from_environment(environment)
    assert place is not None
    assert (place.job_name, place.task_index, place.is_numbered) == ("worker", rank, True)
    assert place.cluster["worker"] == addresses


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
        {"JOB_COMPLETION_INDEX": "1"},
    ],
)
def test_processes_that_are_alone(environment: dict[str, str]) -> None:
    assert cluster_from_environment(environment) is None


@pytest.mark.parametrize(
    ("environment", "match"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "'RANK': 'one'.* have to be numbers"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "x"}, "MASTER_PORT='x' have to be numbers"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "65535"}, "MASTER_PORT='65535'.* at most 65534"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "at least 0 and below the number of processes"),
    ],
)
def test_numbers_that_can_not_be_read(environment: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        cluster_from_environment(environment)


def test_parameter_server_refuses_processes_that_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"needs ps tasks, but this is process 1 of 2.*Use DataParallel"):
        ParameterServer()


def test_the_environment_tells_cluster_and_task() -> None:
    assert cluster_from_environment({}) is None
    config = {"cluster": {"ps": ["a:1"], "worker": ["b:2", "c:3"]}, "task": {"type": "worker", "index": 1}}
    place = cluster_from_environment({"TF_CONFIG": json.dumps(config)})
    assert place is not None
    assert (place.cluster.tasks[-1], place.job_name, place.task_index) == ("/job:worker/task:1", "worker", 1)


def test_who_is_started_again_asks_the_launcher_which_worker_leads(
    ps: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"ps": [ps.target.removeprefix("grpc://")], "worker": ["localhost:0", "localhost:1"]}
    monkeypatch.setenv("ANABRANCH_CHIEF_FILE", str(tmp_path / "chief"))

    def is_chief() -> bool:
        with contextlib.closing(ParameterServer(cluster=cluster, job_name="worker", task_index=0)) as made:
            return made.is_chief

    assert is_chief(), "nobody has taken over"
    notify_launcher(1)
    assert not is_chief()
    notify_launcher(0)
    assert is_chief()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "TF_CONFIG is '{', which can't be read: .* Write {\"cluster\""),
        ('{"cluster": {"worker": ["a:1"]}}', "'task' is missing"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "has no task /job:ps/task:0"),
    ],
)
def test_an_environment_that_can_not_be_read(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        cluster_from_environment({"TF_CONFIG": text})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"on_drop": "keep"}, "on_drop must be 'requeue' or 'skip'; got 'keep'"),
        ({"max_staleness": 1}, "max_staleness=1 is a number of steps.*for sync=False"),
        ({"backup_workers": 1, "sync": False}, "0 where sync=False"),
        ({"min_workers": 0}, "min_workers=0 must be at least 1, and at most the number of workers, 1"),
        ({"cluster": {"worker": ["localhost:0"]}}, "give job_name= and task_index="),
        ({"cluster": {"worker": ["localhost:0"]}, "job_name": "worker", "task_index": 0}, "jobs 'worker' and 'ps'"),
        (
            {
                "cluster": {"worker": ["localhost:1"], "ps": ["localhost:0"]},
                "job_name": "worker",
                "task_index": 0,
                "backup_workers": 1,
            },
            "1 of 1 workers are backups, which leaves none",
        ),
    ],
)
def test_strategies_that_can_not_be(options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ParameterServer(**options)


# --- the launcher ---------------------------------------------------------------------------------------------------


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anabranch", "launch", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)


def test_the_launcher_runs_a_script_everywhere_and_prefixes_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, json\n"
        "task = json.loads(os.environ['TF_CONFIG'])['task']\n"
        "print('hello from', task['index'], sys.argv[1:], os.environ['OMP_NUM_THREADS'])\n"
    )
    done = launched("-n", "3", str(script), "--some", "option")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.partition("hello")[0] for line in lines] == ["[worker 1] ", "[worker 2] ", ""]
    assert all("['--some', 'option']" in line for line in lines)


def test_the_launcher_writes_whole_lines_of_workers_that_write_theirs_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("for step in range(300):\n    print('step', step, 'of', 300)\n")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    lines = launched("-n", "3", "--ps", "0", str(script)).stdout.splitlines()
    steps = [f"step {step} of 300" for step in range(300)]
    assert [line for line in lines if line.startswith("step")] == steps
    for worker in (1, 2):
        prefix = f"[worker {worker}] "
        assert [line.removeprefix(prefix) for line in lines if line.startswith(prefix)] == steps


def test_the_launcher_shows_tracebacks_of_workers_but_those_of_interrupts(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes: each worker printed a traceback, beside the one line of the launcher."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "fails = threading.Thread(target=lambda: 1 / 0)\n"
        "fails.start()\n"
        "fails.join()\n"
        "print('KeyboardInterrupt is a word of this line')\n"
        "if '\"index\": 1' in os.environ['TF_CONFIG']:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = launched("-n", "2", "--ps", "0", str(script))
    shown = [line.removeprefix("[worker 1] ") for line in done.stdout.splitlines() if line.startswith("[worker 1] ")]
    assert shown[1] == "Traceback (most recent call last):"
    assert shown[-2:] == ["ZeroDivisionError: division by zero", "KeyboardInterrupt is a word of this line"]
    assert "worker 1 ended with exit status -2 (SIGINT)" in done.stderr


def test_the_launcher_gives_the_chiefs_status_and_names_who_failed_first(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nsys.exit(3 if '\"index\": 0' in os.environ['TF_CONFIG'] else 0)\n")
    done = launched("-n", "2", str(script))
    assert (done.returncode, done.stderr) == (3, "anabranch launch: worker 0 ended with exit status 3.\n")
    done = launched("-n", "2", str(tmp_path / "none.py"))
    assert (done.returncode, done.stderr) == (
        2,
        f"anabranch launch: there is no script {str(tmp_path / 'none.py')!r}.\n",
    )
    assert launched("-n", "0", str(script)).returncode == 2


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the script waits for another process by Linux's pidfd")
def test_the_launcher_gives_the_status_of_who_failed_first_if_the_chief_fails_behind_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, select, sys\n"
        "if '\"index\": 0' in os.environ['TF_CONFIG']:\n"
        "    with open(sys.argv[1]) as file:\n"
        "        worker = int(file.read())\n"
        "    try:\n"
        "        ended = select.poll()\n"
        "        ended.register(os.pidfd_open(worker))\n"
        "        ended.poll()\n"
        "    except ProcessLookupError:  # it has ended, and the launcher has seen that\n"
        "        pass\n"
        "    sys.exit(int(sys.argv[2]))\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    file.write(str(os.getpid()))\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), 9) if sys.argv[3] == '9' else sys.exit(int(sys.argv[3]))\n"
    )
    os.mkfifo(tmp_path / "pipe")
    for chief, worker, expected, named in ((1, 5, 5, "5"), (1, 9, 137, "-9 (SIGKILL)"), (0, 5, 0, "5")):
        done = launched("-n", "2", "--ps", "0", str(script), str(tmp_path / "pipe"), str(chief), str(worker))
        assert done.returncode == expected
        what = f"anabranch launch: worker 1 ended with exit status {named}"
        early = f"{what}; the others go on."  # where the chief takes more than 2 s to end
        allowed = [[f"{what}."], [early, f"{what}."] if chief else [early]]
        assert done.stderr.splitlines() in allowed


def test_the_launcher_names_who_has_noted_an_earlier_end(tmp_path: Path) -> None:
    """It named any of the workers that end because of each other, and gave its status."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "if '\"index\": 0' in os.environ['TF_CONFIG']:\n"
        "    file = open(sys.argv[1], 'w')\n"  # waits for who reads, for whom it is over when this process has ended
        "    os._exit(1)\n"
        "with open(f\"{os.environ['ANABRANCH_CHIEF_FILE']}.{os.getpid()}\", 'w') as note:\n"
        "    note.write(str(time.monotonic()))\n"
        "with open(sys.argv[1]) as file:\n"
        "    file.read()\n"
        "sys.exit(3)\n"
    )
    os.mkfifo(tmp_path / "pipe")
    done = launched("-n", "2", "--ps", "0", str(script), str(tmp_path / "pipe"))
    assert (done.returncode, done.stderr) == (3, "anabranch launch: worker 1 ended with exit status 3.\n")


def test_the_launcher_gives_the_threads_that_are_asked_for_to_all_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])\n")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launched("--ps", "0", str(script)).stdout == "7 7\n"


def test_the_launcher_takes_the_token_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drew another one in its place: no client, such as the status command, could connect to the tasks."""
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['ANABRANCH_TOKEN'])\n")
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token of the user's own")
    assert launched("--ps", "0", str(script)).stdout == "a token of the user's own\n"
    monkeypatch.setenv("ANABRANCH_TOKEN", "short")
    done = launched("--ps", "0", str(script))
    message = (
        "anabranch launch: The token (ANABRANCH_TOKEN) has 5 characters; expected at least 16, drawn at random. `pyth"
    )
    assert (done.returncode, done.stdout, done.stderr[: len(message)]) == (2, "", message)
    monkeypatch.delenv("ANABRANCH_TOKEN")
    one, other = (launched("--ps", "0", str(script)).stdout.strip() for _ in range(2))
    assert len(one) == len(other) == 32
    assert one != other, "each job has a token of its own"


def test_the_launcher_gives_up_after_so_many_restarts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "with open(sys.argv[1], 'a') as file:\n"
        "    file.write('.')\n"
        "sys.exit(3 if os.path.getsize(sys.argv[1]) <= int(sys.argv[2]) else 0)\n"
    )
    done = launched("--max-restarts", "2", str(script), str(tmp_path / "once"), "1")
    again = "anabranch launch: worker 0 ended with exit status 3; all tasks are started again (restart {} of 2)."
    assert (done.returncode, done.stderr.splitlines()) == (0, [again.format(1)])
    done = launched("--max-restarts", "2", str(script), str(tmp_path / "always"), "9")
    lines = [again.format(1), again.format(2), "anabranch launch: worker 0 ended with exit status 3."]
    assert (done.returncode, done.stderr.splitlines()) == (3, lines)
    done = launched("--max-restarts", "-1", str(script))
    assert (done.returncode, done.stderr) == (2, "anabranch launch: --max-restarts must be at least 0.\n")


@pytest.mark.parametrize("to_all", [True, False], ids=["as a terminal sends it", "to the launcher alone"])
def test_an_interrupt_leaves_nothing(to_all: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, signal\nprint(os.getpid(), os.getppid(), flush=True)\nsignal.pause()\n")
    command = [sys.executable, "-m", "anabranch", "launch", "-n", "2", str(script)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have background jobs ignore it
    try:
        launcher = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        lines = [launcher.stdout.readline() for _ in range(2)]  # type: ignore[union-attr]
        known = [int(line.split()[-2]) for line in lines]
        assert {int(line.split()[-1]) for line in lines} == {launcher.pid}
        (os.killpg if to_all else os.kill)(launcher.pid, signal.SIGINT)
        _, errors = launcher.communicate(timeout=PATIENCE)
    except BaseException:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()
        raise
    assert launcher.returncode == 130
    assert "anabranch launch: interrupted.\n" in errors
    for pid in known:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):  # nor is the ps task left
        os.killpg(launcher.pid, 0)


def test_a_run_is_taken_up_within_an_epoch(strategy: ParameterServer, tmp_path: Path) -> None:
    def trained(*given: Any) -> Any:
        ab.utils.set_random_seed(3)
        model = compiled(strategy)
        history = model.fit(X, Y, batch_size=len(X) // 5, epochs=2, verbose=0, callbacks=given)
        return [history.history, *(weight.tolist() for weight in model.get_weights())]

    seen: list[int] = []

    def interrupt(batch: int, logs: Any) -> None:
        seen.append(batch)
        if len(seen) == 9:
            raise InterruptedError

    backup = callbacks.BackupAndRestore(tmp_path, save_freq=3)
    with pytest.raises(InterruptedError):
        trained(backup, callbacks.LambdaCallback(on_train_batch_end=interrupt))
    (folder,) = tmp_path.iterdir()
    rows = read_backup(Folder(folder))["rows"]
    assert (rows["shares"], rows["done"].tolist()) == (1, [0]), "after 6 steps of 5 an epoch"
    again: list[int] = []
    found = trained(backup, callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: again.append(batch)))
    assert again == [1, 2, 3, 4]
    assert found == trained()
