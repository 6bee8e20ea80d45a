#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records tensorboard.tfevents, against which the writer of event files is compared byte for byte.

It was made with the messages and the record writer of the wheel tensorboard 2.21.0:
    pip install tensorboard==2.21.0 && python record_tensorboard.py tensorboard.tfevents
"""
import sys

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def metadata(plugin, content=b""):
    data = summary_pb2.SummaryMetadata.PluginData(plugin_name=plugin, content=content)
    return summary_pb2.SummaryMetadata(plugin_data=data)


def summary(*values):
    return summary_pb2.Summary(value=values)


Value = summary_pb2.Summary.Value
start = plugin_data_pb2.SessionStartInfo(group_name="my run", start_time_secs=1700000000.25)
start.hparams["optimizer.params.lr"].number_value = 0.001
info = plugin_data_pb2.HParamsPluginData(session_start_info=start)
words = plugin_data_pb2.SessionStartInfo(group_name="g", start_time_secs=1.0)
words.hparams["bf16.enabled"].bool_value = True
end = plugin_data_pb2.HParamsPluginData(
    session_end_info=plugin_data_pb2.SessionEndInfo(status=1, end_time_secs=1700000009.5))
text = tensor_pb2.TensorProto(
    dtype=7, string_val=[b"    To be"],
    tensor_shape=tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]))
histo = summary_pb2.HistogramProto(min=-1.5, max=2.0, num=3, sum=0.75, sum_squares=6.5,
                                   bucket_limit=[-1.0, 0.5, 2.5], bucket=[1, 1, 1])
events = [
    event_pb2.Event(wall_time=1700000000.25, file_version="brain.Event:2"),
    event_pb2.Event(wall_time=1700000000.25, step=65,
                    session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
    event_pb2.Event(wall_time=1700000000.25, summary=summary(
        Value(tag="_hparams_/session_start_info", metadata=metadata("hparams", info.SerializeToString())))),
    event_pb2.Event(wall_time=1.0, summary=summary(
        Value(tag="_hparams_/session_start_info", metadata=metadata(
            "hparams", plugin_data_pb2.HParamsPluginData(session_start_info=words).SerializeToString())))),
    event_pb2.Event(wall_time=1700000001.5, step=16, summary=summary(
        Value(tag="Train/Samples/train_loss", simple_value=2.5), Value(tag="Train/Samples/lr", simple_value=0.001))),
    event_pb2.Event(wall_time=1700000002.5, step=4294967296, summary=summary(
        Value(tag="train/loss", simple_value=0.0))),
    event_pb2.Event(wall_time=1700000003.0, step=32, summary=summary(Value(tag="weights/h.0", histo=histo))),
    event_pb2.Event(wall_time=1700000004.0, step=32, summary=summary(
        Value(tag="sample/text_summary", tensor=text, metadata=metadata("text")))),
    event_pb2.Event(wall_time=1700000009.5, summary=summary(
        Value(tag="_hparams_/session_end_info", metadata=metadata("hparams", end.SerializeToString())))),
]
with open(sys.argv[1], "wb") as file:
    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
    writer.flush()
