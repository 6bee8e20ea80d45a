#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the folders that bitsandbytes_test.cpp reads: the weights of a small Llama as bitsandbytes 0.50.2 saves them, and what its
own library for the CPU widens them to. Codes of four bits follow its function quantize_4bit (backends/default/ops.py); codes of eight
bits, and all that is widened, come from the compiled library itself.

  python3 -m venv v && v/bin/pip install numpy==2.4.6 safetensors==0.8.0 && v/bin/pip install --no-deps bitsandbytes==0.50.2
  v/bin/python make.py v/lib/python3*/site-packages/bitsandbytes/libbitsandbytes_cpu.so

The sizes are multiples of a block, because that library takes scales of other rows from the wrong block.
"""
import ctypes
import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

library = ctypes.CDLL(sys.argv[1])
here = pathlib.Path(__file__).parent
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], np.float32)
FP4 = np.array([0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
                -0.0, -0.0052083333, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25], np.float32)
NARROW = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def at(x):
    return x.ctypes.data_as(ctypes.c_void_p)


def dynamic_map():
    data = [0.0, 1.0]
    for i in range(7):
        bounds = np.linspace(0.1, 1, 2**i + 1, dtype=np.float32)
        means = np.float32(10.0 ** (i - 6)) * ((bounds[:-1] + bounds[1:]) / np.float32(2))
        data += means.tolist() + (-means).tolist()
    return np.sort(np.array(data, np.float32))


def eight_bits(x, block):
    code, scales = dynamic_map(), np.empty(-(-x.size // block), np.float32)
    out = np.empty(x.size, np.uint8)
    library.cquantize_blockwise_cpu_fp32(at(code), at(x), at(scales), at(out), ctypes.c_longlong(block), ctypes.c_longlong(x.size))
    return out, scales, code


def widened(codes, scales, shape, kind, block):
    out = np.empty(shape, np.float32)
    n, m = shape
    getattr(library, f"cdequantize_blockwise_cpu_{kind}_fp32")(
        at(codes), at(scales), at(out), ctypes.c_longlong(block), ctypes.c_longlong(n), ctypes.c_longlong(m))
    return out


def four_bits(name, weight, kind, block, double):
    table = NF4 if kind == "nf4" else FP4
    order = np.argsort(table, kind="stable")
    bounds = (table[order][:-1] + table[order][1:]) / 2
    rows = weight.reshape(-1, block)
    scales = np.abs(rows).max(1)
    places = np.searchsorted(bounds, np.clip(rows * (np.float32(1) / scales[:, None]), -1, 1).reshape(-1), side="left")
    codes = order[places].astype(np.uint8)
    packed = ((codes[::2] << 4) | codes[1::2]).reshape(-1, 1)
    state = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(weight.shape)}
    out = {name: packed, f"{name}.quant_map": table}
    if double:
        mean = scales.mean()
        out[f"{name}.absmax"], nested, code = eight_bits(scales - mean, 256)
        out[f"{name}.nested_absmax"], out[f"{name}.nested_quant_map"] = nested, code
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(mean)}
        back = np.empty(scales.size, np.float32)
        library.cdequantize_blockwise_cpu_fp32(at(code), at(out[f"{name}.absmax"]), at(nested), at(back), ctypes.c_longlong(256),
                                               ctypes.c_longlong(scales.size))
        scales = back + mean
    else:
        out[f"{name}.absmax"] = scales
    out[f"{name}.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return out, widened(packed, scales, weight.shape, kind, block)


def int8(name, weight):
    scales = np.abs(weight).max(1)
    codes = np.round(weight * (np.float32(127) / scales[:, None])).astype(np.int8)
    module = name.removesuffix(".weight")
    out = {name: codes, f"{module}.SCB": scales, f"{module}.weight_format": np.zeros((), np.uint8)}
    return out, codes.astype(np.float32) * scales[:, None] * np.float32(7.874015718698502e-3)


H, F, V, KV = 64, 128, 61, 32
config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "intermediate_size": F, "num_hidden_layers": 1,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": V, "max_position_embeddings": 32,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "dtype": "float32"}
random = np.random.default_rng(1)
layer = {"self_attn.q_proj": (H, H), "self_attn.k_proj": (KV, H), "self_attn.v_proj": (KV, H), "self_attn.o_proj": (H, H),
         "mlp.gate_proj": (F, H), "mlp.up_proj": (F, H), "mlp.down_proj": (H, F), "input_layernorm": (H,),
         "post_attention_layernorm": (H,)}
shapes = {f"model.layers.0.{name}.weight": shape for name, shape in layer.items()} | {
    "model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
for case, narrow, said in (
        ("nf4_double", lambda n, w: four_bits(n, w, "nf4", 64, True), {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}),
        ("fp4", lambda n, w: four_bits(n, w, "fp4", 32, False), {"load_in_4bit": True}),
        ("int8", int8, {"load_in_8bit": True})):
    tensors, expected = {}, {}
    for name, weight in weights.items():
        if any(f".{module}." in name for module in NARROW):
            parts, expected[name] = narrow(name, weight)
            tensors |= parts
        else:
            tensors[name] = expected[name] = weight
    folder = here / case
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_file({name: x for name, x in expected.items() if x is not weights[name]}, folder / "expected.safetensors")
    said = config | {"quantization_config": {"quant_method": "bitsandbytes"} | said}
    (folder / "config.json").write_text(json.dumps(said, indent=2) + "\n")
