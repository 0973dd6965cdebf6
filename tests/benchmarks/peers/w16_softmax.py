"""W16: a training step of a language model of 40,000 words, an LSTM of 512 units over 32 sequences of 16 words, with a
softmax over all words or over a sample of 512 (OSDI'16, section 6.4, figure 9, on one machine). SGD; the gradients of
the embedding, and of the softmax over a sample, are rows of the tables. Words and samples are log-uniform. The samples
are drawn beforehand and given to all, so that losses agree: drawing is in nobody's step. 10 batches in turn. The first
three losses must agree (per softmax)."""

import numpy as np

from common import bench

V, U, S, B, L, NB, LR = 40_000, 512, 512, 32, 16, 10, 1.0
N = B * L  # words a step
PARAMS = [dict(softmax="full"), dict(softmax="sampled")]


def probability(words):
    """Return the probability of each word, by Zipf's law as the samplers of all have it."""
    return np.log1p(1 / (words + 1.0)) / np.log1p(V)


def draw(r, count):
    return np.minimum(np.exp(r.uniform(0, np.log1p(V), count)).astype("i8") - 1, V - 1)


def sample(r):
    """Different words, and in how many draws they came up."""
    drawn = draw(r, 20 * S)
    first = np.sort(np.unique(drawn, return_index=True)[1])[:S]
    return drawn[first], first[-1] + 1


def data():
    """Embedding; LSTM weights for inputs and states (gates i, f, candidate, o) and bias; rows of the softmax, biases.
    Batches: words and the words that come next, each [B, L]; sampled words [S], and how often the next words [N, 1] and
    the sampled ones [S] are to be expected in a sample."""
    r = np.random.default_rng(0)
    f = lambda *s, k: np.float32(k) * r.standard_normal(s, "f4")
    w = [f(V, U, k=0.1), f(U, 4 * U, k=U**-0.5), f(U, 4 * U, k=U**-0.5), np.zeros(4 * U, "f4")]
    w += [f(V, U, k=U**-0.5), np.zeros(V, "f4")]
    batches = []
    for _ in range(NB):
        text, (sampled, tries) = draw(r, (B, L + 1)), sample(r)
        words, following = text[:, :-1].astype("i4"), text[:, 1:].astype("i4")
        expected = lambda k: (-np.expm1(tries * np.log1p(-probability(k)))).astype("f4")
        batches.append((words, following, sampled, expected(following.reshape(N, 1)), expected(sampled)))
    return w, batches


def in_turn(batches):
    """A function that gives one batch after the other, again and again."""
    place = [-1]

    def following():
        place[0] = (place[0] + 1) % len(batches)
        return batches[place[0]]

    return following


def torch_eager(p):
    import torch

    n, F = torch.nn, torch.nn.functional
    (embedding, Wx, Wh, b, rows, biases), batches = data()
    words = n.Embedding.from_pretrained(torch.from_numpy(embedding), freeze=False, sparse=True)
    lstm = n.LSTM(U, U, batch_first=True)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.from_numpy(Wx.T)), lstm.weight_hh_l0.copy_(torch.from_numpy(Wh.T))
        lstm.bias_ih_l0.copy_(torch.from_numpy(b)), lstm.bias_hh_l0.zero_()
    rows, biases = torch.from_numpy(rows), torch.from_numpy(biases)
    weights = [*words.parameters(), lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0]  # one bias is enough

    if p["softmax"] == "full":
        out = n.Linear(U, V)
        out.weight.data, out.bias.data = rows, biases
        weights += out.parameters()

        def loss_of(h, following, *_):
            return F.cross_entropy(out(h), following.view(-1))

    else:
        table = n.Embedding.from_pretrained(rows, freeze=False, sparse=True)
        bias = n.Embedding.from_pretrained(biases[:, None], freeze=False, sparse=True)
        weights += [*table.parameters(), *bias.parameters()]
        first = torch.zeros(N, dtype=torch.long)

        def loss_of(h, following, sampled, true_expected, sampled_expected):
            labels = following.view(-1)
            chosen = torch.cat([labels, sampled])
            w, b = table(chosen), bias(chosen)[:, 0]
            true = (h * w[:N]).sum(1) + b[:N] - true_expected[:, 0].log()
            others = torch.addmm(b[N:] - sampled_expected.log(), h, w[N:].T)
            others = others.masked_fill(sampled == labels[:, None], -1e30)  # accidental hits
            return F.cross_entropy(torch.cat([true[:, None], others], 1), first)

    opt = torch.optim.SGD(weights, lr=LR)
    of = lambda a: torch.from_numpy(a).long() if a.dtype == "i4" else torch.from_numpy(a)
    batch = in_turn([[of(a) for a in c] for c in batches])

    def step():
        given, following, *rest = batch()
        opt.zero_grad()
        h = lstm(words(given))[0].reshape(N, U)
        loss = loss_of(h, following, *rest)
        loss.backward()
        opt.step()
        return loss.item()

    return bench(step)


def keras_tf(p):
    """Keras's layers and optimizer, and `tf.nn.sampled_softmax_loss`, in a step by `tf.function`."""
    import keras
    import tensorflow as tf

    K = keras.layers
    (embedding, Wx, Wh, b, rows, biases), batches = data()
    m = keras.Sequential([K.Input((L,), dtype="int32"), K.Embedding(V, U), K.LSTM(U, return_sequences=True)])
    m.set_weights([embedding, Wx, Wh, b])
    if p["softmax"] == "full":
        out = K.Dense(V)
        out.build((N, U))
        out.set_weights([rows.T, biases])
        variables = [*m.trainable_variables, *out.trainable_variables]

        def losses(h, following, *_):
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(following, [-1]), logits=out(h))

    else:
        table, bias = keras.Variable(rows), keras.Variable(biases)
        variables = [*m.trainable_variables, table, bias]

        def losses(h, following, *sampled_values):
            labels = tf.reshape(following, [-1, 1])
            return tf.nn.sampled_softmax_loss(table.value, bias.value, labels, h, S, V, sampled_values=sampled_values)

    opt = keras.optimizers.SGD(LR)
    opt.build(variables)

    @tf.function
    def train(given, *rest):
        with tf.GradientTape() as g:
            loss = tf.reduce_mean(losses(tf.reshape(m(given), [N, U]), *rest))
        opt.apply(g.gradient(loss, [v.value for v in variables]), variables)
        return loss

    batch = in_turn([[tf.constant(a) for a in c] for c in batches])
    return bench(lambda: train(*batch()).numpy())


PEERS = {f.__name__: f for f in (torch_eager, keras_tf)}
