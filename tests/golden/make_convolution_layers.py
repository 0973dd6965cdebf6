"""Golden cases of the layers that work along spatial axes: convolutions, pooling, padding, upsampling, ConvLSTM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras  # pyright: ignore[reportMissingImports]
import numpy as np
from loader import find
from make_layers import add, case
from pack import Pack, normal, seeded

# Sizes that differ from each other, so that exchanged axes show.
SPATIAL = {1: (7,), 2: (6, 5), 3: (4, 3, 5)}


def make(versions: dict[str, str]) -> None:
    """Writes ``convolution_layers.npz`` and ``convolution_layers.json``."""
    pack = Pack("convolution_layers", versions)
    for settings in cases():
        add(pack, **settings)
        pack.cases[-1]["config"] = config_of(settings["target"], settings["kwargs"])
    pack.write()


def config_of(target: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what Keras writes into files for the layer, but for its name and dtype policy."""
    layer = find(target, keras.layers)(**kwargs)
    config = keras.saving.serialize_keras_object(layer)["config"]
    return {name: value for name, value in config.items() if name not in ("name", "dtype")}


def cases() -> Iterator[dict[str, Any]]:
    """Every case, in file order."""
    for group in (convolutions, transposed, depthwise, pooling, ends, upsampling, recurrent, spectrograms):
        yield from group()


def batch(text: str, rank: int, channels: int = 2, first: bool = False) -> np.ndarray:
    """A batch of two, its channels last or first."""
    shape = (2, channels, *SPATIAL[rank]) if first else (2, *SPATIAL[rank], channels)
    return normal(seeded(text), *shape)


def of(target: str, rank: int, settings: dict[str, dict[str, Any]], channels: int = 2) -> Iterator[dict[str, Any]]:
    """A case for each of the settings, by name."""
    for name, kwargs in settings.items():
        first = kwargs.get("data_format") == "channels_first"
        yield case(f"{target}/{name}", target, kwargs, batch(target, rank, channels, first))


def some(settings: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of the settings that are looked at with three axes, too."""
    return {name: settings[name] for name in ("default", "valid", "strided", "channels_first") if name in settings}


def spectrograms() -> Iterator[dict[str, Any]]:
    modes = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")
    settings = {mode: {"mode": mode, "frame_length": 4} for mode in modes}
    settings |= {
        "strided": {"mode": "psd", "frame_length": 3, "frame_step": 1, "fft_length": 8, "padding": "same"},
        "expanded": {"mode": "stft", "frame_length": 4, "expand_dims": True},
        "channels_first": {"mode": "psd", "frame_length": 4, "data_format": "channels_first"},
        "expanded_first": {"frame_length": 4, "expand_dims": True, "data_format": "channels_first"},
    }
    yield from of("STFTSpectrogram", 1, settings)
    signals = normal(seeded("MelSpectrogram"), 2, 40)
    small = {"fft_length": 16, "sequence_stride": 6, "num_mel_bins": 5, "sampling_rate": 800}
    for name, kwargs in {
        "default": {},
        "power": {"power_to_db": False, "mag_exp": 1.0, "window": "hamming", "sequence_length": 12},
        "decibels": {"top_db": 12.0, "ref_power": 3.0, "min_freq": 40.0, "max_freq": 300.0},
    }.items():
        yield case(f"MelSpectrogram/{name}", "MelSpectrogram", {**small, **kwargs}, signals)


def convolutions() -> Iterator[dict[str, Any]]:
    settings = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 2, "padding": "same", "activation": "tanh"},
        "strided": {"kernel_size": 3, "strides": 2, "padding": "same"},
        "dilated": {"kernel_size": 2, "dilation_rate": 2},
        "groups": {"kernel_size": 2, "groups": 2},
        "no_bias": {"kernel_size": 2, "use_bias": False},
        "channels_first": {"kernel_size": 2, "data_format": "channels_first"},
    }
    causal = {
        "causal": {"kernel_size": 3, "padding": "causal"},
        "causal_dilated": {"kernel_size": 2, "padding": "causal", "dilation_rate": 3},
        "causal_strided": {"kernel_size": 2, "padding": "causal", "strides": 2, "data_format": "channels_first"},
    }
    uneven = {"uneven": {"kernel_size": [1, 3], "strides": [2, 1]}}
    for rank, own in ((1, {**settings, **causal}), (2, {**settings, **uneven}), (3, some(settings))):
        yield from of(f"Conv{rank}D", rank, {name: {"filters": 4, **kwargs} for name, kwargs in own.items()})


def transposed() -> Iterator[dict[str, Any]]:
    settings = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 2, "padding": "same", "activation": "tanh"},
        "strided": {"kernel_size": 3, "strides": 2},
        "strided_same": {"kernel_size": 3, "strides": 2, "padding": "same"},
        "stride_exceeds_kernel": {"kernel_size": 1, "strides": 2},
        "output_padding": {"kernel_size": 3, "strides": 2, "padding": "same", "output_padding": 1},
        "dilated": {"kernel_size": 2, "dilation_rate": 2},
        "channels_first": {"kernel_size": 2, "data_format": "channels_first", "use_bias": False},
    }
    for rank in (1, 2, 3):
        own = settings if rank < 3 else some(settings)
        yield from of(f"Conv{rank}DTranspose", rank, {name: {"filters": 3, **kwargs} for name, kwargs in own.items()})


def depthwise() -> Iterator[dict[str, Any]]:
    settings = {
        "valid": {"kernel_size": 3},
        "same": {"kernel_size": 2, "padding": "same", "activation": "tanh"},
        "strided": {"kernel_size": 2, "strides": 2, "depth_multiplier": 2},
        "dilated": {"kernel_size": 2, "dilation_rate": 2, "use_bias": False},
        "channels_first": {"kernel_size": 2, "depth_multiplier": 2, "data_format": "channels_first"},
    }
    for rank in (1, 2):
        yield from of(f"DepthwiseConv{rank}D", rank, settings)
        separable = {name: {"filters": 3, **kwargs} for name, kwargs in settings.items()}
        yield from of(f"SeparableConv{rank}D", rank, separable)


def pooling() -> Iterator[dict[str, Any]]:
    settings = {
        "default": {"pool_size": 2},
        "same": {"pool_size": 2, "padding": "same"},
        "overlapping": {"pool_size": 3, "strides": 1, "padding": "same"},
        "channels_first": {"pool_size": 3, "strides": 2, "data_format": "channels_first"},
    }
    for rank in (1, 2, 3):
        own = settings if rank < 3 else some(settings)
        yield from of(f"MaxPooling{rank}D", rank, own)
        yield from of(f"AveragePooling{rank}D", rank, own)
    everything = {"default": {}, "keepdims": {"keepdims": True}, "channels_first": {"data_format": "channels_first"}}
    for rank in (1, 2, 3):
        own = everything if rank < 3 else some(everything)
        yield from of(f"GlobalAveragePooling{rank}D", rank, own)
        yield from of(f"GlobalMaxPooling{rank}D", rank, own)
    adaptive = {"default": {"output_size": 2}, "channels_first": {"output_size": 3, "data_format": "channels_first"}}
    for rank in (1, 2, 3):
        yield from of(f"AdaptiveAveragePooling{rank}D", rank, adaptive)
        yield from of(f"AdaptiveMaxPooling{rank}D", rank, adaptive)
    mask = np.array([[1, 1, 0, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0, 0]], dtype=bool)
    for first in (False, True):
        kwargs = {"data_format": "channels_first" if first else "channels_last"}
        inputs = {"x": batch("masked", 1, first=first), "mask": mask}
        yield case(f"GlobalAveragePooling1D/mask_{kwargs['data_format']}", "GlobalAveragePooling1D", kwargs, inputs)


def ends() -> Iterator[dict[str, Any]]:
    formats = {"channels_first": {"data_format": "channels_first"}}
    yield from of("ZeroPadding1D", 1, {"default": {}, "pair": {"padding": [1, 2]}, **formats})
    pairs = {"pairs": {"padding": [[0, 1], [2, 3]]}, "each": {"padding": [1, 2]}, "int": {"padding": 2}}
    yield from of("ZeroPadding2D", 2, {"default": {}, **pairs, **formats})
    yield from of("ZeroPadding3D", 3, {"default": {}, "pairs": {"padding": [[0, 1], [2, 0], [1, 3]]}, **formats})
    yield from of("Cropping1D", 1, {"default": {}, "pair": {"cropping": [0, 2]}})
    pairs = {"pairs": {"cropping": [[0, 1], [2, 0]]}, "each": {"cropping": [1, 2]}, "int": {"cropping": 1}}
    formats = {"channels_first": {"data_format": "channels_first", "cropping": [[1, 0], [2, 1]]}}
    yield from of("Cropping2D", 2, {"default": {}, **pairs, **formats})
    formats = {"channels_first": {"data_format": "channels_first"}}
    yield from of("Cropping3D", 3, {"default": {}, "pairs": {"cropping": [[0, 1], [1, 0], [2, 2]]}, **formats})


def upsampling() -> Iterator[dict[str, Any]]:
    yield from of("UpSampling1D", 1, {"default": {}, "three": {"size": 3}})
    smooth = {name: {"interpolation": name, "size": [2, 3]} for name in ("bilinear", "bicubic", "lanczos3", "lanczos5")}
    first = {"channels_first": {"data_format": "channels_first", "interpolation": "bilinear"}}
    yield from of("UpSampling2D", 2, {"default": {}, "uneven": {"size": [3, 1]}, **smooth, **first})
    yield from of("UpSampling3D", 3, {"default": {}, "first": {"data_format": "channels_first", "size": [1, 2, 3]}})
    inference = {"training": False}
    for rank in (2, 3):
        target = f"SpatialDropout{rank}D"
        yield case(f"{target}/inference", target, {"rate": 0.5}, batch(target, rank), call_kwargs=inference)


def recurrent() -> Iterator[dict[str, Any]]:
    sizes = {1: (5,), 2: (4, 3), 3: (3, 2, 2)}
    mask = np.array([[1, 0, 1], [1, 1, 0]], dtype=bool)
    settings: dict[str, dict[str, Any]] = {
        "default": {},
        "sequences_and_state": {"return_sequences": True, "return_state": True, "padding": "same"},
        "channels_first": {"data_format": "channels_first", "go_backwards": True, "return_sequences": True},
        # Unrolled, because Keras's loop on JAX puts the mask of the samples on the last spatial axis.
        "mask": {"return_sequences": True, "unroll": True},
        "strided": {"strides": 2, "padding": "same", "use_bias": False, "recurrent_activation": "hard_sigmoid"},
        "dilated": {"dilation_rate": 2, "padding": "same", "unit_forget_bias": False},
    }
    for rank, size in sizes.items():
        target = f"ConvLSTM{rank}D"
        for name in settings if rank == 2 else ("default",):
            kwargs = {"filters": 2, "kernel_size": 2, **settings[name]}
            first = name == "channels_first"
            x = normal(seeded(target), 2, 3, *((2, *size) if first else (*size, 2)))
            yield case(f"{target}/{name}", target, kwargs, {"x": x, "mask": mask} if name == "mask" else {"x": x})
