"""W30: loops of other fields than recurrent nets. "soft_dtw": soft dynamic time warping (Cuturi & Blondel, 2017) of two
sequences of 60 rows, a scan in a scan, with the gradient by both; the value must agree. "heat": 100 explicit steps of
the heat equation on a grid of 256 x 256, by slices; the sum of the grid's right half must agree."""

import numpy as np

from common import bench, dev, rand

ROWS, WIDTH, FAR = 60, 5, 1e4
GRID, STEPS, RATE = 256, 100, 0.1
PARAMS = [{"of": "soft_dtw"}, {"of": "heat"}]


def data(of):
    f = rand(0)
    return [f(ROWS, WIDTH), f(ROWS, WIDTH)] if of == "soft_dtw" else [f(GRID, GRID)]


def jax_scan(p):
    import jax
    import jax.numpy as jnp

    arrays = [dev(a) for a in data(p["of"])]
    return bench(soft_dtw(jax, jnp, arrays) if p["of"] == "soft_dtw" else heat(jax, jnp, arrays))


def soft_dtw(jax, jnp, arrays):
    def value(a, b):
        costs = jnp.sum(jnp.square(a[:, None] - b[None]), -1)

        def row(before, cost):
            def cell(left, given):
                up, diagonal, own = given
                new = own - jax.nn.logsumexp(jnp.stack([-left, -up, -diagonal]))
                return new, new

            _, new = jax.lax.scan(cell, jnp.float32(FAR), (before[1:], before[:-1], cost))
            return jnp.concatenate([jnp.full((1,), FAR), new]), None

        first = jnp.concatenate([jnp.zeros((1,)), jnp.full((ROWS,), FAR)])
        return jax.lax.scan(row, first, costs)[0][-1]

    run = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))

    def step():
        found, slopes = run(*arrays)
        jax.block_until_ready(slopes)
        return float(found)

    return step


def heat(jax, jnp, arrays):
    def advance(_, u):
        inner = u[1:-1, 1:-1]
        around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
        return u.at[1:-1, 1:-1].set(inner + RATE * (around - 4 * inner))

    run = jax.jit(lambda u: jax.lax.fori_loop(0, STEPS, advance, u))
    return lambda: float(np.asarray(run(*arrays))[:, GRID // 2 :].sum(dtype="float64"))


PEERS = {"jax_scan": jax_scan}
