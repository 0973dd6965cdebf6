"""W24: two LSTMs of 128 units and a dense layer for one row of 20 steps of 128 features, as a client waits for it.
The sum of the ten scores must agree."""

from common import bench, dev, rand

T, UNITS, CLASSES = 20, 128, 10
REPS = 3000  # so that what a program does in its first few hundred runs is not what is measured
PARAMS = {"*": [{}]}


def data():
    """A row, and Keras's weights: kernel, recurrent kernel and bias of each LSTM (gates i, f, g, o), then the last."""
    f, k = rand(0), UNITS**-0.5
    w = []
    for _ in range(2):
        w += [f(UNITS, 4 * UNITS, k=k), f(UNITS, 4 * UNITS, k=k), f(4 * UNITS, k=0.1)]
    return f(1, T, UNITS), [*w, f(UNITS, CLASSES, k=k), f(CLASSES, k=0.1)]


def jax_scan(p):
    import jax
    import jax.numpy as jnp

    x, weights = data()
    w = [dev(a) for a in weights]

    def lstm(x, kernel, recurrent, bias):
        def cell(state, row):
            h, c = state
            i, f, g, o = jnp.split(row + h @ recurrent, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((1, UNITS))
        return jax.lax.scan(cell, (zero, zero), x @ kernel + bias)[1]

    @jax.jit
    def predict(w, x):
        states = lstm(lstm(x.transpose(1, 0, 2), *w[:3]), *w[3:6])
        return states[-1] @ w[6] + w[7]

    return bench(lambda: float(jax.device_get(predict(w, x)).sum()), max_reps=REPS)


def torch_eager(p):
    import torch

    x, w = data()
    x = torch.from_numpy(x)
    net, last = torch.nn.LSTM(UNITS, UNITS, 2, batch_first=True), torch.nn.Linear(UNITS, CLASSES)
    with torch.no_grad():
        for layer in range(2):
            kernel, recurrent, bias = (torch.from_numpy(a) for a in w[3 * layer : 3 * layer + 3])
            getattr(net, f"weight_ih_l{layer}").copy_(kernel.T)
            getattr(net, f"weight_hh_l{layer}").copy_(recurrent.T)
            getattr(net, f"bias_ih_l{layer}").copy_(bias)
            getattr(net, f"bias_hh_l{layer}").zero_()
        last.weight.copy_(torch.from_numpy(w[6].T))
        last.bias.copy_(torch.from_numpy(w[7]))

    @torch.inference_mode()
    def predict():
        return last(net(x)[0][:, -1]).sum().item()

    return bench(predict, max_reps=REPS)


PEERS = {f.__name__: f for f in (jax_scan, torch_eager)}
