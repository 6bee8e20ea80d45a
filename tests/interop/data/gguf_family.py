# SPDX-License-Identifier: Apache-2.0
"""What make_gguf_families.py and make_gguf_expert_families.py have in common: names and shapes of tensors, keys, and the writer.

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
OUT.mkdir(exist_ok=True)


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


def write(name, rows, config, keys, layouts=(), width=WIDTH, file=None, split=lambda name, values: [(name, values)], more=()):
    """`file`: name of the file if it is not the architecture's; `split`: the converter's modify_tensors for one tensor; `more`: tensors of
    generate_extra_tensors."""
    arch = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[name]
    file = file or name
    writer = gguf.GGUFWriter(OUT / f"{file}.gguf", name)
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
        whole = 1000 * k + np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        for part, values in split(theirs, whole):
            # The converter knows the names of BLOOM and BERT without their base.
            short = part.removeprefix("transformer.").removeprefix("bert.")
            ours = next(filter(None, (names.get_name(one, try_suffixes=(".weight", ".bias")) for one in [part, short])), None)
            assert ours is not None, part
            for pattern, layout in layouts:
                if re.search(pattern, theirs):
                    values = layout(values)
            writer.add_tensor(ours, np.ascontiguousarray(values if "_shexp" not in ours or len(values) > 1 else values.reshape(-1)))
    for ours, experts in stacks.items():
        writer.add_tensor(ours, np.stack(experts))
    for ours, values in more:
        writer.add_tensor(ours, np.array(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    EXPECTED[file] = {"config": config, "tensors": [[name, list(shape)] for name, shape in rows]}


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


def save():
    """Adds the models that were written to gguf_families/expected.json."""
    path = OUT / "expected.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **EXPECTED}, indent=1) + "\n")
