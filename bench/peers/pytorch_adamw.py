# SPDX-License-Identifier: Apache-2.0
"""One update of torch.optim.AdamW(fused=True), fp32 on the CPU.   usage: pytorch_adamw.py [THREADS [MILLIONS]]

The parameters are a hundred tensors of one size. Prints one JSON line in the format of bench/adamw_bench.cpp.
"""
import json
import statistics
import sys
import time

import torch

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
millions = int(sys.argv[2]) if len(sys.argv) > 2 else 100
torch.set_num_threads(threads)
params = [torch.nn.Parameter(torch.randn(millions * 10_000) * 0.02) for _ in range(100)]
for param in params:
    param.grad = torch.randn_like(param) * 1e-3
optimizer = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
optimizer.step()  # warm-up
seconds = []
for _ in range(9):
    start = time.perf_counter()
    optimizer.step()
    seconds.append(time.perf_counter() - start)
median, count = statistics.median(seconds), millions * 1_000_000
print(json.dumps({"what": "torch adamw fused", "threads": threads, "params": count, "params_per_s": float(f"{count / median:.4g}"),
                  "gbs28": round(28 * count / median / 1e9, 2), "ms": round(1e3 * median, 1)}))
