# SPDX-License-Identifier: Apache-2.0
"""Models: a run, a checkpoint, a Hugging Face folder, or a name that this machine has."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _program

if TYPE_CHECKING:
    import numpy



@dataclass(frozen=True)
class LocalModel:
    """A model on this machine that can be used by its name."""

    name: str
    folder: Path
    bytes: int
    family: str | None = None  #: None: it cannot be used
    parameters: int | None = None
    training_bytes: int | None = None  #: weights, gradients and Adam's moments in fp32
    why_unusable: str | None = None


def models() -> list[LocalModel]:
    """The models in the folders of TESSERA_MODELS and in Hugging Face's cache. Nothing is fetched."""
    return [LocalModel(**{**row, "folder": Path(row["folder"])}) for row in _program.run_json("models")]


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a model. Each call starts the program once; give several texts to one call."""

    path: Path  #: of the model
    name: str  #: "byte", "gpt2" or "file"
    size: int  #: ids are 0 .. size - 1
    end_of_text: int
    ends: list[int]  #: ids that end a generated text
    padding: int

    def __len__(self) -> int:
        return self.size

    def encode(self, texts: str | list[str], *, prompt: bool = False) -> Any:
        """The ids of a text, or of each of a list. ``prompt``: with those that begin a text that the model continues."""
        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source, out = Path(box) / "texts.jsonl", Path(box) / "ids.jsonl"
            _write_records(source, ({"text": text} for text in ([texts] if isinstance(texts, str) else texts)))
            flags = _program.options({"out": out, "prompt": prompt})
            _program.run("tokenizer", "encode", str(self.path), str(source), "--quiet", *flags)
            ids = [line["ids"] for line in _lines(out)]
        return ids[0] if isinstance(texts, str) else ids

    def decode(self, ids: list[int] | list[list[int]], *, keep_special: bool = False) -> Any:
        """The text of ids, or of each list of them. ``keep_special``: with tokens such as <|endoftext|>."""
        one = not ids or not isinstance(ids[0], (list, tuple))
        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source, out = Path(box) / "ids.jsonl", Path(box) / "texts.jsonl"
            many: list[Any] = [ids] if one else list(ids)
            _write_records(source, ({"ids": [int(each) for each in row]} for row in many))
            flags = _program.options({"out": out, "keep_special": keep_special})
            _program.run("tokenizer", "decode", str(self.path), str(source), "--quiet", *flags)
            texts = [line["text"] for line in _lines(out)]
        return texts[0] if one else texts


class Model:
    """A trained model. ``path``: a run, a checkpoint, a folder of Hugging Face, a .gguf file, or a name of models().

    Each call reads the weights again in a process of its own; give several prompts or texts to one call. Further keyword
    arguments are the flags of the command: ``top_p=0.9`` is ``--top-p 0.9``, ``ranks`` the number of processes.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def _words(self, command: str, ranks: int, named: dict[str, Any], *words: str) -> list[str]:
        many = ["-n", str(ranks)] if ranks != 1 else []
        return [command, str(self.path), *words, "--quiet", *many, *_program.options(named)]

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer: its sizes and ids, encode() and decode()."""
        found = json.loads(_program.run("tokenizer", "describe", str(self.path), "--quiet"))
        return Tokenizer(self.path, **found)

    def generate(
        self, prompt: str | list[str] = "", max_new_tokens: int = 100, *, ranks: int = 1, **named: Any
    ) -> str | list[str]:
        """Continues a prompt, or each of a list; returns the new text, or the list of them in the same order."""
        prompts = [prompt] if isinstance(prompt, str) else prompt
        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source, out = Path(box) / "prompts.jsonl", Path(box) / "texts.jsonl"
            _write_records(source, ({"prompt": each} for each in prompts))
            named = {"max_new_tokens": max_new_tokens, **named}
            _program.run(*self._words("generate", ranks, named, f"--prompts={source}", f"--out={out}"))
            texts = [line["text"] for line in _lines(out)]
        return texts[0] if isinstance(prompt, str) else texts

    def chat(
        self, messages: str | list[Mapping[str, Any]], max_new_tokens: int = 100, *, ranks: int = 1, **named: Any
    ) -> str:
        """The answer to a conversation by the model's chat template. ``messages``: [{"role": "user", "content": ...}, ...]
        or the user's only message."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source = Path(box) / "messages.json"
            source.write_text(json.dumps(turns, ensure_ascii=False), encoding="utf-8")
            named = {"max_new_tokens": max_new_tokens, **named}
            return _program.run(*self._words("chat", ranks, named, f"--messages={source}")).removesuffix("\n")

    def embed(self, texts: list[str], *, ranks: int = 1, **named: Any) -> numpy.ndarray:
        """The embeddings of texts, fp32 of shape [texts, hidden size]. Flags: pooling="mean", normalize=True, ..."""
        import numpy

        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source, out = Path(box) / "texts.jsonl", Path(box) / "embeddings.npy"
            _write_records(source, ({"text": text} for text in texts))
            _program.run(*self._words("embed", ranks, named, str(source), f"--out={out}"))
            return numpy.load(out)

    def score(self, texts: list[str], *, ranks: int = 1, **named: Any) -> list[dict[str, Any]]:
        """For each text its log-probability (sum, natural logarithm), its number of scored tokens and its perplexity."""
        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source, out = Path(box) / "texts.jsonl", Path(box) / "scores.jsonl"
            _write_records(source, ({"text": text} for text in texts))
            _program.run(*self._words("score", ranks, named, str(source), f"--out={out}"))
            return _lines(out)[: len(texts)]  # the last line is their sum

    def predict(
        self, records: str | Path | Iterable[Mapping[str, Any]], *, ranks: int = 1, **named: Any
    ) -> list[dict[str, Any]]:
        """The prediction for each record of a file, or of dictionaries such as {"text": ...}: class and scores, tags, or a
        number."""
        with tempfile.TemporaryDirectory(prefix="tessera-") as box:
            source, out = Path(box) / "records.jsonl", Path(box) / "predictions.jsonl"
            if isinstance(records, (str, Path)):
                source = Path(records)
            else:
                _write_records(source, records)
            _program.run(*self._words("predict", ranks, named, str(source), f"--out={out}"))
            return _lines(out)

    def evaluate(self, data: str | Path | None = None, *, ranks: int = 1, **named: Any) -> dict[str, Any]:
        """Loss and metrics over ``data``; None: the run's own validation data."""
        given = [f"--data={data}"] if data is not None else []
        return json.loads(_program.run(*self._words("eval", ranks, named, *given), "--json"))

    def export(self, path: str | Path, **named: Any) -> Path:
        """Writes the model to a new folder or file: to="hf" (the default), "gguf", "onnx", "torch"; dtype="bf16"; ..."""
        _program.run("convert", str(self.path), str(path), "--quiet", *_program.options(named))
        return Path(path)
