# SPDX-License-Identifier: Apache-2.0
"""Train large models on any number of processes and hosts.

    import tessera

    run = tessera.train("my.json", ranks=4, on_step=lambda step: print(step["loss"]))
    print(run.generate("Once upon a time", max_new_tokens=50))

Trainings and models are processes of the program ``tessera``: importing this package starts no thread, loads no torch and
changes nothing in the process, and a process that uses it is never forked.

A torch module of your own is trained in this process, or in those of a launcher:

    engine = tessera.initialize(model, "ds.json")
    for batch in loader:
        loss = engine.step(batch)
"""

from typing import TYPE_CHECKING, Any

from . import config
from ._arguments import add_config_arguments
from ._program import program, version
from ._training import Plan, plan, train
from .errors import (
    BugError,
    CommunicationError,
    ConfigError,
    DataError,
    FormatError,
    IncompleteError,
    NumericError,
    OutOfMemoryError,
    Problem,
    StoppedError,
    SystemFailure,
    TesseraError,
)
from .models import LocalModel, Model, Tokenizer, models
from .run import Run
from .tensors import load_tensors

if TYPE_CHECKING:
    # The words after `as` tell mypy --strict that these are names of the package.
    from .engine import Engine as Engine, initialize as initialize
    from .trainer import TesseraTrainer as TesseraTrainer

__version__ = "0.1.0"

# What needs torch is loaded when it is asked for; `from tessera import *` leaves it out, because it would ask for all.
_WITH_TORCH = {"Engine": "engine", "initialize": "engine", "TesseraTrainer": "trainer"}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("torch") is None:
        from ._program import TORCH

        raise SystemFailure(f"tessera.{name} needs torch, which is not installed", f"pip install torch=={TORCH}.0")
    return getattr(import_module(f".{_WITH_TORCH[name]}", __name__), name)


__all__ = [
    "BugError",
    "CommunicationError",
    "ConfigError",
    "DataError",
    "FormatError",
    "IncompleteError",
    "LocalModel",
    "Model",
    "NumericError",
    "OutOfMemoryError",
    "Plan",
    "Problem",
    "Run",
    "StoppedError",
    "SystemFailure",
    "TesseraError",
    "Tokenizer",
    "add_config_arguments",
    "config",
    "load_tensors",
    "models",
    "plan",
    "program",
    "train",
    "version",
]


def __dir__() -> list[str]:
    return sorted([*globals(), *_WITH_TORCH])
