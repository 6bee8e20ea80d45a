#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates seeds for fuzz/corpus: small torch files, for formats whose real files are too large or too rare to be recorded.
They have the structure of real files; some are valid, the others contain one wrong value each. Needs only Python; run it in the
root of the repository."""
import gzip
import json
import pathlib
import struct
import zipfile

CORPUS = pathlib.Path("fuzz/corpus")
INTEROP = pathlib.Path("tests/golden/reference/interop")


class Pickle:
    """Returns a value in pickle protocol 2, and the storages that it names."""

    def __init__(self):
        self.storages = []

    def value(self, v):
        if v is None:
            return b"N"
        if isinstance(v, bool):
            return b"\x88" if v else b"\x89"
        if isinstance(v, int):
            return b"\x8a\x08" + struct.pack("<q", v)
        if isinstance(v, float):
            return b"G" + struct.pack(">d", v)
        if isinstance(v, str):
            return b"X" + struct.pack("<I", len(v.encode())) + v.encode()
        if isinstance(v, list):
            return b"](" + b"".join(map(self.value, v)) + b"e"
        if isinstance(v, tuple):
            return b"(" + b"".join(map(self.value, v)) + b"t"
        if isinstance(v, dict):
            return b"}(" + b"".join(self.value(k) + self.value(x) for k, x in v.items()) + b"u"
        return v.words(self)


class Called:
    def __init__(self, module, name, *arguments):
        self.module, self.name, self.arguments = module, name, arguments

    def words(self, pickle):
        return f"c{self.module}\n{self.name}\n".encode() + pickle.value(self.arguments) + b"R"


class Object:
    def __init__(self, module, name, state):
        self.module, self.name, self.state = module, name, state

    def words(self, pickle):
        return f"c{self.module}\n{self.name}\n".encode() + b")\x81" + pickle.value(self.state) + b"b"


class Tensor:
    """Of ones; `claims` is the length that its storage is said to have."""

    def __init__(self, *shape, claims=None):
        self.shape, self.claims = shape, claims

    def words(self, pickle):
        numel, strides, step = 1, [], 1
        for size in self.shape:
            numel *= size
        for size in reversed(self.shape):
            strides.insert(0, step)
            step *= size
        key = str(len(pickle.storages))
        pickle.storages.append(struct.pack("<f", 1.0) * numel)
        claims = numel if self.claims is None else self.claims
        storage = (b"(" + pickle.value("storage") + b"ctorch\nFloatStorage\n" + pickle.value(key) + pickle.value("cpu") +
                   pickle.value(claims) + b"tQ")
        return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + pickle.value(0) + pickle.value(self.shape) +
                pickle.value(tuple(strides)) + b"\x89ccollections\nOrderedDict\n)RtR")


def put(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def torch_file(target, name, value, root="archive"):
    pickle = Pickle()
    data = b"\x80\x02" + pickle.value(value) + b"."
    zip_of(target, name, [(f"{root}/data.pkl", data)] +
           [(f"{root}/data/{i}", bytes_) for i, bytes_ in enumerate(pickle.storages)] + [(f"{root}/version", b"3\n")])


def zip_of(target, name, entries):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_STORED) as out:
        for entry, content in entries:
            out.writestr(zipfile.ZipInfo(entry), content)


def repacked(target, name, path):
    """Returns a recorded file without the padding between its entries."""
    with zipfile.ZipFile(path) as recorded:
        zip_of(target, name, [(i.filename, recorded.read(i)) for i in recorded.infolist()])


def stage_3(**changes):
    state = {"exp_avg": Tensor(3), "exp_avg_sq": Tensor(3), "step": 5}
    whole = {
        "zero_stage": Called("deepspeed.runtime.zero.config", "ZeroStageEnum", 3),
        "loss_scaler": Object("deepspeed.runtime.fp16.loss_scaler", "LossScaler", {"cur_scale": 1, "dynamic": False}),
        "partition_count": 2,
        "optimizer_state_dict": {"state": {0: state}, "param_groups": [{"lr": 0.001}]},
        "fp32_flat_groups": [Tensor(3)],
    }
    whole.update(changes)
    return {"optimizer_state_dict": whole, "ds_config": {}, "ds_version": "0.19.0"}


def deepspeed():
    torch_file("deepspeed-stage3", "sound.pt", stage_3())
    torch_file("deepspeed-stage3", "short.pt", stage_3(fp32_flat_groups=[Tensor(2)]))
    torch_file("deepspeed-stage3", "more.pt", stage_3(fp32_flat_groups=[Tensor(3), Tensor(1)]))
    torch_file("deepspeed-stage3", "cut-in-two.pt", stage_3(fp32_flat_groups=[Tensor(1), Tensor(2)]))
    torch_file("deepspeed-stage3", "nothing.pt", stage_3(fp32_flat_groups=[]))
    torch_file("deepspeed-stage3", "three-ranks.pt", stage_3(partition_count=3))
    torch_file("deepspeed-stage3", "no-ranks.pt", stage_3(partition_count=[]))
    torch_file("deepspeed-stage3", "claims.pt", stage_3(fp32_flat_groups=[Tensor(3, claims=1 << 62)]))
    torch_file("deepspeed-stage3", "step-tensor.pt", stage_3(
        optimizer_state_dict={"state": {0: {"exp_avg": Tensor(3), "step": Tensor()}}}))
    torch_file("deepspeed-stage3", "negative-step.pt", stage_3(optimizer_state_dict={"state": {0: {"step": -1 << 63}}}))
    torch_file("deepspeed-stage3", "matrix.pt", stage_3(fp32_flat_groups=[Tensor(3, 1)]))
    torch_file("deepspeed-stage3", "dynamic.pt", stage_3(loss_scaler=Object(
        "deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler",
        {"cur_scale": float("inf"), "dynamic": True, "cur_iter": -1 << 63, "cur_hysteresis": 1 << 62})))
    torch_file("deepspeed-sharded", "small.pt", stage_3())
    expert = "h.mlp.deepspeed_moe.experts.deepspeed_experts.0.up.weight"
    torch_file("deepspeed-experts", "sound.pt", {expert: Tensor(3, 3)})
    torch_file("deepspeed-experts", "of-another.pt", {expert.replace(".0.", ".1."): Tensor(3, 3)})
    torch_file("deepspeed-experts", "nothing.pt", {})
    torch_file("deepspeed-experts", "claims.pt", {expert: Tensor(3, claims=1 << 62)})
    torch_file("deepspeed-experts", "list.pt", [Tensor(3), {"a": Tensor()}])
    file = "layer_{}_expert_{}_mp_rank_00_model_states.pt\n"
    put("deepspeed-expert-names", "sound.txt", file.format(0, 0) + "h.deepspeed_moe.gate.wg.weight\n[1]\n")
    put("deepspeed-expert-names", "missing.txt", file.format(0, 0) + file.format(0, 2) + "[3]\n")
    put("deepspeed-expert-names", "many.txt", file.format(0, 0) + "[9223372036854775807, -5, 1e300, null, {}]\n")
    put("deepspeed-expert-names", "far.txt", file.format(999999, 999999) + file.format("0000001", 0) + "layer__expert_1_mp_rank_00_model_states.pt\n")
    put("deepspeed-expert-names", "old.txt", "expert_0_mp_rank_00_model_states.pt\nexpp_rank_0_mp_rank_00_optim_states.pt\n[4, 1]\n")
    put("deepspeed-expert-names", "cut.txt", "expert_0_mp_rank_01_model_states.pt\n")
    put("deepspeed-expert-names", "twice.txt", "a.deepspeed_moe.deepspeed_moe.b\na.deepspeed_moe.b\n")
    loads = {"step": 40, "steps": 10, "layers": [{"name": "h.0", "chosen": [400, 0, 3], "dropped": 90}]}
    put("expert-loads", "sound.json", json.dumps(loads))
    put("expert-loads", "cut.json", json.dumps(loads)[:-20])
    put("expert-loads", "large.json", json.dumps({**loads, "step": 2**63 - 1, "steps": 0}))
    put("expert-loads", "largest.json", json.dumps({"step": 2**53, "steps": 0, "layers": [
        {"name": "<&>\u0000", "chosen": [2**53] * 1023, "dropped": 2**53}, {"name": "", "chosen": [0], "dropped": 0}]}))
    repacked("deepspeed-sharded-model", "real.pt",
             INTEROP / "deepspeed_z3_bf16/global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt")

    def model(**changes):
        whole = {"module": {}, "buffer_names": [], "param_shapes": [{"w": Called("torch", "Size", (5,))}],
                 "shared_params": {"v": "w"}, "global_steps": 5, "global_samples": 20, "skipped_steps": 0}
        whole.update(changes)
        return whole

    for target in ("deepspeed", "deepspeed-sharded-model"):
        torch_file(target, "small.pt", model())
        torch_file(target, "huge-shape.pt", model(param_shapes=[{"w": Called("torch", "Size", (1 << 62, 4))}]))
        torch_file(target, "no-list.pt", model(param_shapes={"w": (5, -1)}))
        torch_file(target, "steps.pt", model(global_steps=-1 << 63, skipped_steps=1 << 62))
        torch_file(target, "frozen.pt", model(frozen_param_shapes={"f": Called("torch", "Size", (7,))},
                                              frozen_param_fragments={"f": Tensor(4)}))
        torch_file(target, "buffers.pt", model(module={"b": Tensor(2, 2)}, buffer_names=["b", 3, "absent"]))
        torch_file(target, "alias-of-itself.pt", model(shared_params={"w": "w"}))

    def stage_1(**changes):
        whole = {"zero_stage": Called("deepspeed.runtime.zero.config", "ZeroStageEnum", 1), "partition_count": [2],
                 "group_paddings": [0], "single_partition_of_fp32_groups": [Tensor(3)],
                 "base_optimizer_state": {"state": {0: {"exp_avg": Tensor(3), "exp_avg_sq": Tensor(3), "step": 5}}}}
        whole.update(changes)
        return {"optimizer_state_dict": whole}

    def place(start, numel):
        return Called("deepspeed.utils.tensor_fragment", "fragment_address", numel, start)

    torch_file("deepspeed-optimizer", "small.pt", stage_1())
    torch_file("deepspeed-optimizer", "list.pt", stage_1(base_optimizer_state=[{"exp_avg": Tensor(3)}]))
    torch_file("deepspeed-optimizer", "mapped.pt", stage_1(param_slice_mappings=[{"w": place(0, 3)}]))
    torch_file("deepspeed-optimizer", "far.pt", stage_1(param_slice_mappings=[{"w": place((1 << 63) - 1, 3)}]))
    torch_file("deepspeed-optimizer", "backwards.pt", stage_1(param_slice_mappings=[{"w": place(-3, 3)}]))


def torch_loop():
    def model(**more):
        return {"w": Tensor(2, 3), "b": Tensor(3), **more}

    torch_file("torch-loop-model", "sound.pt", model())
    torch_file("torch-loop-model", "buffer.pt", model(**{"h.0.attn.bias": Tensor(1, 1, 2, 2)}))
    torch_file("torch-loop-model", "one-more.pt", model(c=Tensor(1)))
    torch_file("torch-loop-model", "another-shape.pt", {"w": Tensor(3, 2), "b": Tensor(3)})
    torch_file("torch-loop-model", "claims.pt", {"w": Tensor(2, 3, claims=7), "b": Tensor(3)})
    torch_file("torch-loop-model", "no-tensors.pt", {"w": 1, "b": "text"})

    def optimizer(state=None, **group):
        each = {"step": Tensor(), "exp_avg": Tensor(3), "exp_avg_sq": Tensor(3)}
        return {"state": {0: each, 1: each} if state is None else state,
                "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), "params": [0, 1], **group}]}

    torch_file("torch-loop", "small.pt", optimizer())
    torch_file("torch-loop", "two-groups.pt", {"state": {}, "param_groups": [{"params": [0]}, {"params": [1]}]})
    torch_file("torch-loop", "amsgrad.pt", optimizer(amsgrad=True))
    torch_file("torch-loop", "strange-numbers.pt", optimizer(params=[-1 << 63, None, "0", 1.5]))
    torch_file("torch-loop", "no-state.pt", optimizer(state={}, params=list(range(40))))


def tokenizers():
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in printable]
    character = {**{b: chr(b) for b in printable}, **{b: chr(256 + n) for n, b in enumerate(others)}}
    vocab = {character[b]: b for b in range(256)}
    vocab.update({"ab": 256, "<|endoftext|>": 257})

    def dump(value):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def without(token):
        return {k: v for k, v in vocab.items() if k != token}

    put("vocab", "sound.json", dump(vocab))
    put("vocab", "no-byte.json", dump(without("!")))
    put("vocab", "no-end.json", dump(without("<|endoftext|>")))
    put("vocab", "no-merge.json", dump(without("ab")))
    put("vocab", "same-id.json", dump({**vocab, "zz": 3}))
    put("vocab", "far-id.json", dump({**vocab, "zz": 1 << 62}))
    put("vocab", "text-id.json", dump({**vocab, "zz": "3"}))
    put("vocab", "empty-token.json", dump({**vocab, "": 258}))
    put("vocab", "foreign.json", dump({**vocab, "\u4e2d": 258}))
    put("vocab", "list.json", "[]")
    put("vocab", "deep.json", "[" * 2000)
    put("merges", "sound.txt", "#version: 0.2\na b\n")
    put("merges", "windows.txt", "#version: 0.2\r\na b\r\n\r\n")
    put("merges", "three.txt", "a b c\n")
    put("merges", "unknown.txt", "#version: 0.2\nx y\n")
    put("merges", "spaces.txt", " a\nb \n")
    put("merges", "bytes.txt", b"a b\n\xff\xfe \x00\n")
    put("merges", "empty.txt", "")

    def whole(**changes):
        model = {"type": "BPE", "dropout": None, "vocab": without("<|endoftext|>"), "merges": ["a b"]}
        root = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                "added_tokens": [{"id": 257, "content": "<|endoftext|>", "special": True, "lstrip": False}],
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}, "model": model}
        for key, value in changes.items():
            (model if key in ("merges", "vocab", "type", "dropout") else root)[key] = value
        return dump(root)

    put("tokenizer", "sound.json", whole())
    put("tokenizer", "pairs.json", whole(merges=[["a", "b"]]))
    put("tokenizer", "half-a-pair.json", whole(merges=[["a"]]))
    put("tokenizer", "numbers.json", whole(merges=[1, None]))
    put("tokenizer", "unigram.json", whole(type="Unigram", vocab=[["a", -1.5]]))
    put("tokenizer", "added.json", whole(added_tokens=[{"id": -1, "content": "<|endoftext|>"}]))
    put("tokenizer", "added-text.json", whole(added_tokens=[{"id": "257", "content": 5}]))
    put("tokenizer", "normalizer.json", whole(normalizer={"type": "NFC"}))
    put("tokenizer", "split.json", whole(pre_tokenizer={"type": "ByteLevel", "use_regex": "no"}))
    put("tokenizer", "cut.json", whole()[:900])


def lines():
    put("records", "list.json", '[{"a": {"b": 1}}, {"text": "x"}, 3]')
    put("records", "wrapped.json", '{"version": 1, "data": [{"a": {"b": 1}}], "more": []}')
    put("records", "lines.json", '{"a": {"b": 1}}\n\n{"a": 2}\nx\n')
    put("records", "deep.json", "[" * 5000)
    put("records", "packed.json", gzip.compress(b'[{"a": {"b": 1}}]', mtime=0))
    put("table", "sound.csv", 'a,text\r\n1,"x ""y""\nz"\r\n2.5,\r\n')
    put("table", "open.csv", 'a,b\n1,"2\n')
    put("table", "ragged.csv", 'a;b\n1;2;3\n\n"4"5;6\n')
    put("table", "cut.csv", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-6])
    put("yaml", "sound.yaml", "a: 1\nb: [x, 2.5e-4, true, ~]\nc:\n  - {d: 'e', f: \"g\"}\n  - |\n    text\n")
    put("yaml", "anchors.yaml", "a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2\n")
    put("yaml", "aliases.yaml", "a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n")
    put("yaml", "inside.yaml", "a: &a [*a]\n")
    put("yaml", "tab.yaml", "a:\n\tb: 1\n")
    put("yaml", "twice.yaml", "a: 1\na: 2\n")
    put("yaml", "deep.yaml", "[" * 400 + "\n")
    put("yaml", "documents.yaml", "a: 1\n---\nb: 2\n")
    put("yaml", "keys.yaml", "? [a, b]\n: c\n")
    put("toml", "sound.toml", "a = 1\n[b.c]\nd = [1.5, true, \"x\"]\ne = 2024-05-01T07:32:00Z\n[[f]]\ng = 0x1F\n[[f]]\ng = -inf\n")
    put("toml", "twice.toml", "a = 1\na = 2\n[b]\n[b]\n")
    put("toml", "deep.toml", "a = " + "[" * 400 + "\n")
    put("toml", "keys.toml", "a.b.c = 1\n\"x y\".z = \"\"\"\n text \\u00e9 \"\"\"\nt = {a = 1, b = {c = 2}}\n")
    put("python-literals", "sound.py", "import time\na = 1\nb = [1, 2.5, 'x']\nc = dict(d=a * 2, e={'f': None})\ng = 5 * 8 // 3 % 2\n")
    put("python-literals", "call.py", "a = open('x')\n")
    put("python-literals", "deep.py", "a = " + "(" * 400 + "\n")
    put("jsonl", "sound.jsonl", '{"text": "one"}\n{"id": 7, "text": "tw\\u00f6 \\ud83c\\udf4e", "more": [1.5e3, null, {}]}\n')
    put("jsonl", "surrogates.jsonl", '{"text": "\\ud83c"}\n{"text": "\\udf4e\\ud83c"}\n{"text": "\\ud83c\\u0041"}\n')
    put("jsonl", "twice.jsonl", '{"text": "a", "text": "b"}\n{"te\\u0078t": "c", "text": "d"}\n')
    put("jsonl", "absent.jsonl", '{"txt": "a"}\n{}\n[]\n"text"\n\n{"text": 5}\n{"text": {"text": "a"}}\n')
    put("jsonl", "deep.jsonl", '{"a": ' + "[" * 5000 + "\n" + '{"a": ' + '{"a": ' * 300 + "\n")
    put("jsonl", "numbers.jsonl", '{"a": 01, "text": "x"}\n{"a": -, "text": "x"}\n{"a": 1e, "text": "x"}\n{"a": .5}\n')
    put("jsonl", "cut.jsonl", '{"text": "a\n{"text": "\\u00\n{"text": "a"} x\n{"text": "a",}\n{"text"')
    put("jsonl", "bytes.jsonl", b'{"text": "\xff"}\n{"text": "\x00\x01"}\n\xef\xbb\xbf{"text": "a"}\n')


def configs():
    real = json.loads((INTEROP / "torch_tutorial/config.json").read_text())

    def config(**changes):
        return json.dumps({**real, **changes})

    put("hf-config", "gpt2.json", config())
    put("hf-config", "bare.json", '{"model_type": "gpt2"}')
    put("hf-config", "other.json", '{"model_type": "gpt9", "architectures": ["Gpt9"]}')
    put("hf-config", "no-type.json", '{"architectures": [7]}')
    put("hf-config", "negative.json", config(n_layer=-1))
    put("hf-config", "huge.json", config(n_embd=1 << 62, n_head=1))
    put("hf-config", "endless-layers.json", config(n_layer=1 << 40))
    put("hf-config", "no-heads.json", config(n_head=0))
    put("hf-config", "odd-heads.json", config(n_head=5))
    put("hf-config", "texts.json", config(n_embd="32", n_layer=True))
    put("hf-config", "fractions.json", config(n_embd=32.5, layer_norm_epsilon=-1e400))
    put("hf-config", "activation.json", config(activation_function=["gelu"]))
    put("hf-config", "dropout.json", config(resid_pdrop=2.0))
    put("hf-config", "list.json", "[]")
    put("hf-config", "deep.json", '{"model_type": ' + "[" * 3000)


if __name__ == "__main__":
    deepspeed()
    torch_loop()
    tokenizers()
    lines()
    configs()
