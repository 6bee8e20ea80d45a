# SPDX-License-Identifier: Apache-2.0
"""Collects what a model predicts for each sample of an evaluation, over all ranks."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .errors import ConfigError

if TYPE_CHECKING:
    import numpy

    from .engine import Engine
    from .parts import Micro

_PADDING = -100  #: as transformers pads predictions of different lengths


def _tensors_of(output: Any, ignored: Sequence[str]) -> list[torch.Tensor]:
    """The tensors of a model's output besides its loss, in their order."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        values = [value for key, value in output.items() if key != "loss" and key not in ignored]
    else:
        values = list(output)[1:] if isinstance(output, (tuple, list)) else [getattr(output, "logits", None)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _stacked(rows: list[numpy.ndarray]) -> numpy.ndarray:
    """Rows as one array; shorter ones are padded at their ends."""
    import numpy

    shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    if all(list(row.shape) == shape for row in rows):
        return numpy.stack(rows)
    out = numpy.full([len(rows), *shape], _PADDING, rows[0].dtype)
    for at, row in enumerate(rows):
        index: Any = (at, *(slice(size) for size in row.shape))
        out[index] = row
    return out


class Predictions:
    """Predictions and labels by the number of the sample. ``prepare(logits, labels)``: what is kept in place of the logits,
    as preprocess_logits_for_metrics of transformers.Trainer."""

    def __init__(
        self,
        label_names: Sequence[str],
        ignored: Sequence[str] = (),
        prepare: Callable[[Any, Any], Any] | None = None,
    ):
        self.label_names = label_names
        self.ignored = ignored
        self.prepare = prepare
        self.rows: dict[int, list[numpy.ndarray]] = {}
        self.predicted = 0  #: arrays of a row that are predictions; the others are labels

    def add(self, micro: Micro, samples: Sequence[int]) -> None:
        """Takes the output of a micro-batch."""
        found = _tensors_of(micro.output, self.ignored)
        labels = [micro.batch[name] for name in self.label_names if isinstance(micro.batch, Mapping) and name in micro.batch]
        if self.prepare is not None:
            made = self.prepare(found[0] if len(found) == 1 else tuple(found), labels[0] if len(labels) == 1 else tuple(labels))
            found = [made] if isinstance(made, torch.Tensor) else list(made)
        if not found:
            raise ConfigError("compute_metrics needs predictions, and the model returns its loss alone", "return logits, too")
        self.predicted = len(found)
        arrays = [(each.float() if each.is_floating_point() else each).detach().cpu().numpy() for each in [*found, *labels]]
        for row, sample in enumerate(samples):
            self.rows[int(sample)] = [array[row].copy() for array in arrays]

    def clear(self) -> None:
        self.rows.clear()

    def of_all_ranks(self, engine: Engine) -> tuple[Any, Any]:
        """Predictions and labels of all samples, in their order, on every rank: an array each, a tuple of arrays if there
        are several, None if there are none. Collective."""
        import numpy

        file = io.BytesIO()
        flat: dict[str, Any] = {f"{sample}.{at}": array for sample, arrays in self.rows.items() for at, array in enumerate(arrays)}
        numpy.savez(file, predicted=numpy.array(self.predicted), **flat)
        rows: dict[int, dict[int, numpy.ndarray]] = {}
        predicted = 0
        for part in engine.all_gather(file.getvalue()):
            with numpy.load(io.BytesIO(part), allow_pickle=False) as arrays:
                predicted = max(predicted, int(arrays["predicted"]))
                for name in arrays.files:
                    if name != "predicted":
                        sample, at = map(int, name.split("."))
                        rows.setdefault(sample, {})[at] = arrays[name]
        columns = [_stacked([rows[sample][at] for sample in sorted(rows)]) for at in range(len(next(iter(rows.values()))))]
        return _one_or_many(columns[:predicted]), _one_or_many(columns[predicted:])


def _one_or_many(arrays: list[numpy.ndarray]) -> Any:
    if not arrays:
        return None
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
