"""Shared helpers: seeded float32 data, timing, and the result record."""

import os
import resource
import statistics
import time

import numpy as np

BUDGET = float(os.environ.get("PEERS_BUDGET", 1))  # scales how long a measurement lasts
FIRST_ONLY = bool(os.environ.get("PEERS_FIRST_ONLY"))  # nothing but the first step


def rand(seed=0):
    """A seeded generator of float32 normals: f(shape..., k=scale)."""
    r = np.random.RandomState(seed)
    return lambda *s, k=1.0: (r.standard_normal(s) * k).astype("float32")


def rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def bench(step, budget_s=6.0, min_reps=4, max_reps=300, **extra):
    """Run `step()` (returns a float and blocks until done). The first call is the
    compile/first-step time; the first three return values are the checksum (the second
    and third calls count as timings too where they take over a second)."""
    base, check, ts = rss_mb(), [], []
    for _ in range(1 if FIRST_ONLY else 3):
        t = time.perf_counter()
        check.append(float(step()))
        ts.append((time.perf_counter() - t) * 1e3)
    if FIRST_ONLY:
        return record(ts, ts[0] / 1e3, check, **extra)
    first, ts = ts[0] / 1e3, [a for a in ts[1:] if a > 1000]
    t0 = time.perf_counter()
    while len(ts) < max_reps and (len(ts) < min_reps or time.perf_counter() - t0 < budget_s * BUDGET):
        t = time.perf_counter()
        step()
        ts.append((time.perf_counter() - t) * 1e3)
    return record(ts, first, check, rss_before_step_mb=round(base), **extra)


def record(ts_ms, first_s, check, **extra):
    q = lambda a: round(float(np.percentile(ts_ms, a)), 4)
    return dict(
        median_ms=q(50),
        p10=q(10),
        p90=q(90),
        reps=len(ts_ms),
        peak_rss_mb=round(rss_mb()),
        compile_or_first_step_s=round(first_s, 3),
        loss_check=[float("%.7g" % c) for c in check],
        **extra,
    )


def tf1():
    """TensorFlow in 1.x mode: Session graphs with Switch/Merge control flow."""
    import tensorflow as tf

    tf.compat.v1.disable_v2_behavior()
    return tf.compat.v1


def dev(a):
    """A device array with its own storage for JAX."""
    import jax.numpy as jnp

    return jnp.array(a)


def few_runs(seconds, first, check, **facts):
    """The record of runs that are too few for percentiles: the fastest and the slowest stand for p10 and p90."""
    times = sorted(1e3 * value for value in seconds)
    return {
        "median_ms": round(statistics.median(times), 2),
        "p10": round(times[0], 2),
        "p90": round(times[-1], 2),
        "reps": len(times),
        "peak_rss_mb": round(rss_mb()),
        "compile_or_first_step_s": round(first, 3),
        "loss_check": check,
        **facts,
    }
