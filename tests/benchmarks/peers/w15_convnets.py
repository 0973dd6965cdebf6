"""W15: a training step of four convnets on images of 224 x 224 (Overfeat: 231 x 231), random classes of 1,000, SGD. The
table of OSDI'16 (table 1), whose networks are those of https://github.com/soumith/convnet-benchmarks: AlexNet of "one
weird trick", the fast Overfeat, model A of OxfordNet, GoogleNet v1 without its auxiliary heads; no dropout and no local
normalisation. Same weights; the first three losses must agree."""

import numpy as np

from common import bench

CLASSES, LR = 1000, 1e-4
PARAMS = [dict(model=m, B=b) for m, b in (("GoogleNet", 8), ("AlexNet", 16), ("Overfeat", 8), ("OxfordNet", 4))]


def conv(filters, size=3, stride=1, padding="same"):
    return ("conv", filters, size, stride, padding)


def block(one, reduce_three, three, reduce_five, five, pooled):
    return ("inception", (one, (reduce_three, three), (reduce_five, five), pooled))


def dense(*units):
    return [("flatten",), *[("dense", n, "relu") for n in units], ("dense", CLASSES, None)]


POOL2, POOL3, POOL3_SAME = ("max", 2, "valid"), ("max", 3, "valid"), ("max", 3, "same")  # strides of 2
# Size of images, and layers; a relu follows each convolution.
NETS = {
    "AlexNet": (
        224,
        [
            *[("pad", 2), conv(64, 11, 4, "valid"), POOL3],
            *[conv(192, 5), POOL3],
            *[conv(384), conv(256), conv(256), POOL3],
            *dense(4096, 4096),
        ],
    ),
    "Overfeat": (
        231,
        [
            *[conv(96, 11, 4, "valid"), POOL2],
            *[conv(256, 5, 1, "valid"), POOL2],
            *[conv(512), conv(1024), conv(1024), POOL2],
            *dense(3072, 4096),
        ],
    ),
    "OxfordNet": (
        224,
        [
            *[conv(64), POOL2],
            *[conv(128), POOL2],
            *[conv(256), conv(256), POOL2],
            *[conv(512), conv(512), POOL2],
            *[conv(512), conv(512), POOL2],
            *dense(4096, 4096),
        ],
    ),
    "GoogleNet": (
        224,
        [
            *[("pad", 3), conv(64, 7, 2, "valid"), POOL3_SAME],
            *[conv(64, 1), conv(192), POOL3_SAME],
            *[block(64, 96, 128, 16, 32, 32), block(128, 128, 192, 32, 96, 64), POOL3_SAME],
            block(192, 96, 208, 16, 48, 64),
            block(160, 112, 224, 24, 64, 64),
            block(128, 128, 256, 24, 64, 64),
            block(112, 144, 288, 32, 64, 64),
            *[block(256, 160, 320, 32, 128, 128), POOL3_SAME],
            *[block(256, 160, 320, 32, 128, 128), block(384, 192, 384, 48, 128, 128)],
            *[("mean",), ("dense", CLASSES, None)],
        ],
    ),
}


def output(layer, shape):
    """The shape that a layer makes of one (height, width, channels)."""
    kind, *args = layer
    height, width, channels = shape
    if kind == "pad":
        return height + 2 * args[0], width + 2 * args[0], channels
    if kind == "mean":
        return 1, 1, channels
    if kind == "flatten":
        return 1, 1, height * width * channels
    if kind == "dense":
        return 1, 1, args[0]
    if kind == "inception":
        one, (_, three), (_, five), pooled = args[0]
        return height, width, one + three + five + pooled
    size, stride = args[-3:-1] if kind == "conv" else (args[0], 2)
    beyond = 1 if args[-1] == "same" else size
    out = lambda n: (n - beyond) // stride + 1
    return out(height), out(width), args[0] if kind == "conv" else channels


def kernels(name):
    """The shape of each kernel: [height, width, channels, filters], or [inputs, units]."""
    size, layers = NETS[name]
    shape = (size, size, 3)
    for layer in layers:
        kind, *args = layer
        c = shape[-1]
        if kind == "conv":
            yield (args[1], args[1], c, args[0])
        if kind == "dense":
            yield (c, args[0])
        if kind == "inception":
            one, (reduce_three, three), (reduce_five, five), pooled = args[0]
            yield from ((1, 1, c, one), (1, 1, c, reduce_three), (3, 3, reduce_three, three))
            yield from ((1, 1, c, reduce_five), (5, 5, reduce_five, five), (1, 1, c, pooled))
        shape = output(layer, shape)


def data(name, batch):
    """Images, classes, and kernels and biases (He et al., 2015; the last layer's a tenth of that)."""
    r = np.random.default_rng(0)
    size, shapes = NETS[name][0], list(kernels(name))
    w = []
    for shape in shapes:
        kernel = r.standard_normal(shape, "f4")
        kernel *= np.float32((0.1 if shape is shapes[-1] else 1) * (2 / np.prod(shape[:-1])) ** 0.5)
        w += [kernel, np.zeros(shape[-1], "f4")]
    return r.standard_normal((batch, size, size, 3), "f4"), r.integers(0, CLASSES, batch).astype("i4"), w


def _keras(p, jit="auto"):
    import keras

    L, made = keras.layers, []
    x, y, w = data(p["model"], p["B"])

    def kept(layer):
        made.append(layer)
        return layer

    def c(n, k=3, s=1, pad="same"):
        return kept(L.Conv2D(n, k, s, pad, activation="relu"))

    def inception(h, one, three, five, pooled):
        a, b = c(one, 1)(h), c(three[0], 1)(h)
        b, d = c(three[1])(b), c(five[0], 1)(h)
        return L.Concatenate()([a, b, c(five[1], 5)(d), c(pooled, 1)(L.MaxPooling2D(3, 1, "same")(h))])

    make = {
        "pad": L.ZeroPadding2D,
        "conv": c,
        "max": lambda k, pad: L.MaxPooling2D(k, 2, pad),
        "mean": L.GlobalAveragePooling2D,
        "flatten": L.Flatten,
        "dense": lambda n, f: kept(L.Dense(n, f)),
        "inception": lambda filters: lambda h: inception(h, *filters),
    }
    h = i = keras.Input(x.shape[1:])
    for kind, *args in NETS[p["model"]][1]:
        h = make[kind](*args)(h)
    m = keras.Model(i, h)
    for k, layer in enumerate(made):
        layer.set_weights(w[2 * k : 2 * k + 2])
    m.compile(keras.optimizers.SGD(LR), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)

    def step():
        m.reset_metrics()  # the loss of this step, and no mean
        return m.train_on_batch(x, y)

    return bench(step)


def keras_jax(p):
    return _keras(p)


def keras_tf(p):
    return _keras(p)


def keras_tf_nojit(p):
    """Without XLA, which Keras takes by default."""
    return _keras(p, False)


def torch_net(name, w):
    """NCHW; rows of the dense kernel after `flatten` are permuted so that it computes the same function."""
    import torch

    n, w = torch.nn, iter(w)

    def filled(m, order):
        with torch.no_grad():
            m.weight.copy_(torch.from_numpy(next(w).transpose(order)))
            m.bias.copy_(torch.from_numpy(next(w)))
        return m

    def c(i, o, k, s=1, pad="same"):
        return n.Sequential(filled(n.Conv2d(i, o, k, s, k // 2 if pad == "same" else 0), (3, 2, 0, 1)), n.ReLU())

    class Inception(n.Module):
        def __init__(self, i, one, three, five, pooled):
            super().__init__()
            self.a, self.b = c(i, one, 1), n.Sequential(c(i, three[0], 1), c(*three, 3))
            self.c = n.Sequential(c(i, five[0], 1), c(*five, 5))
            self.d = n.Sequential(n.MaxPool2d(3, 1, 1), c(i, pooled, 1))

        def forward(self, h):
            return torch.cat([f(h) for f in (self.a, self.b, self.c, self.d)], 1)

    size, layers = NETS[name]
    shape, pad, made, before = (size, size, 3), 0, [], None
    for layer in layers:
        kind, *args = layer
        if kind == "pad":
            pad = args[0]
        elif kind == "conv":
            made.append(c(shape[-1] if not pad else 3, *args))
            made[-1][0].padding = (pad, pad) if pad else made[-1][0].padding
            pad = 0
        elif kind == "max":
            made.append(n.MaxPool2d(args[0], 2, ceil_mode=args[1] == "same"))
        elif kind == "inception":
            made.append(Inception(shape[-1], *args[0]))
        elif kind == "dense":
            made.append(filled(n.Linear(shape[-1], args[0]), (1, 0)))
            if before:  # rows in the order of channels, height, width
                kernel = made[-1].weight.data
                made[-1].weight.data = kernel.view(-1, *before).permute(0, 3, 1, 2).reshape(kernel.shape)
            made += [n.ReLU()] if args[1] else []
        else:
            made += [n.AdaptiveAvgPool2d(1)] * (kind == "mean") + [n.Flatten()]
        before = shape if kind == "flatten" else None
        shape = output(layer, shape)
    return n.Sequential(*made)


def torch_eager(p, wrap=lambda m: m, last=False):
    import torch

    x, y, w = data(p["model"], p["B"])
    m = torch_net(p["model"], w)
    x, y = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(y).long()
    if last:
        m, x = m.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    f, opt = wrap(m), torch.optim.SGD(m.parameters(), lr=LR)

    def step():
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(f(x), y)
        loss.backward()
        opt.step()
        return loss.item()

    return bench(step)


def torch_channels_last(p):
    return torch_eager(p, last=True)


def torch_compile(p):
    import torch

    return torch_eager(p, torch.compile, last=True)


PEERS = {f.__name__: f for f in (keras_jax, keras_tf, keras_tf_nojit, torch_eager, torch_channels_last, torch_compile)}
