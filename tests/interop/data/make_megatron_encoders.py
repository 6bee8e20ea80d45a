#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the logits that encoders_test.cpp expects of a BERT and a T5 with Megatron-LM's names and layouts.

  python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0
  v/bin/python tests/interop/data/make_megatron_encoders.py > tests/interop/data/megatron_encoders.json

The BERT is computed by transformers' MegatronBertForPreTraining, whose tensors are cut out of Megatron's as transformers'
convert_megatron_bert_checkpoint.py does; the T5 by torch's nn.TransformerEncoderLayer and nn.TransformerDecoderLayer.
Element i of the tensor with number n in the order below is 1.6 (f - floor(f) - 0.5) with f = 1e4 sin(13 i + 7 n + 1), plus 1 in
the weights of norms; the test uses the same rule.
"""
import json

import torch
from torch import nn
from transformers import MegatronBertConfig, MegatronBertForPreTraining

torch.set_default_dtype(torch.float64)

VOCAB, WIDTH, INNER, HEADS, POSITIONS, EPS = 15, 16, 24, 4, 12, 1e-5


def filled(shapes):
    out = {}
    for n, (name, shape) in enumerate(shapes.items()):
        f = 1e4 * torch.sin(13.0 * torch.arange(torch.Size(shape).numel()) + 7.0 * n + 1.0)
        norm = name.endswith("norm.weight")
        out[name] = (1.6 * (f - f.floor() - 0.5) + (1.0 if norm else 0.0)).float().double().view(shape)
    return out


def pair(name, *shape):
    return {name + ".weight": list(shape), name + ".bias": [shape[0]]}


def layer(prefix, decoder=False):
    out = {**pair(prefix + "input_layernorm", WIDTH), **pair(prefix + "self_attention.query_key_value", 3 * WIDTH, WIDTH),
           **pair(prefix + "self_attention.dense", WIDTH, WIDTH), **pair(prefix + "post_attention_layernorm", WIDTH)}
    if decoder:
        out |= {**pair(prefix + "inter_attention.query", WIDTH, WIDTH), **pair(prefix + "inter_attention.key_value", 2 * WIDTH, WIDTH),
                **pair(prefix + "inter_attention.dense", WIDTH, WIDTH), **pair(prefix + "post_inter_attention_layernorm", WIDTH)}
    return out | {**pair(prefix + "mlp.dense_h_to_4h", INNER, WIDTH), **pair(prefix + "mlp.dense_4h_to_h", WIDTH, INNER)}


def apart(tensor, count):
    """The projections that a tensor of checkpoint_version 3 fuses: [head][which][dim]."""
    dim = WIDTH // HEADS
    whole = tensor.view(HEADS, count, dim, *tensor.shape[1:])
    return [whole[:, which].reshape(WIDTH, *tensor.shape[1:]) for which in range(count)]


ROOT = "language_model."


def bert():
    layers = 2
    shapes = {ROOT + "embedding.word_embeddings.weight": [VOCAB, WIDTH], ROOT + "embedding.position_embeddings.weight": [POSITIONS, WIDTH],
              ROOT + "embedding.tokentype_embeddings.weight": [2, WIDTH]}
    for i in range(layers):
        shapes |= layer(f"{ROOT}encoder.layers.{i}.")
    shapes |= {**pair(ROOT + "encoder.final_layernorm", WIDTH), **pair(ROOT + "pooler.dense", WIDTH, WIDTH), "lm_head.bias": [VOCAB],
               **pair("lm_head.dense", WIDTH, WIDTH), **pair("lm_head.layernorm", WIDTH), **pair("binary_head", 2, WIDTH)}
    theirs = filled(shapes)
    model = MegatronBertForPreTraining(MegatronBertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=layers, num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS, layer_norm_eps=EPS, attn_implementation="eager"))
    ours = {}

    def take(name, module):
        for part in ("weight", "bias"):
            ours[f"{name}.{part}"] = theirs[f"{module}.{part}"]

    for kind, name in (("word", "word"), ("position", "position"), ("tokentype", "token_type")):
        ours[f"bert.embeddings.{name}_embeddings.weight"] = theirs[f"{ROOT}embedding.{kind}_embeddings.weight"]
    for i in range(layers):
        to, of = f"bert.encoder.layer.{i}.", f"{ROOT}encoder.layers.{i}."
        take(to + "attention.ln", of + "input_layernorm")
        for part in ("weight", "bias"):
            for name, held in zip(("query", "key", "value"), apart(theirs[f"{of}self_attention.query_key_value.{part}"], 3)):
                ours[f"{to}attention.self.{name}.{part}"] = held
        take(to + "attention.output.dense", of + "self_attention.dense")
        take(to + "ln", of + "post_attention_layernorm")
        take(to + "intermediate.dense", of + "mlp.dense_h_to_4h")
        take(to + "output.dense", of + "mlp.dense_4h_to_h")
    take("bert.encoder.ln", ROOT + "encoder.final_layernorm")
    take("bert.pooler.dense", ROOT + "pooler.dense")
    take("cls.predictions.transform.dense", "lm_head.dense")
    take("cls.predictions.transform.LayerNorm", "lm_head.layernorm")
    ours["cls.predictions.bias"] = ours["cls.predictions.decoder.bias"] = theirs["lm_head.bias"]
    ours["cls.predictions.decoder.weight"] = ours["bert.embeddings.word_embeddings.weight"]
    take("cls.seq_relationship", "binary_head")
    model.load_state_dict(ours)
    ids = torch.tensor([[1 + 5 * i % (VOCAB - 1) for i in range(10)], [2 + 3 * i % (VOCAB - 2) for i in range(10)]])
    types = torch.tensor([[0] * 4 + [1] * 6, [0] * 7 + [1] * 3])
    mask = torch.tensor([[1] * 10, [1] * 8 + [0] * 2])
    with torch.no_grad():
        out = model.eval()(ids, attention_mask=mask, token_type_ids=types)
    return {"tensors": shapes, "input_ids": ids.tolist(), "token_type_ids": types.tolist(), "attention_mask": mask.tolist(),
            "logits": rounded(out.prediction_logits), "pair_logits": rounded(out.seq_relationship_logits)}


def t5():
    layers, writing = 2, 3
    shapes = {ROOT + "embedding.word_embeddings.weight": [VOCAB, WIDTH], ROOT + "embedding.position_embeddings.weight": [POSITIONS, WIDTH]}
    for i in range(layers):
        shapes |= layer(f"{ROOT}encoder.layers.{i}.")
    shapes |= pair(ROOT + "encoder.final_layernorm", WIDTH)
    for i in range(writing):
        shapes |= layer(f"{ROOT}decoder.layers.{i}.", decoder=True)
    shapes |= {**pair(ROOT + "decoder.final_layernorm", WIDTH), "lm_head.bias": [VOCAB]}
    theirs = filled(shapes)

    def load(module, name):
        module.weight.data, module.bias.data = theirs[name + ".weight"], theirs[name + ".bias"]

    def load_layer(one, of, decoder):
        for part, held in (("weight", one.self_attn.in_proj_weight), ("bias", one.self_attn.in_proj_bias)):
            held.data = torch.cat(apart(theirs[f"{of}self_attention.query_key_value.{part}"], 3))
        load(one.self_attn.out_proj, of + "self_attention.dense")
        load(one.linear1, of + "mlp.dense_h_to_4h")
        load(one.linear2, of + "mlp.dense_4h_to_h")
        load(one.norm1, of + "input_layernorm")
        load(one.norm2, of + "post_attention_layernorm")
        if not decoder:
            return
        load(one.norm3, of + "post_inter_attention_layernorm")
        for part, held in (("weight", one.multihead_attn.in_proj_weight), ("bias", one.multihead_attn.in_proj_bias)):
            held.data = torch.cat([theirs[f"{of}inter_attention.query.{part}"]] + apart(theirs[f"{of}inter_attention.key_value.{part}"], 2))
        load(one.multihead_attn.out_proj, of + "inter_attention.dense")

    common = dict(d_model=WIDTH, nhead=HEADS, dim_feedforward=INNER, dropout=0.0, activation=nn.functional.gelu, layer_norm_eps=EPS,
                  batch_first=True, norm_first=True)
    ids = torch.tensor([[1 + 5 * i % (VOCAB - 1) for i in range(9)], [2 + 3 * i % (VOCAB - 2) for i in range(9)]])
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    answer = torch.tensor([[0, 3, 7, 1, 9, 4], [0, 8, 2, 5, 11, 6]])
    words, places = theirs[ROOT + "embedding.word_embeddings.weight"], theirs[ROOT + "embedding.position_embeddings.weight"]

    def normed(x, name):
        return nn.functional.layer_norm(x, (WIDTH,), theirs[name + ".weight"], theirs[name + ".bias"], EPS)

    with torch.no_grad():
        x = words[ids] + places[:ids.shape[1]]
        for i in range(layers):
            one = nn.TransformerEncoderLayer(**common).train()
            load_layer(one, f"{ROOT}encoder.layers.{i}.", False)
            x = one(x, src_key_padding_mask=mask == 0)
        x = normed(x, ROOT + "encoder.final_layernorm")
        y = words[answer] + places[:answer.shape[1]]
        causal = nn.Transformer.generate_square_subsequent_mask(answer.shape[1])
        for i in range(writing):
            one = nn.TransformerDecoderLayer(**common).train()
            load_layer(one, f"{ROOT}decoder.layers.{i}.", True)
            y = one(y, x, tgt_mask=causal, memory_key_padding_mask=mask == 0)
        logits = normed(y, ROOT + "decoder.final_layernorm") @ words.T + theirs["lm_head.bias"]
    return {"tensors": shapes, "input_ids": ids.tolist(), "attention_mask": mask.tolist(), "decoder_input_ids": answer.tolist(),
            "logits": rounded(logits)}


def rounded(tensor):
    return json.loads(json.dumps(tensor.tolist()), parse_float=lambda text: round(float(text), 9))


print('{"bert": ' + json.dumps(bert()) + ',\n"t5": ' + json.dumps(t5()) + "}")
