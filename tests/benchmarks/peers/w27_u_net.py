"""W27: a training step of a U-shaped convnet (Ronneberger et al., 2015) on 16 images of 64 x 64: down to a quarter by
maxima, up again by transposed convolutions, joined with what is of the same size; mean squared error for each pixel,
SGD. The first three losses must agree."""

from common import bench, dev, rand

B, SIZE, LR = 16, 64, 0.002
DOWN = ((3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64))
UP = ((2, 2, 32, 64), (3, 3, 64, 32), (2, 2, 16, 32), (3, 3, 32, 16), (1, 1, 16, 1))  # 2 x 2: filters before channels
PARAMS = {"*": [{}]}


def data():
    """Images, what each pixel should become, and the kernels, of a deviation that keeps results small."""
    f = rand(0)
    fans = [s[0] * s[1] * s[2] if s[0] != 2 else s[3] for s in (*DOWN, *UP)]
    kernels = [f(*shape, k=fan**-0.5) for shape, fan in zip((*DOWN, *UP), fans)]
    return f(B, SIZE, SIZE, 3), f(B, SIZE, SIZE, 1), kernels


def outputs(x, kernels, ops):
    """The result by functions of `ops`: relu, conv (same), halved (maxima of 2 x 2), doubled, joined (channels)."""
    one, two, three, up, four, last_up, five, last = kernels
    fine = ops.relu(ops.conv(x, one))
    coarse = ops.relu(ops.conv(ops.halved(fine), two))
    deep = ops.relu(ops.conv(ops.halved(coarse), three))
    coarse = ops.relu(ops.conv(ops.joined(coarse, ops.doubled(deep, up)), four))
    fine = ops.relu(ops.conv(ops.joined(fine, ops.doubled(coarse, last_up)), five))
    return ops.conv(fine, last)


def jax_raw(p):
    import jax
    import jax.numpy as jnp

    dims = ("NHWC", "HWIO", "NHWC")

    class Ops:
        relu = jax.nn.relu

        def conv(x, w):
            return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)

        def halved(x):
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

        def doubled(x, w):
            return jax.lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=dims, transpose_kernel=True)

        def joined(a, b):
            return jnp.concatenate([a, b], -1)

    x, y, kernels = data()
    x, y, w = dev(x), dev(y), [dev(a) for a in kernels]

    @jax.jit
    def update(w):
        loss, g = jax.value_and_grad(lambda w: jnp.square(outputs(x, w, Ops) - y).mean())(w)
        return loss, [a - LR * b for a, b in zip(w, g)]

    def step():
        nonlocal w
        loss, w = update(w)
        jax.block_until_ready(w)
        return float(loss)

    return bench(step)


def torch_eager(p, last=False):
    import torch

    F = torch.nn.functional

    class Ops:
        relu = F.relu

        def conv(x, w):
            return F.conv2d(x, w, padding=w.shape[-1] // 2)

        def halved(x):
            return F.max_pool2d(x, 2)

        def doubled(x, w):
            return F.conv_transpose2d(x, w, stride=2)

        def joined(a, b):
            return torch.cat([a, b], 1)

    layout = {"memory_format": torch.channels_last} if last else {}
    x, y, kernels = data()
    x, y = (torch.tensor(a.transpose(0, 3, 1, 2).copy()).contiguous(**layout) for a in (x, y))
    w = [torch.tensor(a.transpose(3, 2, 0, 1).copy()).contiguous(**layout).requires_grad_() for a in kernels]
    optimizer = torch.optim.SGD(w, lr=LR)

    def step():
        optimizer.zero_grad()
        loss = F.mse_loss(outputs(x, w, Ops), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return bench(step)


def torch_channels_last(p):
    return torch_eager(p, last=True)


PEERS = {f.__name__: f for f in (jax_raw, torch_eager, torch_channels_last)}
