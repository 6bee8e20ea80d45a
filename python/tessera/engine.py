# SPDX-License-Identifier: Apache-2.0
"""Trains a torch module of the caller: forward and backward are torch's, everything else is tessera's."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _native, parts
from .errors import BugError, ConfigError, StoppedError
from .parts import Block, Micro, Parts

Batch = Mapping[str, Any]
_IGNORED = -100
_MASK = (1 << 63) - 1


def default_collate(samples: Sequence[Any]) -> Any:
    """Stacks samples: numbers and tensors of equal shape under each key."""
    from torch.utils.data import default_collate as torchs

    samples = [
        {key: torch.as_tensor(value) if isinstance(value, list) else value for key, value in sample.items()}
        if isinstance(sample, Mapping)
        else sample
        for sample in samples
    ]
    return torchs(samples)


def _is_indexed(dataset: Any) -> bool:
    """True if samples can be read in any order; an iterable dataset may have the method that reads one, but no length."""
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _rows_of(batch: Any) -> int:
    for value in batch.values() if isinstance(batch, Mapping) else [batch]:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return len(value)
    raise ConfigError(
        "the batch has no tensor with a dimension for its samples", "give a dictionary of tensors, such as {'input_ids': ...}"
    )


def _part_of(batch: Any, begin: int, end: int, rows: int) -> Any:
    """Samples [begin, end) of a batch; what has no dimension of samples stays."""
    if not isinstance(batch, Mapping):
        return batch[begin:end]
    return {
        key: value[begin:end] if isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == rows else value
        for key, value in batch.items()
    }


def _shifts_labels(module: nn.Module) -> bool:
    """True if the model of transformers learns at each token the label of the next one."""
    head = getattr(module, "get_output_embeddings", None)
    if not hasattr(type(module), "loss_function") or not callable(head) or head() is None:
        return False
    encodes = getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    return getattr(module, "loss_type", None) in (None, "ForCausalLM") and not encodes


def labels_of(batch: Any, shifted: bool) -> float | None:
    """The labels that a batch learns: those that are not -100, without the first of each row where the model shifts them.
    None: it has none that can be counted."""
    if not isinstance(batch, Mapping):
        return None
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch.get("labels")
        if isinstance(labels, torch.Tensor) and shifted and labels.dim() > 1:
            labels = labels[..., 1:]
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point() or labels.dim() < 2:
        return None
    return float((labels != _IGNORED).sum())


class Engine:
    """A module in training. Made by initialize(); used by one thread, and by every rank in the same way.

    After ``close()``, which the end of a ``with`` block calls, the module has weights of its own again.
    """

    def __init__(self, parts: Parts, config: str, name: str, **options: Any):
        self.module = parts.module
        self.parts = parts
        self.last: dict[str, Any] = {}  #: the report of the last step
        self._dataset, self._stream = options["dataset"], None
        if self._dataset is not None and not _is_indexed(self._dataset):
            self._dataset, self._stream = None, iter(self._dataset)
        self._validation = options["validation"]
        self._collate = options["collate"] or default_collate
        self._count = options["count"]
        self._shifted = _shifts_labels(self.module)
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
        _Process.engines.append(self)
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
            _Process.fail(f"{type(raised).__name__}: {raised}")
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
            found = self._micros[key] = Micro(self._prepared(self._read(raw)), raw.count)
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
            return _part_of(self._given, begin, begin + raw.count, _rows_of(self._given))
        if self._taken >= len(self._given):
            raise ConfigError(
                f"step() was given {len(self._given)} micro-batches on rank {self.rank}, and a step has more",
                f"give each rank {self.gradient_accumulation_steps}, or the global batch as one dictionary",
            )
        batch = self._given[self._taken]
        self._taken += 1
        if _rows_of(batch) != raw.count:
            raise ConfigError(
                f"micro-batch {self._taken - 1} has {_rows_of(batch)} samples, and the configuration says {raw.count}",
                "set train_micro_batch_size_per_gpu to the size of the micro-batches",
            )
        return batch

    def _prepared(self, batch: Any) -> Any:
        """Floating-point inputs in the type of the weights, as DeepSpeed gives them to a module."""
        if not isinstance(batch, Mapping):
            return batch.to(self._dtype) if isinstance(batch, torch.Tensor) and batch.is_floating_point() else batch
        return {
            key: value.to(self._dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point() and "label" not in key
            else value
            for key, value in batch.items()
        }

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
        torch.default_generator.manual_seed(_mixed(raw.seed, raw.step, raw.numbers[0], number))
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

    # What a program calls ---------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """True on rank 0, which prints and writes."""
        return self.rank == 0

    @property
    def done(self) -> bool:
        """True after the last step."""
        return self.last.get("done", False) or (self.max_steps is not None and self.steps >= self.max_steps)

    def step(self, batch: Batch | Sequence[Batch] | None = None) -> float | None:
        """Makes one update and returns the loss of the global batch before it.

        ``batch``: the global batch as a dictionary of tensors with train_batch_size rows, the same on every rank, of which
        each takes its part; or a list of this rank's own micro-batches; None: the next batch of the dataset, in the order
        that its seed determines. After backward() it makes the update once gradient_accumulation_steps micro-batches have
        come, and returns None before. Raises NumericError if the training diverges, StoppedError or KeyboardInterrupt after a
        signal, when the run folder has been saved, and the module's own exceptions.
        """
        self._require_open()
        if self._called and batch is None:
            if not self.is_gradient_accumulation_boundary():
                return None
            self._calling = True
        self._given = list(batch) if isinstance(batch, (list, tuple)) else batch
        if self._given is None and self._stream is not None:
            self._given = self._next_of_stream()
        elif self._given is not None:
            if self._dataset is not None or self._stream is not None:
                raise ConfigError("step() was given a batch, and initialize() a dataset", "give one of them")
            self._check_rows()
        self._taken = 0
        try:
            self.last = self._json(self._lib.tessera_step)
        finally:
            self._micros.clear()
            self._evaluate_mode(False)
            self._given = None
            if self._calling:
                self._calling = False
                self._called.clear()
                self._later.clear()
        self.steps = self.last["step"]
        self._samples = self.last["samples"]
        if self.last["stop_signal"]:
            code = self.close()
            if self.last["stop_signal"] == 2:
                raise KeyboardInterrupt
            raise StoppedError("the training was stopped by a signal", "start it again: it goes on", code or 75)
        return self.last["loss"]

    def _next_of_stream(self) -> Any:
        samples = list(itertools.islice(self._stream or (), self.train_batch_size))
        if len(samples) < self.train_batch_size:
            raise ConfigError(
                f"the data ended after {self._samples + len(samples)} samples, and step {self.steps + 1} needs {self.train_batch_size}",
                "set trainer.max_steps to the number of whole batches, or give data that goes on",
            )
        return self._collate(samples)

    # DeepSpeed's three calls ------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module as a whole on one micro-batch of this rank: engine(batch), or the module's own arguments.

        Only where its weights are all there, in ZeRO stages 0 to 2.
        """
        self._require_open()
        if self._swaps:
            raise ConfigError(
                "engine(batch) needs all weights at once, and ZeRO stage 3 gathers those of one block at a time",
                "call engine.step(batch), or set zero_optimization.stage to 2",
            )
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
            kwargs, args = dict(args[0]), ()
        args, kwargs = tuple(self._prepared(arg) for arg in args), self._prepared(kwargs)
        if not (self.module.training and torch.is_grad_enabled()):
            return self.module(*args, **kwargs)
        number = self._samples + (len(self._called) * self.world_size + self.rank) * self.micro_batch_size
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(_mixed(self.config["trainer"]["seed"], self.steps, number, 0))
        try:
            return self.module(*args, **kwargs)
        finally:
            torch.set_rng_state(state)

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the loss of a micro-batch to the next update, which uses the mean of them. Their gradients are computed in
        step(), in the order in which tessera adds them; until then torch keeps the activations."""
        self._require_open()
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or not loss.requires_grad:
            raise ConfigError("backward() was given no loss: one number that depends on the module", "give it what the module returned")
        if len(self._called) == self.gradient_accumulation_steps:
            raise ConfigError(
                f"backward() was called for {len(self._called) + 1} micro-batches, and gradient_accumulation_steps is "
                f"{self.gradient_accumulation_steps}",
                "call engine.step() after each backward()",
            )
        self._called.append(loss)

    def is_gradient_accumulation_boundary(self) -> bool:
        """True if the next step() makes an update."""
        return len(self._called) == self.gradient_accumulation_steps

    def _check_rows(self) -> None:
        if isinstance(self._given, list):
            return
        rows = _rows_of(self._given)
        if rows != self.train_batch_size:
            raise ConfigError(
                f"the batch has {rows} samples, and train_batch_size is {self.train_batch_size}",
                "give the global batch, the same on every rank, or a list of this rank's micro-batches",
            )

    def train(self, mode: bool = True) -> Engine:
        """Sets the mode of the module, as module.train() does; initialize() has set it to training."""
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        """Sets the module to evaluation."""
        return self.train(False)

    def fit(self, on_step: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
        """Trains on the dataset to the last step; ``on_step`` is called with the report of each. Returns the last one."""
        while not self.done:
            self.step()
            if on_step is not None:
                on_step(self.last)
        return self.last

    def evaluate(self) -> dict[str, Any]:
        """The mean loss over the validation data that initialize() was given: {"loss": ..., "samples": ...}."""
        self._require_open()
        try:
            return self._json(self._lib.tessera_evaluate)
        finally:
            self._micros.clear()
            self._evaluate_mode(False)

    def save(self, folder: str | Path) -> Path:
        """Writes a checkpoint of weights, optimizer and position under ``folder``; any number of ranks continues from it.
        Returns its folder."""
        self._require_open()
        return Path(self._json(self._lib.tessera_save, str(folder).encode())["folder"])

    def load(self, folder: str | Path) -> None:
        """Continues from a checkpoint, or the newest one in ``folder``."""
        self._require_open()
        self._check(self._lib.tessera_load(self._session, str(folder).encode()))
        found = self._json(self._lib.tessera_describe)
        self.steps, self._samples = found["step"], found["samples"]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights by the module's own names, in the working type, with its buffers. Collective: all ranks call it, and
        each gets all of them."""
        self._require_open()
        gathered = self._gather()
        out: dict[str, torch.Tensor] = {}
        for name, param in self.module.named_parameters(remove_duplicate=False):
            out[name] = gathered[id(param)]
        persistent = set(self.module.state_dict())
        for name, buffer in self.module.named_buffers(remove_duplicate=False):
            if name in persistent:
                out[name] = buffer.detach().clone()
        return out

    def _gather(self) -> dict[int, torch.Tensor]:
        self._gathered = {}
        try:
            self._check(self._lib.tessera_gather(self._session))
            return self._gathered
        finally:
            self._gathered = None

    def save_pretrained(self, folder: str | Path, **options: Any) -> Path:
        """Writes the model for other programs: what its own save_pretrained() writes, or model.safetensors. Collective."""
        weights = self.state_dict()
        path = Path(folder)
        if self.is_leader:
            own = getattr(self.module, "save_pretrained", None)
            if callable(own):
                own(path, state_dict=weights, **options)
            else:
                from safetensors.torch import save_file

                path.mkdir(parents=True, exist_ok=True)
                seen: set[int] = set()
                alone = {}
                for name, tensor in weights.items():  # a tied weight once, under its first name
                    if tensor.data_ptr() not in seen:
                        alone[name] = tensor.contiguous()
                        seen.add(tensor.data_ptr())
                save_file(alone, str(path / "model.safetensors"))
        return path

    def all_gather(self, data: bytes) -> list[bytes]:
        """Gives every rank the bytes of all ranks, in the order of the ranks. Collective."""
        self._require_open()
        out, sizes = ctypes.c_void_p(), (ctypes.c_int64 * self.world_size)()
        self._check(self._lib.tessera_all_gather(self._session, data, len(data), out, sizes))
        whole = ctypes.string_at(out, sum(sizes)) if out.value else b""
        ends = list(itertools.accumulate(sizes))
        return [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]

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
        if self in _Process.engines:
            _Process.engines.remove(self)
        self._lib.tessera_close(session)

    def _require_open(self) -> None:
        if self._session is None:
            raise ConfigError("the engine is closed", "call tessera.initialize() again")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        elif self._session is not None:
            if self.world_size > 1:
                _Process.fail(f"{kind.__name__}: {error}")
            self._free(None)


def _detached(tensor: torch.Tensor | None, graph: bool) -> torch.Tensor:
    if tensor is None:
        raise BugError("a block was given an absent tensor")
    return tensor.detach().requires_grad_(graph)


def _mixed(*numbers: int) -> int:
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


class _Process:
    """This process's part of a launcher's job."""

    engines: list[Engine] = []
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


atexit.register(_Process.end)


def initialize(
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
    config: str | Path | dict[str, Any],
    *,
    dataset: Any = None,
    validation: Any = None,
    collate: Callable[[list[Any]], Batch] | None = None,
    loss: parts.Loss | None = None,
    count: Callable[[Batch], float] | None = None,
    layers: str | None = None,
    example: Batch | None = None,
    set: dict[str, Any] | None = None,  # noqa: A002, the name of the flag
    optimizer: Any = None,
    name: str = "module",
) -> Engine:
    """Puts a torch module into training. The process is one rank of the launcher that started it (torchrun, accelerate
    launch, srun, tessera launch), or trains alone.

    ``model``: a model of transformers, which is cut at its layers; a list of blocks, each called with the output of the one
    before it (the first and the last with the batch); or any other module, which is trained as one block.
    ``config``: a file or a dictionary with the keys of docs/config.md or DeepSpeed's. With run.dir the training has a run
    folder: metrics, monitors, checkpoints, and it goes on from the newest one.
    ``dataset``, ``validation``: anything with len() and [i], such as a datasets.Dataset, whose samples ``collate`` makes into
    a batch; a dataset can also be any iterable of samples, the same on every rank.
    ``loss(output, batch)``: the mean loss of a micro-batch, if the model itself does not return one.
    ``count(batch)``: by what that mean is weighted among the micro-batches; otherwise the labels that are not -100, or the
    samples.
    ``layers``: the name of the list of layers at which to cut. ``example``: a batch with which to try the cut.

    Raises ConfigError that lists every mistake, and for modules that cannot be trained.
    """
    if optimizer is not None:
        raise ConfigError(
            f"tessera updates the weights itself, and was given a {type(optimizer).__name__}",
            f'write it into the configuration: "optimizer": {_optimizer_words(optimizer)}',
        )
    library = _native.library()
    assert library is not None
    if isinstance(model, nn.Module):
        parts.check(model)
        model.train()
        _without_cache(model)
        made = parts.of_model(model, loss, layers, _example(model, example, dataset, collate))
    else:
        made = parts.of_list(model, loss)
        parts.check(made.module)
        made.module.train()
    written, title = _read_config(config, name)
    engine = Engine(
        made,
        written,
        title,
        dataset=dataset,
        validation=validation,
        collate=collate,
        count=count,
        set=set or {},
    )
    if made.why and engine.is_leader:
        warnings.warn(
            f"{type(made.module).__name__} is trained as one block, because {made.why}: ZeRO stage 3 then gathers all of its "
            "weights at once\n  fix: give layers=..., an example=..., or a list of blocks",
            stacklevel=2,
        )
    return engine


def _optimizer_words(optimizer: Any) -> str:
    group = dict(getattr(optimizer, "defaults", {}))
    kept = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "momentum") if key in group}
    return json.dumps({"type": type(optimizer).__name__, "params": kept})


def _without_cache(model: nn.Module) -> None:
    """Keys and values of a text that is learned are not kept for the next token."""
    config = getattr(model, "config", None)
    if config is not None and getattr(config, "use_cache", False):
        config.use_cache = False


def _example(model: nn.Module, example: Batch | None, dataset: Any, collate: Any) -> Batch | None:
    if example is not None:
        return _part_of(example, 0, 1, _rows_of(example))
    if dataset is not None and _is_indexed(dataset) and len(dataset) > 0:
        return (collate or default_collate)([dataset[0]])
    if type(model).__module__.startswith("transformers."):
        dummy = {key: value[:1] for key, value in model.dummy_inputs.items()}
        if getattr(model, "main_input_name", "") in dummy:
            return dummy
    return None


def _read_config(config: str | Path | dict[str, Any], name: str) -> tuple[str, str]:
    """The text of a configuration, and what it is called in messages."""
    if isinstance(config, dict):
        return json.dumps(config), name
    path = Path(config)
    if not path.is_file():
        raise ConfigError(f"{path} is not a file", "name a configuration, or give a dictionary")
    return path.read_text(encoding="utf-8"), str(path)
