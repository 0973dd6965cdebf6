"""W13: beam search. An LSTM decoder of 256 units, batch 32, 4 beams a row, at most 50 tokens. One unit counts steps,
from a start of its own in each row, and so decides when the row ends: after 6 to 49 tokens, 20 on average, as there are
more short sentences than long ones. Finished sequences are kept apart, the beam is filled up with what goes on, and the
search stops when no live beam of any row can still win. Results must agree."""

import numpy as np

from common import bench, rand

H, E, B, W, L, START, END = 256, 256, 32, 4, 50, 1, 0
PARAMS = {"*": [dict(V=8000), dict(V=1000)]}


def data(vocabulary):
    """Embedding; LSTM weights for inputs and states (gates i, f, g, o) and bias; readout and bias; first states."""
    f = rand(0)
    embedding = f(vocabulary, E)
    Wx, Wh, b = f(E, 4 * H, k=E**-0.5), f(H, 4 * H, k=H**-0.5), np.zeros(4 * H, "f4")
    out, out_b = f(H, vocabulary, k=0.5), np.zeros(vocabulary, "f4")
    h, c = np.zeros((B, H), "f4"), f(B, H)
    # Unit 0 counts: all of its gates are open and its cell grows by a half at each step.
    Wx[:, ::H], Wh[:, ::H], b[::H] = 0, 0, 12
    b[2 * H] = np.arctanh(0.5)
    c[:, 0] = -0.5 * np.random.RandomState(1).permutation(5 + 43 * np.linspace(0, 1, B) ** 2)
    out[0], out[:, END], out[0, END] = 0, 0, 30
    return embedding, Wx, Wh, b, out, out_b, h, c


def summary(sequences, scores, lengths, vocabulary):
    """One number that all of a result goes into."""
    return float(np.mean(scores) + np.mean(lengths) + np.mean(sequences) / vocabulary)


def _decoder(vocabulary):
    import torch

    embedding, Wx, Wh, b, out, out_b, h, c = (torch.from_numpy(a) for a in data(vocabulary))
    cell = torch.nn.LSTMCell(E, H)
    readout = torch.nn.Linear(H, vocabulary)
    with torch.no_grad():
        cell.weight_ih.copy_(Wx.T), cell.weight_hh.copy_(Wh.T), cell.bias_ih.copy_(b), cell.bias_hh.zero_()
        readout.weight.copy_(out.T), readout.bias.copy_(out_b)
    return torch.nn.Embedding.from_pretrained(embedding), cell, readout, h, c


def _torch(p, compacts):
    import torch

    V = p["V"]
    embedding, cell, readout, h0, c0 = _decoder(V)

    @torch.no_grad()
    def search():
        found = torch.full((B, W, L), END)
        found_scores, found_lengths = torch.full((B, W), -torch.inf), torch.zeros(B, W, dtype=torch.long)
        rows, out = torch.arange(B), (found, found_scores, found_lengths)  # the rows at work; all that was found
        h, c = h0.repeat_interleave(W, 0), c0.repeat_interleave(W, 0)
        tokens = torch.full((B * W,), START)
        sequences = torch.full((B, W, L), END)
        logs = torch.full((B, W), -torch.inf)
        logs[:, 0] = 0
        for length in range(1, L + 1):
            n = len(rows)
            h, c = cell(embedding(tokens), (h, c))
            total = torch.log_softmax(readout(h), -1).view(n, W, V).add_(logs[:, :, None])
            # At most one candidate a beam ends: among twice as many there are enough that go on.
            best, places = total.view(n, W * V).topk(2 * W)
            beams, tokens = places // V, places % V
            extended = sequences.gather(1, beams[:, :, None].expand(-1, -1, L))
            extended[:, :, length - 1] = tokens
            ends = tokens == END
            finished = best[:, :W].masked_fill(~(ends[:, :W] | (length == L)), -torch.inf)
            scores, order = torch.cat([out[1][rows], finished], 1).topk(W)
            found = torch.cat([out[0][rows], extended[:, :W]], 1).gather(1, order[:, :, None].expand(-1, -1, L))
            lengths = torch.cat([out[2][rows], torch.full((n, W), length)], 1).gather(1, order)
            for whole, part in zip(out, (found, scores, lengths)):
                whole[rows] = part
            logs, order = best.masked_fill(ends, -torch.inf).topk(W)
            done = scores[:, -1] >= logs[:, 0]
            if done.all():
                break
            sequences = extended.gather(1, order[:, :, None].expand(-1, -1, L))
            tokens = tokens.gather(1, order).view(-1)
            moved = (torch.arange(n)[:, None] * W + beams.gather(1, order)).view(-1)
            h, c = h[moved], c[moved]
            logs = logs.masked_fill(done[:, None], -torch.inf)
            if compacts and done.any():
                live = ~done
                rows, logs, sequences = rows[live], logs[live], sequences[live]
                tokens, h, c = (a[live.repeat_interleave(W)] for a in (tokens, h, c))
        return out

    def step():
        found, scores, lengths = search()
        return summary(found.numpy(), scores.numpy(), lengths.numpy(), V)

    return bench(step)


def torch_eager(p):
    return _torch(p, compacts=False)


def torch_eager_compact(p):
    """Rows that are done are taken out of the batch, at once."""
    return _torch(p, compacts=True)


PEERS = {f.__name__: f for f in (torch_eager, torch_eager_compact)}
