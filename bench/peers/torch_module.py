#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of a step of a torch module in torch's own loop and in tessera.initialize(), by turns.

PYTHONPATH=python TESSERA_PROGRAM=build/release/bin/tessera python bench/peers/torch_module.py [--width 768] [--layers 2]

Prints the medians in milliseconds. Both use the same torch, threads, data and AdamW; tessera computes micro-batch by micro-batch
with its own fused update. Needs torch 2.11 and transformers.
"""

import argparse
import statistics
import time

import torch
import transformers

import tessera

VOCABULARY = 1024


def model_of(width: int, layers: int, length: int) -> torch.nn.Module:
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=layers,
            n_embd=width,
            n_head=width // 64,
            vocab_size=VOCABULARY,
            n_positions=length,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    ).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    plain = model_of(asked.width, asked.layers, asked.length)
    update = torch.optim.AdamW(plain.parameters(), lr=1e-3, fused=True)
    engine = tessera.initialize(
        model_of(asked.width, asked.layers, asked.length),
        {
            "train_batch_size": asked.batch,
            "train_micro_batch_size_per_gpu": asked.batch,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
            "run": {"threads_per_rank": asked.threads},
        },
    )
    ids = torch.randint(0, VOCABULARY, (asked.batch, asked.length))
    batch = {"input_ids": ids, "labels": ids}

    def torchs() -> None:
        update.zero_grad(set_to_none=True)
        plain(**batch).loss.backward()
        update.step()

    times: dict[str, list[float]] = {"torch": [], "tessera": []}
    used: dict[str, list[float]] = {"torch": [], "tessera": []}  # CPU time, which strangers on the machine disturb less
    for turn in range(asked.rounds + 2):
        for name, step in (("torch", torchs), ("tessera", lambda: engine.step(batch))):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            step()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - begin))
                used[name].append(1e3 * (time.process_time() - begin_cpu))
    for what, values in (("wall", times), ("CPU", used)):
        found = {name: statistics.median(each) for name, each in values.items()}
        more = 100 * (found["tessera"] / found["torch"] - 1)
        print(f"{what}: torch {found['torch']:.1f} ms, tessera {found['tessera']:.1f} ms: {more:+.1f} %")
    engine.close()


if __name__ == "__main__":
    main()
