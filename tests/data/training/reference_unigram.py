# SPDX-License-Identifier: Apache-2.0
# Writes unigram.json beside it: into how many tokens the unigram models of the tokenizers library and of sentencepiece,
# learned from text.txt, cut that text.
# usage: pip install tokenizers==0.23.3 sentencepiece==0.2.3 && python reference_unigram.py
import io
import json
import pathlib

import sentencepiece
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

here = pathlib.Path(__file__).parent
path = here / "text.txt"
lines = path.read_text().splitlines()
out = {}
for size in (400, 800, 2000):
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.train(
        [str(path)],
        trainers.UnigramTrainer(
            vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, model_type="unigram", character_coverage=1.0,
        num_threads=1, minloglevel=2, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    out[size] = {
        "tokenizers": sum(len(library.encode(line).ids) for line in lines),
        "sentencepiece": sum(len(pieces.encode(line)) for line in lines),
    }
(here / "unigram.json").write_text(json.dumps(out) + "\n")
