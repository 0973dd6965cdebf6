"""Train PyTorch on the three tasks of docs/examples.md that are known outside: the same numbers, settings and first
values (by the same rules), written as a user of PyTorch would write it. The example writes the numbers and shows both:

    python examples/penn_treebank.py --arrays penn_treebank.npz
    .env-torch/bin/python recognised.py penn_treebank penn_treebank.npz penn_treebank.json
    python examples/penn_treebank.py --beside penn_treebank.json

The others are `cifar10` and `multi30k`. Seconds are processor time of training, in one thread.
"""

import argparse
import json
import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

torch.set_num_threads(1)


class Means:
    """The mean loss of the epoch so far, twenty times in an epoch."""

    def __init__(self, steps):
        self.often, self.step = max(1, steps // 20), 0
        self.found = {"steps": [], "losses": []}

    def epoch(self):
        self.total = self.weights = 0.0

    def add(self, loss, weight=1.0):
        self.total, self.weights, self.step = self.total + weight * loss, self.weights + weight, self.step + 1
        if self.step % self.often == 0:
            self.found["steps"].append(self.step)
            self.found["losses"].append(self.total / self.weights)


# --- the language model ---------------------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    def __init__(self, words, units):
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, num_layers=2, batch_first=True)
        self.output = nn.Linear(units, words)
        for layer in range(2):  # one bias, as the paper's and Keras's LSTM have, and not the sum of two
            getattr(self.lstm, f"bias_hh_l{layer}").requires_grad_(False)
        for name, weight in self.named_parameters():
            nn.init.zeros_(weight) if "bias" in name else nn.init.uniform_(weight, -0.1, 0.1)

    def forward(self, text, states):
        hidden, states = self.lstm(self.embedding(text), states)
        return self.output(hidden), tuple(state.detach() for state in states)


def penn_treebank(arrays, epochs):
    words, units, batch, _ = arrays["settings"].tolist()
    parts = [
        list(zip(*(torch.from_numpy(arrays[f"{kind}_{part}"]).long().split(batch) for kind in "xy"), strict=True))
        for part in ("train", "valid", "test")
    ]
    model, means = LanguageModel(words, units), Means(len(parts[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    began = time.process_time()
    for epoch in range(epochs):
        means.epoch()
        states = None
        optimizer.param_groups[0]["lr"] = 20.0 * 0.5 ** max(0, epoch - 3)
        for x, y in parts[0]:
            logits, states = model(x, states)
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            means.add(loss.item())
    seconds = time.process_time() - began
    return {
        "seconds": seconds,
        **{name: _perplexity(model, part) for name, part in zip(("valid", "test"), parts[1:])},
        **means.found,
    }


def _perplexity(model, part):
    model.eval()
    states, losses = None, []
    with torch.no_grad():
        for x, y in part:
            logits, states = model(x, states)
            losses.append(functional.cross_entropy(logits.flatten(0, 1), y.flatten()).item())
    return math.exp(np.mean(losses))


# --- the images -----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(channels, filters, 3, stride), nn.ReLU(), *_convolution(filters, filters, 3, 1)
        )
        same = channels == filters and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(channels, filters, 1, stride))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def _convolution(channels, filters, size, stride):
    convolution = nn.Conv2d(channels, filters, size, stride, size // 2, bias=False)
    nn.init.trunc_normal_(
        convolution.weight, std=(std := math.sqrt(2 / (channels * size**2)) / 0.8796), a=-2 * std, b=2 * std
    )
    return convolution, nn.BatchNorm2d(filters, eps=1e-3)


def _moved_and_mirrored(images):
    """Move each image by up to four pixels and mirror half of them."""
    count, _, size, _ = images.shape
    padded = functional.pad(images, (4, 4, 4, 4))
    top, left, mirrored = torch.randint(9, (count,)), torch.randint(9, (count,)), torch.rand(count) < 0.5
    rows = top[:, None] + torch.arange(size)
    columns = left[:, None] + torch.where(mirrored[:, None], torch.arange(size - 1, -1, -1), torch.arange(size))
    return padded.permute(0, 2, 3, 1)[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None]].permute(
        0, 3, 1, 2
    )


def cifar10(arrays, epochs, blocks=3, batch=128):
    x, x_test = (torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2).contiguous() for part in ("train", "test"))
    y, y_test = (torch.from_numpy(arrays[f"y_{part}"]).long() for part in ("train", "test"))
    sizes = [16, *[16] * blocks, *[32] * blocks, *[64] * blocks]
    body = [Block(a, b, 1 + (a != b)) for a, b in zip(sizes, sizes[1:], strict=False)]
    model = nn.Sequential(
        *_convolution(3, 16, 3, 1), nn.ReLU(), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    nn.init.xavier_uniform_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    steps = math.ceil(len(x) / batch)
    warm, every, means = epochs * steps // 5, epochs * steps, Means(steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: step / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / (every - warm))) / 2,
    )
    began = time.process_time()
    for _ in range(epochs):
        means.epoch()
        for rows in torch.randperm(len(x)).split(batch):
            loss = functional.cross_entropy(model(_moved_and_mirrored(x[rows])), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
            means.add(loss.item(), len(rows))
    seconds = time.process_time() - began
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in x_test.split(250)])
    return {"seconds": seconds, "accuracy": (found == y_test).float().mean().item(), **means.found}


# --- the translation ------------------------------------------------------------------------------------------------

END, START, WIDTHS = 0, 1, (8, 12, 16, 20, 28, 44)


class Translation(nn.Module):
    def __init__(self, sources, targets, units):
        super().__init__()
        self.read, self.reread = nn.Embedding(sources, units), nn.Embedding(targets, units)
        self.encoder = nn.LSTM(units, units // 2, batch_first=True, bidirectional=True)
        self.cell = nn.LSTMCell(2 * units, units)
        self.towards_memory = nn.Linear(units, units, bias=False)
        self.attend = nn.Linear(2 * units, units, bias=False)
        self.dropout, self.write = nn.Dropout(0.2), nn.Linear(units, targets)
        self.units = units
        for name, weight in self.named_parameters():
            _first_values(name, weight)

    def begin(self, x):
        """Return the decoder's first states, and what it attends to."""
        mask = x != END
        packed = nn.utils.rnn.pack_padded_sequence(self.read(x), mask.sum(1), True, enforce_sorted=False)
        memory, last = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(memory, True, total_length=x.shape[1])
        h, c = (torch.cat(list(state), dim=1) for state in last)
        return (h, c, torch.zeros_like(h)), (self.towards_memory(memory), memory, mask)

    def step(self, words, states, memory):
        h, c, attention = states
        keys, values, mask = memory
        h, c = self.cell(torch.cat([self.reread(words), attention], 1), (h, c))
        scores = torch.bmm(keys, h[:, :, None])[:, :, 0].masked_fill(~mask, -1e9)
        context = torch.bmm(scores.softmax(1)[:, None], values)[:, 0]
        attention = torch.tanh(self.attend(torch.cat([h, context], 1)))
        return attention, (h, c, attention)

    def forward(self, x, shifted):
        states, memory = self.begin(x)
        found = []
        for words in shifted.unbind(1):
            attention, states = self.step(words, states, memory)
            found.append(attention)
        return self.write(self.dropout(torch.stack(found, 1)))


def _first_values(name, weight):
    """Set the first values of a weight by Keras's rules."""
    if "bias" in name:
        nn.init.zeros_(weight)
        if "bias_ih" in name:  # the forget gate's is 1
            weight.data[len(weight) // 4 : len(weight) // 2] = 1
        weight.requires_grad_("bias_hh" not in name)
    elif "read" in name:
        nn.init.uniform_(weight, -0.05, 0.05)
    elif "weight_hh" in name:
        nn.init.orthogonal_(weight)
    else:
        nn.init.xavier_uniform_(weight)


def multi30k(arrays, epochs, batch=64):
    sources, targets, units, beam_width = arrays["settings"].tolist()
    x, y, widths = (torch.from_numpy(arrays[name]).long() for name in ("x", "y", "widths"))
    model = Translation(sources, targets, units)
    steps = sum(math.ceil((widths == width).sum().item() / batch) for width in WIDTHS)
    means, every = Means(steps), epochs * steps
    optimizer = torch.optim.Adam([w for w in model.parameters() if w.requires_grad], lr=4e-3, eps=1e-9)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.02 + 0.98 * (1 + math.cos(math.pi * step / every)) / 2
    )
    began = time.process_time()
    for _ in range(epochs):
        means.epoch()
        order = torch.randperm(len(x))
        groups = [rows for width in WIDTHS for rows in order[widths[order] == width].split(batch) if len(rows)]
        for number in torch.randperm(len(groups)).tolist():
            rows = groups[number]
            read, written = (side[rows, : widths[rows[0]]] for side in (x, y))
            shifted = torch.cat([torch.full_like(written[:, :1], START), written[:, :-1]], 1)
            counts = (written == END).cumsum(1) <= 1
            loss = functional.cross_entropy(model(read, shifted)[counts], written[counts])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
            means.add(loss.item(), len(rows))
    seconds = time.process_time() - began
    model.eval()
    x_test = torch.from_numpy(arrays["x_test"]).long().split(100)
    with torch.no_grad():
        found = [[row for part in x_test for row in _beam_search(model, part, k)] for k in (1, beam_width)]
    return {"seconds": seconds, "translations": found, **means.found}


def _beam_search(model, x, width):
    """Return the most probable translation of each sentence that `width` hypotheses find."""
    count = len(x)
    states, memory = model.begin(x)
    states, memory = ([part.repeat_interleave(width, 0) for part in parts] for parts in (states, memory))
    scores = torch.full((count, width), -math.inf)
    scores[:, 0] = 0.0
    written = torch.full((count, width, 1), START)
    best, texts = torch.full((count,), -math.inf), [[] for _ in range(count)]
    for _ in range(WIDTHS[-1]):
        attention, states = model.step(written[:, :, -1].flatten(), states, memory)
        steps = model.write(attention).log_softmax(1).view(count, width, -1)
        top, places = (scores[:, :, None] + steps).flatten(1).topk(2 * width)
        beams, words = places // steps.shape[2], places % steps.shape[2]
        for row, place in ((words == END) & (torch.arange(2 * width) < width)).nonzero().tolist():
            if top[row, place] > best[row]:
                best[row], texts[row] = top[row, place], written[row, beams[row, place], 1:].tolist()
        kept = top.masked_fill(words == END, -math.inf).topk(width).indices
        scores, beams, words = (each.gather(1, kept) for each in (top, beams, words))
        written = torch.cat([written[torch.arange(count)[:, None], beams], words[:, :, None]], 2)
        moved = (torch.arange(count)[:, None] * width + beams).flatten()
        states = [state[moved] for state in states]
        if (best >= scores[:, 0]).all():
            break
    return [text or row[0, 1:].tolist() for text, row in zip(texts, written, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("arrays")
    parser.add_argument("results")
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    torch.manual_seed(1)
    found = {"name": f"PyTorch {torch.__version__}", **TASKS[options.task](np.load(options.arrays), options.epochs)}
    print({name: value for name, value in found.items() if name not in ("steps", "losses", "translations")})
    with open(options.results, "w") as stream:
        json.dump(found, stream)


TASKS = {"penn_treebank": penn_treebank, "cifar10": cifar10, "multi30k": multi30k}

if __name__ == "__main__":
    main()
