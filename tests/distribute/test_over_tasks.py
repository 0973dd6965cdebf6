"""Models that are on several tasks, in parts or in stages, find what one device finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared.members import addresses
from shared.tasks import PATIENCE

import anabranch as ab
from anabranch.distribute import ModelParallel, Pipeline
from anabranch.distribute.strategies.mesh import DeviceMesh, LayoutMap

SCRIPTS = Path(__file__).parent / "scripts"
AWAY = "/job:worker/task:1/device:CPU:0"


def launched(script: str, *arguments: str, restarts: int = 0) -> str:
    """Run a script in two processes; gives what they print."""
    command = [sys.executable, "-m", "anabranch", "launch", "-n", "2", "--ps", "0", "--max-restarts", str(restarts)]
    done = subprocess.run(
        [*command, str(SCRIPTS / script), *arguments],
        env={**os.environ, "ANABRANCH_KERNELS": "0"},  # of which these results do not depend
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=12 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def assert_same(path: Path) -> None:
    with np.load(path) as found:
        names = [name.removesuffix(": over") for name in found.files if name.endswith(": over")]
        assert names
        for name in names:
            np.testing.assert_allclose(found[f"{name}: over"], found[f"{name}: alone"], 1e-10, 1e-10, err_msg=name)


@pytest.mark.xdist_group("tasks")
@pytest.mark.parametrize(
    ("names", "elsewhere"),
    [
        # Two of four experts, or two of three layers, have two weights each, and Adam two numbers for each of theirs.
        (["experts", "stages"], [12, 12]),
        pytest.param(["dense", "table", "rows"], [9, 3, 0], marks=pytest.mark.slow),
    ],
)
def test_training_over_tasks_finds_what_one_device_finds(names: list[str], elsewhere: Any, tmp_path: Path) -> None:
    """Also evaluate and predict, before and after, and the weights; the other task holds what belongs there."""
    text = launched("train_over_tasks.py", str(tmp_path / "found.npz"), *names)
    assert text.split() == [word for count in elsewhere for word in ("elsewhere:", str(count))]
    assert_same(tmp_path / "found.npz")


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
def test_processes_that_a_launcher_has_numbered(tmp_path: Path) -> None:
    """As torchrun starts them: the second one serves, and ends well."""
    port = int(addresses(1)[0].rpartition(":")[2]) - 1  # their rendezvous is at the next port
    settings = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ANABRANCH_KERNELS": "0"}
    command = [sys.executable, str(SCRIPTS / "train_over_tasks.py"), str(tmp_path / "found.npz"), "table"]
    made = [
        subprocess.Popen(command, env={**os.environ, **settings, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        printed = [each.communicate(timeout=6 * PATIENCE)[0] for each in made]
    finally:
        for each in made:
            each.kill()
            each.wait()
    assert ([each.returncode for each in made], printed) == ([0, 0], ["elsewhere: 3\n", ""])
    assert_same(tmp_path / "found.npz")


@pytest.mark.slow
@pytest.mark.xdist_group("tasks")
def test_a_lost_task_is_started_again_with_all_others(tmp_path: Path) -> None:
    """Its stage was the only copy: all state comes from the last backup, and training ends as if nothing had been."""
    text = launched("lose_a_stage.py", str(tmp_path), restarts=1)
    assert "worker 1 ended with exit status -9 (SIGKILL); all tasks are started again (restart 1 of 1)" in text
    assert_same(tmp_path / "found.npz")


def test_devices_of_tasks_need_these() -> None:
    layouts = LayoutMap(DeviceMesh((1,), ("model",), [AWAY]))
    with pytest.raises(ValueError, match=r"ModelParallel: .*task:1.* are devices of tasks, but this process is alone"):
        ModelParallel(layout_map=layouts)
    with pytest.raises(ValueError, match=r"Pipeline: .* this process is alone"):
        Pipeline(2, 4, devices=["cpu:0", AWAY])
    here = LayoutMap(DeviceMesh((1, 1), ("batch", "model"), ["cpu:0"]))
    with pytest.raises(ValueError, match=r"expert_axis='experts' is no axis of the mesh, which has \['batch', 'model'"):
        ModelParallel(layout_map=here, expert_axis="experts")


def test_places_of_experts() -> None:
    mesh = DeviceMesh((2, 3), ("batch", "model"), [f"cpu:{number}" for number in range(6)])
    spread = ModelParallel(layout_map=LayoutMap(mesh), expert_axis="model")
    assert spread.places_of_experts(6, 1) == ["cpu:3", "cpu:3", "cpu:4", "cpu:4", "cpu:5", "cpu:5"]
    assert spread.places_of_experts(2) == ["cpu:0", "cpu:1"]
    shared = ModelParallel(layout_map=LayoutMap(mesh), expert_axis="batch")
    assert shared.places_of_experts(4, 1) == ["cpu:0", "cpu:0", "cpu:3", "cpu:3"]  # the same for all replicas
    assert ModelParallel(layout_map=LayoutMap(mesh)).places_of_experts(4) is None


@pytest.mark.parametrize("cuts", [False, True])
def test_experts_on_devices_of_one_process(cuts: bool, without_kernels: None) -> None:
    """Each has its weights on its own device, and computes there, whichever replica's tokens chose it; or in parts."""
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")

    def trained(strategy: ModelParallel | None) -> Any:
        ab.utils.set_random_seed(3)
        with strategy.scope() if strategy else ab.name_scope("alone"):
            mixture = ab.layers.MixtureOfExperts(
                2, lambda: ab.layers.Dense(4), k=1, noisy=False, importance_loss=0.0, load_loss=0.0
            )
            model = ab.Sequential([ab.Input((4,)), mixture])
            model.compile("sgd", "mse")
        model.train_on_batch(rows, rows)
        return model.get_weights(), mixture.expert_tokens.numpy().tolist()

    expected = trained(None)
    try:
        ab.config.set_devices(cpu=2)
        mesh = DeviceMesh((1, 2) if cuts else (2,), ("batch", "model")[: 1 + cuts], ["cpu:0", "cpu:1"])
        layouts = LayoutMap(mesh)
        if cuts:
            layouts["mixture_of_experts.*/dense.*/kernel"] = (None, "model")
        strategy = ModelParallel(layout_map=layouts, expert_axis=None if cuts else "batch")
        found = trained(strategy)
        for one, other in zip(found[0], expected[0], strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
        assert found[1] == expected[1]
        held = 2 * 4 * 4 * 2 if cuts else 4 * (4 * 4 + 4)  # half of both kernels, or one expert
        assert strategy.statistics()["bytes"]["/device:CPU:1"] == held
    finally:
        ab.config.set_devices()
