# SPDX-License-Identifier: Apache-2.0
"""The library's session of a module: it opens it, runs the module's blocks when the library asks, and gives weights back."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _native, parts
from .batches import default_collate, is_indexed, labels_of, part_of, prepared, rows_of, shifts_labels
from .errors import BugError, ConfigError
from .parts import Block, Micro, Parts

_MASK = (1 << 63) - 1


class Session:
    """A module whose blocks the library runs: its weights are views of the library's, until close().

    The part of Engine that the library calls; Engine adds what a program calls.
    """

    def __init__(self, parts: Parts, config: str, name: str, **options: Any):
        self.module = parts.module
        self.parts = parts
        self.last: dict[str, Any] = {}  #: the report of the last step
        self._dataset, self._stream = options["dataset"], None
        if self._dataset is not None and not is_indexed(self._dataset):
            self._dataset, self._stream = None, iter(self._dataset)
        self._validation = options["validation"]
        self._collate = options["collate"] or default_collate
        self._count = options["count"]
        self._shifted = shifts_labels(self.module)
        self._given: Any = None
        self._taken = 0
        self._called: list[torch.Tensor] = []  #: losses of backward() since the last update
        self._calling = False  #: the update is made of them
        self._later: dict[int, torch.Tensor | None] = {}  #: gradients that one pass has computed for all blocks
        self._micros: dict[tuple[int, int], Micro] = {}
        self._gathered: dict[int, torch.Tensor] | None = None
        self._seen: Callable[[Micro, Sequence[int]], None] | None = None  #: called with each micro-batch that is evaluated
        self._modes: dict[nn.Module, bool] | None = None  #: of the module's parts, while it evaluates
        self._error: BaseException | None = None
        self._finished: int | None = None
        self._alive: list[torch.Tensor | None] = []
        self._session: ctypes.c_void_p | None = None
        self._lib = _native.library()
        self._callbacks = _native.Callbacks(
            None,
            _native.COUNT(self._on_count),
            _native.FORWARD(self._on_forward),
            _native.BACKWARD(self._on_backward),
            _log,
        )
        self._open(config, name, options["set"])
        self._attach()
        _return_free_memory()

    # The library ------------------------------------------------------------------------------------------------------

    def _open(self, config: str, name: str, changes: dict[str, Any]) -> None:
        roles = parts.roles_of(self.module)
        values: list[torch.Tensor] = []
        blocks = []
        for block in self.parts.blocks:
            described = []
            for path, param in block.params:
                described.append(
                    {
                        "name": path,
                        "shape": list(param.shape) or [1],
                        "role": roles.get(id(param), "matrix" if param.dim() > 1 else "vector"),
                        "tied": id(param) in self.parts.tied,
                        "trainable": param.requires_grad,
                        "value": len(values),
                    }
                )
                values.append(param.data)
            blocks.append({"name": block.name, "parameters": described})
        data = {
            "size": None if self._dataset is None else len(self._dataset),
            "validation": None if self._validation is None else len(self._validation),
            "set": [f"{key}={json.dumps(value)}" for key, value in changes.items()],
        }
        session = ctypes.c_void_p()
        pointers = (ctypes.c_void_p * max(1, len(values)))(*[value._cdata for value in values])
        self._check(
            self._lib.tessera_open(
                config.encode(),
                name.encode(),
                json.dumps({"blocks": blocks}).encode(),
                json.dumps(data).encode(),
                pointers,
                len(values),
                self._callbacks,
                session,
            )
        )
        self._session = session
        Process.engines.append(self)
        found = self._json(self._lib.tessera_describe)
        self.rank: int = found["rank"]
        self.world_size: int = found["ranks"]
        self.steps: int = found["step"]
        self.max_steps: int | None = None if found["endless"] else found["max_steps"]
        self.train_batch_size: int = found["global_batch"]
        self.micro_batch_size: int = found["micro_batch"]
        self.gradient_accumulation_steps: int = found["accumulation"]
        self.zero_stage: int = found["zero_stage"]
        self.config: dict[str, Any] = found["config"]
        self.notes: list[str] = found["notes"]
        self.run_dir = None if found["run_dir"] is None else Path(found["run_dir"])
        self._samples: int = found["samples"]

    def _attach(self) -> None:
        """Makes the module's parameters views of the library's working weights."""
        self._views: list[list[torch.Tensor]] = []
        for number, block in enumerate(self.parts.blocks):
            views = []
            for at, (_, param) in enumerate(block.params):
                raw = _native.Tensor()
                self._check(self._lib.tessera_parameter(self._session, number, at, raw))
                view = raw.view()
                assert view is not None
                views.append(view.view(param.shape) if param.dim() == 0 else view)
            self._views.append(views)
        self._dtype = next((view.dtype for views in self._views for view in views), torch.float32)
        # Weights of stage 3 have memory only while their block runs; the parameters are empty otherwise.
        self._swaps = self.zero_stage == 3
        for block, views in zip(self.parts.blocks, self._views, strict=True):
            for (_, param), view in zip(block.params, views, strict=True):
                param.data = torch.empty(0, dtype=view.dtype) if self._swaps else view

    def _check(self, code: int) -> None:
        if code == 0:
            return
        error, self._error = self._error, None
        raised = error if error is not None else _native.last_error()
        if self._session is not None and self.world_size > 1:
            Process.fail(f"{type(raised).__name__}: {raised}")
        raise raised

    def _json(self, function: Any, *arguments: Any) -> dict[str, Any]:
        out = ctypes.c_char_p()
        self._check(function(self._session, *arguments, out))
        return json.loads(out.value or b"{}")

    # Callbacks of the library -----------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> int:
        try:
            work()
            return 0
        except BaseException as error:  # it is raised again by the call into the library, as it is
            self._error = self._error or error
            self._lib.tessera_callback_failed(f"{type(error).__name__}: {error}".encode())
            return 1

    def _micro(self, raw: Any) -> Micro:
        key = (raw.set, raw.numbers[0])
        found = self._micros.get(key)
        if found is None:
            if raw.set != 0:
                self._micros = {other: micro for other, micro in self._micros.items() if other[0] == 0}
            elif self._calling:
                found = self._micros[key] = Micro(self._called[self._taken], raw.count)
                found.count = 1.0
                self._taken += 1
                return found
            found = self._micros[key] = Micro(prepared(self._read(raw), self._dtype), raw.count)
        return found

    def _read(self, raw: Any) -> Any:
        dataset = self._validation if raw.set != 0 else self._dataset
        if raw.set == 0 and self._given is not None:
            return self._read_given(raw)
        if dataset is None:
            raise ConfigError("step() was given no batch", "call step(batch), or give initialize() a dataset")
        return self._collate([dataset[index] for index in raw.samples[: raw.count]])

    def _read_given(self, raw: Any) -> Any:
        if not isinstance(self._given, list):
            begin = raw.numbers[0] - self._samples
            return part_of(self._given, begin, begin + raw.count, rows_of(self._given))
        if self._taken >= len(self._given):
            raise ConfigError(
                f"step() was given {len(self._given)} micro-batches on rank {self.rank}, and a step has more",
                f"give each rank {self.gradient_accumulation_steps}, or the global batch as one dictionary",
            )
        batch = self._given[self._taken]
        self._taken += 1
        if rows_of(batch) != raw.count:
            raise ConfigError(
                f"micro-batch {self._taken - 1} has {rows_of(batch)} samples, and the configuration says {raw.count}",
                "set train_micro_batch_size_per_gpu to the size of the micro-batches",
            )
        return batch

    def _on_count(self, _user: Any, raw: Any, out: Any) -> int:
        def work() -> None:
            micro = self._micro(raw.contents)
            if micro.count is None:
                counted = self._count(micro.batch) if self._count else labels_of(micro.batch, self._shifted)
                micro.count = float(micro.rows if counted is None else counted)
            out[0] = micro.count

        return self._guarded(work)

    def _on_forward(
        self, _user: Any, block: int, raw: Any, mode: int, graph: int, inputs: Any, count: int, results: Any
    ) -> int:
        def work() -> None:
            with self._weights_of(block):
                if mode == _native.GATHER:
                    self._keep_weights(block)
                    self._alive = []
                else:
                    micro = self._micro(raw.contents)
                    given = [_detached(inputs[i].view(), bool(graph)) for i in range(count)]
                    self._alive = self._run(block, micro, raw.contents, given, mode, bool(graph))
            results.contents.give(self._alive)

        return self._guarded(work)

    def _run(
        self, number: int, micro: Micro, raw: Any, given: list[torch.Tensor], mode: int, graph: bool
    ) -> list[torch.Tensor]:
        block = self.parts.blocks[number]
        self._evaluate_mode(mode == _native.EVAL)
        if mode == _native.EVAL:
            with torch.no_grad():
                out = block.run(given, micro)
            if self._seen is not None and number + 1 == len(self.parts.blocks):
                self._seen(micro, raw.samples[: raw.count])
            return out
        if self._calling:
            return self._run_called(number, micro, given)
        # Dropout is a function of seed, step, sample and block, whatever rank computes it.
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(mixed(raw.seed, raw.step, raw.numbers[0], number))
        try:
            with torch.set_grad_enabled(graph):
                out = block.run(given, micro)
        finally:
            torch.set_rng_state(state)
        if graph:
            micro.saved[number] = (given, out)
        return out

    def _evaluate_mode(self, wanted: bool) -> None:
        """Sets the module to evaluation, also for an evaluation inside a step, or back to what it was."""
        if wanted == (self._modes is not None):
            return
        if self._modes is None:
            self._modes = {part: part.training for part in self.module.modules()}
            self.module.eval()
            return
        for part, training in self._modes.items():
            part.training = training
        self._modes = None

    # The three calls: torch has computed the loss of a micro-batch as a whole. The library's blocks pass a number from one
    # to the next, and the last one computes the gradients of all of them.

    def _run_called(self, number: int, micro: Micro, given: list[torch.Tensor]) -> list[torch.Tensor]:
        last = number + 1 == len(self.parts.blocks)
        out = [micro.batch if last else torch.zeros(1, requires_grad=True)]
        micro.saved[number] = (given, out)
        return out

    def _gradients_called(
        self, number: int, given: list[torch.Tensor], roots: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> list[torch.Tensor | None]:
        if number + 1 == len(self.parts.blocks):
            every = {id(p): p for block in self.parts.blocks for _, p in block.params if p.requires_grad}
            loss, gradient = roots[0]
            found = torch.autograd.grad(loss, list(every.values()), gradient.reshape(loss.shape), allow_unused=True)
            self._later = dict(zip(every, found, strict=True))
        mine = [p for _, p in self.parts.blocks[number].params if p.requires_grad]
        return [*(torch.ones_like(tensor) for tensor in given), *(self._later.pop(id(p), None) for p in mine)]

    def _on_backward(self, _user: Any, block: int, raw: Any, gradients: Any, count: int, results: Any) -> int:
        def work() -> None:
            micro = self._micro(raw.contents)
            given, out = micro.saved.pop(block)
            grads = [gradients[i].view() for i in range(count)]
            roots = [(o, g) for o, g in zip(out, grads, strict=True) if g is not None and o.requires_grad]
            trained = [param for _, param in self.parts.blocks[block].params if param.requires_grad]
            with self._weights_of(block):
                if self._calling:
                    self._alive = self._gradients_called(block, given, roots)
                else:
                    self._alive = list(
                        torch.autograd.grad(
                            [o for o, _ in roots], [*given, *trained], [g for _, g in roots], allow_unused=True
                        )
                    )
            results.contents.give(self._alive)
            if block == 0:
                self._micros = {key: other for key, other in self._micros.items() if other is not micro}

        return self._guarded(work)

    def _weights_of(self, block: int) -> _Weights:
        return _Weights(self.parts.blocks[block], self._views[block], self._swaps)

    def _keep_weights(self, block: int) -> None:
        assert self._gathered is not None
        for _, param in self.parts.blocks[block].params:
            if id(param) not in self._gathered:
                self._gathered[id(param)] = param.detach().clone()

    # The end ----------------------------------------------------------------------------------------------------------

    def _gather(self) -> dict[int, torch.Tensor]:
        self._gathered = {}
        try:
            self._check(self._lib.tessera_gather(self._session))
            return self._gathered
        finally:
            self._gathered = None

    def finish(self) -> int:
        """Ends the training as close() does, but leaves the engine open: to load() other weights, or to evaluate().
        Collective."""
        self._require_open()
        if self._finished is None:
            code = ctypes.c_int32()
            self._check(self._lib.tessera_finish(self._session, code))
            self._finished = code.value
        return self._finished

    def close(self) -> int:
        """Ends the training: the last checkpoint of a run folder is written, and the module gets weights of its own.
        Collective. Returns the exit code: 0, or 9 if something that was configured could not be done."""
        if self._session is None:
            return self._finished or 0
        code = self.finish()
        self._free(self._gather())
        return code

    def _free(self, weights: dict[int, torch.Tensor] | None) -> None:
        session, self._session = self._session, None
        for block in self.parts.blocks:
            for _, param in block.params:
                param.data = weights[id(param)] if weights else torch.empty(0, dtype=param.dtype)
        self._views = []
        if self in Process.engines:
            Process.engines.remove(self)
        self._lib.tessera_close(session)

    def _require_open(self) -> None:
        if self._session is None:
            raise ConfigError("the engine is closed", "call tessera.initialize() again")


def _detached(tensor: torch.Tensor | None, graph: bool) -> torch.Tensor:
    if tensor is None:
        raise BugError("a block was given an absent tensor")
    return tensor.detach().requires_grad_(graph)


def mixed(*numbers: int) -> int:
    """A seed from several numbers."""
    out = 0x9E3779B97F4A7C15
    for number in numbers:
        out = (out ^ (number + 0x9E3779B97F4A7C15 + (out << 6) + (out >> 2))) & 0xFFFFFFFFFFFFFFFF
        out = (out * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        out ^= out >> 31
    return out & _MASK


def _return_free_memory() -> None:
    """Returns to the system what the C library keeps: the module's own first weights were there, and would be counted beside
    those of the library for the whole training."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class _Weights:
    """Gives a block's parameters their values while it runs, if they have none otherwise."""

    def __init__(self, block: Block, views: list[torch.Tensor], swaps: bool):
        self.block, self.views, self.swaps = block, views, swaps

    def __enter__(self) -> None:
        if self.swaps:
            for (_, param), view in zip(self.block.params, self.views, strict=True):
                param.data = view

    def __exit__(self, *_ignored: Any) -> None:
        if self.swaps:
            for _, param in self.block.params:
                param.data = torch.empty(0, dtype=param.dtype)


@_native.LOG
def _log(_user: Any, level: int, message: bytes) -> None:
    text = message.decode(errors="replace")
    if level == 2:
        warnings.warn(text, stacklevel=2)
    elif level > 2:
        print(f"error: {text}", file=sys.stderr, flush=True)


class Process:
    """This process's part of a launcher's job."""

    engines: list[Session] = []
    ended = False

    @classmethod
    def fail(cls, why: str) -> None:
        if not cls.ended:
            cls.ended = True
            _native.library().tessera_end(70, why.encode())

    @classmethod
    def end(cls) -> None:
        if _native._loaded_by not in (0, os.getpid()):
            return  # a fork of the rank
        error = getattr(sys, "last_value", None)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            cls.fail(f"{type(error).__name__}: {error}")
        for engine in list(cls.engines):
            if not cls.ended:
                engine.close()
        if not cls.ended and _native._loaded is not None:
            cls.ended = True
            _native._loaded.tessera_end(0, None)


atexit.register(Process.end)
