#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DPO steps, or GRPO or PPO iterations, of a LLaMA of 125M with random weights in TRL; one JSON line at the end.

usage: trl_train.py dpo|grpo|ppo --data FOLDER [--steps 6] [--batch 8] [--samples 4] [--prompt 64] [--answer 128] [--threads 2]
       trl_train.py data --data FOLDER        writes tokenizer.json, pairs.jsonl and prompts.jsonl into FOLDER

Every word of the data is one token, so that both programs see the same lengths. bf16 by autocast; generation by Hugging
Face with its dynamic cache. A batch of `grpo` and `ppo` is --batch prompts with --samples answers each, of exactly --answer tokens.
`ppo` has a policy, a reference, a critic and a reward model of one size. TRL moved its PPO to trl.experimental.ppo and removed it
after 1.12: the other two are measured with the newest TRL, and `ppo` needs trl==1.12.0.
Needs torch 2.11, transformers, trl and datasets."""
import argparse, json, os, random, resource, statistics, time

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["data", "dpo", "grpo", "ppo"])
parser.add_argument("--data", required=True)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--samples", type=int, default=4)
parser.add_argument("--prompt", type=int, default=64)
parser.add_argument("--answer", type=int, default=128)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--layers", type=int, default=12)
a = parser.parse_args()
VOCAB, END = 32000, 0


def write_data():
    os.makedirs(a.data, exist_ok=True)
    vocab = {"<end>": END, **{f"w{i}": i for i in range(1, VOCAB)}}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
                 "added_tokens": [{"id": END, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                                   "normalized": False}],
                 "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<end>"}}
    with open(os.path.join(a.data, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
    with open(os.path.join(a.data, "tokenizer_config.json"), "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "<end>"}, file)
    draw = random.Random(7)
    words = lambda count: " ".join(f"w{draw.randrange(1, VOCAB)}" for _ in range(count))
    rows = a.batch * (a.steps + 2)
    with open(os.path.join(a.data, "pairs.jsonl"), "w") as file:
        for _ in range(rows):
            record = {"prompt": words(a.prompt), "chosen": " " + words(a.answer - 1), "rejected": " " + words(a.answer - 1)}
            file.write(json.dumps(record) + "\n")
    with open(os.path.join(a.data, "prompts.jsonl"), "w") as file:
        for _ in range(rows):
            file.write(json.dumps({"prompt": words(a.prompt)}) + "\n")


if a.what == "data":
    write_data()
    raise SystemExit

import datasets, torch, transformers as tf, trl

torch.set_num_threads(a.threads)
torch.manual_seed(0)
datasets.disable_progress_bars()
config = tf.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=a.layers, num_attention_heads=12, num_key_value_heads=4,
                        vocab_size=VOCAB, max_position_embeddings=2048, attn_implementation="sdpa", bos_token_id=None, eos_token_id=END,
                        pad_token_id=END)
tokenizer = tf.PreTrainedTokenizerFast(tokenizer_file=os.path.join(a.data, "tokenizer.json"), eos_token="<end>", pad_token="<end>")
model = os.path.join(a.data, "model")  # TRL makes the reference of GRPO from the same folder
tf.LlamaForCausalLM(config).save_pretrained(model)
tokenizer.save_pretrained(model)


class Clock(tf.TrainerCallback):
    def __init__(self):
        self.times, self.start = [], 0.0

    def on_train_begin(self, *_, **__):
        self.start = time.perf_counter()

    def on_step_begin(self, *_, **__):
        self.start = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.times.append(time.perf_counter() - self.start)
        self.start = time.perf_counter()  # PPO tells of no beginning


common = dict(output_dir=os.path.join(a.data, "out"), per_device_train_batch_size=a.batch, max_steps=a.steps, bf16=True, use_cpu=True,
              report_to=[], save_strategy="no", logging_steps=1000, learning_rate=1e-6, optim="adamw_torch_fused", gradient_checkpointing=False,
              disable_tqdm=True, seed=0, remove_unused_columns=False, model_init_kwargs={"dtype": "float32"})
clock = Clock()
if a.what == "dpo":
    data = datasets.load_dataset("json", data_files=os.path.join(a.data, "pairs.jsonl"), split="train")
    length = dict(max_length=a.prompt + a.answer)
    trainer = trl.DPOTrainer(model, args=trl.DPOConfig(**common, **length, precompute_ref_log_probs=True), train_dataset=data,
                             processing_class=tokenizer, callbacks=[clock])
    tokens = 2 * a.batch * (a.prompt + a.answer)
elif a.what == "ppo":
    try:
        from trl.experimental.ppo import PPOConfig, PPOTrainer
    except ImportError:
        raise SystemExit(f"TRL {trl.__version__} has no PPO: install trl==1.12.0, the last release that has it")
    data = datasets.load_dataset("json", data_files=os.path.join(a.data, "prompts.jsonl"), split="train")
    rows = [{"input_ids": tokenizer(row["prompt"])["input_ids"]} for row in data for _ in range(a.samples)]
    config.num_labels = 1
    scorer = os.path.join(a.data, "scorer")
    tf.LlamaForSequenceClassification(config).save_pretrained(scorer)
    judge = lambda: tf.AutoModelForSequenceClassification.from_pretrained(scorer, dtype="float32")
    writer = lambda: tf.AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    for key in ("max_steps", "model_init_kwargs", "remove_unused_columns"):
        del common[key]
    common["per_device_train_batch_size"] = a.batch * a.samples
    trainer = PPOTrainer(args=PPOConfig(**common, total_episodes=a.steps * a.batch * a.samples, num_ppo_epochs=1, num_mini_batches=1,
                                        response_length=a.answer, temperature=1.0, kl_coef=0.05, num_sample_generations=0,
                                        local_rollout_forward_batch_size=a.batch * a.samples),
                         processing_class=tokenizer, model=writer(), ref_model=writer(), reward_model=judge(), value_model=judge(),
                         train_dataset=datasets.Dataset.from_list(rows), callbacks=[clock])
    tokens = a.batch * a.samples * a.answer  # of completions, as the ledger of tessera counts them
else:
    data = datasets.load_dataset("json", data_files=os.path.join(a.data, "prompts.jsonl"), split="train")
    common["per_device_train_batch_size"] = a.batch * a.samples
    trainer = trl.GRPOTrainer(model, reward_funcs=lambda completions, **_: [float(len(set(text.split()))) for text in completions],
                              args=trl.GRPOConfig(**common, num_generations=a.samples, max_completion_length=a.answer, beta=0.04,
                                                  generation_kwargs={"min_new_tokens": a.answer}),
                              train_dataset=data, processing_class=tokenizer, callbacks=[clock])
    tokens = a.batch * a.samples * a.answer  # of completions, as the ledger of tessera counts them
began = time.perf_counter()
trainer.train()
whole = time.perf_counter() - began
# GRPO's rollouts are between the callbacks of a step's beginning and end.
step = statistics.median(clock.times[1:])
print(json.dumps({"what": a.what, "step_ms": round(1e3 * step, 1), "tokens_per_s": round(tokens / step, 1), "seconds": round(whole, 1),
                  "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "trl": trl.__version__, "torch": torch.__version__}))
