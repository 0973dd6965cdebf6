"""W8: 1,000,000 x 64 embedding, batch 256 x 20 ids (uniform), sum-pool -> dense 10 ->
cross-entropy; SGD (lr 1) or Adagrad (lr 0.1, eps 1e-7, start 0.1) on only the rows used.
50 batches in turn. The first three losses must agree (per optimiser)."""

import numpy as np

from common import bench, dev, rand, tf1

V, D, B, K, NB = 1000000, 64, 256, 20, 50
PARAMS = {
    "*": [dict(opt="sgd"), dict(opt="adagrad")],
    "torch_dense_grad": [dict(opt="sgd")],
    "torch_sparse_adam": [dict(opt="sparse_adam")],
}
LR = dict(sgd=1.0, adagrad=0.1)


def data():
    f, r = rand(0), np.random.RandomState(1)
    E = f(V, D, k=0.05)
    W, b = f(D, 10, k=0.1), np.zeros(10, "f4")
    return E, W, b, r.randint(0, V, (NB, B, K)).astype("int32"), r.randint(0, 10, (NB, B)).astype("int32")


class Next:
    def __init__(self, a, b):
        self.z, self.i = list(zip(a, b)), -1

    def __call__(self):
        self.i = (self.i + 1) % NB
        return self.z[self.i]


def _torch(p, sparse):
    import torch

    E, W, b, ids, y = data()
    bag = torch.nn.EmbeddingBag(V, D, mode="sum", sparse=sparse, _weight=torch.from_numpy(E))
    lin = torch.nn.Linear(D, 10)
    with torch.no_grad():
        lin.weight.copy_(torch.from_numpy(W.T))
        lin.bias.zero_()
    both = list(bag.parameters()) + list(lin.parameters())
    o = torch.optim
    opts = (
        [o.SGD(both, lr=1.0)]
        if p["opt"] == "sgd"
        else [o.Adagrad(both, lr=0.1, eps=1e-7, initial_accumulator_value=0.1)]
        if p["opt"] == "adagrad"
        else [o.SparseAdam(list(bag.parameters()), lr=1e-3), o.Adam(lin.parameters(), lr=1e-3)]
    )
    nxt = Next(torch.from_numpy(ids).long(), torch.from_numpy(y).long())

    def step():
        i, y = nxt()
        bag.zero_grad()
        lin.zero_grad()
        loss = torch.nn.functional.cross_entropy(lin(bag(i)), y)
        loss.backward()
        for op in opts:
            op.step()
        return loss.item()

    return bench(step)


def torch_sparse(p):
    return _torch(p, True)


def torch_sparse_adam(p):
    return _torch(p, True)


def torch_dense_grad(p):
    return _torch(p, False)


def tf1_indexed_slices(p):
    tf = tf1()
    E, W, b, ids, y = data()
    ip, yp = tf.placeholder(tf.int32, [B, K]), tf.placeholder(tf.int32, [B])
    init = tf.placeholder(tf.float32, E.shape)
    E_, W, b = (
        tf.Variable(init, use_resource=True),
        tf.Variable(W, use_resource=True),
        tf.Variable(b, use_resource=True),
    )
    h = tf.reduce_sum(tf.nn.embedding_lookup(E_, ip), 1)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=yp, logits=tf.matmul(h, W) + b))
    opt = tf.train.GradientDescentOptimizer(1.0) if p["opt"] == "sgd" else tf.train.AdagradOptimizer(0.1, 0.1)
    train = opt.minimize(loss)
    s = tf.Session()
    s.run(tf.global_variables_initializer(), {init: E})
    f, nxt = s.make_callable([loss, train], [ip, yp]), Next(ids, y)
    return bench(lambda: f(*nxt())[0])


def keras_tf(p):
    """Keras 3 on TensorFlow: GradientTape IndexedSlices into a keras optimizer, tf.function step."""
    import keras
    import tensorflow as tf

    E, W, b, ids, y = data()
    L = keras.layers
    m = keras.Sequential(
        [L.Input((K,), dtype="int32"), L.Embedding(V, D), L.Lambda(lambda a: keras.ops.sum(a, 1)), L.Dense(10)]
    )
    m.set_weights([E, W, b])
    opt = keras.optimizers.SGD(1.0) if p["opt"] == "sgd" else keras.optimizers.Adagrad(0.1, 0.1, epsilon=1e-7)
    opt.build(m.trainable_variables)

    @tf.function
    def train(i, y):
        with tf.GradientTape() as g:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=m(i)))
        opt.apply(g.gradient(loss, [v.value for v in m.trainable_variables]), m.trainable_variables)
        return loss

    nxt = Next([tf.constant(a) for a in ids], [tf.constant(a) for a in y])
    return bench(lambda: train(*nxt()).numpy())


def jax_at_add(p):
    """By hand: gradient at the gathered rows, duplicates summed by sorting (Adagrad), donated table."""
    import jax
    import jax.numpy as jnp

    E, W, b, ids, y = data()

    def loss_fn(rows, W, b, y):
        z = rows.sum(1) @ W + b
        return -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], 1).mean()

    def train(E, A, W, b, aw, ab, i, y):
        loss, (gr, gw, gb) = jax.value_and_grad(loss_fn, (0, 1, 2))(E[i], W, b, y)
        i, gr = i.reshape(-1), gr.reshape(-1, D)
        if p["opt"] == "sgd":
            return loss, E.at[i].add(-gr), A, W - gw, b - gb, aw, ab
        u, inv = jnp.unique(i, return_inverse=True, size=i.size, fill_value=V)  # V: out of range, dropped
        g = jnp.zeros_like(gr).at[inv].add(gr)
        a = A[u] + g * g
        A = A.at[u].set(a, mode="drop")
        E = E.at[u].add(-0.1 * g / (jnp.sqrt(a) + 1e-7), mode="drop")
        aw, ab = aw + gw * gw, ab + gb * gb
        return loss, E, A, W - 0.1 * gw / jnp.sqrt(aw), b - 0.1 * gb / jnp.sqrt(ab), aw, ab

    train = jax.jit(train, donate_argnums=tuple(range(6)))
    A = np.full(E.shape if p["opt"] == "adagrad" else (1,), 0.1, "f4")
    st = [[dev(a) for a in (E, A, W, b, np.full(W.shape, 0.1, "f4"), np.full(b.shape, 0.1, "f4"))]]
    nxt = Next([dev(a) for a in ids], [dev(a) for a in y])

    def step():
        loss, *st[0] = train(*st[0], *nxt())
        st[0][0].block_until_ready()
        return float(loss)

    return bench(step)


def numpy_raw(p):
    """Hand-written numpy; duplicate ids summed with a sort and add.reduceat."""
    E, W, b, ids, y = data()
    A, aw, ab = (np.full(a.shape, 0.1, "f4") for a in (E if p["opt"] == "adagrad" else b, W, b))
    nxt, r = Next(ids, y), np.arange(B)

    def step():
        nonlocal W, b, aw, ab
        i, y = nxt()
        h = E[i].sum(1)
        z = h @ W + b
        z -= z.max(1, keepdims=True)
        e = np.exp(z)
        q = e.sum(1, keepdims=True)
        loss = (np.log(q[:, 0]) - z[r, y]).mean()
        e /= q
        e[r, y] -= 1
        e /= B
        gw, gb, gh = h.T @ e, e.sum(0), e @ W.T
        flat = i.reshape(-1)
        order = np.argsort(flat)
        s = flat[order]
        at = np.flatnonzero(np.r_[True, s[1:] != s[:-1]])
        g, u = np.add.reduceat(gh[order // K], at), s[at]
        if p["opt"] == "sgd":
            E[u] -= g
            W = W - gw
            b = b - gb
        else:
            a = A[u] + g * g
            A[u] = a
            E[u] -= np.float32(0.1) * g / (np.sqrt(a) + np.float32(1e-7))
            aw += gw * gw
            ab += gb * gb
            W = W - np.float32(0.1) * gw / np.sqrt(aw)
            b = b - np.float32(0.1) * gb / np.sqrt(ab)
        return loss

    return bench(step)


PEERS = {
    f.__name__: f
    for f in (torch_sparse, torch_sparse_adam, torch_dense_grad, tf1_indexed_slices, keras_tf, jax_at_add, numpy_raw)
}
