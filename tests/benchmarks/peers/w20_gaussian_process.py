"""W20: a step of learning the hyperparameters of a Gaussian process. N points of 6 features, an RBF kernel with a
length scale for each feature, an amplitude and noise, all by their logarithms; negative log likelihood by the Cholesky
factor, its gradient, SGD. The first three losses must agree."""

import numpy as np

from common import bench, dev, rand

D, LR = 6, 1e-4
PARAMS = {"*": [dict(n=400)]}


def data(n):
    """Points, targets, and the logarithms of length scales, amplitude and noise."""
    f = rand(0)
    x = f(n, D)
    y = np.sin(x.sum(1, keepdims=True)) + f(n, 1, k=0.1)
    return x, y.astype("f4"), np.zeros(D, "f4"), np.float32(0), np.float32(-2)


def numpy_raw(p):
    """Written out by hand, the gradient by a whole inverse, as before there was automatic differentiation."""
    x, y, scales, amplitude, noise = data(p["n"])
    eye, state = np.eye(len(x), dtype="f4"), [scales, amplitude, noise]

    def step():
        s, a, e = state
        z = x * np.exp(-s)
        square = (z * z).sum(1)
        distances = np.maximum(square[:, None] + square - 2 * z @ z.T, 0)
        k = np.exp(2 * a - 0.5 * distances)
        factor = np.linalg.cholesky(k + np.exp(e) * eye)
        inverse = np.linalg.inv(factor)
        alpha = inverse.T @ (inverse @ y)
        loss = 0.5 * float((y * alpha).sum()) + float(np.log(np.diag(factor)).sum())
        g = 0.5 * (inverse.T @ inverse - alpha @ alpha.T)
        gk = g * k
        # d/ds of -0.5 * distances is the difference of each feature, squared
        rows = gk.sum(1)
        ds = np.array([2 * (z[:, i] ** 2) @ rows - 2 * z[:, i] @ (gk @ z[:, i]) for i in range(D)], "f4")
        state[:] = s - LR * ds, a - LR * 2 * gk.sum(), e - LR * np.exp(e) * np.trace(g)
        return loss

    return bench(step)


def jax_raw(p):
    import jax
    import jax.numpy as jnp
    from jax.scipy.linalg import solve_triangular

    x, y, *weights = data(p["n"])
    x, y, w = dev(x), dev(y), [dev(a) for a in weights]
    eye = jnp.eye(len(x))

    def loss_of(w):
        s, a, e = w
        z = x * jnp.exp(-s)
        distances = jnp.square(z[:, None] - z[None]).sum(-1)
        factor = jnp.linalg.cholesky(jnp.exp(2 * a - 0.5 * distances) + jnp.exp(e) * eye)
        half = solve_triangular(factor, y, lower=True)
        return 0.5 * jnp.sum(half * half) + jnp.sum(jnp.log(jnp.diag(factor)))

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


PEERS = {"numpy_raw": numpy_raw, "jax_raw": jax_raw}
