#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the logits that variants_test.cpp expects: variants of models that the folders in reference/ do not have.
GPT-NeoX, Gemma 3 and ModernBERT with scalings of their rotary positions; BERT, RoBERTa and Megatron-LM's BERT with an output matrix of
their own.

  python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0
  v/bin/python tests/golden/variants_reference.py > tests/golden/variants_logits.json

Element i of the tensor with number n in the order of the names is 1.6 (f - floor(f) - 0.5) with f = 1e4 sin(13 i + 7 n + 1), plus
1 in the weights of norms; the test uses the same rule.
"""
import json

import torch
from transformers import (BertConfig, BertForMaskedLM, Gemma3ForCausalLM, Gemma3TextConfig, GPTNeoXConfig, GPTNeoXForCausalLM,
                          MegatronBertConfig, MegatronBertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM, RobertaConfig,
                          RobertaForMaskedLM)

torch.set_default_dtype(torch.float64)

LENGTH, POSITIONS, ORIGINAL, SHOWN = 40, 32, 16, 3
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": ORIGINAL}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": ORIGINAL}
YARN_MSCALE = {**YARN, "beta_fast": 16.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.9}
YARN_FACTOR = {**YARN, "attention_factor": 1.3}
LINEAR = {"rope_type": "linear", "factor": 3.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
DEFAULT = {"rope_type": "default"}
KEPT = ("model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rope_parameters layer_types sliding_window query_pre_attn_scalar tie_word_embeddings "
        "pad_token_id type_vocab_size layer_norm_eps architectures local_attention").split()
TENSORS = {}


def longrope(pairs):
    return {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": ORIGINAL,
            "short_factor": [1.0 + 0.25 * i for i in range(pairs)], "long_factor": [1.5 + i for i in range(pairs)]}


def fill(model):
    shapes = {}
    state = model.state_dict()
    for n, name in enumerate(sorted(k for k in state if k not in ("lm_head.weight",) or not model.config.tie_word_embeddings)):
        # The name in files, which the library maps to its own.
        shapes["embed_out.weight" if name == "lm_head.weight" else name] = list(state[name].shape)
        f = 1e4 * torch.sin(13.0 * torch.arange(state[name].numel()) + 7.0 * n + 1.0)
        values = 1.6 * (f - f.floor() - 0.5) + (1.0 if name.endswith("norm.weight") else 0.0)
        state[name].copy_(values.float().double().view(state[name].shape))
    return shapes


def answer(name, model, config, length):
    shapes = fill(model)
    ids = 1 + (torch.arange(length) * 7 + 3) % (config.vocab_size - 1)
    with torch.no_grad():
        logits = model.eval()(ids.view(1, -1)).logits[0, -SHOWN:]
    TENSORS[config.model_type] = shapes
    config.architectures = [type(model).__name__]
    keys = {k: v for k, v in config.to_dict().items() if k in KEPT}
    return {"name": name, "config": keys, "ids": ids.tolist(), "logits": [[round(x, 9) for x in row] for row in logits.tolist()]}


SIZES = dict(vocab_size=16, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             max_position_embeddings=POSITIONS, attn_implementation="eager")


def neox(name, rope, length=POSITIONS, share=0.5):
    rope = {"rope_theta": 1000.0, "partial_rotary_factor": share, **rope}
    config = GPTNeoXConfig(**SIZES, rope_parameters=rope, hidden_dropout=0.0, attention_dropout=0.0)
    return answer(name, GPTNeoXForCausalLM(config), config, length)


def gemma3(name, full, sliding, length=POSITIONS):
    rope = {"full_attention": {"rope_theta": 5000.0, **full}, "sliding_attention": {"rope_theta": 100.0, **sliding}}
    config = Gemma3TextConfig(**SIZES, num_key_value_heads=1, head_dim=8, sliding_window=9,
                              layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8,
                              rope_parameters=rope)
    return answer(name, Gemma3ForCausalLM(config), config, length)


def modern(name, full, sliding, length=POSITIONS):
    rope = {"full_attention": {"rope_theta": 5000.0, **full}, "sliding_attention": {"rope_theta": 100.0, **sliding}}
    config = ModernBertConfig(**SIZES, local_attention=9, layer_types=["sliding_attention", "full_attention"], rope_parameters=rope,
                              tie_word_embeddings=False, pad_token_id=0, eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1)
    return answer(name, ModernBertForMaskedLM(config), config, length)


def untied(name, config_class, model_class, **more):
    config = config_class(**SIZES, tie_word_embeddings=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **more)
    return answer(name, model_class(config), config, POSITIONS - 3)


cases = [
    neox("neox default", DEFAULT), neox("neox linear", LINEAR), neox("neox llama3", LLAMA3), neox("neox yarn", YARN),
    neox("neox yarn mscale", YARN_MSCALE, share=1.0), neox("neox yarn factor", YARN_FACTOR),
    neox("neox longrope long", longrope(2)), neox("neox longrope short", longrope(2), ORIGINAL),
    neox("neox dynamic", DYNAMIC, LENGTH), neox("neox dynamic whole heads", DYNAMIC, LENGTH, 1.0),
    gemma3("gemma3 default", DEFAULT, DEFAULT), gemma3("gemma3 full linear", LINEAR, DEFAULT),
    gemma3("gemma3 sliding linear", DEFAULT, LINEAR), gemma3("gemma3 sliding yarn", LLAMA3, YARN),
    gemma3("gemma3 sliding llama3", YARN_FACTOR, LLAMA3), gemma3("gemma3 sliding longrope", LINEAR, longrope(4)),
    untied("bert untied", BertConfig, BertForMaskedLM), untied("roberta untied", RobertaConfig, RobertaForMaskedLM, pad_token_id=0),
    untied("megatron bert untied", MegatronBertConfig, MegatronBertForMaskedLM),
    modern("modernbert full yarn", YARN_FACTOR, DEFAULT), modern("modernbert sliding llama3", LINEAR, LLAMA3),
    modern("modernbert longrope", longrope(4), DEFAULT), modern("modernbert dynamic", DYNAMIC, DYNAMIC, LENGTH),
    gemma3("gemma3 sliding dynamic", DEFAULT, DYNAMIC, LENGTH), gemma3("gemma3 both dynamic", DYNAMIC, DYNAMIC, LENGTH),
]
print('{"tensors": ' + json.dumps(TENSORS) + ',\n"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}")
