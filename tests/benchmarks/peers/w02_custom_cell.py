"""W2: a layer-normalised LSTM cell written by hand, as a user would (x and h projected in
the cell, LN over each of the four gates with gain and bias), hidden 256, batch 32, T 100.
Mean-square loss, SGD on the five weights. The first three losses must agree."""

import numpy as np

from common import bench, dev, rand, tf1

H, LR = 256, 20.0
PARAMS = [dict(B=32, T=100)]


def data(p):
    f = rand(0)
    k = H**-0.5
    w = [f(H, 4 * H, k=k), f(H, 4 * H, k=k), np.zeros(4 * H, "f4"), np.ones((4, H), "f4"), np.zeros((4, H), "f4")]
    return f(p["T"], p["B"], H), f(p["T"], p["B"], H, k=0.5), w


def _torch(p, wrap):
    import torch

    x, y, w = data(p)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    w = [torch.nn.Parameter(torch.from_numpy(a)) for a in w]
    opt = torch.optim.SGD(w, lr=LR)

    def cell(x, h, c, Wx, Wh, b, gamma, beta):
        z = (x @ Wx + h @ Wh + b).view(-1, 4, H)
        z = torch.nn.functional.layer_norm(z, (H,)) * gamma + beta
        i, f, g, o = z.unbind(1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    cell_, loop_ = (wrap(cell), lambda f: f) if wrap and p.get("what") == "cell" else (cell, wrap or (lambda f: f))

    def forward(x, y, *w):
        h = c = torch.zeros(x.shape[1], H)
        hs = []
        for t in range(x.shape[0]):
            h, c = cell_(x[t], h, c, *w)
            hs.append(h)
        return ((torch.stack(hs) - y) ** 2).mean()

    forward = loop_(forward)

    def step():
        opt.zero_grad()
        loss = forward(x, y, *w)
        loss.backward()
        opt.step()
        return loss.item()

    return bench(step)


def torch_eager(p):
    return _torch(p, None)


def torch_compile_cell(p):
    """torch.compile of the cell, python loop outside."""
    import torch

    return _torch(dict(p, what="cell"), torch.compile)


def torch_compile_loop(p):
    """torch.compile of the whole loop: dynamo unrolls T steps."""
    import torch

    return _torch(dict(p, what="loop"), torch.compile)


def jax_scan(p):
    import jax
    import jax.numpy as jnp

    x, y, w = data(p)
    x, y, w = dev(x), dev(y), [dev(a) for a in w]

    def ln(z):
        m = z.mean(-1, keepdims=True)
        return (z - m) * jax.lax.rsqrt(((z - m) ** 2).mean(-1, keepdims=True) + 1e-5)

    def loss_fn(w):
        Wx, Wh, b, gamma, beta = w

        def body(hc, xt):
            h, c = hc
            z = ln((xt @ Wx + h @ Wh + b).reshape(-1, 4, H)) * gamma + beta
            i, f, g, o = (z[:, k] for k in range(4))
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        z0 = jnp.zeros((x.shape[1], H), jnp.float32)
        return jnp.mean((jax.lax.scan(body, (z0, z0), x)[1] - y) ** 2)

    @jax.jit
    def train(w):
        loss, g = jax.value_and_grad(loss_fn)(w)
        return loss, [a - LR * d for a, d in zip(w, g)]

    st = [w]

    def step():
        loss, st[0] = train(st[0])
        return float(loss)

    return bench(step)


def _forward_tf(tf, x, y, w, T):
    Wx, Wh, b, gamma, beta = w
    B = x.shape[1]
    xs = tf.TensorArray(tf.float32, size=T, element_shape=[B, H]).unstack(x)
    out = tf.TensorArray(tf.float32, size=T, element_shape=[B, H])
    z0 = tf.zeros([B, H])

    def body(t, h, c, out):
        z = tf.reshape(tf.matmul(xs.read(t), Wx) + tf.matmul(h, Wh) + b, [-1, 4, H])
        m = tf.reduce_mean(z, -1, keepdims=True)
        v = tf.reduce_mean((z - m) ** 2, -1, keepdims=True)
        i, f, g, o = tf.unstack((z - m) * tf.math.rsqrt(v + 1e-5) * gamma + beta, axis=1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        return t + 1, h, c, out.write(t, h)

    hs = tf.while_loop(lambda t, *_: t < T, body, (tf.constant(0), z0, z0, out), parallel_iterations=32)[3].stack()
    return tf.reduce_mean((hs - y) ** 2)


def tf2_while(p, xla=False):
    import tensorflow as tf

    x, y, w = data(p)
    x, y, w = tf.constant(x), tf.constant(y), [tf.Variable(a) for a in w]

    @tf.function(jit_compile=xla)
    def train():
        with tf.GradientTape() as g:
            loss = _forward_tf(tf, x, y, w, p["T"])
        for a, d in zip(w, g.gradient(loss, w)):
            a.assign_sub(LR * d)
        return loss

    return bench(lambda: train().numpy())


def tf1_while(p):
    tf = tf1()
    x, y, w = data(p)
    x, y = (tf.Variable(a, trainable=False, use_resource=True) for a in (x, y))
    w = [tf.Variable(a, use_resource=True) for a in w]
    loss = _forward_tf(tf, tf.identity(x), y, w, p["T"])
    train = tf.group(*[a.assign_sub(LR * d) for a, d in zip(w, tf.gradients(loss, w))])
    s = tf.Session()
    s.run(tf.global_variables_initializer())
    f = s.make_callable([loss, train])
    return bench(lambda: f()[0])


def pytensor_scan(p):
    import pytensor
    import pytensor.tensor as pt

    pytensor.config.floatX = "float32"
    x, y, w = data(p)
    x, y = pytensor.shared(x), pytensor.shared(y)
    w = [pytensor.shared(a) for a in w]

    def body(xt, h, c, Wx, Wh, b, gamma, beta):
        z = (xt @ Wx + h @ Wh + b).reshape((-1, 4, H))
        m = z.mean(-1, keepdims=True)
        v = ((z - m) ** 2).mean(-1, keepdims=True)
        z = (z - m) / pt.sqrt(v + np.float32(1e-5)) * gamma + beta
        i, f, g, o = (z[:, k] for k in range(4))
        c = pt.sigmoid(f) * c + pt.sigmoid(i) * pt.tanh(g)
        return pt.sigmoid(o) * pt.tanh(c), c

    z0 = pt.zeros((p["B"], H), dtype="float32")
    (hs, _), _ = pytensor.scan(body, sequences=[x], outputs_info=[z0, z0], non_sequences=w, return_updates=True)
    loss = ((hs - y) ** 2).mean()
    f = pytensor.function(
        [],
        loss,
        updates=[(a, a - np.float32(LR) * d) for a, d in zip(w, pt.grad(loss, w))],
        mode=p.get("mode", "NUMBA"),
    )
    return bench(lambda: f())


PEERS = {
    f.__name__: f
    for f in (torch_eager, torch_compile_cell, torch_compile_loop, jax_scan, tf2_while, tf1_while, pytensor_scan)
}
