"""Uses an installed wheel outside of the repository: trains, saves, loads, compiles a loop, asks the command line.

python .ci/try_wheel.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import anabranch as ab

ROOT = Path(__file__).resolve().parents[1]


def is_repository(file: Path) -> bool:
    """Test whether a package's `__init__.py` is the repository's; an environment below it holds another one."""
    return file.resolve().parent == ROOT


def main() -> None:
    """Fail if anything that a newcomer does first does not work."""
    assert not is_repository(Path(ab.__file__ or "")), f"{ab.__file__} is not the installed wheel."
    x = np.linspace(-1, 1, 64).reshape(16, 4).astype("float32")
    model = ab.Sequential([ab.Input((4,)), ab.layers.Dense(8, "relu"), ab.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, x[:, :1], epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        again = ab.load_model(f"{folder}/model.keras")
        assert np.array_equal(model.predict(x, verbose=0), again.predict(x, verbose=0))
    _, power = ab.while_loop(lambda i, p: i < 5, lambda i, p: (i + 1, p * 2.0), (0, 1.0))
    assert float(power) == 32.0
    shown = subprocess.run([sys.executable, "-m", "anabranch", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["anabranch", ab.__version__]
    print(f"{shown.stdout.strip()} works from {Path(ab.__file__ or '').parent}")


if __name__ == "__main__":
    main()
