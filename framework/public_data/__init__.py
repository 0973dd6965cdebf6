"""`anabranch.datasets`: the small public data sets of ``keras.datasets`` and two more, fetched once into its cache.

Each has ``load_data()``. Where a file is in the cache already (``~/.keras/datasets``, or below the folder that the
environment variable KERAS_HOME names) the network is not used. `multi30k` and `ptb` are not among Keras's.
"""

from . import (
    boston_housing,
    california_housing,
    cifar10,
    cifar100,
    fashion_mnist,
    imdb,
    mnist,
    multi30k,
    ptb,
    reuters,
)

__all__ = [
    "boston_housing",
    "california_housing",
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "imdb",
    "mnist",
    "multi30k",
    "ptb",
    "reuters",
]
