"""W3: variable-length LSTM (hidden and input 256), batch 64, lengths 10..200 (mean about 60),
eight batches in turn, each padded to 200. Loss: squared error over the valid steps only;
zero state after the end. SGD on the weights. The first three losses must agree."""

import numpy as np

from common import bench, dev, rand, tf1
from w01_lstm_train import _cell_jax, _lstm_tf

H, B, T, NB, LR = 256, 64, 200, 8, 20.0
PARAMS = [dict()]


def data():
    f, r = rand(0), np.random.RandomState(1)
    k = H**-0.5
    w = [f(H, 4 * H, k=k), f(H, 4 * H, k=k), np.zeros(4 * H, "f4")]
    lens = np.clip(10 + r.exponential(50, (NB, B)), 10, 200).astype("int32")
    return f(NB, T, B, H), f(NB, T, B, H, k=0.5), lens, w


def go(step, lens):
    return bench(step, mean_len=round(float(lens.mean()), 1), mean_max_len=round(float(lens.max(1).mean()), 1))


class Cycle:
    """Eight batches in turn."""

    def __init__(self, *arrays):
        self.a, self.i = arrays, -1

    def __call__(self):
        self.i = (self.i + 1) % NB
        return [a[self.i] for a in self.a]


def torch_packed(p):
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence as pack

    x, y, lens, w = data()
    m = torch.nn.LSTM(H, H)
    with torch.no_grad():
        m.weight_ih_l0.copy_(torch.from_numpy(w[0].T))
        m.weight_hh_l0.copy_(torch.from_numpy(w[1].T))
        m.bias_ih_l0.zero_()
        m.bias_hh_l0.zero_()
    opt = torch.optim.SGD([m.weight_ih_l0, m.weight_hh_l0, m.bias_ih_l0], lr=LR)
    nxt = Cycle(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(lens))

    def step():
        x, y, n = nxt()
        m.zero_grad()
        h, _ = m(pack(x, n, enforce_sorted=False))
        yp = pack(y, n, enforce_sorted=False).data  # same order as h.data
        loss = ((h.data - yp) ** 2).sum() / (n.sum() * H)
        loss.backward()
        opt.step()
        return loss.item()

    return go(step, lens)


def torch_padded(p):
    """No packing: run all 200 steps, mask the loss."""
    import torch

    x, y, lens, w = data()
    m = torch.nn.LSTM(H, H)
    with torch.no_grad():
        m.weight_ih_l0.copy_(torch.from_numpy(w[0].T))
        m.weight_hh_l0.copy_(torch.from_numpy(w[1].T))
        m.bias_ih_l0.zero_()
        m.bias_hh_l0.zero_()
    opt = torch.optim.SGD([m.weight_ih_l0, m.weight_hh_l0, m.bias_ih_l0], lr=LR)
    nxt = Cycle(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(lens))
    t = torch.arange(T)[:, None]

    def step():
        x, y, n = nxt()
        m.zero_grad()
        mask = (t < n[None]).float()[..., None]
        loss = (((m(x)[0] - y) ** 2) * mask).sum() / (n.sum() * H)
        loss.backward()
        opt.step()
        return loss.item()

    return go(step, lens)


def jax_scan_mask(p):
    import jax
    import jax.numpy as jnp

    x, y, lens, w = data()
    nxt = Cycle(list(map(dev, x)), list(map(dev, y)), list(map(dev, lens)))

    def loss_fn(w, x, y, n):
        Wx, Wh, b = w
        mask = (jnp.arange(T)[:, None] < n[None]).astype(jnp.float32)[..., None]

        def body(hc, inp):
            xt, m = inp
            h, c = _cell_jax(xt + hc[0] @ Wh, hc[1])
            out = h * m
            return (jnp.where(m > 0, h, hc[0]), jnp.where(m > 0, c, hc[1])), out

        z0 = jnp.zeros((B, H), jnp.float32)
        _, hs = jax.lax.scan(body, (z0, z0), (x @ Wx + b, mask))
        return jnp.sum((hs - y) ** 2 * mask) / (jnp.sum(n) * H)

    @jax.jit
    def train(w, x, y, n):
        loss, g = jax.value_and_grad(loss_fn)(w, x, y, n)
        return loss, [a - LR * d for a, d in zip(w, g)]

    st = [list(map(dev, w))]

    def step():
        loss, st[0] = train(st[0], *nxt())
        return float(loss)

    return go(step, lens)


def _loss_tf(tf, h, y, n):
    m = tf.cast(tf.sequence_mask(n, tf.shape(h)[0]), tf.float32)
    return tf.reduce_sum(tf.reduce_sum((h - y) ** 2, -1) * tf.transpose(m)) / tf.cast(tf.reduce_sum(n) * H, tf.float32)


def _while_tf(tf, x, n, w):
    """tf.while_loop up to the batch's longest sequence, copy-through past each end."""
    Wx, Wh, b = w
    where = getattr(tf, "where_v2", tf.where)  # the broadcasting one
    L = tf.reduce_max(n)
    z = tf.reshape(tf.matmul(tf.reshape(x[:L], [-1, H]), Wx) + b, [-1, B, 4 * H])
    zin = tf.TensorArray(tf.float32, size=L, element_shape=[B, 4 * H]).unstack(z)
    out = tf.TensorArray(tf.float32, size=L, element_shape=[B, H])
    z0 = tf.zeros([B, H])

    def body(t, h, c, out):
        h1, c1 = _lstm_tf(tf, zin.read(t) + tf.matmul(h, Wh), c)
        on = (t < n)[:, None]
        return t + 1, where(on, h1, h), where(on, c1, c), out.write(t, where(on, h1, z0))

    return tf.while_loop(lambda t, *_: t < L, body, (tf.constant(0), z0, z0, out), parallel_iterations=32)[3].stack(), L


def _tf1(loss_of):
    tf = tf1()
    x, y, lens, w = data()
    xs, ys, ns = (tf.Variable(a, trainable=False, use_resource=True) for a in (x, y, lens))
    w = [tf.Variable(a, use_resource=True) for a in w]
    k = tf.placeholder(tf.int32, [])
    loss = loss_of(tf, xs[k], ys[k], ns[k], w)
    train = tf.group(*[a.assign_sub(LR * d) for a, d in zip(w, tf.gradients(loss, w))])
    s = tf.Session()
    s.run(tf.global_variables_initializer())
    f, it = s.make_callable([loss, train], [k]), Cycle(range(NB))
    return go(lambda: f(it()[0])[0], lens)


def tf1_dynamic_rnn(p):
    """tf.compat.v1.nn.dynamic_rnn(sequence_length=...), hand-written cell."""

    def loss_of(tf, x, y, n, w):
        W = tf.concat(w[:2], 0)

        class Cell:
            state_size, output_size = (H, H), H

            def zero_state(self, b, dtype):
                return tf.zeros([b, H]), tf.zeros([b, H])

            def __call__(self, x, s, scope=None):
                h, c = _lstm_tf(tf, tf.matmul(tf.concat([x, s[0]], 1), W) + w[2], s[1])
                return h, (h, c)

        x.set_shape([T, B, H])
        h, _ = tf.nn.dynamic_rnn(Cell(), x, sequence_length=n, dtype=tf.float32, time_major=True)
        return _loss_tf(tf, h, y, n)

    return _tf1(loss_of)


def tf1_while(p):
    def loss_of(tf, x, y, n, w):
        h, L = _while_tf(tf, x, n, w)
        return _loss_tf(tf, h, y[:L], n)

    return _tf1(loss_of)


def tf2_while(p):
    import tensorflow as tf

    x, y, lens, w = data()
    nxt = Cycle([tf.constant(a) for a in x], [tf.constant(a) for a in y], [tf.constant(a) for a in lens])
    w = [tf.Variable(a) for a in w]

    @tf.function
    def train(x, y, n):
        with tf.GradientTape() as g:
            h, L = _while_tf(tf, x, n, w)
            loss = _loss_tf(tf, h, y[:L], n)
        for a, d in zip(w, g.gradient(loss, w)):
            a.assign_sub(LR * d)
        return loss

    return go(lambda: train(*nxt()).numpy(), lens)


PEERS = {f.__name__: f for f in (torch_packed, torch_padded, jax_scan_mask, tf1_dynamic_rnn, tf1_while, tf2_while)}
