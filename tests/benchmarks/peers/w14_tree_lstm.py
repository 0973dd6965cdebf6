"""W14: binary Tree-LSTM, 150 units over 150 features a node, on 25 random trees of 20 to 50 leaves. Loss: mean square
of (the roots' states - targets). SGD on all weights. The first three losses must agree. What the trees look like is
prepared once, outside the step: links for the recursion, places by level for the other."""

import numpy as np

from common import bench, rand

U = F = 150
TREES, LEAVES, LR = 25, (20, 50), 0.5
PARAMS = [dict()]


def draw(r, leaves, nodes):
    """Appends a random tree to `nodes`, its root first; the number of the root."""
    me = len(nodes)
    nodes.append([-1, -1])
    if leaves > 1:
        left = int(r.randint(1, leaves))
        nodes[me] = [draw(r, left, nodes), draw(r, leaves - left, nodes)]
    return me


def data():
    """Children and features of each tree, node 0 the root; targets; kernel, recurrent kernel, bias. Gates are in the
    order i, f, candidate, o; the recurrent kernel has an f for each child."""
    r, f = np.random.RandomState(0), rand(1)
    trees = []
    for _ in range(TREES):
        nodes = []
        draw(r, int(r.randint(LEAVES[0], LEAVES[1] + 1)), nodes)
        trees.append((np.array(nodes), f(len(nodes), F, k=0.5)))
    bias = np.zeros(4 * U, "f4")
    bias[U : 2 * U] = 1
    return trees, f(TREES, U, k=0.5), [f(F, 4 * U, k=F**-0.5), f(2 * U, 5 * U, k=(2 * U) ** -0.5), bias]


def _torch(states):
    import torch

    trees, y, w = data()
    x = torch.from_numpy(np.concatenate([features for _, features in trees]))
    y, w = torch.from_numpy(y), [torch.nn.Parameter(torch.from_numpy(a)) for a in w]
    opt = torch.optim.SGD(w, lr=LR)
    firsts = np.cumsum([0] + [len(c) for c, _ in trees])[:-1]
    links = np.concatenate([np.where(c >= 0, c + first, -1) for (c, _), first in zip(trees, firsts)])
    forward = states(torch, links, firsts)

    def step():
        opt.zero_grad()
        loss = ((forward(x, *w) - y) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.item()

    return bench(step)


def torch_eager(p):
    """Node by node, by recursion."""

    def states(torch, links, roots):
        links = links.tolist()

        def forward(x, kernel, recurrent, bias):
            gates = (x @ kernel + bias).unbind()  # indexing would make a gradient of the whole for each node

            def node(j):
                i, f, z, o = gates[j].chunk(4)
                left, right = links[j]
                if left < 0:
                    c = torch.sigmoid(i) * torch.tanh(z)
                    return torch.sigmoid(o) * torch.tanh(c), c
                (hl, cl), (hr, cr) = node(left), node(right)
                ri, fl, fr, rz, ro = (torch.cat([hl, hr]) @ recurrent).chunk(5)
                c = torch.sigmoid(i + ri) * torch.tanh(z + rz)
                c = c + torch.sigmoid(f + fl) * cl + torch.sigmoid(f + fr) * cr
                return torch.sigmoid(o + ro) * torch.tanh(c), c

            return torch.stack([node(r)[0] for r in roots])

        return forward

    return _torch(states)


def torch_levels(p):
    """All nodes of one height in all trees together; leaves at once."""

    def states(torch, links, roots):
        heights = np.zeros(len(links), int)
        for j in range(len(links) - 1, -1, -1):  # children come behind their parents
            if links[j, 0] >= 0:
                heights[j] = 1 + heights[links[j]].max()
        levels = [np.flatnonzero(heights == h) for h in range(heights.max() + 1)]
        place = np.empty(len(links), int)
        place[np.concatenate(levels)] = np.arange(len(links))
        below = [torch.from_numpy(place[links[level]].ravel()) for level in levels[1:]]
        levels = [torch.from_numpy(level) for level in levels]
        roots = torch.from_numpy(place[roots])

        def forward(x, kernel, recurrent, bias):
            gates = x @ kernel + bias
            i, _, z, o = gates[levels[0]].chunk(4, 1)
            c = torch.sigmoid(i) * torch.tanh(z)
            h = torch.sigmoid(o) * torch.tanh(c)
            for level, children in zip(levels[1:], below):
                i, f, z, o = gates[level].chunk(4, 1)
                ri, fl, fr, rz, ro = (h[children].view(-1, 2 * U) @ recurrent).chunk(5, 1)
                cl, cr = c[children].view(-1, 2, U).unbind(1)
                new = torch.sigmoid(i + ri) * torch.tanh(z + rz)
                new = new + torch.sigmoid(f + fl) * cl + torch.sigmoid(f + fr) * cr
                h = torch.cat([h, torch.sigmoid(o + ro) * torch.tanh(new)])
                c = torch.cat([c, new])
            return h[roots]

        return forward

    return _torch(states)


PEERS = {f.__name__: f for f in (torch_eager, torch_levels)}
