"""W18 and W19: a training step of two small convnets, by hand: a depthwise separable one (Howard et al., 2017) on 32
images of 64 x 64, and a residual one with batch normalisation (He et al., 2015) on 64 images of 32 x 32; 10 classes,
SGD. "Same" padding is TensorFlow's; normalisation is by the batch, without moving averages. The first three losses
must agree."""

import numpy as np

from common import bench, dev, rand

PARAMS = {"*": [dict(net="depthwise"), dict(net="residual")]}
SIZES = {"depthwise": (32, 64), "residual": (64, 32)}  # images, and their size
LR = {"depthwise": 0.02, "residual": 0.01}
SEPARABLE = ((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512))  # strides and filters
RESIDUAL = ((1, 32), (1, 32), (2, 64), (1, 64), (2, 128), (1, 128))
EPSILON = 1e-3


def shapes(net):
    """The shapes of all weights, in order; kernels are [height, width, channels, filters], or [3, 3, c, 1]."""
    c = 32
    yield from ((3, 3, 3, c), (c,))
    for stride, filters in SEPARABLE if net == "depthwise" else RESIDUAL:
        if net == "depthwise":
            yield from ((3, 3, c, 1), (c,), (1, 1, c, filters), (filters,))
        else:
            yield from ((3, 3, c, filters), (filters,), (filters,), (3, 3, filters, filters), (filters,), (filters,))
            if (stride, filters) != (1, c):
                yield (1, 1, c, filters)
        c = filters
    yield from ((c, 10), (10,))


def data(net):
    """Images, classes and weights: kernels after He et al., scales of one before offsets of zero, biases of zero."""
    f, (batch, size) = rand(0), SIZES[net]
    x = f(batch, size, size, 3)
    y = np.random.RandomState(1).randint(0, 10, batch).astype("int32")
    weights, vectors = [], 0
    for shape in shapes(net):
        if len(shape) == 1:
            vectors += 1
            is_scale = net == "residual" and vectors % 2 == 0 and shape != (10,)  # behind the first bias
            weights.append(np.ones(shape, "f4") if is_scale else np.zeros(shape, "f4"))
            continue
        fan = shape[0] * shape[1] * (1 if shape[-1] == 1 else shape[2]) if len(shape) == 4 else shape[0]
        weights.append(f(*shape, k=(2 / fan) ** 0.5))
    return x, y, weights


def logits(net, x, weights, ops):
    """The network by functions of `ops`: conv(x, w, stride), depthwise(x, w, stride), relu, mean, normalised."""
    take = iter(weights).__next__
    x = ops.relu(ops.conv(x, take(), 2 if net == "depthwise" else 1) + take())
    channels = 32
    for stride, filters in SEPARABLE if net == "depthwise" else RESIDUAL:
        if net == "depthwise":
            x = ops.relu(ops.depthwise(x, take(), stride) + take())
            x = ops.relu(ops.conv(x, take(), 1) + take())
        else:
            inner = ops.relu(ops.normalised(ops.conv(x, take(), stride), take(), take()))
            inner = ops.normalised(ops.conv(inner, take(), 1), take(), take())
            x = ops.relu(inner + (x if (stride, filters) == (1, channels) else ops.conv(x, take(), stride)))
        channels = filters
    return ops.mean(x) @ take() + take()


def jax_raw(p):
    import jax
    import jax.numpy as jnp

    class Ops:
        relu = jax.nn.relu

        def conv(x, w, stride, groups=1):
            dims = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, w, (stride, stride), "SAME", dimension_numbers=dims, feature_group_count=groups
            )

        def depthwise(x, w, stride):
            return Ops.conv(x, w.transpose(0, 1, 3, 2), stride, x.shape[-1])

        def mean(x):
            return x.mean((1, 2))

        def normalised(x, scale, offset):
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * scale + offset

    net = p["net"]
    x, y, weights = data(net)
    x, y, w = dev(x), dev(y), [dev(a) for a in weights]

    def loss_of(w):
        rows = jax.nn.log_softmax(logits(net, x, w, Ops))
        return -jnp.take_along_axis(rows, y[:, None], 1).mean()

    @jax.jit
    def update(w):
        loss, g = jax.value_and_grad(loss_of)(w)
        return loss, [a - LR[net] * b for a, b in zip(w, g)]

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

        def conv(x, w, stride, groups=1):
            size = w.shape[-1]
            if stride == 2 and size == 3:  # TensorFlow's "same" of even sizes has its zeros at the end
                return F.conv2d(F.pad(x, (0, 1, 0, 1)), w, stride=2, groups=groups)
            return F.conv2d(x, w, stride=stride, padding=size // 2, groups=groups)

        def depthwise(x, w, stride):
            return Ops.conv(x, w, stride, x.shape[1])

        def mean(x):
            return x.mean((2, 3))

        def normalised(x, scale, offset):
            return F.batch_norm(x, None, None, scale.flatten(), offset.flatten(), True, 0.1, EPSILON)

    net = p["net"]
    x, y, weights = data(net)
    layout = {"memory_format": torch.channels_last} if last else {}

    def weight(a):
        if a.ndim == 4:
            a = a.transpose((2, 3, 0, 1) if a.shape[-1] == 1 else (3, 2, 0, 1))
            return torch.tensor(a.copy()).contiguous(**layout).requires_grad_()
        return torch.tensor(a[:, None, None] if a.ndim == 1 and a.shape != (10,) else a).requires_grad_()

    x, y = torch.tensor(x.transpose(0, 3, 1, 2).copy()).contiguous(**layout), torch.tensor(y).long()
    w = [weight(a) for a in weights]
    optimizer = torch.optim.SGD(w, lr=LR[net])

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(net, x, w, Ops), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return bench(step)


def torch_channels_last(p):
    return torch_eager(p, True)


PEERS = {f.__name__: f for f in (jax_raw, torch_eager, torch_channels_last)}
