#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a file of 1 GB with Python's safetensors: the peer of checkpoint_bench.

How to run:  python3 bench/peers/safetensors_io.py FILE.safetensors     (a copy is written next to it and removed)
Needs torch and safetensors. The tensors are touched after the load, because the file is mapped.
"""
import json
import os
import sys
import time

import torch
from safetensors.torch import load_file, save_file


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def timed(what, cache, size, work):
    begin = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begin
    print(json.dumps({"what": what, "cache": cache, "seconds": round(seconds, 3), "gbs": round(size / seconds / 1e9, 3)}), flush=True)
    return result


def load(path, into):
    for name, tensor in load_file(path).items():
        into[name].copy_(tensor)


def save(path, tensors):
    save_file(tensors, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


path = sys.argv[1]
torch.set_num_threads(1)
size = os.path.getsize(path)
tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
copy = path + ".copy"
timed("safetensors save_file", "-", size, lambda: save(copy, tensors))
os.remove(copy)
for cache in ("cold", "warm", "cold", "warm"):
    if cache == "cold":
        drop(path)
    timed("safetensors load_file", cache, size, lambda: load(path, tensors))
