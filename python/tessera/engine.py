# SPDX-License-Identifier: Apache-2.0
"""Trains a torch module of the caller: forward and backward are torch's, everything else is tessera's."""

from __future__ import annotations

import ctypes
import itertools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import _native, parts
from .batches import Batch, default_collate, is_indexed, labels_of, part_of, prepared, rows_of
from .errors import ConfigError, StoppedError
from .session import Process, Session, mixed

__all__ = ["Batch", "Engine", "default_collate", "initialize", "labels_of"]


class Engine(Session):
    """A module in training. Made by initialize(); used by one thread, and by every rank in the same way.

    After ``close()``, which the end of a ``with`` block calls, the module has weights of its own again.
    """

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

    def _check_rows(self) -> None:
        if isinstance(self._given, list):
            return
        rows = rows_of(self._given)
        if rows != self.train_batch_size:
            raise ConfigError(
                f"the batch has {rows} samples, and train_batch_size is {self.train_batch_size}",
                "give the global batch, the same on every rank, or a list of this rank's micro-batches",
            )

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
        args, kwargs = tuple(prepared(arg, self._dtype) for arg in args), prepared(kwargs, self._dtype)
        if not (self.module.training and torch.is_grad_enabled()):
            return self.module(*args, **kwargs)
        number = self._samples + (len(self._called) * self.world_size + self.rank) * self.micro_batch_size
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(mixed(self.config["trainer"]["seed"], self.steps, number, 0))
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

    # Modes, whole trainings and files ---------------------------------------------------------------------------------

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

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        elif self._session is not None:
            if self.world_size > 1:
                Process.fail(f"{kind.__name__}: {error}")
            self._free(None)


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
        return part_of(example, 0, 1, rows_of(example))
    if dataset is not None and is_indexed(dataset) and len(dataset) > 0:
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
