#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the target programs read what tessera converts: torch, DeepSpeed, tokenizers, safetensors,
transformers (every recorded model) and gguf.

How to run:  python3 bench/peers/check_interop.py build/release/bin/tessera
Needs torch; the other programs are checked if they are installed, and named if they are not. Starts from the recorded
checkpoints in tests/golden/reference/interop, which come with the losses of the next three steps.
"""
import importlib.util
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

INTEROP = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/reference/interop"


class Conv1D(nn.Module):
    """Hugging Face's: the weight is [in, out]."""

    def __init__(self, out, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(width, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Conv1D(3 * width, width), "c_proj": Conv1D(width, width)})
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(4 * width, width), "c_proj": Conv1D(width, 4 * width)})

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.attn["c_attn"](self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.attn["c_proj"](y)
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT2LMHeadModel with its names, as far as training needs it."""

    def __init__(self, config):
        super().__init__()
        n = config["n_embd"]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(config["vocab_size"], n), "wpe": nn.Embedding(config["n_positions"], n),
            "h": nn.ModuleList([Block(n, config["n_head"]) for _ in range(config["n_layer"])]), "ln_f": nn.LayerNorm(n)})
        self.lm_head = nn.Linear(n, config["vocab_size"], bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, ids):
        x = self.transformer["wte"](ids) + self.transformer["wpe"](torch.arange(ids.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x)).float()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def read_safetensors(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    kinds = {"F32": torch.float32, "I64": torch.int64, "BF16": torch.bfloat16, "F16": torch.float16,
             "F64": torch.float64}
    out = {}
    for name, entry in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            data = bytearray(raw[8 + size + begin:8 + size + end])
            out[name] = torch.frombuffer(data, dtype=kinds[entry["dtype"]]).reshape(entry["shape"])
    return out


def model_of(folder):
    return GPT2(json.loads((folder / "config.json").read_text()))


def batches():
    return read_safetensors(INTEROP / "inputs.safetensors")["input_ids"]


def compare(what, got, recorded, bound):
    worst = max(abs(a - b) / b for a, b in zip(got, recorded))
    print(f"{'ok  ' if worst < bound else 'FAIL'} {what}: next losses {[round(x, 6) for x in got]}, worst {worst:.1e}", flush=True)
    return worst < bound


def check_torch(tessera, work):
    source = INTEROP / "torch_tutorial"
    record = json.loads((source / "case.json").read_text())
    run(tessera, "convert", source, work / "ours", "--to", "tessera")
    run(tessera, "convert", work / "ours", work / "model_000005.pth")
    model = model_of(source)
    model.load_state_dict(torch.load(work / "model_000005.pth", weights_only=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=record["lr"], weight_decay=record["weight_decay"])
    optimizer.load_state_dict(torch.load(work / "optimizer_000005.pth", weights_only=True))
    losses = []
    for ids in batches()[5:]:
        loss = model(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return compare("torch: model_000005.pth and optimizer_000005.pth", losses, record["losses"][5:], 1e-5)


def check_bin(tessera, work):
    source = INTEROP / "bin_zip"
    run(tessera, "convert", source, work / "bin", "--to", "torch")
    theirs = torch.load(source / "pytorch_model.bin", weights_only=True)
    ours = torch.load(work / "bin" / "pytorch_model.bin", weights_only=True)
    same = theirs.keys() == ours.keys() and all(torch.equal(theirs[k], ours[k]) for k in theirs)
    tied = ours["lm_head.weight"].data_ptr() == ours["transformer.wte.weight"].data_ptr()
    print(f"{'ok  ' if same and tied else 'FAIL'} torch: pytorch_model.bin, every element and the tied head", flush=True)
    return same and tied


def check_tokenizer(tessera, work):
    if not importlib.util.find_spec("tokenizers"):
        print("skip tokenizers: not installed")
        return True
    import tokenizers
    text = (work / "data.txt")
    text.write_text("the cat sat on the mat. " * 200)
    config = {"model": {"num_layers": 1, "hidden_size": 32, "num_heads": 2, "max_positions": 16},
              "data": {"train": str(text), "sequence_length": 16}, "train_batch_size": 2, "trainer": {"max_steps": 1},
              "run": {"dir": str(work / "run"), "threads_per_rank": 1}}
    (work / "c.json").write_text(json.dumps(config))
    run(tessera, "train", work / "c.json", "--quiet")
    run(tessera, "convert", work / "run", work / "hf")
    tokenizer = tokenizers.Tokenizer.from_file(str(work / "hf" / "tokenizer.json"))
    ok = True
    for line in ["hello, world\n", "\u0100\u0120 naive caf\u00e9 \U0001f600\x00", "  two  spaces\t\r\n", "<|endoftext|>"]:
        ids = tokenizer.encode(line, add_special_tokens=False).ids
        ok = ok and ids == list(line.encode()) and tokenizer.decode(ids, skip_special_tokens=False) == line
    print(f"{'ok  ' if ok else 'FAIL'} tokenizers: the byte tokenizer's tokenizer.json", flush=True)
    return ok


def deepspeed_rank(folder, source, stage, bf16):
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    record = json.loads((source / "case.json").read_text())
    config = dict(record["config"], checkpoint={"load_universal": True})
    config["zero_optimization"] = dict(config["zero_optimization"], stage=stage)
    model = model_of(source)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    path, _ = engine.load_checkpoint(str(folder))
    assert path is not None, "DeepSpeed found no checkpoint"
    rank, losses = torch.distributed.get_rank(), []
    for ids in batches()[5:]:
        loss = engine(ids[2 * rank:2 * rank + 2])
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / torch.distributed.get_world_size())
    if rank == 0:
        ok = compare(f"DeepSpeed stage {stage}: universal checkpoint of {source.name}", losses, record["losses"][5:],
                     2e-3 if bf16 else 1e-5)
        sys.exit(0 if ok else 1)


def check_deepspeed(tessera, work):
    if not importlib.util.find_spec("deepspeed"):
        print("skip deepspeed: not installed")
        return True
    ok = True
    for source, stages in (("deepspeed_z1_fp32", (1, 2, 3)), ("deepspeed_z3_bf16", (1, 3))):
        run(tessera, "convert", INTEROP / source, work / f"{source}-ours", "--to", "tessera")
        run(tessera, "convert", work / f"{source}-ours", work / source, "--to", "deepspeed-universal")
        for stage in stages:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(work / source), source, str(stage)],
                                      env=dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", LOCAL_SIZE="2",
                                               MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), DS_ACCELERATOR="cpu",
                                               OMP_NUM_THREADS="1"),
                                      stderr=subprocess.DEVNULL) for r in range(2)]
            codes = [rank.wait() for rank in ranks]
            if max(codes):
                print(f"FAIL DeepSpeed stage {stage} on {source}: exit codes {codes}", flush=True)
                ok = False
    return ok


def check_transformers(tessera, work):
    if not importlib.util.find_spec("transformers"):
        print("skip transformers: not installed")
        return True
    import transformers
    ok = True
    for source in sorted((INTEROP.parent / "models").iterdir()):
        if not (source / "expected.safetensors").exists():
            continue  # the files of another case in another form
        # By way of a checkpoint of tessera, so that the family writes config.json.
        words = (tessera, "convert", source, work / f"{source.name}-ours", "--to", "tessera")
        converted = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if converted.returncode:
            print(f"skip transformers: {source.name}: {converted.stderr.splitlines()[0]}")
            continue
        run(tessera, "convert", work / f"{source.name}-ours", work / source.name, "--shard-size", "20kB")
        expected = read_safetensors(source / "expected.safetensors")
        kind = json.loads((source / "config.json").read_text())["architectures"][0]
        try:
            model = getattr(transformers, kind).from_pretrained(work / source.name, dtype=torch.float32, attn_implementation="eager").eval()
        except Exception as error:  # each model is checked
            print(f"FAIL transformers: {source.name}: {str(error).splitlines()[0]}", flush=True)
            ok = False
            continue
        with torch.no_grad():
            logits = model(**{name[6:]: value for name, value in expected.items() if name.startswith("input.")}).logits
        apart = (logits - expected["logits"]).abs()
        mask = expected.get("input.attention_mask")
        if mask is not None and apart.dim() == 3 and "ConditionalGeneration" not in kind:
            apart = apart[mask.bool()]
        worst = apart.max().item()
        good = worst < 5e-5 and not math.isnan(worst)
        ok = ok and good
        print(f"{'ok  ' if good else 'FAIL'} transformers: logits of a sharded folder, {source.name}, worst {worst:.1e}", flush=True)
    return ok


def check_small_vocabularies(tessera, work):
    """Families without a recorded model: log-probabilities of a text by a model that tessera trained on bytes."""
    if not importlib.util.find_spec("transformers"):
        return True
    import transformers
    text = "the cat sat on the mat"
    (work / "text.txt").write_text(f"{text}. " * 50)
    (work / "line.txt").write_text(text + "\n")
    ok = True
    for family, preset in (("olmo2", "olmo2-nano"), ("smollm3", "smollm3-nano"), ("glm", "glm-nano"), ("glm4", "glm4-nano"),
                           ("gemma", "gemma-nano"), ("phi3", "phi3-nano")):
        config = {"model": {"family": family, "preset": preset, "init_std": 0.1}, "tokenizer": {"type": "byte"},
                  "data": {"train": str(work / "text.txt"), "sequence_length": 32}, "train_batch_size": 4,
                  "trainer": {"max_steps": 2}, "run": {"dir": str(work / family), "threads_per_rank": 1}}
        (work / "c.json").write_text(json.dumps(config))
        run(tessera, "train", work / "c.json", "-n", "1", "--quiet")
        run(tessera, "convert", work / family, work / f"{family}-hf")
        run(tessera, "score", work / family, work / "line.txt", "--tokens", "--out", work / f"{family}.jsonl")
        scores = json.loads((work / f"{family}.jsonl").read_text().splitlines()[0])
        ours = torch.tensor(next(value for value in scores.values() if isinstance(value, list)))
        model = transformers.AutoModelForCausalLM.from_pretrained(work / f"{family}-hf", dtype=torch.float32, attn_implementation="eager").eval()
        ids = torch.tensor([list(text.encode())])
        with torch.no_grad():
            theirs = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        worst = (ours[-len(theirs):] - theirs).abs().max().item()
        good = worst < 2e-5
        ok = ok and good
        print(f"{'ok  ' if good else 'FAIL'} transformers: log-probabilities of {family} with 256 tokens, worst {worst:.1e}", flush=True)
    return ok


def check_gguf(tessera, work):
    if not importlib.util.find_spec("gguf"):
        print("skip gguf: not installed")
        return True
    import gguf
    import numpy as np
    source = INTEROP.parent / "models" / "qwen2"
    theirs = read_safetensors(source / "model.safetensors")
    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, layers)
    ok = True
    for kind in ("fp32", "fp16", "bf16", "q8_0"):
        run(tessera, "convert", source, work / f"{kind}.gguf", "--dtype", kind)
        tensors = {t.name: t for t in gguf.GGUFReader(work / f"{kind}.gguf").tensors}
        worst = 0.0
        for name, value in theirs.items():
            stem, suffix = name.rsplit(".", 1)
            tensor = tensors.pop(f"{names.get_name(stem)}.{suffix}")
            ours = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            worst = max(worst, float(np.abs(ours - value.numpy()).max() / np.abs(value.numpy()).max()))
        # Half of the last bit of each type; blocks of Q8_0 have 127 steps to their largest number.
        good = not tensors and worst <= {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8, "q8_0": 0.5 / 127 + 2.0**-11}[kind]
        ok = ok and good
        print(f"{'ok  ' if good else 'FAIL'} gguf: tensors of a {kind} file, worst {worst:.1e} of the largest number", flush=True)
    return ok


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


def main():
    tessera = pathlib.Path(sys.argv[1]).resolve()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checks = (check_torch, check_bin, check_tokenizer, check_transformers, check_small_vocabularies, check_gguf, check_deepspeed)
        results = [check(tessera, pathlib.Path(folder)) for check in checks]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        deepspeed_rank(pathlib.Path(sys.argv[2]), INTEROP / sys.argv[3], int(sys.argv[4]), "bf16" in sys.argv[3])
    else:
        main()
