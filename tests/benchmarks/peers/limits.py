"""Physical limits: sgemm GFLOP/s at W1's shapes, copy bandwidth, tanh/exp/sigmoid rates.
Run once per (library, threads): OMP_NUM_THREADS=n OPENBLAS_NUM_THREADS=n MKL_NUM_THREADS=n
NUMBA_NUM_THREADS=n python limits.py numpy|torch|numba|jax. One JSON line per figure."""

import json
import os
import sys
import time

import numpy as np

LIB, NT = sys.argv[1], int(os.environ.get("OMP_NUM_THREADS", 0))


def best(f, budget=0.5):
    """(median, best) seconds."""
    f()
    f()
    ts, t0 = [], time.perf_counter()
    while time.perf_counter() - t0 < budget or len(ts) < 5:
        t = time.perf_counter()
        f()
        ts.append(time.perf_counter() - t)
    return float(np.median(ts)), min(ts)


def show(what, amount, unit, f):
    m, b = best(f)
    print(
        json.dumps(
            dict(
                lib=LIB,
                threads=NT,
                what=what,
                unit=unit,
                median=round(amount / m / 1e9, 2),
                best=round(amount / b / 1e9, 2),
            )
        ),
        flush=True,
    )


GEMMS = (
    [(m, 512, 2048) for m in (32, 128, 512)]
    + [(3200, 512, 2048), (12800, 512, 2048)]
    + [(m, 2048, 512) for m in (32, 128)]
    + [(512, 3200, 2048), (512, 12800, 2048), (2048, 2048, 2048)]
)
r = np.random.RandomState(0)
f4 = lambda *s: r.standard_normal(s).astype("f4")
SIZES = {"2M (8 MB)": 2**21, "64k (256 KB)": 2**16}

if LIB == "numpy":
    for m, k, n in GEMMS:
        a, b, c = f4(m, k), f4(k, n), np.empty((m, n), "f4")
        show(f"sgemm {m}x{k}x{n}", 2 * m * k * n, "GFLOP/s", lambda: np.matmul(a, b, out=c))
    if NT == 1:
        a = np.ones(2**28, "f4")
        b = np.empty_like(a)
        show("copy 1 GB (read+write bytes)", 2 * a.nbytes, "GB/s", lambda: np.copyto(b, a))
        del a, b
        for s, n in SIZES.items():
            a, b = f4(n), np.empty(n, "f4")
            for u in (np.tanh, np.exp):
                show(f"{u.__name__} {s}", n, "G elem/s", lambda: u(a, out=b))

            def sig():
                np.negative(a, out=b)
                np.exp(b, out=b)
                np.add(b, 1, out=b)
                np.reciprocal(b, out=b)

            show(f"sigmoid by 4 ufuncs {s}", n, "G elem/s", sig)
elif LIB == "torch":
    import torch

    torch.set_num_threads(NT)
    for m, k, n in GEMMS:
        a, b, c = torch.from_numpy(f4(m, k)), torch.from_numpy(f4(k, n)), torch.empty(m, n)
        show(f"sgemm {m}x{k}x{n}", 2 * m * k * n, "GFLOP/s", lambda: torch.matmul(a, b, out=c))
    a = torch.ones(2**28)
    b = torch.empty_like(a)
    show("copy 1 GB (read+write bytes)", 2 * a.nbytes, "GB/s", lambda: b.copy_(a))
    del a, b
    for s, n in SIZES.items():
        a, b = torch.from_numpy(f4(n)), torch.empty(n)
        for u in (torch.tanh, torch.exp, torch.sigmoid):
            show(f"{u.__name__} {s}", n, "G elem/s", lambda: u(a, out=b))
elif LIB == "jax":
    import jax
    import jax.numpy as jnp

    for m, k, n in GEMMS:
        a, b = jnp.array(f4(m, k)), jnp.array(f4(k, n))
        f = jax.jit(lambda a, b: a @ b)
        show(f"sgemm {m}x{k}x{n}", 2 * m * k * n, "GFLOP/s", lambda: f(a, b).block_until_ready())
    for s, n in SIZES.items():
        a = jnp.array(f4(n))
        for u in (jnp.tanh, jnp.exp, jax.nn.sigmoid):
            g = jax.jit(u)
            show(f"{u.__name__} {s}", n, "G elem/s", lambda: g(a).block_until_ready())
else:
    import numba

    for name, src in (("tanh", "tanh(x)"), ("exp", "exp(x)"), ("sigmoid", "ONE / (ONE + exp(-x))")):
        g = dict(np=np, tanh=np.tanh, exp=np.exp, ONE=np.float32(1), numba=numba)
        exec(f"def f(a, b):\n for i in numba.prange(a.size):\n  x = a[i]\n  b[i] = {src}", g)
        k = numba.njit(parallel=NT > 1, fastmath=True)(g["f"])
        for s, n in SIZES.items():
            a, b = f4(n), np.empty(n, "f4")
            show(f"{name} {s}", n, "G elem/s", lambda: k(a, b))
