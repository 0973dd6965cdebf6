"""W28: a minimal gated unit (Zhou et al., 2016) written by hand, as a user would: 192 units, batch 48, 50
steps. Mean-square loss, SGD on the six weights. The first three losses must agree."""

import numpy as np

from common import bench, dev, rand

H, B, T, LR = 192, 48, 50, 20.0
PARAMS = [{}]


def data():
    """Inputs, targets, and for the gate and the candidate: kernel, recurrent kernel, bias."""
    f = rand(0)
    k = H**-0.5
    w = [f(H, H, k=k), f(H, H, k=k), np.zeros(H, "f4"), f(H, H, k=k), f(H, H, k=k), np.zeros(H, "f4")]
    return f(T, B, H), f(T, B, H, k=0.5), w


def jax_scan(p):
    import jax
    import jax.numpy as jnp

    x, y, w = data()
    x, y, w = dev(x), dev(y), [dev(a) for a in w]

    def loss_of(w):
        wf, uf, bf, wc, uc, bc = w

        def body(h, xt):
            f = jax.nn.sigmoid(xt @ wf + h @ uf + bf)
            h = (1 - f) * h + f * jnp.tanh(xt @ wc + (f * h) @ uc + bc)
            return h, h

        return jnp.mean((jax.lax.scan(body, jnp.zeros((B, H), jnp.float32), x)[1] - y) ** 2)

    @jax.jit
    def update(w):
        loss, g = jax.value_and_grad(loss_of)(w)
        return loss, [a - LR * b for a, b in zip(w, g)]

    def step():
        nonlocal w
        loss, w = update(w)
        jax.block_until_ready(w)
        return float(loss)

    return bench(step)


PEERS = {"jax_scan": jax_scan}
