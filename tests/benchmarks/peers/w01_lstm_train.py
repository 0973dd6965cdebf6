"""W1: one LSTM layer (in 512, hidden 512), whole sequence out, mean-square loss,
gradients of weights and input, SGD. Gate order i,f,g,o; zero bias; time-major data.
All peers start from the same weights, so the first three losses must agree."""

import numpy as np

from common import bench, dev, rand, tf1

H, LR = 512, 50.0
BIG = [dict(B=32, T=100), dict(B=128, T=100), dict(B=512, T=100), dict(B=128, T=200)]
PARAMS = {
    "*": BIG,
    "jax_scan_naive": BIG[:2],
    "tf1_while": BIG[:2],
    "keras_tf_xla": BIG[:2],
    "torch_compile": BIG[:2],  # graph break at nn.LSTM: eager again
    "keras_torch": [dict(B=32, T=100, reps=2)],
}  # very slow


def data(p):
    f = rand(0)
    k = H**-0.5
    Wx, Wh, b = f(H, 4 * H, k=k), f(H, 4 * H, k=k), np.zeros(4 * H, "float32")
    return f(p["T"], p["B"], H), f(p["T"], p["B"], H, k=0.5), Wx, Wh, b


def go(step, p):
    return bench(step, budget_s=p.get("budget", 6), min_reps=p.get("reps", 4))


def _torch(p, wrap):
    import torch

    x, y, Wx, Wh, b = map(torch.from_numpy, data(p))
    m = torch.nn.LSTM(H, H)
    with torch.no_grad():
        m.weight_ih_l0.copy_(Wx.T)
        m.weight_hh_l0.copy_(Wh.T)
        m.bias_ih_l0.zero_()
        m.bias_hh_l0.zero_()
    # torch has two biases; only one is trained so that the update equals the others'
    opt = torch.optim.SGD([m.weight_ih_l0, m.weight_hh_l0, m.bias_ih_l0], lr=LR)
    x.requires_grad_()
    fwd = wrap(lambda x: ((m(x)[0] - y) ** 2).mean())

    def step():
        m.zero_grad()
        x.grad = None
        loss = fwd(x)
        loss.backward()
        opt.step()
        return loss.item()

    return go(step, p)


def torch_eager(p):
    return _torch(p, lambda f: f)


def torch_compile(p):
    import torch

    return _torch(p, torch.compile)


def _cell_jax(z, c):
    import jax
    import jax.numpy as jnp

    i, f, g, o = jnp.split(z, 4, -1)
    s = jax.nn.sigmoid
    c = s(f) * c + s(i) * jnp.tanh(g)
    return s(o) * jnp.tanh(c), c


def _jax(p, hoist):
    import jax
    import jax.numpy as jnp

    x, y, *w = map(dev, data(p))

    def loss_fn(w, x):
        Wx, Wh, b = w

        def body(hc, xt):
            z = xt + hc[0] @ Wh if hoist else xt @ Wx + hc[0] @ Wh + b
            hc = _cell_jax(z, hc[1])
            return hc, hc[0]

        z0 = jnp.zeros((x.shape[1], H), jnp.float32)
        _, hs = jax.lax.scan(body, (z0, z0), x @ Wx + b if hoist else x)
        return jnp.mean((hs - y) ** 2)

    @jax.jit
    def train(w, x):
        loss, (gw, gx) = jax.value_and_grad(loss_fn, (0, 1))(w, x)
        return loss, [a - LR * g for a, g in zip(w, gw)], gx

    st = [w]

    def step():
        loss, st[0], gx = train(st[0], x)
        gx.block_until_ready()
        return float(loss)

    return go(step, p)


def jax_scan(p):
    """x @ Wx for all steps at once, outside the scan."""
    return _jax(p, True)


def jax_scan_naive(p):
    """x_t @ Wx inside the scan body."""
    return _jax(p, False)


def _lstm_tf(tf, z, c):
    i, f, g, o = tf.split(z, 4, -1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def while_lstm(tf, x, Wx, Wh, b, T, parallel=32):
    """tf.while_loop + TensorArray, input projection hoisted out of the loop."""
    B = x.shape[1]
    z = tf.reshape(tf.matmul(tf.reshape(x, [-1, x.shape[2]]), Wx) + b, [T, B, 4 * Wh.shape[0]])
    zin = tf.TensorArray(tf.float32, size=T, element_shape=z.shape[1:]).unstack(z)
    out = tf.TensorArray(tf.float32, size=T, element_shape=[B, Wh.shape[0]])
    z0 = tf.zeros([B, Wh.shape[0]])

    def body(t, h, c, out):
        h, c = _lstm_tf(tf, zin.read(t) + tf.matmul(h, Wh), c)
        return t + 1, h, c, out.write(t, h)

    return tf.while_loop(lambda t, *_: t < T, body, (tf.constant(0), z0, z0, out), parallel_iterations=parallel)[
        3
    ].stack()


def _tf1(p, forward):
    tf = tf1()
    x, y, *w = data(p)
    # fed at initialisation: constants would put several copies of the data in the GraphDef
    feeds = {tf.placeholder(tf.float32, a.shape): a for a in (x, y)}
    x, y = (tf.Variable(a, trainable=False, use_resource=True) for a in feeds)
    Wx, Wh, b = w = [tf.Variable(a, use_resource=True) for a in w]
    xr = tf.identity(x)
    loss = tf.reduce_mean((forward(tf, xr, Wx, Wh, b, p["T"]) - y) ** 2)
    *gw, gx = tf.gradients(loss, w + [xr])
    train = tf.group(gx, *[a.assign_sub(LR * g) for a, g in zip(w, gw)])
    s = tf.Session()
    s.run(tf.global_variables_initializer(), feeds)
    feeds.clear()
    f = s.make_callable([loss, train])
    return go(lambda: f()[0], p)


def tf1_while(p):
    return _tf1(p, while_lstm)


def tf1_dynamic_rnn(p):
    """tf.compat.v1.nn.dynamic_rnn with a hand-written cell (x and h joined, one matmul)."""

    def forward(tf, x, Wx, Wh, b, T):
        class Cell:
            state_size, output_size = (H, H), H

            def zero_state(self, n, dtype):
                return tf.zeros([n, H]), tf.zeros([n, H])

            def __call__(self, x, s, scope=None):
                z = tf.matmul(tf.concat([x, s[0]], 1), W) + b
                h, c = _lstm_tf(tf, z, s[1])
                return h, (h, c)

        W = tf.concat([Wx, Wh], 0)
        return tf.nn.dynamic_rnn(Cell(), x, dtype=tf.float32, time_major=True)[0]

    return _tf1(p, forward)


def tf2_while(p, xla=False):
    import tensorflow as tf

    x, y, *w = data(p)
    x, y = tf.constant(x), tf.constant(y)
    w = [tf.Variable(a) for a in w]

    @tf.function(jit_compile=xla)
    def train():
        with tf.GradientTape() as g:
            g.watch(x)
            loss = tf.reduce_mean((while_lstm(tf, x, *w, p["T"]) - y) ** 2)
        *gw, gx = g.gradient(loss, w + [x])
        for a, d in zip(w, gw):
            a.assign_sub(LR * d)
        return loss, gx

    return go(lambda: train()[0].numpy(), p)


def _keras_tf(p, xla):
    import keras
    import tensorflow as tf

    x, y, *w = data(p)
    x, y = tf.constant(x.swapaxes(0, 1).copy()), tf.constant(y.swapaxes(0, 1).copy())
    m = keras.layers.LSTM(H, return_sequences=True)
    m.build(x.shape)
    m.set_weights(w)
    v = [a.value for a in m.trainable_variables]

    @tf.function(jit_compile=xla)
    def train():
        with tf.GradientTape() as g:
            g.watch(x)
            loss = tf.reduce_mean((m(x) - y) ** 2)
        *gw, gx = g.gradient(loss, v + [x])
        for a, d in zip(v, gw):
            a.assign_sub(LR * d)
        return loss, gx

    return go(lambda: train()[0].numpy(), p)


def keras_tf(p):
    return _keras_tf(p, False)


def keras_tf_xla(p):
    return _keras_tf(p, True)


def keras_jax(p):
    import jax
    import jax.numpy as jnp
    import keras

    x, y, *w = data(p)
    x, y = dev(x.swapaxes(0, 1)), dev(y.swapaxes(0, 1))
    m = keras.layers.LSTM(H, return_sequences=True)
    m.build(x.shape)
    m.set_weights(w)
    ntv = [a.value for a in m.non_trainable_variables]

    def loss_fn(tv, x):
        out, _ = m.stateless_call(tv, ntv, x)
        return jnp.mean((out - y) ** 2)

    @jax.jit
    def train(tv, x):
        loss, (gw, gx) = jax.value_and_grad(loss_fn, (0, 1))(tv, x)
        return loss, [a - LR * g for a, g in zip(tv, gw)], gx

    st = [[a.value for a in m.trainable_variables]]

    def step():
        loss, st[0], gx = train(st[0], x)
        gx.block_until_ready()
        return float(loss)

    return go(step, p)


def keras_torch(p):
    import keras
    import torch

    x, y, *w = data(p)
    x, y = (torch.from_numpy(a.swapaxes(0, 1).copy()) for a in (x, y))
    m = keras.layers.LSTM(H, return_sequences=True)
    m.build(tuple(x.shape))
    m.set_weights(w)
    v = [a.value for a in m.trainable_variables]
    opt = torch.optim.SGD(v, lr=LR)
    x.requires_grad_()

    def step():
        opt.zero_grad()
        x.grad = None
        loss = ((m(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.item()

    return go(step, p)


def numpy_raw(p):
    """Hand-written numpy, buffers reused: what BLAS and ufuncs alone allow. The matmuls over
    all steps are hoisted (x Wx, dx, dWx, dWh); only h Wh and dz Wh^T run step by step."""
    x, y, Wx, Wh, b = data(p)
    T, B = p["T"], p["B"]
    e = lambda *s: np.empty(s, "float32")
    Z, C, TC, HS, DX = (
        e(T, B, 4 * H),
        np.zeros((T + 1, B, H), "f4"),
        e(T, B, H),
        np.zeros((T + 1, B, H), "f4"),
        e(T, B, H),
    )
    zt, dz_, u, v, dh, dc = e(B, 4 * H), e(T, B, 4 * H), e(B, H), e(B, H), e(B, H), e(B, H)
    flat, half, one = lambda a: a.reshape(-1, a.shape[-1]), np.float32(0.5), np.float32(1)
    gates = lambda z: (z[:, :H], z[:, H : 2 * H], z[:, 2 * H : 3 * H], z[:, 3 * H :])

    def step():
        nonlocal Wx, Wh, b, u, v
        np.matmul(flat(x), Wx, out=flat(Z))
        for t in range(T):
            z = Z[t]
            np.matmul(HS[t], Wh, out=zt)
            z += zt
            z += b
            for s in (z[:, : 2 * H], z[:, 3 * H :]):  # sigmoid(a) = tanh(a / 2) / 2 + 1 / 2
                s *= half
            np.tanh(z, out=z)
            for s in (z[:, : 2 * H], z[:, 3 * H :]):
                s *= half
                s += half
            i, f, g, o = gates(z)
            np.multiply(f, C[t], out=C[t + 1])
            np.multiply(i, g, out=u)
            C[t + 1] += u
            np.tanh(C[t + 1], out=TC[t])
            np.multiply(o, TC[t], out=HS[t + 1])
        D = HS[1:] - y
        loss = sum(float(np.vdot(d, d)) for d in D) / D.size  # one float32 vdot over all would drift
        D *= np.float32(2 / D.size)
        dh[:] = 0
        dc[:] = 0
        WhT = np.ascontiguousarray(Wh.T)
        for t in reversed(range(T)):
            (i, f, g, o), dz = gates(Z[t]), dz_[t]
            di, df, dg, do = gates(dz)
            np.add(dh, D[t], out=v)  # dh
            np.multiply(v, TC[t], out=do)
            np.subtract(one, o, out=u)
            u *= o
            do *= u
            v *= o
            np.multiply(TC[t], TC[t], out=u)
            np.subtract(one, u, out=u)
            v *= u
            v += dc  # dc
            np.multiply(v, g, out=di)
            np.subtract(one, i, out=u)
            u *= i
            di *= u
            np.multiply(v, C[t], out=df)
            np.subtract(one, f, out=u)
            u *= f
            df *= u
            np.multiply(g, g, out=u)
            np.subtract(one, u, out=u)
            u *= i
            np.multiply(v, u, out=dg)
            np.multiply(v, f, out=dc)
            np.matmul(dz, WhT, out=dh)
        Q = flat(dz_)
        np.matmul(Q, Wx.T, out=flat(DX))
        gx, gh, gb = flat(x).T @ Q, flat(HS[:-1]).T @ Q, Q.sum(0)
        for a, d in ((Wx, gx), (Wh, gh), (b, gb)):
            d *= np.float32(LR)
            a -= d
        return loss

    return go(step, p)


PEERS = {
    f.__name__: f
    for f in (
        torch_eager,
        torch_compile,
        jax_scan,
        jax_scan_naive,
        tf1_dynamic_rnn,
        tf1_while,
        tf2_while,
        keras_tf,
        keras_tf_xla,
        keras_jax,
        keras_torch,
        numpy_raw,
    )
}
