"""The example of training on a cluster, tiny: by two workers under the launcher, and alone."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

OPTIONS = ["--characters", "12000", "--validation-characters", "3000", "--units", "8", "--batch", "8", "--window", "24"]
OPTIONS += ["--epochs", "2", "--at-most", "9"]


@pytest.fixture(scope="module")
def alone(example: ModuleType) -> dict[str, float]:
    return example.main(OPTIONS)


@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize(("ps", "more"), [pytest.param("2", [], marks=pytest.mark.slow), ("0", ["--all-reduce"])])
def test_two_workers_find_the_losses_of_one_process(
    ps: str, more: list[str], example: ModuleType, alone: dict[str, float]
) -> None:
    script = Path(str(example.__file__))
    command = [sys.executable, "-m", "anabranch", "launch", "-n", "2", "--ps", ps, str(script), *OPTIONS, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"2 workers: validation loss (\d\.\d+) to (\d\.\d+) in", done.stdout)
    assert found is not None, done.stdout
    assert [float(loss) for loss in found.groups()] == pytest.approx([alone["first"], alone["last"]], abs=2e-3)
    assert len(re.findall("^Epoch ", done.stdout, re.MULTILINE)) == 2, "one worker shows the progress"


def test_a_goal_that_is_missed_fails(example: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"The goal, a loss below 0.1, was missed"):
        example.main([*OPTIONS[:-1], "0.1"])


def test_the_makefile_runs_it() -> None:
    done = subprocess.run(["make", "-n", "demo-cluster"], capture_output=True, text=True, check=True)
    assert "python -m anabranch launch -n 2 --ps 2 examples/cluster_training.py\n" in done.stdout
    assert "python -m anabranch launch -n 2 --ps 0 examples/cluster_training.py --all-reduce\n" in done.stdout
