#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the embeddings that minilm_test.cpp expects: BERT, mean pooling and norm in numpy and float64, from nothing but the
folder. The ids are those of the tokenizers library.

  python3 -m venv v && v/bin/pip install numpy==2.4.6 tokenizers==0.23.3 safetensors==0.8.0
  v/bin/python tests/golden/minilm_reference.py "$(tools/fetch_model.sh --where minilm)" >tests/golden/minilm_embeddings.jsonl
"""
import json
import math
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

folder = pathlib.Path(sys.argv[1])
W = {name: tensor.astype(np.float64) for name, tensor in load_file(folder / "model.safetensors").items()}
config = json.loads((folder / "config.json").read_text())
longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.no_padding()
tokenizer.enable_truncation(longest)
H, eps = config["num_attention_heads"], config["layer_norm_eps"]
erf = np.vectorize(math.erf)


def norm(x, name):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * W[name + ".weight"] + W[name + ".bias"]


def linear(x, name):
    return x @ W[name + ".weight"].T + W[name + ".bias"]


def embedding(ids):
    t = len(ids)
    e = "embeddings."
    x = norm(W[e + "word_embeddings.weight"][ids] + W[e + "position_embeddings.weight"][:t]
             + W[e + "token_type_embeddings.weight"][0], e + "LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        heads = lambda part: linear(x, layer + "attention.self." + part).reshape(t, H, -1).transpose(1, 0, 2)
        q, k, v = heads("query"), heads("key"), heads("value")
        s = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        y = linear((s @ v).transpose(1, 0, 2).reshape(t, -1), layer + "attention.output.dense")
        x = norm(x + y, layer + "attention.output.LayerNorm")
        h = linear(x, layer + "intermediate.dense")
        y = linear(h * (1 + erf(h / math.sqrt(2))) / 2, layer + "output.dense")
        x = norm(x + y, layer + "output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


texts = [
    "The capital of France is Paris.",
    "Paris ist die Hauptstadt Frankreichs \u2014 na\u00efve caf\u00e9s \u6771\u4eac \U0001f600",
    "a",
    "",
    "What does the fox say? " * 60,  # longer than the model reads
]
for text in texts:
    ids = tokenizer.encode(text).ids
    print(json.dumps({"text": text, "tokens": len(ids), "embedding": [round(float(x), 9) for x in embedding(ids)]}))
