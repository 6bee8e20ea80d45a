// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/colossal/python_literal.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::interop {
namespace {

using testing::AllOf;
using testing::HasSubstr;

json::Value json_of(const std::string& text) {
  return json::parse(text, "expected");
}

std::string refusal(const std::string& text) {
  try {
    parse_python(text, "config.py");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Config);
    return error.text();
  }
  return "";
}

TEST(PythonLiterals, OfATutorialAreRead) {
  const json::Value v = parse_python(R"(from colossalai.amp import AMP_TYPE
import os, sys
from titans import (loss,
                    model)
"""GPT with a pipeline."""
BATCH_SIZE = 192          # of one rank
NUM_EPOCHS = 60
SEQ_LEN = 1024
NUM_MICRO_BATCHES = BATCH_SIZE // 4
HIDDEN_SIZE = 1600
TENSOR_SHAPE = (BATCH_SIZE // NUM_MICRO_BATCHES, SEQ_LEN, HIDDEN_SIZE)
NUM_CHUNKS = None

parallel = dict(
    pipeline=2,
    tensor=dict(mode='1d', size=2),
)
fp16 = dict(mode=AMP_TYPE.NAIVE, initial_scale=2**16)
)",
                                     "config.py");

  EXPECT_EQ(v, json_of(R"({"BATCH_SIZE": 192, "NUM_EPOCHS": 60, "SEQ_LEN": 1024,
    "NUM_MICRO_BATCHES": 48, "HIDDEN_SIZE": 1600, "TENSOR_SHAPE": [4, 1024, 1600],
    "NUM_CHUNKS": null, "parallel": {"pipeline": 2, "tensor": {"mode": "1d", "size": 2}},
    "fp16": {"mode": "AMP_TYPE.NAIVE", "initial_scale": 65536}})"));
  EXPECT_EQ(v.find("parallel")->find("tensor")->place.text(), "config.py:16:12");
}

TEST(PythonLiterals, OfOneDictionaryStandForItsMembers) {
  const json::Value expected = json_of(R"({"a": 1, "b": {"c": [true, null]}})");

  EXPECT_EQ(parse_python("CONFIG = dict(a=1, b={'c': [True, None]})", "x"), expected);
  EXPECT_EQ(parse_python("{'a': 1, \"b\": dict(c=(True, None,))}", "x"), expected);
  EXPECT_EQ(parse_python("dict(a=1, b=dict(c=list([True, None])))", "x"), expected);
}

TEST(PythonLiterals, AreCalculated) {
  EXPECT_EQ(parse_python("a = 2 + 3 * 4 - 10 // 4; b = -2 ** 2 ; c = (1 + 1) * 0.5; d = 7 % 4; "
                         "e = 1_000; f = 3 / 2; g = 1e-3; h = 'a' \"b\"",
                         "x"),
            json_of(R"({"a": 12, "b": -4, "c": 1.0, "d": 3, "e": 1000, "f": 1.5, "g": 0.001,
                        "h": "ab"})"));
}

TEST(PythonLiterals, ObjectsThatNeedNothingSaidAreWords) {
  EXPECT_EQ(parse_python(R"py(from colossalai.zero.shard_utils import TensorShardStrategy
zero = dict(model_config=dict(shard_strategy=TensorShardStrategy(), reuse_fp16_shard=True),
            hook=hooks.Lr ( ))
)py",
                         "config.py"),
            json_of(R"js({"zero": {"model_config": {"shard_strategy": "TensorShardStrategy()",
                          "reuse_fp16_shard": true}, "hook": "hooks.Lr()"}})js"));
  EXPECT_THAT(refusal("a = Strategy(1)"), HasSubstr("Strategy(...) would have to be executed"));
  EXPECT_THAT(refusal("a = Strategy("), HasSubstr("executed"));
  EXPECT_THAT(refusal("a = Strategy() + 1"), HasSubstr("only numbers"));
}

TEST(PythonLiterals, ImportedNamesStandForTheirText) {
  EXPECT_EQ(parse_python(R"py(import torch, colossalai.nn as cn
from torch.optim import Adam, SGD as Plain
from titans.model import (gpt,
                          GPT2_exlarge)
a = dict(type=Adam); b = Plain; c = GPT2_exlarge; d = torch.optim.Adam
Adam = 3
e = Adam
)py",
                         "config.py"),
            json_of(R"({"a": {"type": "Adam"}, "b": "SGD", "c": "GPT2_exlarge",
                        "d": "torch.optim.Adam", "Adam": 3, "e": 3})"));
}

TEST(PythonLiterals, ThatWouldHaveToBeExecutedAreRefused) {
  EXPECT_THAT(refusal("a = 1\nb = int('3')\n"),
              AllOf(HasSubstr("config.py:2:5"), HasSubstr("int(...)"), HasSubstr("executed")));
  EXPECT_THAT(refusal("p = os.environ['DATA']"), HasSubstr("os.environ"));
  EXPECT_THAT(refusal("a = unknown + 1"),
              AllOf(HasSubstr("config.py:1:5"), HasSubstr("unknown"), HasSubstr("not assigned")));
  EXPECT_THAT(refusal("def f():\n  return 1"), HasSubstr("config.py:1:1"));
}

TEST(PythonLiterals, ThatAreBrokenAreRefusedWithTheirPlace) {
  EXPECT_THAT(refusal("a = dict(b=1"), HasSubstr("config.py:1:13"));
  EXPECT_THAT(refusal("a = dict(b=1, b=2)"), AllOf(HasSubstr("\"b\""), HasSubstr("twice")));
  EXPECT_THAT(refusal("a = 'x"), HasSubstr("never closed"));
  EXPECT_THAT(refusal("a = 1 2"), HasSubstr("config.py:1:7"));
  EXPECT_THAT(refusal("a = 1 / 0"), HasSubstr("division by zero"));
  EXPECT_THAT(refusal("a = 9 ** 9 ** 9 ** 9"), HasSubstr("too large"));
  EXPECT_THAT(refusal("a = 'x' * 3"), HasSubstr("only numbers"));
  EXPECT_THAT(refusal("a = " + std::string(100'000, '[')), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal("a = " + std::string(100'000, '-') + "1"), HasSubstr("nested too deeply"));
  EXPECT_THAT(refusal(std::string(300'000, ' ')), HasSubstr("too many for a configuration"));
}

}  // namespace
}  // namespace tessera::interop
