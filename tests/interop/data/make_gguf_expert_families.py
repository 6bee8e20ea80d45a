#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the architectures with experts of gguf_families/ that have names or keys of their own, as make_gguf_families.py writes the others,
and gguf_mxfp4.gguf.

  python3 -m venv v && v/bin/pip install gguf==0.19.0 numpy==2.4.6
  v/bin/python tests/interop/data/make_gguf_families.py && v/bin/python tests/interop/data/make_gguf_expert_families.py
"""
from gguf_family import *

NOPE, ROPE, VALUES, RANK, QUERY_RANK = 6, 4, 5, 7, 3


def latent(query_rank, correction, dense=1, shared=1):
    """Names and shapes of DeepSeek: `dense` layers without experts, `shared` experts for all tokens."""
    rows = [("model.embed_tokens.weight", (VOCAB, WIDTH)), ("model.norm.weight", (WIDTH,)), ("lm_head.weight", (VOCAB, WIDTH))]
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        rows += [(at + name + ".weight", (WIDTH,)) for name in ["input_layernorm", "post_attention_layernorm"]]
        q = HEADS * (NOPE + ROPE)
        if query_rank:
            rows += [(at + "self_attn.q_a_proj.weight", (query_rank, WIDTH)), (at + "self_attn.q_a_layernorm.weight", (query_rank,)),
                     (at + "self_attn.q_b_proj.weight", (q, query_rank))]
        else:
            rows.append((at + "self_attn.q_proj.weight", (q, WIDTH)))
        rows += [(at + "self_attn.kv_a_proj_with_mqa.weight", (RANK + ROPE, WIDTH)), (at + "self_attn.kv_a_layernorm.weight", (RANK,)),
                 (at + "self_attn.kv_b_proj.weight", (HEADS * (NOPE + VALUES), RANK)),
                 (at + "self_attn.o_proj.weight", (WIDTH, HEADS * VALUES))]
        kinds = [("mlp.", HIDDEN)]
        if i >= dense:
            rows.append((at + "mlp.gate.weight", (EXPERTS, WIDTH)))
            if correction:
                rows.append((at + "mlp.gate.e_score_correction_bias", (EXPERTS,)))
            kinds = [("mlp.shared_experts.", NARROW * shared)] + [(f"mlp.experts.{j}.", NARROW) for j in range(EXPERTS)]
        for part, size in kinds:
            rows += [(at + part + "gate_proj.weight", (size, WIDTH)), (at + part + "up_proj.weight", (size, WIDTH)),
                     (at + part + "down_proj.weight", (WIDTH, size))]
    return rows


def deepseek(model_type, query_rank, groups, chosen_groups, scale, shared, mscale, **more):
    out = common(model_type, 1e4, n_routed_experts=EXPERTS, num_experts_per_tok=CHOSEN, moe_intermediate_size=NARROW,
                 first_k_dense_replace=1, n_shared_experts=shared, n_group=groups, topk_group=chosen_groups,
                 routed_scaling_factor=scale, q_lora_rank=query_rank, kv_lora_rank=RANK, qk_nope_head_dim=NOPE,
                 qk_rope_head_dim=ROPE, v_head_dim=VALUES, **more)
    out["num_key_value_heads"] = HEADS
    if mscale:
        out["rope_scaling"] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "beta_fast": 32,
                               "beta_slow": 1, "mscale": mscale, "mscale_all_dim": mscale}
    return out


def latent_keys(config, old=False):
    """What DeepseekV2Model.set_gguf_parameters adds; `old`: before it split kv_b_proj."""
    def add(writer):
        writer.add_feed_forward_length(HIDDEN)
        writer.add_head_count_kv(HEADS if old else 1)
        writer.add_rope_freq_base(1e4)
        writer.add_layer_norm_rms_eps(1e-6)
        chosen(writer, NARROW)
        if not old:
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if config["model_type"] == "deepseek_v3"
                                          else gguf.ExpertGatingFuncType.SOFTMAX)
        writer.add_leading_dense_block_count(1)
        if config["q_lora_rank"]:
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_kv_lora_rank(RANK)
        if old:
            writer.add_key_length(NOPE + ROPE)
            writer.add_value_length(VALUES)
        else:
            writer.add_key_length(RANK + ROPE)
            writer.add_value_length(RANK)
            writer.add_key_length_mla(NOPE + ROPE)
            writer.add_value_length_mla(VALUES)
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        if config.get("norm_topk_prob"):
            writer.add_expert_weights_norm(True)
        writer.add_rope_dimension_count(ROPE)
        if (rope := config.get("rope_scaling")) is not None:
            yarn(writer, rope)
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    return add


def yarn(writer, rope):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def by_latent_heads(name, values):
    if name.endswith("e_score_correction_bias"):
        return [(name.replace("e_score_correction_bias", "e_score_correction.bias"), values)]
    if not name.endswith("kv_b_proj.weight"):
        return [(name, values)]
    keys, own = np.split(values.reshape(HEADS, NOPE + VALUES, RANK), [NOPE], axis=1)
    return [(name.replace("kv_b_proj", "k_b_proj"), keys.swapaxes(1, 2)), (name.replace("kv_b_proj", "v_b_proj"), own)]


V3 = deepseek("deepseek_v3", QUERY_RANK, 1, 1, 2.5, 1, 1.0, norm_topk_prob=True)
V2 = deepseek("deepseek_v2", None, 1, 1, 1.5, 2, 0.707, topk_method="greedy")
OLD = deepseek("deepseek_v2", QUERY_RANK, 1, 1, 1.0, 2, None, topk_method="greedy")
write("deepseek2", latent(QUERY_RANK, True), V3, latent_keys(V3), split=by_latent_heads)
write("deepseek2", latent(None, False, shared=2), V2, latent_keys(V2), split=by_latent_heads, file="deepseek2_v2")
write("deepseek2", latent(QUERY_RANK, False, shared=2), OLD, latent_keys(OLD, old=True), file="deepseek2_old")


def gpt_oss():
    rows = decoder(bias="qkv")
    rows = [row for row in rows if ".mlp." not in row[0]]
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        rows += [(at + "self_attn.o_proj.bias", (WIDTH,)), (at + "self_attn.sinks", (HEADS,)),
                 (at + "mlp.router.weight", (EXPERTS, WIDTH)), (at + "mlp.router.bias", (EXPERTS,)),
                 (at + "mlp.experts.gate_up_proj", (EXPERTS, WIDTH, 2 * HIDDEN)),
                 (at + "mlp.experts.gate_up_proj_bias", (EXPERTS, 2 * HIDDEN)),
                 (at + "mlp.experts.down_proj", (EXPERTS, HIDDEN, WIDTH)), (at + "mlp.experts.down_proj_bias", (EXPERTS, WIDTH))]
    return rows


def of_gpt_oss(name, values):
    if "sinks" in name:
        name += ".weight"
    if "down_proj" in name:
        if name.endswith("_bias"):
            return [(name.replace("down_proj_bias", "down_proj.bias"), values)]
        return [(name.replace("down_proj", "down_proj.weight"), values.swapaxes(-1, -2))]
    if "gate_up_proj" in name:
        if name.endswith("_bias"):
            return [(name.replace("gate_up_proj_bias", f"{part}_proj.bias"), values[..., i::2]) for i, part in enumerate(["gate", "up"])]
        values = values.swapaxes(-1, -2)
        return [(name.replace("gate_up_proj", f"{part}_proj.weight"), values[:, i::2, :]) for i, part in enumerate(["gate", "up"])]
    return [(name, values)]


GPT_OSS = common("gpt_oss", 150000.0, head_dim=4, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, sliding_window=6,
                 rms_norm_eps=1e-6, attention_bias=True, swiglu_limit=7.0,
                 layer_types=["sliding_attention", "full_attention"],
                 rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "beta_fast": 32,
                               "beta_slow": 1, "truncate": False})


def gpt_oss_keys(writer):
    rotary(writer, 150000.0, 4)
    chosen(writer, HIDDEN)
    writer.add_sliding_window(6)
    yarn(writer, GPT_OSS["rope_scaling"])


write("gpt-oss", gpt_oss(), GPT_OSS, gpt_oss_keys, split=of_gpt_oss)


def blocks():
    """../gguf_mxfp4.gguf: one layer of gpt-oss whose experts are blocks of MXFP4, as its published files have them."""
    width, hidden, experts = 32, 64, 2
    writer = gguf.GGUFWriter(OUT.parent / "gguf_mxfp4.gguf", "gpt-oss")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_key_length(4)
    writer.add_value_length(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(150000.0)
    writer.add_sliding_window(6)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(1)
    writer.add_expert_feed_forward_length(hidden)
    yarn(writer, GPT_OSS["rope_scaling"])
    random = np.random.default_rng(7)
    shapes = {"token_embd.weight": (VOCAB, width), "output.weight": (VOCAB, width), "output_norm.weight": (width,)}
    for name, shape in {"attn_norm.weight": (width,), "post_attention_norm.weight": (width,), "attn_q.weight": (8, width),
                        "attn_k.weight": (4, width), "attn_v.weight": (4, width), "attn_output.weight": (width, 8),
                        "attn_q.bias": (8,), "attn_k.bias": (4,), "attn_v.bias": (4,), "attn_output.bias": (width,),
                        "attn_sinks.weight": (HEADS,), "ffn_gate_inp.weight": (experts, width), "ffn_gate_inp.bias": (experts,),
                        "ffn_gate_exps.weight": (experts, hidden, width), "ffn_up_exps.weight": (experts, hidden, width),
                        "ffn_down_exps.weight": (experts, width, hidden), "ffn_gate_exps.bias": (experts, hidden),
                        "ffn_up_exps.bias": (experts, hidden), "ffn_down_exps.bias": (experts, width)}.items():
        shapes["blk.0." + name] = shape
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        if name.endswith("exps.weight"):
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


blocks()


def by_block(rows, router, stacked):
    """The rows of with_experts() under the names of a family whose experts are in block_sparse_moe."""
    out = []
    for name, shape in rows:
        if ".mlp." not in name:
            out.append((name, shape))
        elif name.endswith("mlp.gate.weight"):
            out.append((name.replace("mlp.gate", "block_sparse_moe." + router), shape))
        elif not stacked:
            for theirs, own in [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")]:
                name = name.replace(theirs, own)
            out.append((name.replace("mlp.", "block_sparse_moe."), shape))
    if stacked:
        for i in range(LAYERS):
            at = f"model.layers.{i}.block_sparse_moe."
            out += [(at + "input_linear.weight", (EXPERTS, 2 * HIDDEN, WIDTH)), (at + "output_linear.weight", (EXPERTS, WIDTH, HIDDEN))]
    return out


def of_granite(name, values):
    if not name.endswith("input_linear.weight"):
        return [(name, values)]
    # GraniteMoeModel.modify_tensors names them by FFN_GATE_EXP and FFN_UP_EXP, which are those of these names.
    return [(name.replace("block_sparse_moe.input_linear", f"mlp.experts.{part}_proj"), values[:, i * HIDDEN:(i + 1) * HIDDEN])
            for i, part in enumerate(["gate", "up"])]


def granite_keys(writer):
    rotary(writer, 1e4)
    chosen(writer)
    writer.add_embedding_scale(12.0)
    writer.add_attention_scale(0.25)
    writer.add_residual_scale(0.5)
    writer.add_logit_scale(6.0)


write("granitemoe", by_block(with_experts(decoder()), "router.layer", True),
      common("granitemoe", 1e4, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, embedding_multiplier=12.0,
             attention_multiplier=0.25, residual_multiplier=0.5, logits_scaling=6.0), granite_keys, NEIGHBOURS, split=of_granite)


def with_biases(rows):
    """The rows with a bias for each norm and for the head, and for the output of attention."""
    out = []
    for name, shape in rows:
        out.append((name, shape))
        if len(shape) == 1 and name.endswith("norm.weight") or name == "lm_head.weight" or "o_proj" in name:
            out.append((name.replace(".weight", ".bias"), shape[:1]))
    return out


write("phimoe", by_block(with_experts(with_biases(decoder(bias="qkv")), width=HIDDEN), "gate", False),
      common("phimoe", 1e4, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, sliding_window=7, attention_bias=True,
             lm_head_bias=True), lambda w: (rotary(w, 1e4), chosen(w), w.add_sliding_window(7), w.add_rope_scaling_orig_ctx_len(CONTEXT)))
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 4, "short_factor": [1.0, 1.25], "long_factor": [2.0, 8.5],
        "short_mscale": 1.4142135, "long_mscale": 1.4142135}


def long_rope(writer):
    rotary(writer, 1e4)
    chosen(writer)
    writer.add_sliding_window(7)
    writer.add_rope_scaling_orig_ctx_len(4)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(CONTEXT / 4) / math.log(4)))


write("phimoe", by_block(with_experts(with_biases(decoder(bias="qkv")), width=HIDDEN), "gate", False),
      common("phimoe", 1e4, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, sliding_window=7, attention_bias=True,
             lm_head_bias=True, rope_scaling=LONG), long_rope, file="phimoe_longrope",
      more=[("rope_factors_long.weight", LONG["long_factor"]), ("rope_factors_short.weight", LONG["short_factor"])])


def dbrx():
    rows = [("transformer.wte.weight", (VOCAB, WIDTH)), ("transformer.norm_f.weight", (WIDTH,)), ("lm_head.weight", (VOCAB, WIDTH))]
    for i in range(LAYERS):
        at = f"transformer.blocks.{i}."
        rows += [(at + f"norm_attn_norm.norm_{n}.weight", (WIDTH,)) for n in [1, 2]]
        rows += [(at + "norm_attn_norm.attn.Wqkv.weight", (WIDTH + 2 * SHARED * 4, WIDTH)),
                 (at + "norm_attn_norm.attn.out_proj.weight", (WIDTH, WIDTH)), (at + "ffn.router.layer.weight", (EXPERTS, WIDTH))]
        rows += [(at + f"ffn.experts.mlp.{name}", (EXPERTS * NARROW, WIDTH)) for name in ["w1", "v1", "w2"]]
    return rows


def of_dbrx(name, values):
    if "ffn.experts.mlp" not in name:
        return [(name, values)]
    values = values.reshape(EXPERTS, NARROW, WIDTH)
    return [(name + ".weight", values.swapaxes(1, 2) if name.endswith("w2") else values)]


def dbrx_keys(writer):
    writer.add_feed_forward_length(NARROW)
    writer.add_head_count_kv(SHARED)
    writer.add_rope_freq_base(5e5)
    writer.add_clamp_kqv(8.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    writer.add_layer_norm_eps(1e-5)


write("dbrx", dbrx(),
      {"model_type": "dbrx", "n_layers": LAYERS, "max_seq_len": CONTEXT, "d_model": WIDTH,
       "ffn_config": {"ffn_hidden_size": NARROW, "moe_num_experts": EXPERTS, "moe_top_k": CHOSEN, "ffn_act_fn": {"name": "silu"},
                      "moe_normalize_expert_weights": 1.0},
       "n_heads": HEADS, "attn_config": {"kv_n_heads": SHARED, "clip_qkv": 8.0, "rope_theta": 5e5}, "vocab_size": VOCAB},
      dbrx_keys, split=of_dbrx)


def llama4():
    """Names and shapes; layer 1 has experts."""
    rows = [(name.replace(".mlp.", ".feed_forward."), shape) for name, shape in decoder(channels=8) if "layers.1.mlp" not in name]
    at = "model.layers.1.feed_forward."
    return rows + [(at + "router.weight", (EXPERTS, WIDTH)), (at + "experts.gate_up_proj", (EXPERTS, WIDTH, 2 * NARROW)),
                   (at + "experts.down_proj", (EXPERTS, NARROW, WIDTH)), (at + "shared_expert.gate_proj.weight", (NARROW, WIDTH)),
                   (at + "shared_expert.up_proj.weight", (NARROW, WIDTH)), (at + "shared_expert.down_proj.weight", (WIDTH, NARROW))]


def of_llama4(name, values):
    if name.endswith("gate_up_proj"):
        parts = np.split(values.swapaxes(-1, -2), 2, axis=-2)
        return [(name.replace("gate_up_proj", f"{part}_proj.weight"), one) for part, one in zip(["gate", "up"], parts)]
    return [(name + ".weight", values.swapaxes(-1, -2))] if name.endswith("down_proj") else [(name, values)]


def llama4_keys(writer):
    rotary(writer, 5e5, 8, turned=8)
    writer.add_vocab_size(VOCAB)
    chosen(writer, NARROW)
    writer.add_interleave_moe_layer_step(2)


SCOUT = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}
# Of the periods 6.3, 167, 4443 and 118000, only the last is above 8192.
LLAMA4 = common("llama4_text", 5e5, head_dim=8, num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, interleave_moe_layer_step=2,
                intermediate_size_mlp=HIDDEN, attention_chunk_size=8192, attn_temperature_tuning=True, attn_scale=0.1, floor_scale=8192,
                use_qk_norm=True, no_rope_layers=[1, 1], moe_layers=[1], rope_scaling=SCOUT)
LLAMA4["intermediate_size"] = NARROW
write("llama4", llama4(), LLAMA4, llama4_keys, split=of_llama4, more=[("rope_freqs.weight", [1.0, 1.0, 1.0, 16.0])])
save()
