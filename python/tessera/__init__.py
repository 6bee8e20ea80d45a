# SPDX-License-Identifier: Apache-2.0
"""Train large models on any number of processes and hosts.

    import tessera

    run = tessera.train("my.json", ranks=4, on_step=lambda step: print(step["loss"]))
    print(run.generate("Once upon a time", max_new_tokens=50))

Everything is done by the program ``tessera``, which is started as a process of its own: importing this package starts no
thread, loads no torch and changes nothing in the process, and a process that uses it is never forked.
"""

from . import config
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
from .models import LocalModel, Model, models
from .run import Run
from .tensors import load_tensors

__version__ = "0.1.0"

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
    "config",
    "load_tensors",
    "models",
    "plan",
    "program",
    "train",
    "version",
]
