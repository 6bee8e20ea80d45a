# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX files with onnxruntime and compares their outputs with recorded ones.

usage: onnx_compare.py BOUND FOLDER...   (a folder has model.onnx and *.safetensors: inputs by name, and "expected")
"""
import glob
import json
import struct
import sys

import numpy
import onnxruntime

TYPES = {"F32": numpy.float32, "I64": numpy.int64}


def tensors_of(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = numpy.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


def difference(session, tensors):
    expected = tensors.pop("expected")
    feed = {one.name: tensors[one.name] for one in session.get_inputs()}
    (got,) = session.run(None, feed)
    if got.shape != expected.shape:
        raise ValueError(f"shape {got.shape}, expected {expected.shape}")
    return float(numpy.abs(got.astype(numpy.float64) - expected).max())


def main():
    bound, wrong = float(sys.argv[1]), 0
    for folder in sys.argv[2:]:
        try:
            session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
            cases = sorted(glob.glob(f"{folder}/*.safetensors"))
            most = max(difference(session, tensors_of(case)) for case in cases)
            failed = not most <= bound
            print(f"{folder}: {len(cases)} cases, largest difference {most:.1e}{', too much' if failed else ''}")
        except Exception as error:  # of any model: the others are still told
            print(f"{folder}: {error}")
            failed = True
        wrong += failed
    sys.exit(1 if wrong else 0)


main()
