"""The example of two tasks, tiny: real processes train, a second client finds the weights, a killed task is named."""

import subprocess
from types import ModuleType

import pytest

TINY = {
    "characters": 12_000,
    "validation-characters": 3_000,
    "units": 16,
    "batch": 4,
    "window": 24,
    "epochs": 2,
    "at-most": 100,
}


@pytest.mark.xdist_group("tasks")
def test_two_tasks_train_and_a_second_client_finds_the_weights(
    example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_TOKEN", "a token for tests, which is no secret")
    found = example.main([part for name, value in TINY.items() for part in (f"--{name}", str(value))])
    assert found["last"] < found["first"] - 0.5
    assert found["found"] == found["last"]
    assert found["lost"] == "/job:ps/task:0"
    printed = capsys.readouterr().out
    assert "A second client, in another process, finds weights" in printed
    assert "the next step says: /job:ps/task:0 has failed" in printed


def test_weights_and_what_the_optimizer_keeps_lie_on_the_ps_task(example: ModuleType) -> None:
    training = example.Training(8, 2, 4, 10, 0.01)
    devices = {variable.device for variable in training.graph.variables}
    assert devices == {example.PS}
    assert len(training.reset) == 2
    assert len(training.graph.variables) > 3 * len(training.weights)  # Adam's two averages of each


def test_a_task_that_does_not_start_is_told(example: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="The ps task did not start"), example.task({"ps": ["nowhere"]}, "ps"):
        pass
    assert "'nowhere' is no address" in capfd.readouterr().err


def test_the_makefile_runs_it() -> None:
    done = subprocess.run(["make", "-n", "demo-cluster"], capture_output=True, text=True, check=True)
    assert "python examples/two_tasks.py" in done.stdout
