#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes reference/tokenizers/variant_*: small tokenizers whose parts the other cases do not have, with what the tokenizers library
makes of texts.

  python3 -m venv v && v/bin/pip install tokenizers==0.23.3
  v/bin/python tests/golden/tokenizer_variants.py tests/golden/reference/tokenizers
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = ["the quick brown fox jumps over the lazy dog", "The Quick Brown Fox", "snake_case camelCase HTTPServer v2", "don't I'm we'll",
          "naïve café", "你好，世界。", "カタカナとひらがな", "русский текст", "1234 5678 90", "a,b;c! (d) \"e\""] * 3
TEXTS = ["", " ", "  the  fox ", "theFox HTTPServerURL camelCase", "naïve café e\u0301", "你好,world カタカナーabc 1二3", "  русский text",
         "abcdefgh ijk", "zzz qqq ~~~", "\u32ff \ufb01 \u2160 \uab69", "don't STOP 12345", "a\u3000b\u00a0c\td\ne",
         "[CLS] x <s>y</s> newtok", "🤩👍🏽 ₿", "ab\u0327\u0301", "the, (quick) \"fox\"!"]
SPECIAL = ["<unk>", "<s>", "</s>", "[CLS]", "[SEP]", "[UNK]"]


def bpe(pre, size=160, normalizer=None, bytes_too=False, **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    ends = {k: model[k] for k in ("end_of_word_suffix", "continuing_subword_prefix") if k in model}
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False, limit_alphabet=40, **ends))
    if not bytes_too:
        return t
    j = json.loads(t.to_str())
    j["model"]["byte_fallback"] = True
    for byte in range(256):
        j["model"]["vocab"].setdefault(f"<0x{byte:02X}>", len(j["model"]["vocab"]))
    return Tokenizer.from_str(json.dumps(j))


def variants():
    words = pre_tokenizers.WhitespaceSplit()
    yield "scripts", bpe(pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.WhitespaceSplit()]), unk_token="<unk>")
    yield "fixed_length", bpe(pre_tokenizers.FixedLength(3), unk_token="<unk>", fuse_unk=True)
    camel = pre_tokenizers.Split(Regex(r"(?=[A-Z])|(?<=\d)"), "isolated")
    yield "between_characters", bpe(pre_tokenizers.Sequence([words, camel]), unk_token="<unk>")
    kana = pre_tokenizers.Split(Regex("[一-龥\\u3040-ゟ゠-ヿ]+"), "isolated")
    yield "code_points", bpe(pre_tokenizers.Sequence([words, kana]), unk_token="<unk>")
    yield "inserted", bpe(words, normalizer=normalizers.Replace(Regex(r"(?=[A-Z])"), "_"), unk_token="<unk>")
    yield "bytes_of_prefixes", bpe(words, bytes_too=True, unk_token="<unk>", continuing_subword_prefix="##")
    yield "without_unknown", bpe(pre_tokenizers.Punctuation("merged_with_next"))
    yield "older_unicode", bpe(words, normalizer=normalizers.NFKD(), unk_token="<unk>")
    yield "recomposed", bpe(words, normalizer=normalizers.NFKC(), unk_token="<unk>")
    suffixed = bpe(pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("o"), words]), normalizer=normalizers.Strip(True, False),
                   unk_token="<unk>", end_of_word_suffix="</w>")
    suffixed.decoder = decoders.BPEDecoder()
    yield "suffixes", suffixed
    raw = bpe(words, normalizer=normalizers.Sequence([normalizers.Strip(False, True), normalizers.ByteLevel()]))
    raw.decoder = decoders.ByteLevel()
    yield "bytes_from_the_start", raw
    letters = Tokenizer(models.WordLevel({t: i for i, t in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz'."])},
                                         unk_token="<unk>"))
    letters.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "|")])
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    letters.decoder = decoders.CTC()
    yield "frames", letters
    edges = bpe(pre_tokenizers.Metaspace(), unk_token="<unk>")
    edges.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Strip("e", 0, 1), decoders.Strip(" ", 1, 0)])
    yield "cut_ends", edges
    level = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    level.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    level.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.Whitespace()])
    level.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False))
    level.add_tokens([AddedToken("newtok", lstrip=True, single_word=True)])
    ids = {s: level.token_to_id(s) for s in SPECIAL}
    level.post_processor = processors.RobertaProcessing(("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=False)
    level.decoder = decoders.Sequence([decoders.Replace("e", "E"), decoders.Fuse()])
    yield "word_level", level


def main():
    out = pathlib.Path(sys.argv[1])
    for name, t in variants():
        folder = out / f"variant_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        t.save(str(folder / "tokenizer.json"), pretty=False)
        (folder / "about.json").write_text(json.dumps({"kind": name, "libraries": {"tokenizers": "0.23.3"}}) + "\n")
        with open(folder / "cases.jsonl", "w") as f:
            # Marks that are newer than the library's tables are not accents to it, and are to us.
            pair = ["\U00011935\U00011930"] if name in ("older_unicode", "recomposed") else []
            for text in TEXTS + pair:
                e, bare = t.encode(text), t.encode(text, add_special_tokens=False)
                row = {"text": text, "utf8_hex": text.encode().hex(), "ids": e.ids, "tokens": e.tokens}
                if name != "bytes_of_prefixes":  # offsets of bytes that no text has are beyond it there
                    row["offsets"] = [list(o) for o in e.offsets]
                row |= {"decoded": t.decode(e.ids, skip_special_tokens=False), "decoded_skip_special": t.decode(e.ids)}
                if bare.ids != e.ids:
                    row["ids_without_special"] = bare.ids
                f.write(json.dumps(row) + "\n")
        rng = random.Random(name)
        with open(folder / "decode.jsonl", "w") as f:
            for _ in range(8):
                ids = [rng.randrange(t.get_vocab_size()) for _ in range(rng.randint(1, 8))]
                f.write(json.dumps({"ids": ids, "decoded": t.decode(ids, skip_special_tokens=False), "decoded_skip_special": t.decode(ids)}) + "\n")


main()
