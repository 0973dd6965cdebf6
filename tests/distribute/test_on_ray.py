"""Tasks as actors of Ray: with a real one where it is installed, in `make test-all`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch.distribute import run_on_ray
from anabranch.distribute.commands import launch
from anabranch.distribute.on_ray import run_script_on_ray
from anabranch.distribute.tied import tied

pytestmark = pytest.mark.xdist_group("tasks")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"ps": -1}, "ps=-1 and max_restarts=0 at least 0"),
        ({"max_restarts": -2}, "max_restarts=-2 at least 0"),
    ],
)
def test_numbers_that_can_not_be(options: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        run_on_ray(print, **options)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"need Ray, which is not installed: pip install 'anabranch\[ray\]'"):
        run_on_ray(print)


def test_launch_says_that_ray_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "script.py").touch()
    parser = argparse.ArgumentParser()
    launch.add_arguments(parser)
    assert launch.run(parser.parse_args(["--ray=local", str(tmp_path / "script.py")])) == 2
    assert capsys.readouterr().err.startswith("anabranch launch: run_on_ray and launch --ray need Ray")


def test_a_script_is_run_as_python_runs_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, helper\nif __name__ == '__main__':\n    print(sys.argv[1:], helper.NAME)\n    sys.exit(3)\n"
    )
    (tmp_path / "helper.py").write_text("NAME = 'beside it'\n")
    with tied([str(script), "--some", "option"], "/", os.environ) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "['--some', 'option'] beside it\n"
        assert process.wait(PATIENCE) == 3


def test_a_script_ends_with_the_process_that_has_started_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    (tmp_path / "starts.py").write_text(
        "import os, sys\n"
        "from anabranch.distribute.tied import tied\n"
        "with tied(['script.py'], '.', os.environ) as process:\n"
        "    print(process.stdout.readline().strip(), process.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "starts.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        begun, number = process.stdout.readline().split()
        assert begun == "begun"
        child = os.pidfd_open(int(number))
        process.kill()
    try:
        assert _ends(child)
    finally:
        os.close(child)


def _ends(descriptor: int) -> bool:
    import select

    return bool(select.select([descriptor], [], [], PATIENCE)[0])


# --- a real Ray -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Generator[Any]:
    """A cluster of Ray on this machine, to which this process is connected."""
    found = pytest.importorskip("ray", reason="Ray is not installed: pip install 'anabranch[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("ANABRANCH_KERNELS", "0")
        found.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield found
        found.shutdown()


def training() -> Any:
    """Make the function of a worker. Made in a function it travels by value: Ray's processes can't import this file."""

    def trained(kind: str, lost: str = "") -> Any:
        strategy = getattr(ab.distribute, kind)()
        if lost and strategy.task_index == 1 and not os.path.exists(lost):
            Path(lost).touch()
            os._exit(9)
        ab.utils.set_random_seed(1)
        x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
        with strategy.scope():
            model = ab.Sequential([ab.Input((3,)), ab.layers.Dense(1)])
            model.compile("sgd", "mse")
        history = model.fit(x, x[:, :1], batch_size=10, epochs=2, verbose=0)
        return strategy.task_index, strategy.num_workers, history.history["loss"], model.get_weights()[0]

    return trained


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own sockets
@pytest.mark.parametrize(("kind", "ps"), [("DataParallel", 0), ("ParameterServer", 1)])
def test_actors_train_as_one_process_does(ray: Any, kind: str, ps: int, tmp_path: Path) -> None:
    """A worker that is lost has all tasks start again."""
    trained = training()
    _, _, loss, weight = trained(kind)
    found = run_on_ray(trained, (kind, str(tmp_path / "lost")), workers=2, ps=ps, max_restarts=1)
    assert [each[:2] for each in found] == [(0, 2), (1, 2)]
    for each in found:
        np.testing.assert_allclose(each[2], loss, 1e-5)
        np.testing.assert_allclose(each[3], weight, 1e-5, 1e-6)
    assert (tmp_path / "lost").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_function_raises_comes_as_its_own_class(ray: Any) -> None:
    def failed(number: int) -> None:
        if os.environ["TF_CONFIG"].endswith('"index": 1}}'):
            raise LookupError(f"number {number}")

    with pytest.raises(LookupError, match="number 7"):
        run_on_ray(failed, (7,), workers=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_scripts_run_in_actors(ray: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "import anabranch as ab\n"
        "strategy = ab.distribute.DataParallel()\n"
        "print('total', ab.distribute.all_reduce(strategy.task_index + 1).numpy(), sys.argv[1:], flush=True)\n"
        "if not os.path.exists(sys.argv[1]):\n"
        "    ab.distribute.barrier()\n"
        "    open(sys.argv[1], 'w').close()\n"
        "    sys.exit(4)\n"
    )
    shown: list[tuple[str, str]] = []
    given = [str(script), str(tmp_path / "made")]
    assert run_script_on_ray(given, 2, 0, None, 1, lambda name, line: shown.append((name, line))) == 0
    line = f"total 3 {given[1:]}\n"
    assert {("", line), ("worker 1", line)} == {each for each in shown if "total" in each[1]}
    (tmp_path / "made").unlink()
    assert run_script_on_ray(given, 2, 0, None, 0, lambda name, line: None) == 4
