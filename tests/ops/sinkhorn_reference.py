#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sinkhorn.json: choices and weights of Sinkhorn's routing for given logits, by Megatron-LM's rule in fp32.

A matrix exp(logits) [tokens, experts] is scaled by a factor per token, 1 / (tokens (row . c + 1e-8)), and one per
expert, c = 1 / (experts (column . d + 1e-8)), by turns, from c = 1 on, until c changes by at most 1e-4 in the mean.
A token uses the experts of its largest scaled entries; its weights are sigmoids of logits if it uses one expert, else
the softmax over all of them. Needs numpy: sinkhorn_reference.py > sinkhorn.json
"""
import json

import numpy as np

ONE = np.float32(1.0)
EPS = np.float32(1e-8)


def scaled(logits):
    costs = np.exp(logits)
    tokens, experts = logits.shape
    c = np.ones(experts, np.float32)
    rounds = 0
    while True:
        d = ONE / (np.float32(tokens) * (costs @ c + EPS))
        new = ONE / (np.float32(experts) * (d @ costs + EPS))
        rounds += 1
        change = np.abs(new - c).mean()
        c = new
        if change <= 1e-4:
            return costs * c * d[:, None], c, rounds


def main():
    random = np.random.default_rng(7)
    cases = []
    for tokens, experts, k, spread in [(6, 4, 1, 1.0), (32, 4, 1, 2.0), (32, 8, 2, 1.0), (17, 3, 1, 3.0), (24, 5, 3, 1.5)]:
        # Most tokens prefer the first experts, so that the choice differs from that of the best scores.
        logits = (random.normal(size=(tokens, experts)) * spread + np.linspace(2, 0, experts)).astype(np.float32)
        entries, factors, rounds = scaled(logits)
        chosen = np.argsort(-entries, axis=1, kind="stable")[:, :k]
        wide = logits.astype(np.float64)
        scores = 1 / (1 + np.exp(-wide)) if k == 1 else np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
        cases.append({"k": k, "rounds": rounds, "logits": logits.tolist(), "shifts": np.log(factors).tolist(),
                      "routes": [[n, int(e), float(scores[n, e])] for n in range(tokens) for e in chosen[n]],
                      "best": [int(e) for e in wide.argmax(1)]})
    print(json.dumps({"about": __doc__.splitlines()[0], "cases": cases}))


main()
