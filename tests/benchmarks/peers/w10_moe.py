"""W10: mixture of experts, top-2 of 8, d 256, hidden 1024 (relu), 4096 tokens. Gate weights:
softmax over the two chosen logits. Mean-square loss to a target, SGD on router and experts;
no token dropped. The first three losses must agree."""

from common import bench, dev, rand, tf1

N, D, F, E, LR = 4096, 256, 1024, 8, 0.5
PARAMS = [dict()]


def data():
    f = rand(0)
    return (f(N, D), f(N, D, k=0.5), [f(D, E, k=D**-0.5), f(E, D, F, k=(2 / D) ** 0.5), f(E, F, D, k=F**-0.5)])


def _torch(wrap):
    import torch

    x, y, w = data()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    w = [torch.nn.Parameter(torch.from_numpy(a)) for a in w]
    opt = torch.optim.SGD(w, lr=LR)

    def forward(x, y):
        Wr, W1, W2 = w
        v, e = (x @ Wr).topk(2)
        g = v.softmax(-1)
        out = torch.zeros_like(x)
        for k in range(E):
            i, slot = (e == k).nonzero(as_tuple=True)
            out = out.index_add(0, i, (x[i] @ W1[k]).relu() @ W2[k] * g[i, slot][:, None])
        return ((out - y) ** 2).mean()

    forward = wrap(forward)

    def step():
        opt.zero_grad()
        loss = forward(x, y)
        loss.backward()
        opt.step()
        return loss.item()

    return bench(step)


def torch_gather(p):
    """Per expert: gather its tokens, two matmuls, index_add back."""
    return _torch(lambda f: f)


def torch_gather_compile(p):
    import torch

    return _torch(torch.compile)


def _jax(layer):
    import jax
    import jax.numpy as jnp

    x, y, w = data()
    x, y = dev(x), dev(y)

    def loss_fn(w):
        v, e = jax.lax.top_k(x @ w[0], 2)
        return jnp.mean((layer(jax, jnp, x, e, jax.nn.softmax(v), w[1], w[2]) - y) ** 2)

    @jax.jit
    def train(w):
        loss, g = jax.value_and_grad(loss_fn)(w)
        return loss, [a - LR * d for a, d in zip(w, g)]

    st = [list(map(dev, w))]

    def step():
        loss, st[0] = train(st[0])
        return float(loss)

    return bench(step)


def jax_dense(p):
    """Every expert on every token (4 times the arithmetic), weighted by the one-hot gates."""

    def layer(jax, jnp, x, e, g, W1, W2):
        gates = (jax.nn.one_hot(e, E) * g[..., None]).sum(1)
        h = jax.nn.relu(jnp.einsum("nd,edf->enf", x, W1))
        return jnp.einsum("enf,efd,ne->nd", h, W2, gates)

    return _jax(layer)


def jax_capacity(p):
    """One-hot einsum dispatch (GShard style), capacity 1.25 times the mean load, no drop observed
    only if the losses agree with the others."""
    C = int(1.25 * 2 * N / E)

    def layer(jax, jnp, x, e, g, W1, W2):
        oh = jax.nn.one_hot(e.reshape(-1), E)  # [2N, E]
        pos = (jnp.cumsum(oh, 0) - 1) * oh
        slot = jax.nn.one_hot(pos.sum(-1).astype(int), C)  # [2N, C]
        disp = jnp.einsum("te,tc->tec", oh, slot).reshape(N, 2, E, C)
        xe = jnp.einsum("nkec,nd->ecd", disp, x)
        ye = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", xe, W1)), W2)
        return jnp.einsum("nkec,nk,ecd->nd", disp, g, ye)

    return _jax(layer)


def jax_sort_capacity(p):
    """Sort by expert, gather into [E, C, D], batched matmul, scatter-add back."""
    C = int(1.25 * 2 * N / E)

    def layer(jax, jnp, x, e, g, W1, W2):
        flat = e.reshape(-1)
        order = jnp.argsort(flat)
        ex = flat[order]
        pos = jnp.arange(2 * N) - jnp.searchsorted(ex, jnp.arange(E))[ex]
        xe = jnp.zeros((E, C, D)).at[ex, pos].set(x[order // 2], mode="drop")
        ye = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", xe, W1)), W2)
        return jnp.zeros_like(x).at[order // 2].add(ye[ex, pos] * g.reshape(-1)[order][:, None])

    return _jax(layer)


def jax_ragged_dot(p):
    """Sort by expert and jax.lax.ragged_dot."""

    def layer(jax, jnp, x, e, g, W1, W2):
        flat = e.reshape(-1)
        order = jnp.argsort(flat)
        n = jnp.bincount(flat, length=E).astype(jnp.int32)
        h = jax.nn.relu(jax.lax.ragged_dot(x[order // 2], W1, n))
        ye = jax.lax.ragged_dot(h, W2, n)
        return jnp.zeros_like(x).at[order // 2].add(ye * g.reshape(-1)[order][:, None])

    return _jax(layer)


def _forward_tf(tf, x, y, w):
    Wr, W1, W2 = w
    v, e = tf.math.top_k(tf.matmul(x, Wr), 2)
    g, flat = tf.reshape(tf.nn.softmax(v), [-1]), tf.reshape(e, [-1])
    parts = tf.dynamic_partition(tf.range(2 * N), flat, E)
    out = []
    W1, W2 = tf.unstack(W1), tf.unstack(W2)
    for k, i in enumerate(parts):
        h = tf.nn.relu(tf.matmul(tf.gather(x, i // 2), W1[k]))
        out.append(tf.matmul(h, W2[k]) * tf.gather(g, i)[:, None])
    o = tf.math.unsorted_segment_sum(tf.concat(out, 0), tf.concat(parts, 0) // 2, N)
    return tf.reduce_mean((o - y) ** 2)


def tf2_partition(p):
    """dynamic_partition to experts, segment sum back, in tf.function."""
    import tensorflow as tf

    x, y, w = data()
    x, y, w = tf.constant(x), tf.constant(y), [tf.Variable(a) for a in w]

    @tf.function
    def train():
        with tf.GradientTape() as t:
            loss = _forward_tf(tf, x, y, w)
        for a, d in zip(w, t.gradient(loss, w)):
            a.assign_sub(LR * d)
        return loss

    return bench(lambda: train().numpy())


def tf1_partition(p):
    tf = tf1()
    x, y, w = data()
    w = [tf.Variable(a, use_resource=True) for a in w]
    x, y = (tf.Variable(a, trainable=False, use_resource=True) for a in (x, y))
    loss = _forward_tf(tf, tf.identity(x), y, w)
    train = tf.group(*[a.assign_sub(LR * tf.convert_to_tensor(d)) for a, d in zip(w, tf.gradients(loss, w))])
    s = tf.Session()
    s.run(tf.global_variables_initializer())
    f = s.make_callable([loss, train])
    return bench(lambda: f()[0])


PEERS = {
    f.__name__: f
    for f in (
        torch_gather,
        torch_gather_compile,
        jax_dense,
        jax_capacity,
        jax_sort_capacity,
        jax_ragged_dot,
        tf2_partition,
        tf1_partition,
    )
}
