# SPDX-License-Identifier: Apache-2.0
"""Progress of a training: nothing, a line on a terminal, or a bar in a notebook."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


class Progress:
    """Shows nothing."""

    def show(self, step: dict[str, Any]) -> None:
        """Takes a line of metrics.jsonl."""

    def close(self) -> None:
        """Ends the display."""


class _Line(Progress):
    """One line that is written again, on a terminal only."""

    def __init__(self, steps: int | None):
        self._steps = steps
        self._shown = False

    def show(self, step: dict[str, Any]) -> None:
        if "loss" not in step:
            return
        of = f"/{self._steps}" if self._steps else ""
        print(f"\rstep {step['step']}{of} | loss {step['loss']:.4f}\x1b[K", end="", file=sys.stderr, flush=True)
        self._shown = True

    def close(self) -> None:
        if self._shown:
            print(file=sys.stderr)


class _Bar(Progress):
    """A bar of ipywidgets."""

    def __init__(self, steps: int | None):
        import ipywidgets
        from IPython.display import display

        self._bar = ipywidgets.IntProgress(min=0, max=steps or 1)
        self._text = ipywidgets.Label()
        display(ipywidgets.HBox([self._bar, self._text]))

    def show(self, step: dict[str, Any]) -> None:
        if "loss" not in step:
            return
        self._bar.value = step["step"]
        self._text.value = f"step {step['step']}, loss {step['loss']:.4f}"


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and getattr(shell.get_ipython(), "kernel", None) is not None


def _steps_of(run_dir: Path) -> int | None:
    try:
        config = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        return int(config["trainer"]["max_steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def progress_for(run_dir: Path) -> Progress:
    """The display for where this process runs."""
    if _in_notebook():
        try:
            return _Bar(_steps_of(run_dir))
        except ImportError:
            return Progress()
    return _Line(_steps_of(run_dir)) if sys.stderr.isatty() else Progress()
