#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Text generation baseline: GPT-2-shaped random weights, KV cache, greedy, PyTorch eager on CPU.

How to run:  OMP_NUM_THREADS=2 /usr/bin/python3 pytorch_generate.py --dtype fp32 --threads 2 --prompt 64 --new 128 --reps 3
  --dtype fp32 | bf16 (weights and activations bf16) | autocast
Prints one JSON line: tokens_per_s (median over reps: new tokens after the first / decode time), prefill_ms,
weight_gbs = bytes of the weights * passes through them a second, peak_rss_mb.
"""
import argparse, json, math, os, statistics, sys, time
p = argparse.ArgumentParser()
p.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "autocast"]); p.add_argument("--threads", type=int, default=2)
p.add_argument("--prompt", type=int, default=64); p.add_argument("--new", type=int, default=128); p.add_argument("--reps", type=int, default=3)
p.add_argument("--batch", type=int, default=1, help="texts at a time; tokens_per_s counts all of them")
a = p.parse_args()
import torch
from torch.nn import functional as F
from pytorch_gpt2_train import build, hwm_mb
from cpu_guard import Guard
torch.set_num_threads(a.threads); torch.manual_seed(1)
L, H, C = 12, 12, 768
net = build("124M", 50304, 1024).eval()
if a.dtype == "bf16": net = net.to(torch.bfloat16)
dt = torch.bfloat16 if a.dtype == "bf16" else torch.float32
nbytes = sum(q.numel() * q.element_size() for q in net.parameters())
def run(idx, cache, pos):
    t = idx.shape[1]
    x = net.wte(idx) + net.wpe(torch.arange(pos, pos + t))
    for i, b in enumerate(net.h):
        q, k, v = b.attn.c_attn(b.ln_1(x)).split(C, dim=2)
        q, k, v = (z.view(a.batch, t, H, C // H).transpose(1, 2) for z in (q, k, v))
        K, V = cache[i]
        K[:, :, pos:pos + t] = k; V[:, :, pos:pos + t] = v
        s = (q @ K[:, :, :pos + t].transpose(-2, -1)) * (1.0 / math.sqrt(C // H))
        if t > 1: s = s.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        y = F.softmax(s, dim=-1) @ V[:, :, :pos + t].to(s.dtype)
        x = x + b.attn.c_proj(y.transpose(1, 2).reshape(a.batch, t, C))
        x = x + b.c_proj(F.gelu(b.c_fc(b.ln_2(x)), approximate="tanh"))
    return net.lm_head(net.ln_f(x[:, -1:]))
rates, pre, fg = [], [], []
g = Guard()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.dtype == "autocast"):
    for r in range(a.reps + 1):
        m = g.mark()
        cache = [(torch.zeros(a.batch, H, a.prompt + a.new, C // H, dtype=dt), torch.zeros(a.batch, H, a.prompt + a.new, C // H, dtype=dt)) for _ in range(L)]
        idx = torch.randint(0, 50257, (a.batch, a.prompt), generator=torch.Generator().manual_seed(3))
        t0 = time.perf_counter(); nxt = run(idx, cache, 0).argmax(-1); t1 = time.perf_counter()
        out = [int(nxt[0])]
        for i in range(a.new - 1):
            nxt = run(nxt, cache, a.prompt + i).argmax(-1); out.append(int(nxt[0]))
        t2 = time.perf_counter()
        if r: rates.append(a.batch * (a.new - 1) / (t2 - t1)); pre.append(1e3 * (t1 - t0)); fg.append(round(g.foreign(m), 3))
med = statistics.median(rates)
print(json.dumps(dict(what="pytorch_generate", dtype=a.dtype, threads=a.threads, batch=a.batch, prompt=a.prompt, new=a.new, tokens_per_s=round(med, 2),
      all=[round(x, 2) for x in rates], prefill_ms=round(statistics.median(pre), 1), weight_gbs=round(med / a.batch * nbytes / 1e9, 2), foreign=fg, peak_rss_mb=round(hwm_mb()), first_tokens=out[:4])))
