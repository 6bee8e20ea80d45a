# SPDX-License-Identifier: Apache-2.0
# Writes small.tiktoken and cases.jsonl beside it: the first ranks of GPT-2, and what tiktoken makes of texts with them
# and the patterns and special tokens of its encodings.
# usage: pip install tiktoken==0.14.0 && python reference_tiktoken.py
import base64
import json
import pathlib

import tiktoken
import tiktoken_ext.openai_public as public

here = pathlib.Path(__file__).parent
gpt2 = here.parents[2] / "share" / "gpt2"
kRanks = 3000
# GPT-2's files name bytes by printable characters; the first 256 ids are single bytes, the next ones the merges in order.
encoder = json.loads((gpt2 / "vocab.json").read_text())
letters = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
byte_of = {chr(b): b for b in letters}
byte_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in letters)})
ranks = {bytes(byte_of[c] for c in token): i for token, i in encoder.items() if i < kRanks}
assert len(ranks) == kRanks
with open(here / "small.tiktoken", "wb") as out:
    for token, rank in sorted(ranks.items(), key=lambda one: one[1]):
        out.write(base64.b64encode(token) + b" " + str(rank).encode() + b"\n")

texts = [
    "", " ", "Hello world", "  two  spaces ", "The quick brown fox doesn't JUMP over 13 lazy dogs' 2024.",
    "I'LL we'Ve it's HE'S 'tis", "1234567 12 3.14159 1,000,000", "line\r\n\r\n  next\tline\n\n\nend\n   ", "naïve café ǅ Ⅷ ½ ５",
    "你好，世界。我来到北京清华大学！", "日本語のテキスト", "emoji 👩‍👩‍👧 and 🇩🇪 flags", "camelCaseHTMLParser XMLHttpRequest iPhone",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ththththth thethethe ininining", "a/b//c\n/d http://x.y/z?q=1#f", "مرحبا بالعالم नमस्ते दुनिया",
    "<|endoftext|> and <|endofprompt|>", "tabs\t\t\tand\u00a0nbsp\u2003em", "\n", "\r", "x\u0301y e\u0301te\u0301", "don't DON'T Don't",
    "!!!???...;;; ((())) [[]]{}", "    indented = code(1, 2)\n        return None\n", "0123456789" * 5, "\u200b\ufeff zero",
]
kQwen = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
kLlama3 = kQwen.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
patterns = {"qwen": kQwen, "other": kLlama3, "r50k_base": public.r50k_pat_str, "p50k_base": public.r50k_pat_str}
# The published constructors fetch ranks; only what they say beside these is wanted.
public.load_tiktoken_bpe = lambda *args, **named: ranks
for name in ("cl100k_base", "o200k_base"):
    patterns[name] = getattr(public, name)()["pat_str"]
with open(here / "cases.jsonl", "w") as out:
    for name, pattern in patterns.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for text in texts:
            ids = encoding.encode_ordinary(text)
            assert encoding.decode(ids) == text
            out.write(json.dumps({"encoding": name, "text": text, "ids": ids}) + "\n")
    for name in ("cl100k_base", "o200k_base", "o200k_harmony", "p50k_edit", "r50k_base"):
        out.write(json.dumps({"encoding": name, "special": getattr(public, name)()["special_tokens"]}) + "\n")
