"""W7: convnet 28x28x1: conv3x3x32, conv3x3x64 (valid, relu), maxpool 2, dense 128, dense 10;
Adam, batch 128, 100 steps through model.fit. ms per step = epoch / 100.
loss_check: mean loss of a first fit on 3 batches (weights shared, NHWC order for the flatten)."""

import numpy as np

from common import rand
from w06_mlp_fit import epochs, keras_model, raw_torch

PARAMS = [dict()]
B, STEPS = 128, 100


def data():
    f, r = rand(0), np.random.RandomState(1)
    w = [
        f(3, 3, 1, 32, k=0.4),
        np.zeros(32, "f4"),
        f(3, 3, 32, 64, k=0.08),
        np.zeros(64, "f4"),
        f(9216, 128, k=0.015),
        np.zeros(128, "f4"),
        f(128, 10, k=0.12),
        np.zeros(10, "f4"),
    ]
    y = r.randint(0, 10, B * STEPS)
    x = f(B * STEPS, 28, 28, 1, k=0.5)
    x[np.arange(len(y)), y * 2 + 4] += 2
    return x, y.astype("int32"), w


def layers(L):
    return [
        L.Input((28, 28, 1)),
        L.Conv2D(32, 3, activation="relu"),
        L.Conv2D(64, 3, activation="relu"),
        L.MaxPooling2D(2),
        L.Flatten(),
        L.Dense(128, "relu"),
        L.Dense(10),
    ]


def _keras(p, jit="auto"):
    x, y, w = data()
    m = keras_model(w, jit, layers)
    fit = lambda n=None: m.fit(x[:n], y[:n], batch_size=B, epochs=1, shuffle=False, verbose=0)
    return epochs(fit, lambda: fit(3 * B).history["loss"][0], B, len(x))


def keras_tf(p):
    return _keras(p)


def keras_tf_xla(p):
    return _keras(p, True)


def keras_jax(p):
    return _keras(p)


def keras_torch(p):
    return _keras(p)


def torch_raw(p, wrap=lambda m: m, last=False):
    """NCHW module; the dense kernel's rows are permuted so that it computes the same function."""
    import torch

    n = torch.nn
    x, y, w = data()
    m = n.Sequential(
        n.Conv2d(1, 32, 3),
        n.ReLU(),
        n.Conv2d(32, 64, 3),
        n.ReLU(),
        n.MaxPool2d(2),
        n.Flatten(),
        n.Linear(9216, 128),
        n.ReLU(),
        n.Linear(128, 10),
    )
    w[0], w[2] = (a.transpose(3, 2, 0, 1) for a in (w[0], w[2]))
    w[4] = w[4].reshape(12, 12, 64, 128).transpose(2, 0, 1, 3).reshape(9216, 128).T
    w[6] = w[6].T
    with torch.no_grad():
        for a, b in zip(m.parameters(), w):
            a.copy_(torch.from_numpy(b.copy()))
    if last:
        m = m.to(memory_format=torch.channels_last)
    fit = raw_torch(x.transpose(0, 3, 1, 2).copy(), y, wrap(m), B)
    return epochs(fit, lambda: fit(3 * B), B, len(x))


def torch_channels_last(p):
    return torch_raw(p, last=True)


def torch_raw_compile(p):
    import torch

    return torch_raw(p, torch.compile)


PEERS = {
    f.__name__: f
    for f in (keras_tf, keras_tf_xla, keras_jax, keras_torch, torch_raw, torch_channels_last, torch_raw_compile)
}
