# SPDX-License-Identifier: Apache-2.0
"""Plans and trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _program
from .config import as_file
from .errors import error_of
from .progress import Progress, progress_for
from .run import Run


@dataclass(frozen=True)
class Plan:
    """What a training will do, before it starts."""

    run_dir: Path
    parameters: int
    memory_per_rank: dict[str, Any]  #: bytes by purpose; "activations" is None if they are not predicted
    config: dict[str, Any]  #: every key with its value
    table: str  #: the table that the program prints first

    def __str__(self) -> str:
        return self.table


def _set_flags(changes: dict[str, Any] | None) -> list[str]:
    return [f"--set={key}={json.dumps(value)}" for key, value in (changes or {}).items()]


def plan(
    config: str | Path | dict[str, Any],
    ranks: int = 1,
    *,
    set: dict[str, Any] | None = None,  # noqa: A002, the name of the flag
    name: str = "train",
) -> Plan:
    """Checks a configuration as ``tessera train --dry-run`` does, and starts nothing.

    ``config``: a file, or a dictionary. ``set``: keys with other values, {"optimizer.params.lr": 1e-4}. ``name``: of a
    dictionary's run, which is runs/NAME unless the configuration names its folder.
    Raises ConfigError that lists every mistake, and the errors of missing data, models and memory.
    """
    with tempfile.TemporaryDirectory(prefix="tessera-") as box:
        words = _dry_run(as_file(config, Path(box), name), ranks, set)
        found = _program.run_json(*words)
        table = _program.run(*words)
    return Plan(Path(found["run_dir"]), found["parameters"], found["memory_per_rank"], found["config"], table)


def _dry_run(file: Path, ranks: int, set: dict[str, Any] | None) -> list[str]:  # noqa: A002
    return ["train", str(file), "-n", str(ranks), "--dry-run", *_set_flags(set)]


def _steps(path: Path, begin: int, ended: threading.Event) -> Iterator[dict[str, Any]]:
    """The lines that the program appends to metrics.jsonl, until it has ended."""
    rest = b""
    while True:
        over = ended.is_set()  # before the file is read, so that its last lines are not missed
        if path.exists():
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < begin:
                    begin, rest = 0, b""  # the run began again
                file.seek(begin)
                new = file.read()
            begin += len(new)
            *lines, rest = (rest + new).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
        if over:
            return
        ended.wait(0.05)


class _Process:
    """The program while it trains. Its messages are read by a thread, so that a full pipe never stops it."""

    def __init__(self, words: list[str]):
        path = _program.program()
        self.process = subprocess.Popen(
            [str(path), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=_program.environment(path),
            start_new_session=True,  # Ctrl-C reaches it through stop() alone, once
        )
        self.ended = threading.Event()
        self._messages: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._messages.append(line)
        self.process.wait()
        self.process.stderr.close()
        self.ended.set()

    def stop(self) -> None:
        """Asks the program to save and end, and waits for it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.ended.wait()

    def finish(self) -> None:
        """Raises the program's error unless it ended well."""
        self.ended.wait()
        if self.process.returncode != 0:
            code = self.process.returncode if self.process.returncode >= 0 else 128 - self.process.returncode
            raise error_of(code, "".join(self._messages))


def train(
    config: str | Path | dict[str, Any],
    ranks: int = 1,
    on_step: Callable[[dict[str, Any]], Any] | None = None,
    *,
    set: dict[str, Any] | None = None,  # noqa: A002, the name of the flag
    resume: str = "auto",
    name: str = "train",
    progress: bool = True,
) -> Run:
    """Trains in processes of their own and returns the run; a run that was interrupted resumes.

    ``on_step`` is called in this thread with each line of metrics.jsonl: {"step": 1, "loss": 4.1, "lr": ...}, and with
    evaluations ({"step": 10, "eval_loss": ...}). If it raises, the training saves, stops, and the exception goes on.
    ``progress``: shows a line of progress, in a notebook a bar. Ctrl-C saves and stops, then raises KeyboardInterrupt;
    the same call goes on from there. Raises the errors of plan(), NumericError and CommunicationError.
    """
    with tempfile.TemporaryDirectory(prefix="tessera-") as box:
        file = as_file(config, Path(box), name)
        run_dir = Path(_program.run_json(*_dry_run(file, ranks, set))["run_dir"])
        metrics = run_dir / "metrics.jsonl"
        begin = metrics.stat().st_size if metrics.exists() and resume != "never" else 0
        words = ["train", str(file), "-n", str(ranks), "--quiet", f"--resume={resume}"]
        process = _Process([*words, f"--set=run.dir={json.dumps(str(run_dir))}", *_set_flags(set)])
        shown: Progress = progress_for(run_dir) if progress else Progress()
        try:
            for step in _steps(metrics, begin, process.ended):
                shown.show(step)
                if on_step is not None:
                    on_step(step)
        except BaseException:
            process.stop()
            raise
        finally:
            shown.close()
        process.finish()
    return Run(run_dir)
