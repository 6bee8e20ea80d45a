#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes what smollm2_test.cpp expects: the loss by a Llama in numpy and float64, from nothing but the file, and the
text that transformers generates from the file.

  python3 -m venv v && v/bin/pip install gguf==0.19.0 numpy==2.4.6 torch==2.11.0 transformers==5.24.0 accelerate==1.15.0
  v/bin/python tests/golden/smollm2_reference.py "$(tools/fetch_model.sh --where smollm2)"
"""
import pathlib
import sys

import gguf
import numpy as np
import torch
import transformers

r = gguf.GGUFReader(sys.argv[1])
W = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in r.tensors}


def key(name):
    return r.get_field("llama." + name).contents()


L, C, H, G = key("block_count"), key("embedding_length"), key("attention.head_count"), key("attention.head_count_kv")
eps, theta, K = key("attention.layer_norm_rms_epsilon"), key("rope.freq_base"), C // H
tokens = r.get_field("tokenizer.ggml.tokens").contents()


def norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rope(x):  # [heads, tokens, K]; the file's rows turn neighbours
    angles = np.outer(np.arange(x.shape[1]), theta ** (-np.arange(0, K, 2) / K))
    c, s, even, odd, out = np.cos(angles), np.sin(angles), x[..., 0::2], x[..., 1::2], np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = even * c - odd * s, even * s + odd * c
    return out


def logits(ids):
    x, t = W["token_embd.weight"][ids], len(ids)
    mask = np.triu(np.full((t, t), -np.inf), 1)
    for i in range(L):
        w = {n: W[f"blk.{i}.{n}.weight"] for n in ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate",
                                                   "ffn_up", "ffn_down"]}
        h = norm(x, w["attn_norm"])
        heads = lambda name, n: (h @ w[name].T).reshape(t, n, K).transpose(1, 0, 2)
        q, k, v = rope(heads("attn_q", H)), rope(heads("attn_k", G)).repeat(H // G, 0), heads("attn_v", G).repeat(H // G, 0)
        s = q @ k.transpose(0, 2, 1) / np.sqrt(K) + mask
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        x = x + (s @ v).transpose(1, 0, 2).reshape(t, C) @ w["attn_output"].T
        h = norm(x, w["ffn_norm"])
        g = h @ w["ffn_gate"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return norm(x, W["output_norm.weight"]) @ W["token_embd.weight"].T


words = ["The", "\u0120capital", "\u0120of", "\u0120France", "\u0120is", "\u0120Paris", ",", "\u0120a", "\u0120city", "\u0120known",
         "\u0120for", "\u0120its", "\u0120art", "."]
ids = [tokens.index(word) for word in words]
z = logits(np.array(ids))
p = z - z.max(-1, keepdims=True)
p -= np.log(np.exp(p).sum(-1, keepdims=True))
print("ids", ids)
print("loss", repr(float(-np.mean([p[i, ids[i + 1]] for i in range(len(ids) - 1)]))))

file = pathlib.Path(sys.argv[1])
model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
made = model.generate(torch.tensor([ids[:5]]), do_sample=False, max_new_tokens=24, eos_token_id=None)
print("greedy", made[0, 5:].tolist())
