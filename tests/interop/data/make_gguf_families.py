#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_families/*.gguf, one tiny model of each architecture, and gguf_families/expected.json, the same under Hugging Face's names.

  python3 -m venv v && v/bin/pip install gguf==0.19.0 numpy==2.4.6 && v/bin/python tests/interop/data/make_gguf_families.py

Names of tensors and keys are those of the GGUF project's own package (get_tensor_name_map, GGUFWriter). Tensors are converted as in
llama.cpp's convert_hf_to_gguf.py: rows of queries and keys are permuted for the architectures that rotate neighbouring channels
(llama, smollm3), norms of Gemma have 1 added, queries, keys and values of GPT-NeoX and BLOOM are sorted by part. Tensor k of the
list has the values 1000 * k + index under Hugging Face's name.
"""
import json
import math
import pathlib
import re

import gguf
import numpy as np

OUT = pathlib.Path(__file__).parent / "gguf_families"
LAYERS, WIDTH, HEADS, SHARED, HIDDEN, VOCAB, CONTEXT = 2, 8, 2, 1, 12, 10, 16
EXPECTED = {}


def permuted(heads):
    return lambda x: x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def by_part(x):
    return x.reshape(HEADS, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def decoder(width=WIDTH, channels=4, bias=(), fused_qkv=False, fused_mlp=False, extra=(), without=(), tied=False):
    """Names and shapes of a decoder with gated MLP; `extra`: vectors of a layer, name and length."""
    rows = [("model.embed_tokens.weight", (VOCAB, width)), ("model.norm.weight", (width,))]
    if not tied:
        rows.append(("lm_head.weight", (VOCAB, width)))
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        q, kv = HEADS * channels, SHARED * channels
        if fused_qkv:
            rows.append((at + "self_attn.qkv_proj.weight", (q + 2 * kv, width)))
        else:
            for name, size in [("q", q), ("k", kv), ("v", kv)]:
                rows.append((at + f"self_attn.{name}_proj.weight", (size, width)))
                if name in bias:
                    rows.append((at + f"self_attn.{name}_proj.bias", (size,)))
        rows.append((at + "self_attn.o_proj.weight", (width, q)))
        if fused_mlp:
            rows.append((at + "mlp.gate_up_proj.weight", (2 * HIDDEN, width)))
        else:
            rows += [(at + f"mlp.{name}_proj.weight", (HIDDEN, width)) for name in ["gate", "up"]]
        rows.append((at + "mlp.down_proj.weight", (width, HIDDEN)))
        norms = [n for n in ["input_layernorm", "post_attention_layernorm"] if n not in without]
        rows += [(at + name + ".weight", (width,)) for name in norms]
        rows += [(at + name + ".weight", (size,)) for name, size in extra]
    return rows


def old_decoder(base, table, head, final, layer, attention, mlp, extra=()):
    """Names and shapes of GPT-NeoX and BLOOM."""
    rows = [(base + table + ".weight", (VOCAB, WIDTH)), (head + ".weight", (VOCAB, WIDTH))]
    vectors = [base + final, *[base + name for name in extra]]
    for i in range(LAYERS):
        at = f"{base}{layer}.{i}."
        vectors += [at + "input_layernorm", at + "post_attention_layernorm"]
        for name, out, width in [(attention + ".query_key_value", 3 * WIDTH, WIDTH), (attention + ".dense", WIDTH, WIDTH),
                                 (mlp + ".dense_h_to_4h", 4 * WIDTH, WIDTH), (mlp + ".dense_4h_to_h", WIDTH, 4 * WIDTH)]:
            rows += [(at + name + ".weight", (out, width)), (at + name + ".bias", (out,))]
    for name in vectors:
        rows += [(name + ".weight", (WIDTH,)), (name + ".bias", (WIDTH,))]
    return rows


def write(name, rows, config, keys, layouts=(), width=WIDTH):
    arch = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[name]
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", name)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_head_count(HEADS)
    writer.add_file_type(0)
    keys(writer)
    names = gguf.get_tensor_name_map(arch, LAYERS)
    stacks = {}
    for k, (theirs, shape) in enumerate(rows):
        if (expert := re.search(r"\.experts\.\d+\.", theirs)) is not None:
            ours = names.get_name(theirs.replace(expert.group(), ".experts."), try_suffixes=(".weight",))
            values = 1000 * k + np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
            stacks.setdefault(ours, []).append(values)
            continue
        # The converter knows the names of BLOOM and BERT without their base.
        ours = names.get_name(theirs.removeprefix("transformer.").removeprefix("bert."), try_suffixes=(".weight", ".bias"))
        assert ours is not None, theirs
        values = 1000 * k + np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        for pattern, layout in layouts:
            if re.search(pattern, theirs):
                values = layout(values)
        writer.add_tensor(ours, np.ascontiguousarray(values if "_shexp" not in ours or len(values) > 1 else values.reshape(-1)))
    for ours, experts in stacks.items():
        writer.add_tensor(ours, np.stack(experts))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    EXPECTED[name] = {"config": config, "tensors": [[name, list(shape)] for name, shape in rows]}


def common(model_type, theta, **more):
    return {"model_type": model_type, "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": HIDDEN,
            "num_attention_heads": HEADS, "num_key_value_heads": SHARED, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-6, "rope_theta": theta, **more}


def rotary(writer, theta, channels=None, turned=None):
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count_kv(SHARED)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(theta)
    if channels:
        writer.add_key_length(channels)
        writer.add_value_length(channels)
    if turned:
        writer.add_rope_dimension_count(turned)


def scaled(writer):
    rotary(writer, 1e6, 8)
    writer.add_sliding_window(6)
    writer.add_rope_freq_base_swa(20000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)


def capped(writer):
    rotary(writer, 10000.0, 8)
    writer.add_sliding_window(6)
    writer.add_attn_logit_softcapping(40.0)
    writer.add_final_logit_softcapping(20.0)


def phi(writer):
    rotary(writer, 10000.0, turned=2)
    writer.add_sliding_window(7)
    writer.add_rope_scaling_orig_ctx_len(CONTEXT)


def neox(writer):
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_rope_dimension_count(2)
    writer.add_parallel_residual(False)
    writer.add_layer_norm_eps(1e-5)


def bloom(writer):
    writer.add_feed_forward_length(4 * WIDTH)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_eps(1e-5)


def encoder():
    """Names and shapes of BERT without heads and pooler, which the converter leaves out."""
    at = "bert.embeddings."
    rows = [(at + "word_embeddings.weight", (VOCAB, WIDTH)), (at + "position_embeddings.weight", (CONTEXT, WIDTH)),
            (at + "token_type_embeddings.weight", (2, WIDTH))]
    vectors = [at + "LayerNorm"]
    for i in range(LAYERS):
        at = f"bert.encoder.layer.{i}."
        vectors += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
        for name, out, width in [*[(f"attention.self.{part}", WIDTH, WIDTH) for part in ["query", "key", "value"]],
                                 ("attention.output.dense", WIDTH, WIDTH), ("intermediate.dense", HIDDEN, WIDTH),
                                 ("output.dense", WIDTH, HIDDEN)]:
            rows += [(at + name + ".weight", (out, width)), (at + name + ".bias", (out,))]
    for name in vectors:
        rows += [(name + ".weight", (WIDTH,)), (name + ".bias", (WIDTH,))]
    return rows


def bert(writer):
    writer.add_feed_forward_length(HIDDEN)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.CLS)
    writer.add_token_type_count(2)


EXPERTS, CHOSEN, NARROW = 3, 2, 6


def with_experts(rows, shared=0, width=NARROW):
    """The rows with experts in place of MLPs, and with a shared one of this width."""
    out = [row for row in rows if ".mlp." not in row[0]]
    for i in range(LAYERS):
        at = f"model.layers.{i}.mlp."
        out.append((at + "gate.weight", (EXPERTS, WIDTH)))
        for name, shape in [("gate", (width, WIDTH)), ("up", (width, WIDTH)), ("down", (WIDTH, width))]:
            out += [(at + f"experts.{j}.{name}_proj.weight", shape) for j in range(EXPERTS)]
        if shared:
            out.append((at + "shared_expert_gate.weight", (1, WIDTH)))
            out += [(at + f"shared_expert.{name}_proj.weight", shape)
                    for name, shape in [("gate", (shared, WIDTH)), ("up", (shared, WIDTH)), ("down", (WIDTH, shared))]]
    return out


def chosen(writer, width=None, shared=None):
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    if width:
        writer.add_expert_feed_forward_length(width)
    if shared:
        writer.add_expert_shared_feed_forward_length(shared)


def clamped(writer):
    rotary(writer, 1e4)
    chosen(writer)
    writer.add_clamp_kqv(7.5)


PLUS_ONE = [(r"norm\.weight$", lambda x: x + 1)]
OWN_NORMS = [("self_attn.q_norm", 8), ("self_attn.k_norm", 8)]
FOUR = [("pre_feedforward_layernorm", WIDTH), ("post_feedforward_layernorm", WIDTH)]
NEIGHBOURS = [(r"q_proj", permuted(HEADS)), (r"k_proj", permuted(SHARED))]
SORTED = [(r"query_key_value", by_part)]
OUT.mkdir(exist_ok=True)
write("qwen2", decoder(bias="qkv"), common("qwen2", 1e6), lambda w: rotary(w, 1e6))
write("qwen3", decoder(channels=8, extra=OWN_NORMS, tied=True), common("qwen3", 1e6, head_dim=8, tie_word_embeddings=True),
      lambda w: rotary(w, 1e6, 8))
write("qwen2moe", with_experts(decoder(bias="qkv"), shared=10),
      common("qwen2_moe", 1e6, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, moe_intermediate_size=NARROW,
             shared_expert_intermediate_size=10, norm_topk_prob=False, qkv_bias=True),
      lambda w: (rotary(w, 1e6), chosen(w, NARROW, 10)))
write("qwen3moe", with_experts(decoder(channels=8, extra=OWN_NORMS)),
      common("qwen3_moe", 1e6, head_dim=8, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, moe_intermediate_size=NARROW,
             norm_topk_prob=True), lambda w: (rotary(w, 1e6, 8), chosen(w, NARROW)))
write("olmoe", with_experts(decoder(extra=[("self_attn.q_norm", 8), ("self_attn.k_norm", 4)]), width=HIDDEN),
      common("olmoe", 1e4, num_experts=EXPERTS, num_experts_per_tok=CHOSEN, norm_topk_prob=False, clip_qkv=7.5), clamped)
write("olmo2", decoder(extra=[("self_attn.q_norm", 8), ("self_attn.k_norm", 4), ("post_feedforward_layernorm", WIDTH)],
                       without=["input_layernorm"]), common("olmo2", 5e5), lambda w: rotary(w, 5e5))
write("smollm3", decoder(tied=True), common("smollm3", 5e6, tie_word_embeddings=True, no_rope_layers=[1, 1]),
      lambda w: rotary(w, 5e6), NEIGHBOURS)
write("phi3", decoder(fused_qkv=True, fused_mlp=True), common("phi3", 1e4, sliding_window=7, partial_rotary_factor=0.5), phi)
write("glm4", decoder(fused_mlp=True, bias="qkv", extra=[("post_self_attn_layernorm", WIDTH), ("post_mlp_layernorm", WIDTH)]),
      common("glm4", 1e4, partial_rotary_factor=0.5, attention_bias=True), lambda w: rotary(w, 1e4, turned=2))
write("gemma", decoder(channels=8, tied=True), common("gemma", 1e4, head_dim=8, hidden_act="gelu_pytorch_tanh"),
      lambda w: rotary(w, 1e4, 8), PLUS_ONE)
write("gemma2", decoder(channels=8, extra=FOUR, tied=True),
      common("gemma2", 1e4, head_dim=8, hidden_activation="gelu_pytorch_tanh", sliding_window=6, attn_logit_softcapping=40.0,
             final_logit_softcapping=20.0, query_pre_attn_scalar=8.0, layer_types=["sliding_attention", "full_attention"]),
      capped, PLUS_ONE)
write("gemma3", decoder(channels=8, extra=OWN_NORMS + FOUR, tied=True),
      common("gemma3_text", 1e6, head_dim=8, sliding_window=6, rope_local_base_freq=20000.0, query_pre_attn_scalar=8.0,
             layer_types=["sliding_attention", "sliding_attention"], rope_scaling={"rope_type": "linear", "factor": 8.0}),
      scaled, PLUS_ONE)
write("gptneox", old_decoder("gpt_neox.", "embed_in", "embed_out", "final_layer_norm", "layers", "attention", "mlp"),
      {"model_type": "gpt_neox", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH,
       "num_attention_heads": HEADS, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rotary_pct": 0.5,
       "use_parallel_residual": False, "layer_norm_eps": 1e-5, "hidden_act": "gelu"}, neox, SORTED)
write("bloom", old_decoder("transformer.", "word_embeddings", "lm_head", "ln_f", "h", "self_attention", "mlp",
                           ["word_embeddings_layernorm"]),
      {"model_type": "bloom", "n_layer": LAYERS, "hidden_size": WIDTH, "n_head": HEADS, "vocab_size": VOCAB, "seq_length": CONTEXT,
       "layer_norm_epsilon": 1e-5}, bloom, SORTED)
write("bert", encoder(),
      {"model_type": "bert", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "intermediate_size": HIDDEN,
       "num_attention_heads": HEADS, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "type_vocab_size": 2,
       "layer_norm_eps": 1e-12, "hidden_act": "gelu"}, bert)
(OUT / "expected.json").write_text(json.dumps(EXPECTED, indent=1) + "\n")
