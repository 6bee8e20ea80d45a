# SPDX-License-Identifier: Apache-2.0
# Writes cases.json beside it: what the tokenizers library makes of texts with the sections "truncation" and "padding".
# usage: pip install tokenizers==0.23.3 && python reference_limits.py
import json
import pathlib

from tokenizers import Tokenizer

here = pathlib.Path(__file__).parent
words = "a b c d e f g h i j".split()
special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def token(name, kind=0):
    return {"SpecialToken": {"id": name, "type_id": kind}}


def text(name, kind=0):
    return {"Sequence": {"id": name, "type_id": kind}}


base = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, t in enumerate(special)
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [token("[CLS]"), text("A"), token("[SEP]")],
        "pair": [token("[CLS]"), text("A"), token("[SEP]"), text("B", 1), token("[SEP]", 1)],
        "special_tokens": {t: {"id": t, "ids": [special.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")},
    },
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {t: i for i, t in enumerate(special + words)}, "unk_token": "[UNK]"},
}


def truncation(length, strategy="LongestFirst", direction="Right"):
    return {"direction": direction, "max_length": length, "strategy": strategy, "stride": 0}


def padding(strategy, direction="Right", multiple=None):
    return {"strategy": strategy, "direction": direction, "pad_to_multiple_of": multiple, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "[PAD]"}


sections = [(truncation(n, s, d), None) for n in (0, 1, 3, 4, 5, 7, 8, 20) for s in ("LongestFirst", "OnlyFirst", "OnlySecond")
            for d in ("Right", "Left")]
sections += [(None, padding(s, d, m)) for s in ("BatchLongest", {"Fixed": 9}, {"Fixed": 2}) for d in ("Right", "Left")
             for m in (None, 4)]
sections += [(truncation(6), padding({"Fixed": 8})), (truncation(5, direction="Left"), padding({"Fixed": 6}, "Left"))]
texts = [("a b c d e f", None), ("a", None), ("", None), ("a b c d e f", "g h"), ("a b", "c d e f g h"), ("a b c", "d e f g"),
         ("a b c d", "e f g")]
cases = []
for cut, fill in sections:
    tokenizer = Tokenizer.from_str(json.dumps(dict(base, truncation=cut, padding=fill)))
    for first, second in texts:
        for add in (True, False):
            case = {"truncation": cut, "padding": fill, "first": first, "second": second, "special": add}
            try:
                out = tokenizer.encode(first, second, add_special_tokens=add)
                case.update(ids=out.ids, types=out.type_ids, tokens=out.tokens, mask=out.attention_mask,
                            offsets=[list(o) for o in out.offsets])
            except Exception as problem:
                case["refused"] = str(problem)
            cases.append(case)
(here / "cases.json").write_text(json.dumps({"file": base, "cases": cases}))
