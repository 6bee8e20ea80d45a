# SPDX-License-Identifier: Apache-2.0
"""Runs: the folder that a training leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .errors import FormatError
from .models import Model


class Run(Model):
    """A folder of a training: metrics, configuration, checkpoints, and the model that it trained."""

    def __init__(self, path: str | Path):
        super().__init__(path)
        if not (self.path / "config.json").exists():
            raise FormatError(f"{self.path} is not the folder of a run", "give the run.dir of a training, such as runs/my")

    @property
    def config(self) -> dict[str, Any]:
        """Every key of the configuration with its value."""
        return json.loads((self.path / "config.json").read_text(encoding="utf-8"))

    @property
    def status(self) -> dict[str, Any]:
        """What the training did last: {"state": "finished", "step": 100, ...}; empty before its first step."""
        path = self.path / "status.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: steps and evaluations in the order in which they happened."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_bytes().split(b"\n")
        # The last line may be one that is being written.
        return [json.loads(line) for line in lines[:-1] if line.strip()]

    @property
    def metrics(self) -> Any:
        """`steps` as a pandas.DataFrame if pandas is installed, else the list."""
        try:
            import pandas
        except ImportError:
            return self.steps
        return pandas.DataFrame(self.steps)

    @property
    def checkpoints(self) -> list[Path]:
        """The folders of its checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*"))

    def __str__(self) -> str:
        steps = [step for step in self.steps if "loss" in step]
        last = f", step {steps[-1]['step']}, loss {steps[-1]['loss']:.4f}" if steps else ""
        return f"{self.path}{last}"

    def _repr_html_(self) -> str:
        import html

        return f"<code>{html.escape(str(self))}</code>"


if sys.version_info < (3, 10):  # pragma: no cover
    raise ImportError("tessera needs Python 3.10 or later")
