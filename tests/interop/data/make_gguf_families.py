#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_families/*.gguf, one tiny model of each architecture, and gguf_families/expected.json, the same under Hugging Face's names;
make_gguf_expert_families.py writes the rest of them.

  python3 -m venv v && v/bin/pip install gguf==0.19.0 numpy==2.4.6
  v/bin/python tests/interop/data/make_gguf_families.py && v/bin/python tests/interop/data/make_gguf_expert_families.py
"""
from gguf_family import *

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
save()
