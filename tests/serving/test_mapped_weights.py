"""Weights of servables are pages of their files, which are not copied and not changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anabranch as ab
from anabranch.engine.graph import Variable
from anabranch.framework.serving.storage import read_servable

LOAD = """
import re, sys
import numpy as np
import anabranch as ab

def own_bytes():
    with open("/proc/self/status") as status:
        return 1024 * int(re.search(r"RssAnon:\\s+([0-9]+)", status.read())[1])

ab.serving.load(sys.argv[1])(np.ones((1, 8), "float32"))
for path in sys.argv[2:]:
    before = own_bytes()
    total = float(ab.serving.load(path)(np.ones((1, 2048), "float32")).sum())
    print(own_bytes() - before, total)
"""


def wide(rows: int = 2048, columns: int = 4096) -> ab.Model:
    layers = [ab.layers.Dense(columns), ab.layers.Dense(4, kernel_initializer="ones")]
    return ab.Sequential([ab.Input((rows,), name="x"), *layers])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kinds", [[None], pytest.param(["int8", "int4"], marks=pytest.mark.slow)], ids=str)
def test_a_load_copies_no_weights(tmp_path: Path, kinds: list[str | None]) -> None:
    ab.Sequential([ab.Input((8,), name="x"), ab.layers.Dense(2)]).export(tmp_path / "small", verbose=False)
    expected: list[float] = []
    for mode in kinds:
        model = wide()
        if mode is not None:
            model.quantize(mode)
        model.export(tmp_path / str(mode), verbose=False)
        expected.append(float(model.predict(np.ones((1, 2048), "float32"), verbose=0).sum()))
    paths = [str(tmp_path / str(name)) for name in ("small", *kinds)]
    lines = subprocess.run([sys.executable, "-c", LOAD, *paths], capture_output=True, text=True, check=True).stdout
    for mode, line, total in zip(kinds, lines.splitlines(), expected, strict=True):
        own, found = line.split()
        np.testing.assert_allclose(float(found), total, rtol=1e-3)
        size = sum(path.stat().st_size for path in (tmp_path / f"{mode}/1/weights").iterdir())
        layouts = 0.0 if mode is None else 1.0  # the first product lays quantised matrices out, once
        assert int(own) < (layouts + 0.4) * size, mode


def test_what_is_written_stays_out_of_the_files(tmp_path: Path) -> None:
    model = wide(64, 64)
    model.export(tmp_path, verbose=False)
    files = {path: path.read_bytes() for path in (tmp_path / "1/weights").iterdir()}
    graph = read_servable(tmp_path / "1").graph
    (kernel,) = [each for each in graph.variables if isinstance(each, Variable) and each.shape == (64, 64)]
    before = kernel.value
    kernel.assign_add(np.ones((64, 64), "float32"))
    with graph.as_default():
        row = kernel.scatter_add(ab.IndexedSlices(np.ones((1, 64), "float32"), np.array([3]), (64, 64)))
    with ab.Session(graph) as session:
        session.run(row)
    np.testing.assert_array_equal(np.asarray(before), model.get_weights()[0])
    expected = model.get_weights()[0] + 1.0
    expected[3] += 1.0
    np.testing.assert_array_equal(kernel.numpy(), expected)
    assert {path: path.read_bytes() for path in files} == files
