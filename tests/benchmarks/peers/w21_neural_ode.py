"""W21: a training step of a neural ODE (Chen et al., 2018): a field of two layers, integrated by 40 steps of RK4 for 64
states of 16 numbers; the gradient goes back through all of them; mean squared error, SGD. The first three losses must
agree."""

import numpy as np

from common import bench, dev, rand

B, D, HIDDEN, STEPS, LR = 64, 16, 64, 40, 0.1
SIZE = np.float32(1 / STEPS)
PARAMS = {"*": [{}]}


def data():
    """First states, the states that they should become, and the weights of the field."""
    f = rand(0)
    x = f(B, D)
    y = np.sin(x[:, ::-1]) + f(B, D, k=0.1)
    return x, y.astype("f4"), [f(D, HIDDEN, k=D**-0.5), f(HIDDEN, k=0.1), f(HIDDEN, D, k=HIDDEN**-0.5), f(D, k=0.1)]


def advanced(x, weights, tanh):
    """One step of RK4."""
    a, b, c, d = weights

    def field(x):
        return tanh(x @ a + b) @ c + d

    first = field(x)
    second = field(x + 0.5 * SIZE * first)
    third = field(x + 0.5 * SIZE * second)
    return x + SIZE / 6 * (first + 2 * second + 2 * third + field(x + SIZE * third))


def jax_scan(p):
    import jax
    import jax.numpy as jnp

    x, y, weights = data()
    x, y, w = dev(x), dev(y), [dev(a) for a in weights]

    def loss_of(w):
        final, _ = jax.lax.scan(lambda x, _: (advanced(x, w, jnp.tanh), None), x, None, STEPS)
        return jnp.square(final - y).mean()

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


def torch_eager(p, compiled=False):
    import torch

    x, y, weights = data()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    w = [torch.from_numpy(a).requires_grad_() for a in weights]
    optimizer = torch.optim.SGD(w, lr=LR)

    def loss_of():
        z = x
        for _ in range(STEPS):
            z = advanced(z, w, torch.tanh)
        return (z - y).square().mean()

    forward = torch.compile(loss_of) if compiled else loss_of

    def step():
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.item()

    return bench(step)


def torch_compile(p):
    return torch_eager(p, compiled=True)


PEERS = {f.__name__: f for f in (jax_scan, torch_eager, torch_compile)}
