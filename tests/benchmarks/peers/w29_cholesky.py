"""W29: the Cholesky factor of a matrix of N x N, and the factor with the gradient of a weighted sum of its elements.
The last element of the factor, or the first of the gradient, must agree."""

import numpy as np

from common import bench, dev, rand

PARAMS = [dict(of="factor", N=400), dict(of="gradient", N=400), dict(of="factor", N=2000), dict(of="gradient", N=2000)]


def data(n):
    """A matrix with eigenvalues from 1 to about 5, and weights of its factor's elements."""
    f = rand(0)
    a = f(n, n, k=n**-0.5)
    return a @ a.T + np.eye(n, dtype="f4"), f(n, n)


def numpy_raw(p):
    """Written out by hand, the gradient by a whole inverse (Murray, 2016, equation 10)."""
    a, w = data(p["N"])

    def factor():
        return float(np.linalg.cholesky(a)[-1, -1])

    def gradient():
        lower = np.linalg.cholesky(a)
        phi = np.tril(lower.T @ np.tril(w))
        phi[np.diag_indices(len(lower))] *= 0.5
        inverse = np.linalg.inv(lower)
        s = inverse.T @ phi @ inverse
        return float((0.5 * (s + s.T))[0, 0])

    return bench(factor if p["of"] == "factor" else gradient)


def jax_raw(p):
    import jax
    import jax.numpy as jnp

    a, w = (dev(each) for each in data(p["N"]))
    factor_of = jax.jit(jnp.linalg.cholesky)
    gradient_of = jax.jit(jax.grad(lambda a: jnp.sum(w * jnp.linalg.cholesky(a))))

    def factor():
        return float(jax.block_until_ready(factor_of(a))[-1, -1])

    def gradient():
        return float(jax.block_until_ready(gradient_of(a))[0, 0])

    return bench(factor if p["of"] == "factor" else gradient)


PEERS = {"numpy_raw": numpy_raw, "jax_raw": jax_raw}
