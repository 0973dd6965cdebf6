"""Makes the golden data of this folder with real Keras, on JAX, on the CPU.

Keras is no dependency of anabranch, tests included: this script is run by hand, in an environment of its own, when
cases are added; its output is committed. From the repository root:

    python3.11 -m venv /tmp/kerasenv
    /tmp/kerasenv/bin/pip install keras==3.15.1 jax==0.10.2 jaxlib==0.10.2 h5py numpy
    /tmp/kerasenv/bin/python tests/golden/make_golden.py            # everything
    /tmp/kerasenv/bin/python tests/golden/make_golden.py losses fit # some of it

Seeds are fixed, a case's numbers depend on its own name only, and dates in the saved files are set to one day, so that
the same versions on the same machine write the same bytes.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version

# Read by Keras and JAX when they are imported, so they are set before.
os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import make_attention_layers
import make_convolution_layers
import make_files
import make_fit
import make_images
import make_initializers
import make_layers
import make_losses
import make_metrics
import make_operations
import make_optimizers
import make_penalties
import make_preprocessing

MAKERS = {
    "layers": make_layers.make,
    "attention_layers": make_attention_layers.make,
    "convolution_layers": make_convolution_layers.make,
    "losses": make_losses.make,
    "operations": make_operations.make,
    "metrics": make_metrics.make,
    "optimizers": make_optimizers.make,
    "penalties": make_penalties.make,
    "initializers": make_initializers.make,
    "fit": make_fit.make,
    "files": make_files.make,
    "images": make_images.make,
    "preprocessing": make_preprocessing.make,  # needs TensorFlow beside Keras
}


def main() -> None:
    """Makes the kinds named on the command line, or all."""
    versions = {name: version(name) for name in ("keras", "jax", "numpy", "h5py")}
    versions["python"] = platform.python_version()
    for kind in sys.argv[1:] or MAKERS:
        MAKERS[kind](versions)


if __name__ == "__main__":
    main()
