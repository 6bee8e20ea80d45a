#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peak memory of a rank that trains a GPT-2 of transformers: torch's DistributedDataParallel, or tessera.initialize().

torchrun --nproc-per-node 2 bench/peers/torch_module_memory.py ddp|0|1|2|3 [WIDTH] [LAYERS]

Prints for rank 0: memory in MB after the imports, and the peak over four steps of AdamW in fp32. A number is a ZeRO stage of
tessera. Memory is the proportional set size, which divides shared pages by the ranks that use them, read every few milliseconds.
"""

import os
import sys
import threading

import torch
import torch.distributed as dist
import transformers
from torch_module import VOCABULARY, model_of

STEPS, ROWS, LENGTH = 4, 2, 128


def memory_mb() -> float:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Pss:")) * 1024 / 1e6


class Watch(threading.Thread):
    """Reads the memory again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.005):
            self.peak = max(self.peak, memory_mb())


def main() -> None:
    mode = sys.argv[1]
    width, layers = (int(value) for value in [*sys.argv[2:], "768", "8"][:2])
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if mode != "ddp":
        import tessera
    transformers.GPT2LMHeadModel  # noqa: B018, loads what both use
    begin, watch = memory_mb(), Watch()
    watch.start()
    model = model_of(width, layers, LENGTH)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, VOCABULARY, (ROWS * ranks, LENGTH), generator=generator) for _ in range(STEPS)]
    if mode == "ddp":
        dist.init_process_group("gloo")
        trained = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        update = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        for ids in batches:
            mine = ids[rank * ROWS : (rank + 1) * ROWS]
            update.zero_grad(set_to_none=True)
            trained(input_ids=mine, labels=mine).loss.backward()
            update.step()
    else:
        engine = tessera.initialize(
            model,
            {
                "train_batch_size": ROWS * ranks,
                "train_micro_batch_size_per_gpu": ROWS,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
                "zero_optimization": {"stage": int(mode), "stage3_param_persistence_threshold": 0},
                "run": {"threads_per_rank": 1},
            },
        )
        for ids in batches:
            engine.step({"input_ids": ids, "labels": ids})
    watch.ended.set()
    watch.join()
    if rank == 0:
        print(f"{mode}: {begin:.0f} MB after imports, {watch.peak:.0f} MB at the peak, {watch.peak - begin:.0f} MB of training", flush=True)
    if mode == "ddp":
        dist.destroy_process_group()
    else:
        engine.close()


if __name__ == "__main__":
    main()
