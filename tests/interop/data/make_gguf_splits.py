#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gguf_splits.json: for each pre-tokenizer name of llama.cpp the parts of the published tokenizer.json files that have it, and
the ids that the tokenizers library gives for random texts with them.

  python3 -m venv v && v/bin/pip install tokenizers==0.23.3 && v/bin/python tests/interop/data/make_gguf_splits.py LLAMA_CPP

LLAMA_CPP: the source of llama.cpp (for example from the sdist of llama-cpp-python 0.3.36, vendor/llama.cpp). From there come the
expressions of deepseek-llm, and its vocabularies with texts and ids (models/ggml-vocab-*.gguf), on which the parts are checked.
That check needs the package gguf as well.

All use one vocabulary, which was learned from texts that were not split: its tokens cross every boundary, so that ids show where a text
was split.
"""
import ast
import json
import pathlib
import random
import re
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

LLAMA_CPP = pathlib.Path(sys.argv[1])
OUT = pathlib.Path(__file__).parent / "gguf_splits.json"


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def digits(single=True):
    return {"type": "Digits", "individual_digits": single}


def cl100k(number):
    return (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + number +
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def cased(contractions, number):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contractions}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contractions}|{number}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def of_deepseek_llm():
    """The expressions of llama.cpp's table, which are those of the tokenizer.json, but for the last, of digits."""
    source = (LLAMA_CPP / "src/llama-vocab.cpp").read_text()
    table = re.search(r"PRE_TYPE_DEEPSEEK_LLM:\s+regex_exprs = \{(.*?)\};", source, re.S)[1]
    return [ast.literal_eval(one) for one in re.findall(r'"(?:[^"\\]|\\.)*"', table)][:-1]


NFC, EMPTY = {"type": "NFC"}, {"type": "Sequence", "normalizers": []}
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
V3_MAIN = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
           "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")
# name, pre_tokenizer, normalizer, ignore_merges, files in which a tokenizer.json has this
PUBLISHED = [
    ("gpt-2", byte_level(True), None, False, "gpt2"),
    ("olmo", byte_level(True), NFC, False, "OLMoE, GPT-NeoX"),
    ("smollm", sequence(digits(), byte_level(True)), None, False, "SmolLM, Granite 3"),
    ("command-r", sequence(digits(), byte_level(True)), NFC, False, "Command R"),
    ("llama-bpe", sequence(split(cl100k(r"\p{N}{1,3}")), byte_level(False)), None, True, "Llama 3"),
    ("dbrx", sequence(split(cl100k(r"\p{N}{1,3}"), "Removed", True), byte_level(False)), None, False, "DBRX"),
    ("dbrx", sequence(split(cl100k(r"\p{N}{1,3}")), byte_level(False)), None, False, "Smaug"),
    ("qwen2", sequence(split(cl100k(r"\p{N}")), byte_level(False)), NFC, False, "Qwen 2 and 3, with experts too"),
    ("deepseek-r1-qwen", sequence(split(cl100k(r"\p{N}")), byte_level(False)), None, False, "DeepSeek R1 Distill Qwen"),
    ("qwen35", sequence(split(cl100k(r"\p{N}").replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}")),
                        byte_level(False)), NFC, False, "Qwen 3.5"),
    ("gpt-4o", sequence(split(cased(CONTRACTIONS, r"\p{N}{1,3}")), byte_level(False)), None, True, "gpt-oss, Llama 4"),
    ("gpt-4o", sequence(split(cased(CONTRACTIONS, r"\p{N}{1,3}"), "Removed", True), byte_level(False)), None, False, "GPT-4o"),
    ("tekken", sequence(split(cased("", r"\p{N}")), byte_level(False)), None, True, "Mistral Nemo"),
    ("deepseek-llm", sequence(*map(split, of_deepseek_llm()), digits(), byte_level(False)), None, False, "DeepSeek LLM, DeepSeek V2"),
    ("deepseek-coder", sequence(*map(split, ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"]), digits(), byte_level(False)),
     None, False, "DeepSeek Coder"),
    ("deepseek-v3", sequence(*map(split, [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", V3_MAIN]), byte_level(False)), EMPTY, False,
     "DeepSeek V3 and R1"),
]
PIECES = ["a", "the", "The", "iPhone", "XMLHttp", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", "'s", "'S", "'ll", "'LL", "'re", "don't", "1", "12",
          "2024", "3.14", "1,000,000", "½", "²", "٣", ".", ",", "...", "!?", "/", "//", "\\", "-", "_", "#", "$", "`", "[", "]", "{", "}", "(x)",
          "é", "e\u0301", "ÅB", "ß", "ŉ", "Ǆ", "ǅ", "ж", "Жж", "ש", "ع", "한국", "中文字", "日本", "カナ", "かな", "，", "。", "！", "～", "“", "‟", "　", "ａＺ",
          "ﬁ", "𐐀", "😀", "👨‍👩‍👧", "\u200d", "\u00a0", "\u0000", "\u0085", "K", "Ω", "ª", "क्षि", "ไทย", "<|x|>", "http://a.b/c?d=1"]


def texts(count):
    chosen = random.Random(5)
    return ["".join(chosen.choice(PIECES) for _ in range(chosen.randint(1, 24))) for _ in range(count)]


def tokenizer(vocab, merges, pre, normalizer, ignore_merges):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges, "vocab": vocab, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre,
            "post_processor": None, "decoder": byte_level(True), "model": model}


def learned():
    """Vocabulary and merges of texts that were not split at all."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.train_from_iterator(texts(2000), trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(made.to_str())["model"]
    return model["vocab"], [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]


def check_published(name, pre, normalizer, ignore_merges):
    """Compares with llama.cpp's own vocabulary of that name, and its ids of its texts."""
    path = LLAMA_CPP / f"models/ggml-vocab-{name}.gguf"
    if not path.exists():
        return "no vocabulary in llama.cpp"
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens, kinds, merges = (fields["tokenizer.ggml." + key].contents() for key in ["tokens", "token_type", "merges"])
    whole = tokenizer({token: i for i, token in enumerate(tokens)}, merges, pre, normalizer, ignore_merges)
    whole["added_tokens"] = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                              "special": kind == 3} for i, (token, kind) in enumerate(zip(tokens, kinds)) if kind in (3, 4)]
    made = Tokenizer.from_str(json.dumps(whole))
    inputs = pathlib.Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = pathlib.Path(f"{path}.out").read_text().split("\n")
    wrong = [text for text, ids in zip(inputs, outputs) if made.encode(text, add_special_tokens=False).ids != list(map(int, ids.split()))]
    return f"{len(inputs) - len(wrong)} of {len(inputs)} texts" + "".join(f"\n  {text!r}" for text in wrong)


vocab, merges = learned()
inputs = texts(48)
cases = []
for name, pre, normalizer, ignore_merges, files in PUBLISHED:
    made = Tokenizer.from_str(json.dumps(tokenizer(vocab, merges, pre, normalizer, ignore_merges)))
    cases.append({"name": name, "files": files, "pre_tokenizer": pre, "normalizer": normalizer, "ignore_merges": ignore_merges,
                  "ids": [made.encode(text).ids for text in inputs]})
    print(f"{name} ({files}): {check_published(name, pre, normalizer, ignore_merges)}")
rows = ",\n".join(json.dumps(case) for case in cases)
OUT.write_text(f'{{"vocab": {json.dumps(vocab)},\n"merges": {json.dumps(merges)},\n"texts": {json.dumps(inputs)},\n"cases": [\n{rows}\n]}}\n')
