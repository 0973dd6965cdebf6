"""W4: iterations per second of an in-graph while loop. body "scalar": x = 0.999 x + 1;
body "matmul": M = M @ A, 64 x 64, A orthogonal. 100k iterations. loss_check: final x, or M's abs sum."""

import numpy as np

from common import bench, dev, tf1

PARAMS = {
    "*": [dict(body="scalar", n=100000), dict(body="matmul", n=100000)],
    "tf1_session": [dict(body=b, n=100000, parallel=k) for b in ("scalar", "matmul") for k in (1, 10, 32)],
}


def ortho():
    return np.linalg.qr(np.random.RandomState(0).standard_normal((64, 64)))[0].astype("float32")


def start(p):
    return np.float32(0) if p["body"] == "scalar" else np.eye(64, dtype="float32")


def go(step, p):
    """step() -> final state as numpy."""
    r = bench(lambda: np.abs(step()).sum(), budget_s=5, min_reps=3, max_reps=50)
    return dict(r, iters_per_s=round(p["n"] / r["median_ms"] * 1e3))


def _tf_loop(tf, p, x0, A):
    body = (lambda i, x: (i + 1, x * 0.999 + 1.0)) if p["body"] == "scalar" else (lambda i, x: (i + 1, tf.matmul(x, A)))
    return tf.while_loop(
        lambda i, x: i < p["n"], body, (tf.constant(0), x0), parallel_iterations=p.get("parallel", 10)
    )[1]


def tf1_session(p):
    tf = tf1()
    x0 = tf.placeholder(tf.float32, start(p).shape)
    out = _tf_loop(tf, p, x0, tf.constant(ortho()))
    s = tf.Session()
    f = s.make_callable(out, [x0])
    return go(lambda: f(start(p)), p)


def _tf2(p, xla):
    import tensorflow as tf

    A = tf.constant(ortho())
    f = tf.function(lambda x: _tf_loop(tf, p, x, A), jit_compile=xla)
    x0 = tf.constant(start(p))
    return go(lambda: f(x0).numpy(), p)


def tf2_function(p):
    return _tf2(p, False)


def tf2_xla(p):
    return _tf2(p, True)


def jax_while(p):
    import jax

    A, x0 = dev(ortho()), dev(start(p))
    body = (lambda x: x * 0.999 + 1.0) if p["body"] == "scalar" else (lambda x: x @ A)
    f = jax.jit(lambda x: jax.lax.while_loop(lambda s: s[0] < p["n"], lambda s: (s[0] + 1, body(s[1])), (0, x))[1])
    return go(lambda: np.asarray(f(x0)), p)


def pytensor_scan(p):
    import pytensor
    import pytensor.tensor as pt

    pytensor.config.floatX = "float32"
    x0 = pt.scalar(dtype="float32") if p["body"] == "scalar" else pt.matrix(dtype="float32")
    A = pytensor.shared(ortho())
    body = (lambda x: x * np.float32(0.999) + np.float32(1)) if p["body"] == "scalar" else (lambda x: x @ A)
    seq, _ = pytensor.scan(body, outputs_info=[x0], n_steps=p["n"], return_updates=True)
    f = pytensor.function([x0], seq[-1], mode="NUMBA")
    return go(lambda: f(start(p)), p)


def numpy_loop(p):
    A = ortho()

    def step():
        i, x = 0, start(p)
        if p["body"] == "scalar":
            k, one = np.float32(0.999), np.float32(1)
            while i < p["n"]:
                x = x * k + one
                i += 1
        else:
            while i < p["n"]:
                x = x @ A
                i += 1
        return x

    return go(step, p)


def torch_loop(p):
    """Python while over torch tensors, the counter a tensor too (its test syncs)."""
    import torch

    A, n = torch.from_numpy(ortho()), torch.tensor(p["n"])

    @torch.no_grad()
    def step():
        i, x = torch.tensor(0), torch.tensor(start(p))
        while i < n:
            x = x * 0.999 + 1.0 if p["body"] == "scalar" else x @ A
            i = i + 1
        return x.numpy()

    return go(step, p)


def numba_loop(p):
    """Floor: the loop compiled by numba (matmul through BLAS)."""
    import numba

    A, n = ortho(), p["n"]
    if p["body"] == "scalar":

        @numba.njit
        def f(x):
            i = 0
            while i < n:
                x = x * np.float32(0.999) + np.float32(1)
                i += 1
            return x
    else:

        @numba.njit
        def f(x):
            i, y = 0, np.empty_like(x)
            while i < n:
                np.dot(x, A, y)
                x, y = y, x
                i += 1
            return x

    return go(lambda: f(start(p)), p)


PEERS = {
    f.__name__: f
    for f in (tf1_session, tf2_function, tf2_xla, jax_while, pytensor_scan, numpy_loop, torch_loop, numba_loop)
}
