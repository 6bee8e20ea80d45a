# SPDX-License-Identifier: Apache-2.0
"""What is read of samples and batches: how they are stacked, cut, counted and given to a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .errors import ConfigError

Batch = Mapping[str, Any]
_IGNORED = -100


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


def is_indexed(dataset: Any) -> bool:
    """True if samples can be read in any order; an iterable dataset may have the method that reads one, but no length."""
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def rows_of(batch: Any) -> int:
    for value in batch.values() if isinstance(batch, Mapping) else [batch]:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return len(value)
    raise ConfigError(
        "the batch has no tensor with a dimension for its samples", "give a dictionary of tensors, such as {'input_ids': ...}"
    )


def part_of(batch: Any, begin: int, end: int, rows: int) -> Any:
    """Samples [begin, end) of a batch; what has no dimension of samples stays."""
    if not isinstance(batch, Mapping):
        return batch[begin:end]
    return {
        key: value[begin:end] if isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == rows else value
        for key, value in batch.items()
    }


def prepared(batch: Any, dtype: torch.dtype) -> Any:
    """Floating-point inputs in the type of the weights, as DeepSpeed gives them to a module."""
    if not isinstance(batch, Mapping):
        return batch.to(dtype) if isinstance(batch, torch.Tensor) and batch.is_floating_point() else batch
    return {
        key: value.to(dtype)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and "label" not in key
        else value
        for key, value in batch.items()
    }


def shifts_labels(module: nn.Module) -> bool:
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
