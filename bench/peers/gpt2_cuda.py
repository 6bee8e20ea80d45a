# SPDX-License-Identifier: Apache-2.0
"""The peer of tools/gpu_check.sh: GPT-2 of 124M on one GPU with torch.compile, cuDNN or flash attention and fused AdamW, in bf16.

usage: python bench/peers/gpt2_cuda.py [--batch 32] [--length 1024] [--steps 20] [--eager] [--device cuda] [--layers 12]

Weights are fp32 under autocast to bf16, as in nanoGPT. Prints the last loss, tokens per second of the median step and the peak of
memory. `--device cpu --layers 1 --batch 1 --length 64 --steps 4` tries the script where there is no GPU.
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

from gpt2_layer import Layer

LAYERS, HIDDEN, HEADS, VOCAB = 12, 768, 12, 50304


class Model(nn.Module):
    def __init__(self, length, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(length, HIDDEN)
        self.layers, self.norm = nn.ModuleList(Layer(HIDDEN, HEADS) for _ in range(layers)), nn.LayerNorm(HIDDEN)

        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=LAYERS)
    args = parser.parse_args()
    on_gpu = args.device.startswith("cuda")
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Model(args.length, args.layers).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = model if args.eager else torch.compile(model)
    ids = torch.randint(VOCAB, (args.batch, args.length + 1), device=args.device)
    times = []
    for _ in range(args.steps):
        wait()
        begin = time.perf_counter()
        with torch.autocast("cuda" if on_gpu else "cpu", torch.bfloat16):
            loss = run(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - begin)
    median = statistics.median(times[args.steps // 2:])
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
    print(f"loss {loss.item():.4f}, {args.batch * args.length / median:,.0f} tokens/s{memory}")


if __name__ == "__main__":
    main()
