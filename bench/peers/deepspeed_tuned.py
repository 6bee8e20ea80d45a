#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 of 4 layers whose micro-batch and ZeRO stage DeepSpeed's autotuner searches, on CPUs (bench/run_autotuner.sh).

usage: deepspeed --autotuning tune --num_gpus 2 deepspeed_tuned.py --deepspeed --deepspeed_config ds.json
"""
import argparse

import deepspeed
import torch
from torch import nn
from torch.nn import functional as F

from gpt2_layer import Layer

LAYERS, HIDDEN, HEADS, LENGTH, VOCAB, STEPS = 4, 128, 4, 64, 50304, 30


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.layers, self.norm = nn.ModuleList(Layer(HIDDEN, HEADS) for _ in range(LAYERS)), nn.LayerNorm(HIDDEN)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy((self.norm(x) @ self.tokens.weight.T).flatten(0, 1).float(), labels.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    args = deepspeed.add_config_arguments(parser).parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    model = Gpt()
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        ids = torch.randint(0, VOCAB, (engine.train_micro_batch_size_per_gpu(), LENGTH + 1))
        engine.backward(engine(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))
        engine.step()


if __name__ == "__main__":
    main()
