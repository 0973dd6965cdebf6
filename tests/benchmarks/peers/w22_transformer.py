"""W22 and W23: a decoder-only transformer (Vaswani et al., 2017; norms before each part), 4 layers of 256 features, 4
heads, 1,024 features inside, 1,000 tokens. W22 is a training step on 8 sequences of 128 tokens, SGD; the first three
losses must agree. W23 generates 64 tokens for each of 8 sequences, one after the other, the keys and values of those
before kept; the mean score of the tokens that were chosen must agree."""

import numpy as np

from common import bench, dev, rand

LAYERS, WIDTH, HEADS, INNER, V, B, T, LENGTH, LR = 4, 256, 4, 1024, 1000, 8, 128, 64, 0.1
SIZE = WIDTH // HEADS
EPSILON = 1e-5
PARAMS = {"*": [dict(task="train"), dict(task="generate")]}


def data():
    """Tokens, those that follow, and the weights: embeddings, then those of each layer, then the last norm."""
    f, r = rand(0), np.random.RandomState(1)
    tokens = r.randint(0, V, (B, T + 1)).astype("int32")
    w = [f(V, WIDTH, k=0.05), f(T, WIDTH, k=0.05)]
    one, zero = np.ones(WIDTH, "f4"), np.zeros(WIDTH, "f4")
    for _ in range(LAYERS):
        w += [one.copy(), zero.copy(), f(WIDTH, 3 * WIDTH, k=WIDTH**-0.5), f(WIDTH, WIDTH, k=0.5 * WIDTH**-0.5)]
        w += [one.copy(), zero.copy(), f(WIDTH, INNER, k=WIDTH**-0.5), np.zeros(INNER, "f4")]
        w += [f(INNER, WIDTH, k=0.5 * INNER**-0.5), zero.copy()]
    return tokens[:, :-1].copy(), tokens[:, 1:].copy(), [*w, one.copy(), zero.copy()]


def scores(x, weights, norm, gelu, attend, turned=lambda matrix: matrix.T):
    """The scores of all tokens for each place, from sums of embeddings; `attend(layer, q_k_v)` is attention's."""
    table, rest = weights[0], weights[2:]
    for layer in range(LAYERS):
        scale, offset, project, out, scale_2, offset_2, up, bias, down, bias_2 = rest[10 * layer : 10 * layer + 10]
        x = x + attend(layer, norm(x, scale, offset) @ project) @ out
        x = x + gelu(norm(x, scale_2, offset_2) @ up + bias) @ down + bias_2
    return norm(x, *rest[-2:]) @ turned(table)


def _jax():
    import jax
    import jax.numpy as jnp

    def norm(x, scale, offset):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * scale + offset

    return jax, jnp, norm, jax.nn.gelu


def jax_raw(p):
    return _jax_train() if p["task"] == "train" else _jax_generate()


def _jax_train():
    jax, jnp, norm, gelu = _jax()
    tokens, following, weights = data()
    tokens, following, w = dev(tokens), dev(following), [dev(a) for a in weights]

    def attend(_, both):
        q, k, v = (a.reshape(B, T, HEADS, SIZE) for a in jnp.split(both, 3, -1))
        return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(B, T, WIDTH)

    def loss_of(w):
        rows = jax.nn.log_softmax(scores(w[0][tokens] + w[1], w, norm, gelu, attend))
        return -jnp.take_along_axis(rows, following[..., None], -1).mean()

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


def _jax_generate():
    jax, jnp, norm, gelu = _jax()
    tokens, _, weights = data()
    first, w = dev(tokens[:, 0]), [dev(a) for a in weights]

    @jax.jit
    def generate(w, first):
        def body(state, i):
            token, cache = state
            cache = list(cache)

            def attend(layer, both):
                q, k, v = (a.reshape(B, 1, HEADS, SIZE) for a in jnp.split(both, 3, -1))
                keys, values = cache[layer]
                keys = jax.lax.dynamic_update_slice(keys, k, (0, i, 0, 0))
                values = jax.lax.dynamic_update_slice(values, v, (0, i, 0, 0))
                cache[layer] = keys, values
                found = jnp.einsum("bqhd,bkhd->bhqk", q, keys) * SIZE**-0.5
                found = jax.nn.softmax(jnp.where(jnp.arange(LENGTH) <= i, found, -1e9))
                return jnp.einsum("bhqk,bkhd->bqhd", found, values).reshape(B, 1, WIDTH)

            rows = scores((w[0][token] + w[1][i])[:, None], w, norm, gelu, attend)[:, 0]
            return (rows.argmax(-1), tuple(cache)), rows.max(-1).mean()

        empty = jnp.zeros((B, LENGTH, HEADS, SIZE))
        state = (first, ((empty, empty),) * LAYERS)
        return jax.lax.scan(body, state, jnp.arange(LENGTH))[1].mean()

    return bench(lambda: float(generate(w, first)))


def torch_eager(p):
    return _torch_train() if p["task"] == "train" else _torch_generate()


def _torch():
    import torch

    F = torch.nn.functional
    tokens, following, weights = data()

    def norm(x, scale, offset):
        return F.layer_norm(x, (WIDTH,), scale, offset, EPSILON)

    w = [torch.from_numpy(a) for a in weights]
    ids = [torch.from_numpy(a).long() for a in (tokens, following)]
    return torch, F, norm, lambda x: F.gelu(x, approximate="tanh"), w, ids


def _torch_train():
    torch, F, norm, gelu, w, (tokens, following) = _torch()
    w = [a.requires_grad_() for a in w]
    optimizer = torch.optim.SGD(w, lr=LR)

    def attend(_, both):
        q, k, v = (a.view(B, T, HEADS, SIZE).transpose(1, 2) for a in both.split(WIDTH, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, WIDTH)

    def step():
        optimizer.zero_grad()
        rows = scores(F.embedding(tokens, w[0]) + w[1], w, norm, gelu, attend)
        loss = F.cross_entropy(rows.view(-1, V), following.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.item()

    return bench(step)


def _torch_generate():
    """Attention sees those keys and values alone that are there."""
    torch, F, norm, gelu, w, (tokens, _) = _torch()
    keys, values = (torch.zeros(LAYERS, B, HEADS, LENGTH, SIZE) for _ in range(2))

    @torch.inference_mode()
    def generate():
        token, total = tokens[:, 0], torch.zeros(())
        for i in range(LENGTH):

            def attend(layer, both):
                q, k, v = (a.view(B, HEADS, 1, SIZE) for a in both.split(WIDTH, -1))
                keys[layer, :, :, i : i + 1], values[layer, :, :, i : i + 1] = k, v
                kept = keys[layer, :, :, : i + 1], values[layer, :, :, : i + 1]
                return F.scaled_dot_product_attention(q, *kept).reshape(B, 1, WIDTH)

            rows = scores((w[0][token] + w[1][i])[:, None], w, norm, gelu, attend)[:, 0]
            best = rows.max(-1)
            token, total = best.indices, total + best.values.mean()
        return total.item() / LENGTH

    return bench(generate)


PEERS = {"jax_raw": jax_raw, "torch_eager": torch_eager}
