"""W6: MLP 784-512-512-10 (relu), Adam 1e-3, softmax cross-entropy, 60k synthetic samples,
through the public model.fit; ms per step = epoch time / steps. Same weights for all, no
shuffle, samples cut to whole batches. loss_check: mean loss of a first fit on 3 batches."""

import time

import numpy as np

from common import BUDGET, FIRST_ONLY, dev, rand, record

PARAMS = {"*": [dict(B=32), dict(B=256)], "keras_torch_compiled": [dict(B=256)]}
SIZES = [784, 512, 512, 10]


def data(B):
    f, r = rand(0), np.random.RandomState(1)
    n = 60000 // B * B
    w = [a for i, o in zip(SIZES, SIZES[1:]) for a in (f(i, o, k=(2 / i) ** 0.5), np.zeros(o, "float32"))]
    y = r.randint(0, 10, n)
    x = f(n, 784, k=0.5)
    x[np.arange(n), y * 70] += 3  # learnable
    return x, y.astype("int32"), w


def epochs(fit, first3, B, n, budget=8, least=2):
    """fit() runs one epoch; first3() runs three steps and returns the mean loss."""
    t = time.perf_counter()
    check = [first3()]
    first = time.perf_counter() - t
    if FIRST_ONLY:
        return record([first * 1e3], first, check, steps=3)
    if B > 32:
        fit()  # a first epoch apart, where it is short
    ts, t0 = [], time.perf_counter()
    while len(ts) < least or (time.perf_counter() - t0 < budget * BUDGET and len(ts) < 10):
        t = time.perf_counter()
        fit()
        ts.append((time.perf_counter() - t) * 1e3 / (n // B))
    return record(ts, first, check, steps=n // B)


def keras_model(w, jit="auto", build=None):
    import keras

    L = keras.layers
    m = keras.Sequential(
        build(L) if build else [L.Input((784,)), L.Dense(512, "relu"), L.Dense(512, "relu"), L.Dense(10)]
    )
    m.set_weights(w)
    m.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
    return m


def _keras(p, jit="auto"):
    B = p["B"]
    x, y, w = data(B)
    m = keras_model(w, jit)
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


def keras_torch_compiled(p):
    return _keras(p, True)


def torch_module(w):
    import torch

    m = torch.nn.Sequential(
        *[l for i, o in zip(SIZES, SIZES[1:]) for l in (torch.nn.Linear(i, o), torch.nn.ReLU())][:-1]
    )
    with torch.no_grad():
        for a, b in zip(m.parameters(), w):
            a.copy_(torch.from_numpy(b.T))
    return m


def raw_torch(x, y, m, B):
    """The usual hand-written loop; loss read only at the end."""
    import torch

    opt = torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-7)
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()

    def fit(n=None):
        tot = 0.0
        n = n or len(x)
        for k in range(0, n, B):
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(m(x[k : k + B]), y[k : k + B])
            loss.backward()
            opt.step()
            tot += loss.detach()
        return float(tot) / (n // B)

    return fit


def torch_raw(p, wrap=lambda m: m):
    B = p["B"]
    x, y, w = data(B)
    fit = raw_torch(x, y, wrap(torch_module(w)), B)
    return epochs(fit, lambda: fit(3 * B), B, len(x))


def torch_raw_compile(p):
    import torch

    return torch_raw(p, torch.compile)


def jax_raw(p):
    """One jitted step with hand-written Adam, donated state, data on device."""
    import jax
    import jax.numpy as jnp

    B = p["B"]
    x, y, w = data(B)

    def loss_fn(w, x, y):
        for i in range(0, 6, 2):
            x = x @ w[i] + w[i + 1]
            x = jax.nn.relu(x) if i < 4 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    def train(w, m, v, t, tot, x, y):
        loss, g = jax.value_and_grad(loss_fn)(w, x, y)
        t = t + 1
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g)]
        k = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return [a - k * b / (jnp.sqrt(c) + 1e-7) for a, b, c in zip(w, m, v)], m, v, t, tot + loss

    train = jax.jit(train, donate_argnums=(0, 1, 2, 3, 4))
    zeros = lambda: [dev(np.zeros_like(a)) for a in w]
    st = [(list(map(dev, w)), zeros(), zeros(), dev(np.float32(0)))]

    def fit(n=None):
        n = n or len(x)
        s = (*st[0], dev(np.float32(0)))
        for k in range(0, n, B):
            s = train(*s, x[k : k + B], y[k : k + B])
        st[0] = s[:4]
        return float(s[4]) / (n // B)

    return epochs(fit, lambda: fit(3 * B), B, len(x))


def tf1_session(p):
    """TF 1.x: Session.run with feed per step, tf.compat.v1.train.AdamOptimizer."""
    from common import tf1

    tf = tf1()
    B = p["B"]
    x, y, w = data(B)
    xp, yp = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int32, [None])
    v = [tf.Variable(a, use_resource=True) for a in w]
    h = xp
    for i in range(0, 6, 2):
        h = tf.matmul(h, v[i]) + v[i + 1]
        h = tf.nn.relu(h) if i < 4 else h
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=yp, logits=h))
    train = tf.train.AdamOptimizer(1e-3, epsilon=1e-7).minimize(loss)
    s = tf.Session()
    s.run(tf.global_variables_initializer())

    def fit(n=None):
        n = n or len(x)
        tot = 0.0
        for k in range(0, n, B):
            tot += s.run([loss, train], {xp: x[k : k + B], yp: y[k : k + B]})[0]
        return float(tot) / (n // B)

    return epochs(fit, lambda: fit(3 * B), B, len(x))


def numpy_raw(p):
    """Hand-written numpy forward, backward and Adam: what no framework overhead looks like."""
    B = p["B"]
    x, y, w = data(B)
    m, v = [np.zeros_like(a) for a in w], [np.zeros_like(a) for a in w]
    s = [np.empty_like(a) for a in w]
    st, r = [0], np.arange(B)

    def one(x, y):
        hs = [x]
        for i in range(0, 6, 2):
            z = hs[-1] @ w[i]
            z += w[i + 1]
            hs.append(np.maximum(z, 0, out=z) if i < 4 else z)
        z = hs.pop()
        z -= z.max(1, keepdims=True)
        e = np.exp(z)
        q = e.sum(1, keepdims=True)
        loss = float((np.log(q[:, 0]) - z[r, y]).mean())
        e /= q
        e[r, y] -= 1
        e /= B
        g = [None] * 6
        for i in (4, 2, 0):
            g[i], g[i + 1] = hs[i // 2].T @ e, e.sum(0)
            if i:
                e = e @ w[i].T
                e *= hs[i // 2] > 0
        st[0] += 1
        k = np.float32(1e-3 * (1 - 0.999 ** st[0]) ** 0.5 / (1 - 0.9 ** st[0]))
        for a, b, c, d, u in zip(w, g, m, v, s):
            c *= np.float32(0.9)
            np.multiply(b, np.float32(0.1), out=u)
            c += u
            d *= np.float32(0.999)
            np.multiply(b, b, out=u)
            u *= np.float32(0.001)
            d += u
            np.sqrt(d, out=u)
            u += np.float32(1e-7)
            np.divide(c, u, out=u)
            u *= k
            a -= u
        return loss

    def fit(n=None):
        n = n or len(x)
        return sum(one(x[k : k + B], y[k : k + B]) for k in range(0, n, B)) / (n // B)

    return epochs(fit, lambda: fit(3 * B), B, len(x))


PEERS = {
    f.__name__: f
    for f in (
        keras_tf,
        keras_tf_xla,
        keras_jax,
        keras_torch,
        keras_torch_compiled,
        torch_raw,
        torch_raw_compile,
        jax_raw,
        tf1_session,
        numpy_raw,
    )
}
