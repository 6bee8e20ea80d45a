# SPDX-License-Identifier: Apache-2.0
"""Reads labelled texts with Hugging Face's datasets and makes samples of 128 tokens of them.   usage: read_records.py VOCAB MERGES FILE"""
import sys

import datasets
import tokenizers

LENGTH, PAD = 128, 50256
tokenizer = tokenizers.ByteLevelBPETokenizer(sys.argv[1], sys.argv[2])
tokenizer.enable_truncation(LENGTH)
tokenizer.enable_padding(length=LENGTH, pad_id=PAD)
kind = "csv" if sys.argv[3].endswith(".csv") else "json"
data = datasets.load_dataset(kind, data_files=sys.argv[3], split="train")
data = data.class_encode_column("label")


def encode(rows):
    encoded = tokenizer.encode_batch(rows["text"])
    return {"input_ids": [one.ids for one in encoded], "attention_mask": [one.attention_mask for one in encoded]}


data = data.map(encode, batched=True, remove_columns=["text"])
print(len(data))
