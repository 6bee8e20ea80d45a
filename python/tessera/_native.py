# SPDX-License-Identifier: Apache-2.0
"""The C interface of libtessera (tessera/c_api.h) by ctypes: one binary for every Python.

Tensors cross as their storages, because both sides use the libtorch of the installed torch. Import this only where torch
may be loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch

from . import _program
from .errors import SystemFailure, TesseraError, error_of

VERSION = 2
TRAIN, EVAL, GATHER = 0, 1, 2

# The numbers of c10::ScalarType.
_TYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}


class Tensor(Structure):
    _fields_ = [
        ("storage", c_void_p),
        ("type", c_int32),
        ("dims", c_int32),
        ("offset", c_int64),
        ("sizes", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
    ]

    def view(self) -> torch.Tensor | None:
        """The same tensor; None for an absent one."""
        if not self.storage:
            return None
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage)
        out = torch.empty(0, dtype=_TYPES[self.type])
        return out.set_(storage, self.offset, self.sizes[: self.dims], self.strides[: self.dims])


class Micro(Structure):
    _fields_ = [
        ("set", c_int32),
        ("count", c_int32),
        ("step", c_int64),
        ("seed", c_int64),
        ("samples", POINTER(c_int64)),
        ("numbers", POINTER(c_int64)),
    ]


class Results(Structure):
    _fields_ = [("count", c_int32), ("capacity", c_int32), ("tensors", POINTER(c_void_p))]

    def give(self, tensors: list[torch.Tensor | None]) -> None:
        if len(tensors) > self.capacity:
            raise ValueError(f"a block has {len(tensors)} outputs, and {self.capacity} are supported")
        for i, tensor in enumerate(tensors):
            self.tensors[i] = None if tensor is None else tensor._cdata
        self.count = len(tensors)


COUNT = CFUNCTYPE(c_int, c_void_p, POINTER(Micro), POINTER(c_double))
FORWARD = CFUNCTYPE(
    c_int, c_void_p, c_int32, POINTER(Micro), c_int32, c_int32, POINTER(Tensor), c_int32, POINTER(Results)
)
BACKWARD = CFUNCTYPE(c_int, c_void_p, c_int32, POINTER(Micro), POINTER(Tensor), c_int32, POINTER(Results))
LOG = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Callbacks(Structure):
    _fields_ = [("user", c_void_p), ("count", COUNT), ("forward", FORWARD), ("backward", BACKWARD), ("log", LOG)]


_FUNCTIONS = {
    "tessera_open": [c_char_p, c_char_p, c_char_p, c_char_p, POINTER(c_void_p), c_int32, POINTER(Callbacks), POINTER(c_void_p)],
    "tessera_describe": [c_void_p, POINTER(c_char_p)],
    "tessera_parameter": [c_void_p, c_int32, c_int32, POINTER(Tensor)],
    "tessera_step": [c_void_p, POINTER(c_char_p)],
    "tessera_evaluate": [c_void_p, POINTER(c_char_p)],
    "tessera_gather": [c_void_p],
    "tessera_save": [c_void_p, c_char_p, POINTER(c_char_p)],
    "tessera_load": [c_void_p, c_char_p],
    "tessera_all_gather": [c_void_p, c_char_p, c_int64, POINTER(c_void_p), POINTER(c_int64)],
    "tessera_finish": [c_void_p, POINTER(c_int32)],
    "tessera_end": [c_int32, c_char_p],
}

_loaded: ctypes.CDLL | None = None
_loaded_by = 0  #: the process that has loaded it


def _library() -> Path:
    """libtessera of the program that _program.program() finds."""
    path = _program.program().resolve()
    for folder in ("lib", "lib64", "lib/x86_64-linux-gnu"):
        found = path.parent.parent / folder / "libtessera.so"
        if found.exists():
            return found
    raise SystemFailure(f"{path} is installed without its library libtessera.so", "install tessera again")


def library() -> ctypes.CDLL:
    """Loads libtessera into this process, beside the torch that is loaded.

    Raises SystemFailure if torch has another version than the library was built for, or if the library cannot be loaded.
    """
    global _loaded, _loaded_by
    if _loaded is not None:
        if _loaded_by != os.getpid():
            raise SystemFailure(
                "this process was forked from one that uses tessera: threads of kernels and of the exchange are gone in it",
                'start ranks with `tessera launch`, or processes with multiprocessing.get_context("spawn")',
            )
        return _loaded
    wanted = _program.TORCH
    if not torch.__version__.startswith(wanted + "."):
        raise SystemFailure(f"torch is {torch.__version__}, and tessera was built for {wanted}", f"pip install torch=={wanted}.0")
    path = _library()
    try:
        lib = ctypes.CDLL(str(path))
        lib.tessera_c_api_version.restype = c_int32
        version = lib.tessera_c_api_version()
    except (OSError, AttributeError) as error:
        raise SystemFailure(f"{path} cannot be loaded: {error}", "install the package and the program of one version") from error
    if version != VERSION:
        raise SystemFailure(
            f"{path} has version {version} of the C interface, and this package {VERSION}",
            "install the package and the program of one version",
        )
    lib.tessera_last_error.restype = c_char_p
    lib.tessera_callback_failed.argtypes = [c_char_p]
    lib.tessera_callback_failed.restype = None
    lib.tessera_close.argtypes = [c_void_p]
    lib.tessera_close.restype = None
    for name, arguments in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.argtypes = arguments
        function.restype = c_int32
    _loaded, _loaded_by = lib, os.getpid()
    return lib


def last_error() -> TesseraError:
    """The exception for this thread's last error."""
    said: dict[str, Any] = json.loads(library().tessera_last_error())
    fix = said.get("fix", "")
    return error_of(said.get("exit_code", 70), f"error: {said.get('what', 'unknown')}" + (f"\n  fix: {fix}" if fix else ""))
