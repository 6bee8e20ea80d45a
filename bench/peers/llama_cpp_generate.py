#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy text by llama.cpp on two threads: one JSON line with tokens a second after the prompt, the median of three texts.

How to run:  python3 llama_cpp_generate.py MODEL.gguf PROMPT   (pip install llama-cpp-python)
"""
import json, statistics, sys, time
import llama_cpp

NEW = 128
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=2, n_threads_batch=2, logits_all=False, verbose=False)
ids = model.tokenize(sys.argv[2].encode(), add_bos=False)
rates, prefill = [], []
for _ in range(4):
    model.reset()
    begin = time.perf_counter()
    model.eval(ids)
    token = model.sample(temp=0.0)
    middle = time.perf_counter()
    for _ in range(NEW - 1):
        model.eval([token])
        token = model.sample(temp=0.0)
    rates.append((NEW - 1) / (time.perf_counter() - middle))
    prefill.append(1e3 * (middle - begin))
print(json.dumps({"what": "llama.cpp", "tokens_per_s": round(statistics.median(rates[1:]), 2), "prompt_tokens": len(ids),
                  "prefill_ms": round(statistics.median(prefill[1:]), 1), "version": llama_cpp.__version__}))
