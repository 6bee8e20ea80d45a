# SPDX-License-Identifier: Apache-2.0
"""The quickstart's training in PyTorch: nanoGPT's CPU setting, byte by byte, for a loss curve to compare with tessera's.

usage: OMP_NUM_THREADS=2 ~/peers/bin/python bench/peers/nanogpt_shakespeare.py TEXT [--out CURVE.jsonl] [--seed N]

The same model (4 layers x 128 x 4 heads, tied head, biases, no dropout), batch (12 x 64 random windows), optimizer
(AdamW 1e-3, betas 0.9/0.99, decay 0.1 on matrices), schedule (100 steps of warm-up, cosine to 1e-4 at 1,500) and
clipping (1.0). The held-out tail is the last tenth of the bytes, read whole, in windows that do not overlap.
Prints a line at every evaluation; --out receives one JSON object per line: {"step", "loss"} or {"step", "eval_loss"}.
"""
import argparse
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

from gpt2_layer import Layer

LAYERS, HIDDEN, HEADS, CONTEXT, VOCAB = 4, 128, 4, 64, 256
BATCH, STEPS, WARMUP = 12, 1500, 100
INITIAL_LR, PEAK_LR, MIN_LR = 1e-5, 1e-3, 1e-4
EVAL_EVERY, EVAL_BATCH = 250, 64


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
        self.layers = nn.Sequential(*(Layer(HIDDEN, HEADS) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        logits = F.linear(self.norm(self.layers(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def learning_rate(step):
    """Returns the learning rate of update `step`, counted from 0."""
    if step < WARMUP:
        return INITIAL_LR + step * (PEAK_LR - INITIAL_LR) / WARMUP
    return MIN_LR + (PEAK_LR - MIN_LR) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


@torch.no_grad()
def evaluate(model, tail):
    windows = tail.unfold(0, CONTEXT + 1, CONTEXT)
    total = sum(model(part[:, :-1], part[:, 1:]).item() * len(part) for part in windows.split(EVAL_BATCH))
    return total / len(windows)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("text")
    arguments.add_argument("--out")
    arguments.add_argument("--seed", type=int, default=1337)
    arguments = arguments.parse_args()
    begin = time.perf_counter()
    torch.manual_seed(arguments.seed)
    ids = torch.frombuffer(bytearray(open(arguments.text, "rb").read()), dtype=torch.uint8).long()
    cut = len(ids) * 9 // 10
    windows, tail = ids[:cut].unfold(0, CONTEXT + 1, 1), ids[cut:]
    model = Gpt()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=PEAK_LR, betas=(0.9, 0.99), fused=True)
    curve = []
    for step in range(1, STEPS + 1):
        batch = windows[torch.randint(len(windows), (BATCH,))]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step - 1)
        loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append({"step": step, "loss": loss.item()})
        if step % EVAL_EVERY == 0:
            curve.append({"step": step, "eval_loss": evaluate(model, tail)})
            print(f"step {step}  loss {loss.item():.4f}  eval loss {curve[-1]['eval_loss']:.4f}"
                  f"  {time.perf_counter() - begin:.1f} s", flush=True)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in curve)


if __name__ == "__main__":
    main()
