#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes views.pt and views_legacy.pt beside itself: every element type, views, a parameter and nesting, as torch
2.11 saves them. The tests have the expected contents of each tensor."""
import pathlib

import torch

base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
held = {
    "base": base,
    "tied": base,
    "transposed": base.t(),
    "row": base[1],
    "column": base[:, 2],
    "expanded": base[0, 3].expand(2, 3),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.tensor([1.0, -1.0])),
    "double": torch.tensor([0.1], dtype=torch.float64),
    "half": torch.tensor([0.5, -2.0], dtype=torch.float16),
    "bfloat": torch.tensor([1.5, 256.0], dtype=torch.bfloat16),
    "long": torch.tensor([-1, 2**40]),
    "int": torch.tensor([-7], dtype=torch.int32),
    "short": torch.tensor([300], dtype=torch.int16),
    "char": torch.tensor([-3], dtype=torch.int8),
    "byte": torch.tensor([200], dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "more": {"lr": 0.1, "steps": 3, "big": 2**80, "name": "x", "none": None, "list": [torch.tensor([9.0])], 5: base[2]},
    "size": base.shape,
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
}
here = pathlib.Path(__file__).parent
torch.save(held, here / "views.pt")
torch.save(held, here / "views_legacy.pt", _use_new_zipfile_serialization=False)
torch.save(held, here / "views_protocol4.pt", pickle_protocol=4)
