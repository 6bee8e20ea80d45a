#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the Arrow and Parquet files that arrow_test.cpp and parquet_test.cpp read, and the records that they hold.
usage: pip install pyarrow==26.0.1 datasets==5.2.0 && python3 tests/data/columns/make.py"""
import json
import pathlib
import shutil
import tempfile

import datasets
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet

here = pathlib.Path(__file__).parent
ROWS = 40


def talk(i):
    return [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": "äöü " * (i % 3)}][: i % 3]


columns = {
    "text": (pa.string(), [f"row {i} " + "x" * (i % 7) for i in range(ROWS)]),
    "large": (pa.large_string(), [None if i % 5 == 0 else f"ü{i}" for i in range(ROWS)]),
    "label": (pa.int64(), [i % 3 for i in range(ROWS)]),
    "small": (pa.int8(), [i - 20 for i in range(ROWS)]),
    "above": (pa.uint16(), [60000 + i for i in range(ROWS)]),
    "share": (pa.float64(), [None if i == 3 else i / 8 for i in range(ROWS)]),
    "single": (pa.float32(), [i / 4 for i in range(ROWS)]),
    "half": (pa.float16(), [float(i) / 2 for i in range(ROWS)]),
    "flag": (pa.bool_(), [None if i == 7 else i % 2 == 0 for i in range(ROWS)]),
    "nothing": (pa.null(), [None] * ROWS),
    "names": (pa.list_(pa.string()), [None if i == 1 else [f"n{j}" for j in range(i % 4)] for i in range(ROWS)]),
    "messages": (pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])), [talk(i) for i in range(ROWS)]),
    "pair": (pa.list_(pa.int32(), 2), [[i, -i] for i in range(ROWS)]),
    "inside": (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.bool_()))]), [None if i == 2 else {"a": i, "b": [True] * (i % 2)} for i in range(ROWS)]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), [["red", "green", "blue"][i % 3] for i in range(ROWS)]),
}
table = pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})
with_bytes = table.append_column("picture", pa.array([b"\xff\x00"] * ROWS, pa.binary()))
with ipc.new_stream(here / "stream.arrow", table.schema) as out:
    out.write_table(with_bytes.drop_columns("picture"), max_chunksize=16)
with ipc.new_stream(here / "bytes.arrow", with_bytes.schema) as out:
    out.write_table(with_bytes)
feather.write_feather(table, here / "lz4.feather", compression="lz4", chunksize=16)
feather.write_feather(table, here / "zstd.feather", compression="zstd")
feather.write_feather(table, here / "plain.feather", compression="uncompressed")
with open(here / "records.jsonl", "w", encoding="utf-8") as out:
    for row in table.to_pylist():
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
rows = table.drop_columns("half")  # which Parquet keeps as bytes
parquet.write_table(rows, here / "snappy.parquet", row_group_size=16)
parquet.write_table(rows, here / "zstd.parquet", compression="zstd", data_page_version="2.0", data_page_size=64, write_batch_size=4)
parquet.write_table(rows, here / "gzip.parquet", compression="gzip", use_dictionary=False)
parquet.write_table(rows, here / "lz4.parquet", compression="lz4")
parquet.write_table(rows.select(["text", "large", "label", "small", "flag"]), here / "delta.parquet", compression="none", use_dictionary=False,
                    column_encoding={"text": "DELTA_BYTE_ARRAY", "large": "DELTA_LENGTH_BYTE_ARRAY", "label": "DELTA_BINARY_PACKED",
                                     "small": "DELTA_BINARY_PACKED", "flag": "RLE"})
parquet.write_table(rows.select(["text"]).append_column("picture", pa.array([b"\xff\x00"] * ROWS, pa.binary())), here / "bytes.parquet")
split = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": [f"{name} {i}" for i in range(n)], "label": list(range(n))})
                              for name, n in (("train", 5), ("test", 2))})
split.save_to_disk(here / "saved", num_shards={"train": 2, "test": 1})
moods, tags = datasets.ClassLabel(names=["sad", "glad", "2", "calm"]), datasets.ClassLabel(names=["O", "X"])
named = datasets.Dataset.from_dict(
    {"text": [f"text {i}" for i in range(6)], "label": [0, 1, 2, 0, 1, 2], "tokens": [["a", "b"]] * 6, "ner_tags": [[0, i % 2] for i in range(6)],
     "inside": [{"kind": i % 4} for i in range(6)]},
    features=datasets.Features({"text": datasets.Value("string"), "label": moods, "tokens": datasets.List(datasets.Value("string")),
                                "ner_tags": datasets.List(tags), "inside": {"kind": moods}}))
named.to_parquet(here / "classes.parquet")
with tempfile.TemporaryDirectory() as folder:
    named.save_to_disk(folder)
    shutil.copy(pathlib.Path(folder) / "data-00000-of-00001.arrow", here / "classes.arrow")
