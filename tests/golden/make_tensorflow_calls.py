"""Write `tensorflow_calls.npz`: what TensorFlow 2.21 computes for the calls of `tensorflow_calls.py`.

    python3.11 -m venv /tmp/tfenv && /tmp/tfenv/bin/pip install tensorflow-cpu==2.21.0
    /tmp/tfenv/bin/python tests/golden/make_tensorflow_calls.py

Each call has the arrays ``<number>_<result>``, numbered as in `CALLS`.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_calls

found = {
    f"{number}_{place}": array
    for number, call in enumerate(tensorflow_calls.CALLS)
    for place, array in enumerate(tensorflow_calls.compute(tf, call))
}
np.savez_compressed(Path(__file__).with_suffix("").with_name("tensorflow_calls.npz"), **found)
