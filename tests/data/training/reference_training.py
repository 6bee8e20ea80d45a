# SPDX-License-Identifier: Apache-2.0
# Writes reference.json into this folder: what the trainers of the tokenizers library learn from this text.
# usage: pip install tokenizers==0.23.3 && python reference_training.py
import json
import pathlib

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

here = pathlib.Path(__file__).parent
text = (here.parents[2] / "examples/data/shakespeare.txt").read_text()[:60000]
extra = "naïve café 你好, 世界! 1234 aaaaaaaa abababab\n" * 3
(here / "text.txt").write_text(text + extra)

bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.train(
    [str(here / "text.txt")],
    trainers.BpeTrainer(
        vocab_size=1200,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)


def word_pieces():
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.train(
        [str(here / "text.txt")],
        trainers.WordPieceTrainer(
            vocab_size=600,
            min_frequency=2,
            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            show_progress=False,
        ),
    )
    return set(json.loads(pieces.to_str())["model"]["vocab"])


# The library's order of equally frequent pairs depends on a hash table, so only what every run
# learns is recorded.
always = word_pieces()
for _ in range(15):
    always &= word_pieces()
model = json.loads(bpe.to_str())["model"]
sentence = "The naïve first citizen speaks: ababab 世界, before we proceed any further!"
json.dump(
    {
        "library": tokenizers.__version__,
        "bpe_tokens": [t for t, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])],
        "bpe_merges": model["merges"],
        "sentence": sentence,
        "bpe_ids": bpe.encode(sentence).ids,
        "word_pieces": sorted(always),
    },
    open(here / "reference.json", "w"),
    ensure_ascii=False,
)
