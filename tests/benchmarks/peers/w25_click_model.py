"""W25: a training step of a click model (DLRM; Naumov et al., 2019) for 512 rows: 26 categories of 10,000 values with
16 features each, 13 numbers through two layers, products of all pairs of the 27 vectors, and three layers, of which the
last gives the logit; SGD, which changes only the rows of the tables that were used. 20 batches in turn. The first three
losses must agree."""

import numpy as np

from common import bench, dev, rand

B, TABLES, VALUES, D, NUMBERS, LR, BATCHES = 512, 26, 10_000, 16, 13, 0.1, 20
BOTTOM, TOP = (64, D), (256, 128, 1)
PLACES = np.flatnonzero(np.tri(TABLES + 1, k=-1, dtype=bool)).astype("int32")  # each pair once, of the matrix by rows
PARAMS = {"*": [{}]}


def data():
    """Numbers, places in the joined tables, clicks, the tables, and the weights of the layers."""
    f, r = rand(0), np.random.RandomState(1)
    ids = r.randint(0, VALUES, (BATCHES, B, TABLES)) + np.arange(TABLES) * VALUES
    clicks = r.randint(0, 2, (BATCHES, B)).astype("f4")
    weights = []
    for sizes in ((NUMBERS, *BOTTOM), (D + len(PLACES), *TOP)):
        for size, units in zip(sizes, sizes[1:]):
            weights += [f(size, units, k=(2 / size) ** 0.5), np.zeros(units, "f4")]
    return f(BATCHES, B, NUMBERS), ids.astype("int32"), clicks, f(TABLES * VALUES, D, k=0.25), weights


def logits(x, rows, weights, ops):
    """The logits by functions of `ops`: relu, concatenate(values, axis), turned (axes 1 and 2), chosen (pairs)."""
    for k in range(0, 4, 2):
        x = ops.relu(x @ weights[k] + weights[k + 1])
    vectors = ops.concatenate([x[:, None], rows], 1)
    x = ops.concatenate([x, ops.chosen(vectors @ ops.turned(vectors))], 1)
    for k in range(4, 8, 2):
        x = ops.relu(x @ weights[k] + weights[k + 1])
    return (x @ weights[8] + weights[9])[:, 0]


class Next:
    def __init__(self, *arrays):
        self.batches, self.number = list(zip(*arrays)), -1

    def __call__(self):
        self.number = (self.number + 1) % BATCHES
        return self.batches[self.number]


def jax_at_add(p):
    import jax
    import jax.numpy as jnp

    class Ops:
        relu = jax.nn.relu
        concatenate = jnp.concatenate

        def turned(x):
            return x.transpose(0, 2, 1)

        def chosen(x):
            return x.reshape(B, -1)[:, PLACES]

    x, ids, clicks, table, weights = data()

    def loss_of(rows, w, x, y):
        z = logits(x, rows, w, Ops)
        return (jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z)))).mean()

    def update(table, w, x, ids, y):
        loss, (rows, g) = jax.value_and_grad(loss_of, (0, 1))(table[ids], w, x, y)
        return loss, table.at[ids].add(-LR * rows), [a - LR * b for a, b in zip(w, g)]

    train = jax.jit(update, donate_argnums=(0, 1))
    table, w, following = dev(table), [dev(a) for a in weights], Next(x, ids, clicks)

    def step():
        nonlocal table, w
        loss, table, w = train(table, w, *following())
        jax.block_until_ready(table)
        return float(loss)

    return bench(step)


def torch_sparse(p):
    import torch

    F, places = torch.nn.functional, torch.from_numpy(PLACES).long()

    class Ops:
        relu = F.relu
        concatenate = torch.cat

        def turned(x):
            return x.transpose(1, 2)

        def chosen(x):
            return x.reshape(B, -1)[:, places]

    x, ids, clicks, table, weights = data()
    table = torch.from_numpy(table).requires_grad_()
    w = [torch.from_numpy(a).requires_grad_() for a in weights]
    optimizer = torch.optim.SGD([table, *w], lr=LR)
    following = Next(torch.from_numpy(x), torch.from_numpy(ids).long(), torch.from_numpy(clicks))

    def step():
        x, i, y = following()
        optimizer.zero_grad()
        z = logits(x, F.embedding(i, table, sparse=True), w, Ops)
        loss = F.binary_cross_entropy_with_logits(z, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return bench(step)


PEERS = {f.__name__: f for f in (jax_at_add, torch_sparse)}
