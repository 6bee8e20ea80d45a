#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the calls and bytes of a step that run_traffic.sh measured with closed formulas.

usage: bench/traffic_forms.py RESULTS      one line per case: its name, a tab, step_bench's JSON

Bytes are counted as comm::Traffic does: a scatter counts its input, a gather its output, an all-reduce twice the data, a
broadcast or message its data; each is one call. The formulas are those of docs/parallelism.md, for the model and the step
of run_traffic.sh: L layers of C channels, F = 4 C, an untied vocabulary of V, m micro-batches of B samples of T
tokens, all in fp32; counts of a step and the loss are sent as fp64.
"""
import json
import sys

L, C, V, T, B, m = 4, 128, 512, 128, 4, 4
F, N = 4 * C, B * T  # features of the MLP; rows of a micro-batch
FLOAT, DOUBLE = 4, 8
CHUNK = 1024  # elements: parameters are padded to it, and the norm is computed from the sums of chunks
FLOW = N * C * FLOAT
LINEARS = [(C, 3 * C), (C, C), (C, F), (F, C)]  # inputs and outputs


def up(value, unit):
    return -(-value // unit) * unit


class Traffic:
    def __init__(self, calls=0, size=0):
        self.calls, self.size = calls, size

    def __add__(self, other):
        return Traffic(self.calls + other.calls, self.size + other.size)

    def __mul__(self, times):
        return Traffic(self.calls * times, self.size * times)

    __rmul__ = __mul__


def blocks(tensor=1):
    """Elements of each parameter that a rank holds, by block; 1d splits matrices, and the biases of layers with split outputs."""
    layer = [3 * C * C // tensor, 3 * C // tensor, C * C // tensor, C]
    layer += [F * C // tensor, F // tensor, C * F // tensor, C] + 4 * [C]
    return [[V * C // tensor, T * C]] + L * [layer] + [[C, C, V * C // tensor]]


def padded(block, ranks=1):
    return up(sum(up(size, CHUNK) for size in block), CHUNK * ranks)


def any_step(ranks):
    """An all-reduce of four counts; an all-gather of one loss per micro-batch and five numbers per rank."""
    return Traffic(2, 2 * 4 * DOUBLE + ranks * (m + 5) * DOUBLE)


def norm_of(cut):
    """An all-reduce of one number per split parameter."""
    return Traffic(1, 2 * cut * DOUBLE)


def of_loss(ranks, rows):
    """Per row: the largest logit, the sum of exponentials, the label's logit, the sum of all logits."""
    return Traffic(1, ranks * 4 * rows * DOUBLE)


def gathers(stage, sizes):
    if stage < 3:
        return Traffic(len(sizes), sum(sizes))
    # The last block stays gathered between forward and backward, the first one between micro-batches.
    return Traffic(2 * m * len(sizes) - m - (m - 1), 2 * m * sum(sizes) - m * sizes[-1] - (m - 1) * sizes[0])


def data(stage, ranks, reductions):
    sizes = [padded(block, ranks) * FLOAT for block in blocks()]
    norm = Traffic(1, sum(sizes) // FLOAT // CHUNK * DOUBLE)
    return reductions * Traffic(len(sizes), sum(sizes)) + gathers(stage, sizes) + norm + any_step(ranks)


def between_hosts(stage, ranks, hosts, reductions):
    """The bytes that all hosts send to each other: sums go from host to host, and parts of the last one to their owners
    (docs/hosts.md); parts of weights go once to every other host. Heads of messages, the norm and counts are left out."""
    sizes = [padded(block, ranks) * FLOAT for block in blocks()]
    return (hosts - 1) * ((1 + 1 / hosts) * reductions * sum(sizes) + gathers(stage, sizes).size)


def one_d(ranks, layers=L, table=True, head=True):
    """One micro-batch: two all-reduces per layer and direction, the embedding's forward, the head's backward, the loss."""
    all_reduces = 4 * layers + table + head
    return Traffic(all_reduces, all_reduces * 2 * FLOW) + (of_loss(ranks, N) if head else Traffic())


def tensor_1d(ranks, sequence=False):
    step = any_step(ranks) + norm_of(6 * L + 2)
    if not sequence:
        return m * one_d(ranks) + step
    # A gather and a scatter replace each all-reduce; gradients of unsplit parameters are added once.
    meetings = 2 * (4 * L + 2)
    whole = (6 * L + T + 2) * C
    return m * (Traffic(meetings, meetings * FLOW) + of_loss(ranks, N)) + Traffic(1, 2 * whole * FLOAT) + step


def grid_vectors(q, rows, biases, norms):
    """Two sums per row of a norm in each direction; all-reduces of the gradients of norms and biases."""
    return Traffic(3 * norms + len(biases), 2 * norms * q * 2 * rows * DOUBLE + 2 * (sum(biases) + 2 * norms * C) // q * FLOAT)


def grid_loss(q, rows, places):
    return of_loss(q, rows) + Traffic(1, places * DOUBLE)


def tensor_2d(q, depth):
    rows, deep = N // (depth * q), depth > 1

    def over_depth(weight):
        return Traffic(1, 2 * weight * FLOAT) if deep else Traffic()

    def linear(inputs, outputs):
        x, w = rows * inputs // q, inputs * outputs // (q * q)
        return Traffic(2 * q + 2 * (2 * q - 1), (3 * q - 1) * (x + w) * FLOAT) + over_depth(w)

    def table(size):
        return Traffic(2, 2 * (N // depth) * (C // q) * FLOAT) + over_depth(size * C // (q * q))

    y, w = rows * V // q, V * C // (q * q)
    head = Traffic((2 * q - 1) + 2 * q + (2 * q - 1), ((3 * q - 1) * y + (3 * q - 1) * w) * FLOAT) + over_depth(w)
    micro = L * sum((linear(*sizes) for sizes in LINEARS), Traffic()) + table(V) + table(T) + head
    micro += L * grid_vectors(q, rows, [outputs for _, outputs in LINEARS], 2) + grid_vectors(q, rows, [], 1)
    micro += grid_loss(q, rows, depth * q)
    return m * micro + any_step(depth * q * q) + norm_of(12 * L + 5)


def tensor_3d(q):
    rows = N // (q * q)

    def linear(inputs, outputs):
        x, w, y = rows * inputs // q, inputs * outputs // q**3, rows * outputs // q
        return Traffic(8, q * (3 * x + 3 * w + 2 * y) * FLOAT)

    def table(size):
        return Traffic(4, 2 * (N // q + size // q) * (C // q) * FLOAT)

    micro = L * sum((linear(*sizes) for sizes in LINEARS), Traffic()) + linear(C, V) + table(V) + table(T)
    micro += L * grid_vectors(q, rows, [outputs for _, outputs in LINEARS], 2) + grid_vectors(q, rows, [], 1)
    micro += grid_loss(q, rows, q * q)
    return m * micro + any_step(q**3) + norm_of(12 * L + 5)


def context(mode, ranks):
    values = FLOW // ranks
    if mode == "ring":  # keys and values in forward and backward, and their gradients once around the ring
        calls = (ranks - 1) + (ranks - 1) + ranks
        micro = L * Traffic(calls, calls * 2 * values)
    else:  # queries, keys and values to their heads, the result back; the same in backward
        micro = L * Traffic(4, 8 * values)
    sums = Traffic(L + 2, sum(2 * padded(block) * FLOAT for block in blocks()))
    return m * micro + sums + any_step(ranks)


def pipeline(stage, stages, schedule, tensor=1, shares=False):
    folds = schedule == "zb-v"
    chunks = 2 if schedule in ("interleaved", "zb-v") else 1
    bounds = [0, 3, 6] if chunks == 1 else [0, 2, 3, 4, 6]
    first, last = stage == 0, stage + 1 == stages

    def messages_of(first, last):
        return 2 * (1 - first) + 2 * (1 - last) if folds else (chunks - last) + (chunks - first)

    def held(stage):
        parts = [stage, 2 * stages - 1 - stage] if folds else [chunk * stages + stage for chunk in range(chunks)]
        return [b for part in parts for b in range(bounds[part], bounds[part + 1])]

    count = m * messages_of(first, last)
    traffic = Traffic(count, count * FLOW // (tensor if shares else 1))
    if shares:  # two stages: each gathers what the other sends
        received = m * messages_of(last, first)
        traffic += Traffic(received, received * FLOW)
    widest = max(sum(up(size, CHUNK) // CHUNK for b in held(s) for size in blocks(tensor)[b]) for s in range(stages))
    traffic += Traffic(1, stages * widest * DOUBLE) + Traffic(1, 2 * m * (L + 2) * DOUBLE)
    if tensor > 1:
        mine = held(stage)
        layers = len([b for b in mine if 0 < b <= L])
        table, head = 0 in mine, L + 1 in mine
        traffic += m * one_d(tensor, layers, table, head) + norm_of(6 * layers + table + head)
    return traffic + any_step(stages * tensor)


def of_data(words):
    """Stage, ranks and reductions of a block in a step: several hosts reduce once where the stage allows it."""
    stage = int(words[3])
    return stage, int(words[1]), 1 if "hosts" in words and stage < 2 else m


def form(name, rank):
    words = name.replace(",", "").split()
    if words[0] == "data":
        return data(*of_data(words))
    if words[0] == "context":
        return context(words[1], int(words[2]))
    if words[0] == "pipeline" and "x" in words:
        return pipeline(rank // 2, 2, "1f1b", tensor=2, shares="shares" in words)
    if words[0] == "pipeline":
        return pipeline(rank, 2, words[2])
    mode, size = words[1], int(words[2])
    if mode == "1d":
        return tensor_1d(size, "sequence" in words)
    return {"2d": lambda: tensor_2d(2, 1), "2.5d": lambda: tensor_2d(2, 2), "3d": lambda: tensor_3d(2)}[mode]()


def crossing(name, result):
    """The cells of what all hosts send to each other; they are empty on one host."""
    if "hosts" not in result:
        return "| |"
    stage, ranks, reductions = of_data(name.replace(",", "").split())
    sent, expected = result["between_hosts"], between_hosts(stage, ranks, result["hosts"], reductions)
    return f"{sent / 1e6:.3f} | {expected / 1e6:.3f} | {sent / expected:.3f}"


def main(path):
    print("\n| a step of the rank that moves most | ranks | calls | by form | ratio | MB | by form | ratio "
          "| MB between all hosts | by form | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for line in open(path):
        name, result = line.rstrip("\n").split("\t")
        result = json.loads(result)
        rank = max(range(result["ranks"]), key=lambda r: result["bytes"][r])
        calls, size, expected = result["calls"][rank], result["bytes"][rank], form(name, rank)
        print(f"| {name} | {result['ranks']} | {calls:.0f} | {expected.calls} | {calls / expected.calls:.3f} "
              f"| {size / 1e6:.3f} | {expected.size / 1e6:.3f} | {size / expected.size:.3f} | {crossing(name, result)} |")


if __name__ == "__main__":
    main(sys.argv[1])
