#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training step of a Hugging Face model on random tokens: tokens a second, peak memory; one JSON line at the end.

python hf_train.py --model llama125m --batch 4 --seq 512 --dtype autocast --compile --steps 6 [--lora 8] [--recompute]
Models: llama125m, qwen3moe (328M parameters, of which a token uses about 80M), bert-base (masked LM), bert-base-cls, t5-small. Needs torch 2.11, transformers 5, peft for --lora.
"""
import argparse, json, resource, statistics, time
import torch, transformers as tf

a = argparse.ArgumentParser()
a.add_argument("--model", default="llama125m"); a.add_argument("--batch", type=int, default=4); a.add_argument("--seq", type=int, default=512)
a.add_argument("--target-seq", type=int, default=128); a.add_argument("--dtype", default="autocast", choices=["autocast", "fp32", "bf16"])
a.add_argument("--compile", action="store_true"); a.add_argument("--steps", type=int, default=6); a.add_argument("--lora", type=int, default=0)
a.add_argument("--recompute", action="store_true"); a.add_argument("--seed", type=int, default=0); a = a.parse_args()
torch.manual_seed(a.seed)


def build():
    if a.model == "llama125m":
        c = tf.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
                           vocab_size=32000, max_position_embeddings=2048, attn_implementation="sdpa")
        return tf.LlamaForCausalLM(c), 32000
    if a.model == "qwen3moe":
        c = tf.Qwen3MoeConfig(hidden_size=512, intermediate_size=2048, moe_intermediate_size=256, num_hidden_layers=12, num_attention_heads=8,
                              num_key_value_heads=4, head_dim=64, num_experts=64, num_experts_per_tok=8, norm_topk_prob=True, vocab_size=32000,
                              max_position_embeddings=2048, tie_word_embeddings=True, attn_implementation="sdpa")
        return tf.Qwen3MoeForCausalLM(c), 32000
    if a.model == "bert-base": return tf.BertForMaskedLM(tf.BertConfig(attn_implementation="sdpa")), 30522
    if a.model == "bert-base-cls": return tf.BertForSequenceClassification(tf.BertConfig(attn_implementation="sdpa", num_labels=2)), 30522
    if a.model == "t5-small":
        return tf.T5ForConditionalGeneration(tf.T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0)), 32128
    raise SystemExit("unknown model " + a.model)


model, vocab = build(); model.config.use_cache = False; model.train()
if a.dtype == "bf16": model = model.bfloat16()
if a.recompute: model.gradient_checkpointing_enable()
if a.lora:
    import peft
    model = peft.get_peft_model(model, peft.LoraConfig(r=a.lora, target_modules="all-linear"))
ids = torch.randint(5, vocab, (a.batch, a.seq)); batch = {"input_ids": ids}
if a.model == "bert-base-cls": batch["labels"] = torch.randint(0, 2, (a.batch,))
elif a.model == "t5-small": batch["labels"] = torch.randint(5, vocab, (a.batch, a.target_seq))
elif a.model == "bert-base": batch["labels"] = torch.where(torch.rand(a.batch, a.seq) < 0.15, ids, torch.full_like(ids, -100))
else: batch["labels"] = ids
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
run = torch.compile(model) if a.compile else model
times, losses = [], []
for _ in range(a.steps):
    t = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=a.dtype == "autocast"): loss = run(**batch).loss
    loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - t); losses.append(float(loss.detach()))
tokens = a.batch * (a.seq + (a.target_seq if a.model == "t5-small" else 0)); s = statistics.median(times[2:])
print(json.dumps({"model": a.model, "parameters": sum(p.numel() for p in model.parameters()), "dtype": a.dtype, "compile": a.compile, "lora": a.lora,
                  "step_ms": round(1e3 * s, 1), "tokens_per_s": round(tokens / s, 1), "loss": [round(x, 4) for x in losses],
                  "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "torch": torch.__version__, "transformers": tf.__version__}))
