"""W12: adaptive computation time. Outer loop of 50 steps; at each, an inner loop runs the cell
until every row's halting sum reaches 1 - eps (at most 10 ponders; about 4-5 here). Hidden and
input 128, batch 16. Loss: mean-square of the halting-weighted states + 0.01 mean remainder.
SGD on all weights. The first three losses must agree."""

import numpy as np

from common import bench, dev, rand, tf1

H, B, T, MAX, EPS, LR = 128, 16, 50, 10, 0.01, 0.1
PARAMS = {"*": [dict()], "tf1_while": [dict(parallel=1), dict(parallel=10)]}


def data():
    f = rand(0)
    k = H**-0.5
    return (
        f(T, B, H),
        f(T, B, H, k=0.5),
        [f(H, H, k=k), f(H, H, k=k), np.zeros(H, "f4"), f(H, 1, k=0.02), np.full(1, -0.9, "f4")],
    )


def ponders():
    """Mean inner iterations at the starting weights (numpy)."""
    x, _, (Wx, Wh, b, wp, bp) = data()
    h, n = np.zeros((B, H), "f4"), 0
    for t in range(T):
        halt, acc, k = np.zeros((B, 1), "f4"), np.zeros((B, H), "f4"), 0
        while k < MAX and (halt < 1 - EPS).any():
            h = np.tanh(x[t] @ Wx + h @ Wh + b)
            pr = 1 / (1 + np.exp(-(h @ wp + bp)))
            run = halt < 1 - EPS
            last = run & (halt + pr >= 1 - EPS)
            acc += np.where(last, 1 - halt, np.where(run, pr, 0)) * h
            halt, k = np.where(run, halt + pr, halt), k + 1
        h, n = acc, n + k
    return n / T


def go(step):
    r = bench(step)
    return dict(r, mean_ponders=ponders(), us_per_inner=round(r["median_ms"] * 1e3 / (ponders() * T), 1))


def _torch(wrap):
    import torch

    x, y, w = data()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    w = [torch.nn.Parameter(torch.from_numpy(a)) for a in w]
    opt = torch.optim.SGD(w, lr=LR)

    def inner(xw, h, halt, acc, rem, Wh, b, wp, bp):
        h = torch.tanh(xw + h @ Wh + b)
        pr = torch.sigmoid(h @ wp + bp)
        run = halt < 1 - EPS
        last = run & (halt + pr >= 1 - EPS)
        zero = torch.zeros_like(pr)
        acc = acc + torch.where(last, 1 - halt, torch.where(run, pr, zero)) * h
        rem = rem + torch.where(last, 1 - halt, zero)
        return h, torch.where(run, halt + pr, halt), acc, rem

    inner = wrap(inner)

    def step():
        opt.zero_grad()
        Wx, *ws = w
        h, hs, rems = torch.zeros(B, H), [], 0.0
        for t in range(T):
            xw = x[t] @ Wx
            halt = rem = torch.zeros(B, 1)
            acc, k = torch.zeros(B, H), 0
            while k < MAX and (halt < 1 - EPS).any():
                h, halt, acc, rem = inner(xw, h, halt, acc, rem, *ws)
                k += 1
            h = acc
            hs.append(h)
            rems = rems + rem.mean()
        loss = ((torch.stack(hs) - y) ** 2).mean() + 0.01 * rems / T
        loss.backward()
        opt.step()
        return loss.item()

    return go(step)


def torch_eager(p):
    return _torch(lambda f: f)


def torch_compile_cell(p):
    import torch

    return _torch(torch.compile)


def _jax(inner_loop):
    import jax
    import jax.numpy as jnp

    x, y, w = data()
    x, y = dev(x), dev(y)

    def loss_fn(w):
        Wx, Wh, b, wp, bp = w

        def ponder(xw, s):
            h, halt, acc, rem = s
            h = jnp.tanh(xw + h @ Wh + b)
            pr = jax.nn.sigmoid(h @ wp + bp)
            run = halt < 1 - EPS
            last = run & (halt + pr >= 1 - EPS)
            acc = acc + jnp.where(last, 1 - halt, jnp.where(run, pr, 0)) * h
            rem = rem + jnp.where(last, 1 - halt, 0)
            return h, jnp.where(run, halt + pr, halt), acc, rem

        def outer(h, xw):
            z = jnp.zeros((B, 1), jnp.float32)
            _, _, acc, rem = inner_loop(jax, jnp, lambda s: ponder(xw, s), (h, z, jnp.zeros((B, H), jnp.float32), z))
            return acc, (acc, rem.mean())

        _, (hs, rems) = jax.lax.scan(outer, jnp.zeros((B, H), jnp.float32), x @ Wx)
        return jnp.mean((hs - y) ** 2) + 0.01 * rems.mean()

    @jax.jit
    def train(w):
        loss, g = jax.value_and_grad(loss_fn)(w)
        return loss, [a - LR * d for a, d in zip(w, g)]

    st = [list(map(dev, w))]

    def step():
        loss, st[0] = train(st[0])
        return float(loss)

    return go(step)


def jax_while(p):
    """Expected to fail: no reverse mode through lax.while_loop."""

    def loop(jax, jnp, f, s):
        return jax.lax.while_loop(
            lambda c: (c[0] < MAX) & (c[1][1] < 1 - EPS).any(), lambda c: (c[0] + 1, f(c[1])), (0, s)
        )[1]

    return _jax(loop)


def jax_bounded_scan(p):
    """Workaround: always MAX ponders, the finished ones masked."""

    def loop(jax, jnp, f, s):
        return jax.lax.scan(lambda s, _: (f(s), None), s, None, length=MAX)[0]

    return _jax(loop)


def jax_bounded_scan_cond(p):
    """Workaround 2: MAX steps, each a lax.cond that skips the work when all rows halted."""

    def loop(jax, jnp, f, s):
        return jax.lax.scan(
            lambda s, _: (jax.lax.cond((s[1] < 1 - EPS).any(), f, lambda s: s, s), None), s, None, length=MAX
        )[0]

    return _jax(loop)


def _loss_tf(tf, x, y, w, parallel=10):
    Wx, Wh, b, wp, bp = w
    xw = tf.reshape(tf.matmul(tf.reshape(x, [-1, H]), Wx), [T, B, H])
    xs = tf.TensorArray(tf.float32, size=T, element_shape=[B, H]).unstack(xw)
    hs = tf.TensorArray(tf.float32, size=T, element_shape=[B, H])

    def outer(t, h, hs, rems):
        xt = xs.read(t)

        def ponder(k, h, halt, acc, rem):
            h = tf.tanh(xt + tf.matmul(h, Wh) + b)
            pr = tf.sigmoid(tf.matmul(h, wp) + bp)
            run = halt < 1 - EPS
            last = tf.logical_and(run, halt + pr >= 1 - EPS)
            zero = tf.zeros_like(pr)
            acc = acc + tf.where(last, 1 - halt, tf.where(run, pr, zero)) * h
            rem = rem + tf.where(last, 1 - halt, zero)
            return k + 1, h, tf.where(run, halt + pr, halt), acc, rem

        z = tf.zeros([B, 1])
        _, _, _, acc, rem = tf.while_loop(
            lambda k, h, halt, *_: tf.logical_and(k < MAX, tf.reduce_any(halt < 1 - EPS)),
            ponder,
            (tf.constant(0), h, z, tf.zeros([B, H]), z),
            parallel_iterations=parallel,
        )
        return t + 1, acc, hs.write(t, acc), rems + tf.reduce_mean(rem)

    _, _, hs, rems = tf.while_loop(
        lambda t, *_: t < T,
        outer,
        (tf.constant(0), tf.zeros([B, H]), hs, tf.constant(0.0)),
        parallel_iterations=parallel,
    )
    return tf.reduce_mean((hs.stack() - y) ** 2) + 0.01 * rems / T


def tf2_while(p):
    import tensorflow as tf

    x, y, w = data()
    x, y, w = tf.constant(x), tf.constant(y), [tf.Variable(a) for a in w]

    @tf.function
    def train():
        with tf.GradientTape() as g:
            loss = _loss_tf(tf, x, y, w)
        for a, d in zip(w, g.gradient(loss, w)):
            a.assign_sub(LR * d)
        return loss

    return go(lambda: train().numpy())


def tf1_while(p):
    tf = tf1()
    x, y, w = data()
    x, y = (tf.Variable(a, trainable=False, use_resource=True) for a in (x, y))
    w = [tf.Variable(a, use_resource=True) for a in w]
    loss = _loss_tf(tf, x, y, w, p["parallel"])
    train = tf.group(*[a.assign_sub(LR * d) for a, d in zip(w, tf.gradients(loss, w))])
    s = tf.Session()
    s.run(tf.global_variables_initializer())
    f = s.make_callable([loss, train])
    return go(lambda: f()[0])


PEERS = {
    f.__name__: f
    for f in (torch_eager, torch_compile_cell, jax_while, jax_bounded_scan, jax_bounded_scan_cond, tf2_while, tf1_while)
}
