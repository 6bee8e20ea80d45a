#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the beams with stop strings that beam_stops_test.cpp expects, with models in reference/models.

  python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0
  v/bin/python tests/golden/beam_stops_reference.py > tests/golden/beam_stops.json

The text of token i is two letters, so that a stop string may begin and end within tokens. transformers finds stop strings in the
prompt and the new tokens together; no stop string here begins in a prompt.
"""
import json
import os
import sys

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference", "models")
NEW_TOKENS = 12
SETTINGS = [{"num_beams": 3}, {"num_beams": 4, "length_penalty": 0.5}, {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True},
            {"num_beams": 3, "length_penalty": 1.5, "early_stopping": "never"}]
PROMPTS = [[47, 116, 155, 146, 31], [76, 11, 167, 59, 70, 60, 63]]


def text_of(token):
    return chr(97 + token // 16) + chr(97 + token % 16)


def tokenizer_of(size):
    inner = Tokenizer(models.WordLevel({text_of(i): i for i in range(size)}, unk_token="aa"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(".."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def begins_in(prompt, stop):
    text = "".join(map(text_of, prompt))
    return any(text.endswith(stop[:n]) for n in range(1, len(stop)))


def beams(model, tokenizer, prompt, settings, stops):
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=model.config.vocab_size + 9,
                             pad_token_id=model.config.vocab_size - 1, num_return_sequences=settings["num_beams"], **settings,
                             return_dict_in_generate=True, output_scores=True, **({"stop_strings": stops, "tokenizer": tokenizer} if stops else {}))
    counts = [int((row >= 0).sum()) for row in out.beam_indices]
    return [row[len(prompt):len(prompt) + n].tolist() for row, n in zip(out.sequences, counts)], out.sequences_scores.tolist()


def main():
    cases = []
    for name in ("gpt2", "opt"):
        model = AutoModelForCausalLM.from_pretrained(os.path.join(FOLDER, name), dtype=torch.float64).eval()
        tokenizer = tokenizer_of(model.config.vocab_size)
        for prompt in PROMPTS:
            for settings in SETTINGS:
                free = "".join(map(text_of, beams(model, tokenizer, prompt, settings, [])[0][0]))
                # Strings of the best text: one that begins and ends within tokens, one of a whole token, and both with another.
                for stops in ([free[5:8]], [free[8:10]], [free[13:16], free[6:9], "zzz"]):
                    if any(begins_in(prompt, stop) for stop in stops):
                        continue
                    sequences, scores = beams(model, tokenizer, prompt, settings, stops)
                    cases.append({"model": name, "prompt": prompt, "settings": settings, "stop_strings": stops,
                                  "max_new_tokens": NEW_TOKENS, "sequences": sequences, "scores": scores})
    print("[\n" + ",\n".join(json.dumps(one) for one in cases) + "\n]")
    print(sum(any(len(s) < NEW_TOKENS for s in one["sequences"]) for one in cases), "of", len(cases), "cases stop", file=sys.stderr)


if __name__ == "__main__":
    main()
