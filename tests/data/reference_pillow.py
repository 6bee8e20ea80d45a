#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Pillow's results for small images: decoded files of every kind, and resized images.

  python3 -m venv v && v/bin/pip install pillow==13.0.0 numpy==2.4.6
  v/bin/python tests/data/reference_pillow.py >tests/data/reference_pillow.json
"""
import io
import json

import numpy as np
from PIL import Image


def pattern(width, height):
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    return ((x * 37 + y * 59 + c * 101 + x * y * 7) % 256).astype(np.uint8)


def smooth(width, height):
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    return (128 + 100 * np.sin(x / 5 + c) * np.cos(y / 7 - c)).astype(np.uint8)


def file_of(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


colour = Image.fromarray(pattern(7, 5))
grey = colour.convert("L")
alpha = colour.convert("RGBA")
alpha.putalpha(grey)
deep = Image.fromarray(pattern(7, 5)[..., 0].astype(np.uint16) * 257 + 100)
photo = Image.fromarray(smooth(21, 13))
files = {
    "png": (file_of(colour, "PNG"), colour),
    "png of grey": (file_of(grey, "PNG"), grey.convert("RGB")),
    "png of one bit": (file_of(grey.convert("1"), "PNG"), grey.convert("1").convert("RGB")),
    "png of a palette": (file_of(colour.quantize(9), "PNG"), colour.quantize(9).convert("RGB")),
    "png with transparency": (file_of(alpha, "PNG"), alpha.convert("RGB")),
    "png of grey with transparency": (file_of(alpha.convert("LA"), "PNG"), alpha.convert("LA").convert("RGB")),
    "png of 16 bits": (file_of(deep, "PNG"), Image.fromarray((np.asarray(deep) >> 8).astype(np.uint8)).convert("RGB")),
}
for name, options in {"jpeg": {}, "jpeg of all colours": {"subsampling": 0}, "progressive jpeg": {"progressive": True}}.items():
    content = file_of(photo, "JPEG", quality=80, **options)
    files[name] = (content, Image.open(io.BytesIO(content)).convert("RGB"))
content = file_of(photo.convert("L"), "JPEG", quality=80)
files["jpeg of grey"] = (content, Image.open(io.BytesIO(content)).convert("RGB"))

out = {"files": [], "resized": []}
for name, (content, image) in files.items():
    out["files"].append({"name": name, "width": image.width, "height": image.height, "file": content.hex(),
                         "rgb": image.tobytes().hex()})
for width, height in [(7, 5), (40, 23)]:
    source = Image.fromarray(pattern(width, height))
    for to in [(3, 4), (11, 8), (7, 9), (1, 1)]:
        for resample in [1, 2, 3]:
            out["resized"].append({"from": [width, height], "to": list(to), "resample": resample,
                                   "rgb": source.resize(to, resample).tobytes().hex()})
print(json.dumps(out, indent=0))
