# SPDX-License-Identifier: Apache-2.0
"""Tensors of checkpoints and of safetensors files, without copies."""

from __future__ import annotations

import json
import math
import mmap
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import FormatError
from .models import Model

if TYPE_CHECKING:
    import numpy

_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_MOST_HEADER = 100 << 20


def _header_of(data: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise FormatError(f"{path}: its header is not JSON", "name another file") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: its header is not a JSON object", "name another file")
    return found


def _tensors_of(path: Path) -> dict[str, numpy.ndarray]:
    import numpy

    if path.stat().st_size < 8:
        raise FormatError(f"{path} is not a file of safetensors", "name another file")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    size = int.from_bytes(data[:8], "little")
    if size > min(_MOST_HEADER, len(data) - 8):
        raise FormatError(f"{path} is not a file of safetensors", "name another file")
    out = {}
    for name, said in _header_of(data[8 : 8 + size], path).items():
        if name == "__metadata__":
            continue
        try:
            begin, end = (int(offset) for offset in said["data_offsets"])
            kind = numpy.dtype(_TYPES[said["dtype"]])
            count = math.prod(int(length) for length in said["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}: the description of the tensor {name} is damaged", "name another file") from error
        if not 0 <= begin <= end <= len(data) - 8 - size or end - begin != count * kind.itemsize or min(said["shape"], default=0) < 0:
            raise FormatError(f"{path}: the tensor {name} does not fit into the file", "name another file")
        values = numpy.frombuffer(data, kind, count, 8 + size + begin).reshape(said["shape"])
        if said["dtype"] == "BF16":  # numpy has no such type: the same values in fp32
            values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
        out[name] = values
    return out


def load_tensors(path: str | Path) -> dict[str, numpy.ndarray]:
    """The tensors of a run, a checkpoint, a Hugging Face folder or a safetensors file, by their names in Hugging Face's
    format. They are numpy arrays, which other libraries take without a copy: torch.from_dlpack(tensors["..."]). bf16
    tensors are given in fp32.

    Raises FormatError for files that are damaged.
    """
    source = Path(path)
    if source.is_file():
        return _tensors_of(source)
    files = sorted(source.glob("*.safetensors"))
    if files and (source / "config.json").exists() and not (source / "checkpoints").exists():
        return {name: tensor for file in files for name, tensor in _tensors_of(file).items()}
    with tempfile.TemporaryDirectory(prefix="tessera-") as box:
        # The mapped files stay readable after their folder is removed.
        folder = Model(source).export(Path(box) / "model")
        return load_tensors(folder)
