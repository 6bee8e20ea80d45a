#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/text/jieba/: what jieba and transformers' CpmTokenizer make of the texts below.

  python3 -m venv v && v/bin/pip install jieba==0.42.1 transformers==5.24.0 sentencepiece==0.2.1
  v/bin/python tests/text/make_jieba.py

dict.txt and finalseg/ are the part of jieba's files (Sun Junyi, MIT licence) that the texts touch. cases.jsonl: `words` with this
part, `all_words` with jieba's own files, `ids` of CpmTokenizer over the words, as its fast class cuts text, with tokenizer/spiece.model.
"""
import collections
import json
import pathlib
import sys
import types

import jieba
import jieba.finalseg as finalseg
import sentencepiece

TEXTS = """今天天气很好，我们一起去公园散步吧。
小明硕士毕业于中国科学院计算所，后在日本京都大学深造。
南京市长江大桥是一座公路铁路两用桥。
他来到了网易杭研大厦，见到了李小福和王建国。
研究生命的起源，研究生的生活。
乒乓球拍卖完了；结婚的和尚未结婚的。
工信处女干事每月经过下属科室都要亲口交代24口交换机等技术性器件的安装工作。
这款手机售价3,999.00元，比上一代便宜12.5%，屏幕6.1英寸。
C++和c#是编程语言，AT&T是公司，T恤是衣服。
Transformer模型的参数量是1.5B，显存需要32GB（约34359738368字节）。
请发邮件到 zhang_san-01@example.com 或者打电话 010-8888-6666。
第一行
第二行\t有制表符  和两个空格
欧阳娜娜、诸葛孔明与司马相如在饕餮馆里品尝魑魅魍魉牌饺子。
龘龘龘靐齉，𠮷野家的牛肉饭很好吃。
我喜欢听周杰伦唱歌😀，尤其是《青花瓷》!!
ＡＢＣ全角字母１２３和半角abc123混在一起，１２％。
模型训练中断之后，从检查点恢复，损失曲线与之前完全一致。
巨大的语言模型需要很多显卡，也需要很多数据。
``引号''和"引号"，é与ü的重音。
.5%和3.14%以及2020-01-01
""".split("\n")[:-1]
TEXTS[11:13] = ["\n".join(TEXTS[11:13])]
TEXTS += ["", " ", "\r\n换行", "一", "　全角空格　中间", "abc", "哈" * 9, "1" * 5 + "." + "2" * 3 + "%%", "+-&#._%", "<eod>结束<eop>"]

out = pathlib.Path(__file__).parent / "jieba"
(out / "finalseg").mkdir(parents=True, exist_ok=True)
(out / "tokenizer").mkdir(exist_ok=True)
jieba.setLogLevel(60)
every = [list(jieba.cut(t, cut_all=False)) for t in TEXTS]

# The part of the dictionary whose words are in a text, or begin as a part of it.
parts = {t[i:j] for t in TEXTS for i in range(len(t)) for j in range(i + 1, min(len(t), i + 12) + 1)}
source = pathlib.Path(jieba.__file__).parent
lines = (source / "dict.txt").read_text("utf-8").splitlines()
kept = [l for l in lines if l.split(" ")[0] in parts]
(out / "dict.txt").write_text("\n".join(kept) + "\n", "utf-8")
letters = {c for t in TEXTS for c in t}
emit = {s: {c: p for c, p in table.items() if c in letters} for s, table in finalseg.emit_P.items()}
rows = [f"'{s}': {{" + ",\n ".join(f"'\\u{ord(c):04x}': {p!r}" for c, p in sorted(t.items())) + "}" for s, t in emit.items()]
(out / "finalseg/prob_emit.py").write_text("# Part of jieba's file.\nP={" + ",\n".join(rows) + "}\n")
for name in ("prob_start.py", "prob_trans.py"):
    (out / "finalseg" / name).write_text((source / "finalseg" / name).read_text())
finalseg.emit_P = emit
small = jieba.Tokenizer(str(out / "dict.txt"))
small.cache_file = "/nonexistent/cache"
words = [list(small.cut(t, cut_all=False)) for t in TEXTS]

table = str.maketrans(" \n", "\u2582\u2583")
joined = [" ".join(w.translate(table) for w in ws) for ws in words]
corpus = [j for j in joined if j.strip()] * 20
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(corpus), model_prefix=str(out / "tokenizer/spiece"), vocab_size=380, model_type="unigram",
    normalization_rule_name="identity", character_coverage=0.98, hard_vocab_limit=False, num_threads=1,
    control_symbols=["<cls>", "<sep>", "<pad>", "<mask>"], user_defined_symbols=["<eod>", "<eop>"], minloglevel=2)
(out / "tokenizer/spiece.vocab").unlink()
(out / "tokenizer/tokenizer_config.json").write_text('{"tokenizer_class": "CpmTokenizer"}\n')

sys.modules["rjieba"] = types.ModuleType("rjieba")  # the class asks for it, and we cut text ourselves
from transformers import CpmTokenizer  # noqa: E402

cpm = CpmTokenizer(str(out / "tokenizer/spiece.model"))
with open(out / "cases.jsonl", "w", encoding="ascii") as f:
    for text, few, whole, line in zip(TEXTS, words, every, joined):
        case = {"text": text, "words": few, "all_words": whole}
        if "<eo" not in text:
            case["ids"] = cpm.convert_tokens_to_ids(cpm._tokenize(line))
            case["decoded"] = cpm.decode(case["ids"])
            case["ids_with_special"] = cpm.build_inputs_with_special_tokens(case["ids"])
        f.write(json.dumps(case) + "\n")
print(len(kept), "words,", collections.Counter(w == a for w, a in zip(words, every)))
