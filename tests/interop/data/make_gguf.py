#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the GGUF files of this folder, with the GGUF project's own package as writer and as the reference of every block format.

  python3 -m venv v && v/bin/pip install gguf==0.19.0 numpy==2.4.6 && v/bin/python tests/interop/data/make_gguf.py

gguf_blocks.gguf   one tensor [2, 256] of every type that is read, blocks of random bits with finite scales
gguf_blocks.f32    what gguf.quants.dequantize makes of them, tensor after tensor
gguf_q8_0.f32      256 numbers;  gguf_q8_0.bin: what gguf.quants.quantize makes of them
gguf_rotary.gguf   a decoder whose tensors hold 1000 * k + index under Hugging Face's names, rows permuted as llama.cpp's
                   convert_hf_to_gguf.py does, with the rotary factors of Llama 3.1 and a byte-level tokenizer
gguf_gpt.gguf      a GPT-2 in the same manner
gguf_spm.gguf      a sentencepiece tokenizer alone
"""
import math
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

OUT = pathlib.Path(__file__).parent
TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]
# Places of fp16 numbers in a block.
SCALES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}


def blocks(random):
    writer = gguf.GGUFWriter(OUT / "gguf_blocks.gguf", "blocks")
    expected = b""
    for kind in TYPES:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = 512 // elements
        raw = random.integers(0, 256, (count, size), dtype=np.uint8)
        if kind in SCALES:
            for place in SCALES[kind]:
                scale = random.normal(0, 0.1, (count, 1)).astype(np.float16)
                raw[:, place:place + 2] = scale.view(np.uint8)
        elif kind == T.F32:
            raw = random.normal(0, 1, (512, 1)).astype(np.float32).view(np.uint8)
        elif kind == T.F16:
            raw = random.normal(0, 1, (512, 1)).astype(np.float16).view(np.uint8)
        else:
            raw = (random.normal(0, 1, (512, 1)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        raw = raw.reshape(2, -1)
        plain = {T.F32: np.float32, T.F16: np.float16}.get(kind)
        if plain:
            writer.add_tensor(kind.name.lower(), raw.view(plain))
        else:
            writer.add_tensor(kind.name.lower(), raw, raw_dtype=kind)
        values = raw.view(plain).astype(np.float32) if plain else gguf.quants.dequantize(raw, kind)
        expected += values.astype("<f4").tobytes()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (OUT / "gguf_blocks.f32").write_bytes(expected)
    numbers = random.normal(0, 1, 256).astype(np.float32)
    numbers[32:64] = 0
    (OUT / "gguf_q8_0.f32").write_bytes(numbers.tobytes())
    (OUT / "gguf_q8_0.bin").write_bytes(gguf.quants.quantize(numbers.reshape(1, -1), T.Q8_0).tobytes())


def byte_tokens():
    """GPT-2's 256 byte characters in the order of its vocabulary."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return [chr(b) for b in own] + [chr(256 + i) for i in range(len(others))]


def add_tokenizer(writer, pre):
    tokens = byte_tokens() + ["he", "<|endoftext|>", "[PAD258]"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3, 5])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    writer.add_chat_template("{{ messages }}")
    return len(tokens)


class Model:
    """Tensors under Hugging Face's names, each with numbers of its own."""

    def __init__(self, writer):
        self.writer, self.count = writer, 0

    def add(self, name, shape, layout=lambda x: x):
        values = 1000 * self.count + np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        self.count += 1
        self.writer.add_tensor(name, np.ascontiguousarray(layout(values)))

    def end(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def permute(heads):  # as convert_hf_to_gguf.py
    return lambda x: x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def rotary():
    writer = gguf.GGUFWriter(OUT / "gguf_rotary.gguf", "llama")
    vocab = add_tokenizer(writer, "smollm")
    width, heads, shared, channels, hidden, theta = 8, 2, 1, 32, 12, 500000.0
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(shared)
    writer.add_key_length(channels)
    writer.add_value_length(channels)
    writer.add_rope_dimension_count(channels)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_file_type(0)
    model = Model(writer)
    model.add("token_embd.weight", (vocab, width))
    model.add("output_norm.weight", (width,))
    for i in range(2):
        model.add(f"blk.{i}.attn_q.weight", (heads * channels, width), permute(heads))
        model.add(f"blk.{i}.attn_k.weight", (shared * channels, width), permute(shared))
        model.add(f"blk.{i}.attn_v.weight", (shared * channels, width))
        model.add(f"blk.{i}.attn_output.weight", (width, heads * channels))
        model.add(f"blk.{i}.attn_norm.weight", (width,))
        model.add(f"blk.{i}.ffn_norm.weight", (width,))
        model.add(f"blk.{i}.ffn_gate.weight", (hidden, width))
        model.add(f"blk.{i}.ffn_up.weight", (hidden, width))
        model.add(f"blk.{i}.ffn_down.weight", (width, hidden))
    # The rule of Llama 3.1: factor 8, low 1, high 4, original 8192.
    factors = []
    for frequency in 1 / theta ** (np.arange(0, channels, 2, dtype=np.float32) / channels):
        period = 2 * math.pi / frequency
        if period < 8192 / 4:
            factors.append(1.0)
        elif period > 8192:
            factors.append(8.0)
        else:
            smooth = (8192 / period - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / 8 + smooth))
    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    model.end()


def gpt():
    writer = gguf.GGUFWriter(OUT / "gguf_gpt.gguf", "gpt2")
    vocab = add_tokenizer(writer, "gpt-2")
    width, hidden = 8, 32
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(0)
    model, turned = Model(writer), lambda x: x.T
    model.add("token_embd.weight", (vocab, width))
    model.add("position_embd.weight", (16, width))
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]:
        model.add(name + ".weight", (width,))
        model.add(name + ".bias", (width,))
    for name, rows, columns in [("attn_qkv", width, 3 * width), ("attn_output", width, width), ("ffn_up", width, hidden),
                                ("ffn_down", hidden, width)]:
        model.add(f"blk.0.{name}.weight", (rows, columns), turned)
        model.add(f"blk.0.{name}.bias", (columns,))
    model.end()


def spm():
    writer = gguf.GGUFWriter(OUT / "gguf_spm.gguf", "llama")
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581a", "ab", "\u2581ab", "\u2581", "a", "b"]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 6)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    Model(writer).end()


blocks(np.random.default_rng(7))
rotary()
gpt()
spm()
