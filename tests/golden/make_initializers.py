"""Golden initialiser cases: values where they are deterministic, else statistics of a large sample."""

from __future__ import annotations

from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from pack import Pack

DETERMINISTIC: tuple[tuple[str, str, dict[str, Any], list[int]], ...] = (
    ("Zeros", "Zeros", {}, [2, 3]),
    ("Ones", "Ones", {}, [2, 3]),
    ("Constant", "Constant", {"value": 0.25}, [2, 3]),
    ("Identity", "Identity", {}, [2, 3]),
    ("Identity/gain", "Identity", {"gain": 2.0}, [3, 3]),
)
# Cases that came later: at the end, so that the others keep their places.
LATER: tuple[tuple[str, str, dict[str, Any], list[int]], ...] = (
    ("STFT", "STFT", {}, [6, 1, 5]),
    ("STFT/imag", "STFT", {"side": "imag", "window": "hamming", "scaling": "spectrum", "periodic": True}, [5, 1, 5]),
    ("STFT/flattop", "STFT", {"window": "flattop", "scaling": None}, [7, 1, 5]),
    ("STFT/triang", "STFT", {"window": "triang", "periodic": True}, [6, 1, 5]),
    ("STFT/cosine", "STFT", {"window": "cosine"}, [6, 1, 5]),
    ("STFT/blackmanharris", "STFT", {"window": "blackmanharris"}, [6, 1, 5]),
    ("STFT/none", "STFT", {"window": None}, [4, 1, 3]),
)
SCALING = ("GlorotUniform", "GlorotNormal", "HeUniform", "HeNormal", "LecunUniform", "LecunNormal")


def make(versions: dict[str, str]) -> None:
    """Writes ``initializers.npz`` and ``initializers.json``."""
    pack = Pack("initializers", versions)
    for name, target, kwargs, shape in DETERMINISTIC:
        value = getattr(keras.initializers, target)(**kwargs)(shape)
        pack.add(name=name, target=target, kwargs=kwargs, shape=shape, output=pack.array(value))
    for target in SCALING:
        add(pack, target, target, {}, [100, 400])
        add(pack, f"{target}/kernel", target, {}, [3, 3, 50, 100])
    add(pack, "GlorotUniform/1d", "GlorotUniform", {}, [40000])
    for mode in ("fan_in", "fan_out", "fan_avg"):
        for distribution in ("truncated_normal", "untruncated_normal", "uniform"):
            kwargs = {"scale": 2.0, "mode": mode, "distribution": distribution}
            add(pack, f"VarianceScaling/{mode}_{distribution}", "VarianceScaling", kwargs, [100, 400])
    add(pack, "RandomNormal", "RandomNormal", {}, [40000])
    add(pack, "RandomNormal/options", "RandomNormal", {"mean": 1.0, "stddev": 0.5}, [40000])
    add(pack, "RandomUniform", "RandomUniform", {}, [40000])
    add(pack, "RandomUniform/options", "RandomUniform", {"minval": 1.0, "maxval": 3.0}, [40000])
    add(pack, "TruncatedNormal", "TruncatedNormal", {}, [40000])
    add(pack, "TruncatedNormal/options", "TruncatedNormal", {"mean": 1.0, "stddev": 0.5}, [40000])
    add(pack, "Orthogonal", "Orthogonal", {}, [100, 400])
    add(pack, "Orthogonal/gain", "Orthogonal", {"gain": 2.0}, [400, 100])
    later(pack)
    pack.write()


def later(pack: Pack) -> None:
    for name, target, kwargs, shape in LATER:
        value = np.asarray(getattr(keras.initializers, target)(**kwargs)(shape), "float32")
        pack.add(name=name, target=target, kwargs=kwargs, shape=shape, output=pack.array(value))


def add(pack: Pack, name: str, target: str, kwargs: dict[str, Any], shape: list[int]) -> None:
    sample = np.asarray(getattr(keras.initializers, target)(seed=7, **kwargs)(shape)).astype(np.float64)
    statistics = {"mean": sample.mean(), "std": sample.std(), "min": sample.min(), "max": sample.max()}
    rounded = {key: float(f"{value:.6g}") for key, value in statistics.items()}
    pack.add(name=name, target=target, kwargs=kwargs, shape=shape, statistics=rounded)
