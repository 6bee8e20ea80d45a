# SPDX-License-Identifier: Apache-2.0
"""Measures forward and backward of one layer of experts in transformers, for run_moe.sh.

usage: transformers_moe.py IMPLEMENTATION EXPERTS TOP_K HIDDEN FFN TOKENS DTYPE THREADS
IMPLEMENTATION: eager or grouped_mm (experts_implementation of transformers 5). Prints one JSON line as experts_bench does.
"""
import json
import sys
import time

import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

implementation = sys.argv[1]
experts, top_k, hidden, ffn, tokens = map(int, sys.argv[2:7])
dtype = torch.bfloat16 if sys.argv[7] == "bf16" else torch.float32
threads = int(sys.argv[8])
torch.set_num_threads(threads)
transformers.logging.set_verbosity_error()
config = transformers.Qwen3MoeConfig(
    hidden_size=hidden, moe_intermediate_size=ffn, num_experts=experts, num_experts_per_tok=top_k, norm_topk_prob=True
)
config._experts_implementation = implementation
torch.manual_seed(0)
layer = Qwen3MoeSparseMoeBlock(config).to(dtype)
with torch.no_grad():
    for parameter in layer.parameters():
        parameter.normal_(0, 0.02)
x = torch.randn(1, tokens, hidden, dtype=dtype, requires_grad=True)
best = 1e9
for _ in range(3 if implementation == "eager" else 5):
    start = time.process_time()
    y = layer(x)
    (y[0] if isinstance(y, tuple) else y).sum().backward()
    best = min(best, (time.process_time() - start) / threads)
print(json.dumps({"ms": round(1e3 * best, 3), "gflops": round(18 * tokens * top_k * hidden * ffn / best / 1e9, 1)}))
