"""W5: dispatch rate. A session graph of 10,000 chained or independent scalar ops, all graph
rewriting off (so nothing folds or merges), and eager adds per second. loss_check: final value."""

import numpy as np

from common import bench, dev, tf1

N = 10000
PARAMS = {
    "*": [dict(kind="chain_add")],
    "tf1_session": [dict(kind=k, inter=t) for k in ("chain_add", "chain_identity", "group_add") for t in (1, 2)],
    "tf2_function": [dict(kind="chain_add"), dict(kind="chain_identity")],
    "numpy_eager": [dict(kind="chain_add", size=1), dict(kind="chain_add", size=1024)],
    "torch_eager": [dict(kind="chain_add", size=1), dict(kind="chain_add", size=1024)],
}


def go(step, **extra):
    r = bench(step, budget_s=4, **extra)
    return dict(r, ops_per_s=round(N / r["median_ms"] * 1e3), us_per_op=round(r["median_ms"] * 1e3 / N, 3))


def tf1_session(p):
    tf = tf1()
    x, d = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    y, kind = x, p["kind"]
    if kind == "group_add":
        y = tf.group(*[tf.add(x, d) for _ in range(N)])
    else:
        for _ in range(N):
            y = tf.add(y, d) if kind == "chain_add" else tf.identity(y)
    c = tf.ConfigProto(inter_op_parallelism_threads=p["inter"])
    c.graph_options.rewrite_options.disable_meta_optimizer = True
    c.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    f = tf.Session(config=c).make_callable(y, [x, d])
    return go(lambda: f(np.float32(0), np.float32(1)) or 0.0)


def tf2_function(p):
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

    @tf.function
    def f(x, d):
        for _ in range(N):
            x = x + d if p["kind"] == "chain_add" else tf.identity(x)
        return x

    x, d = tf.constant(0.0), tf.constant(1.0)
    return go(lambda: f(x, d).numpy())


def _eager(x, d, value):
    def step():
        y = x
        for _ in range(N):
            y = y + d
        return value(y)

    return go(step)


def tf2_eager(p):
    import tensorflow as tf

    return _eager(tf.constant(0.0), tf.constant(1.0), lambda y: y.numpy())


def torch_eager(p):
    import torch

    with torch.no_grad():
        return _eager(torch.zeros(p["size"]), torch.ones(p["size"]), lambda y: y[0].item())


def torch_eager_grad(p):
    """The same adds with the autograd tape recording (no backward)."""
    import torch

    return _eager(torch.zeros(1, requires_grad=True), torch.ones(1), lambda y: y[0].item())


def numpy_eager(p):
    return _eager(np.zeros(p["size"], "f4"), np.ones(p["size"], "f4"), lambda y: y[0])


def numpy_out(p):
    """np.add(y, d, out=y): no allocation."""
    y, d = np.zeros(1, "f4"), np.ones(1, "f4")

    def step():
        y[:] = 0
        add = np.add
        for _ in range(N):
            add(y, d, y)
        return y[0]

    return go(step)


def jax_eager(p):
    return _eager(dev(np.float32(0)), dev(np.float32(1)), float)


PEERS = {
    f.__name__: f
    for f in (tf1_session, tf2_function, tf2_eager, torch_eager, torch_eager_grad, numpy_eager, numpy_out, jax_eager)
}
