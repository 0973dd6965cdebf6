"""Draw how the agents of the examples learn: docs/figures/reinforce.svg.

python tests/benchmarks/learning_curves.py
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import harness
import numpy as np
from figures import Points, chart

ROOT = harness.HERE.parent.parent
STEPS, GROUP, SEEDS = 80, 5, 3


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reinforce() -> str:
    """Mean returns over steps of learning, the mean of GROUP steps at a time, for some seeds."""
    example = _example("reinforce")
    series: dict[str, Points] = {}
    for seed in range(SEEDS):
        curve = example.train(example.Reinforce(seed=seed), STEPS, quiet=True)
        means = np.mean(np.reshape(curve, (-1, GROUP)), axis=1)
        series[f"seed {seed}"] = [(GROUP * (number + 1), float(mean)) for number, mean in enumerate(means)]
    return chart("REINFORCE, 32 episodes in a step", "step", "mean return, of 500", series)


if __name__ == "__main__":
    (ROOT / "docs" / "figures" / "reinforce.svg").write_text(reinforce(), encoding="utf-8")
