# SPDX-License-Identifier: Apache-2.0
"""Configurations: what keys mean, and the configuration of a preset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import _program


def explain(key: str = "") -> str:
    """What a key, a section or a file means: type, default and description of each key in it."""
    return _program.run("config", "explain", *([key] if key else []))


def init(preset: str, data: str | Path | None = None, **named: Any) -> str:
    """The commented configuration of a preset as JSON text; ``named``: flags of ``tessera init``, such as task="sft"."""
    words = ["init", preset]
    if data is not None:
        words.append(f"--data={data}")
    return _program.run(*words, *_program.options(named))


def as_file(config: str | Path | dict[str, Any], folder: Path, name: str) -> Path:
    """The file of a configuration: a dictionary is written to ``folder`` under ``name``."""
    if not isinstance(config, dict):
        return Path(config)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return path
