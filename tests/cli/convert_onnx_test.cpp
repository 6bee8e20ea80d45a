// SPDX-License-Identifier: Apache-2.0
// tessera convert to an ONNX file: what is written and replaced, and what is refused.
#include <filesystem>
#include <string>

#include "cli/convert_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/interop/onnx/graph.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

class ConvertOnnx : public Conversions {};

TEST_F(ConvertOnnx, ARunBecomesAFileWithItsInputsAndItsWeights) {
  const Outcome o = convert({run_folder(), path("my.onnx"), "--json"});

  ASSERT_EQ(o.code, 0) << o.err;
  const std::string file = files::read(path("my.onnx"));
  EXPECT_TRUE(file.starts_with(interop::onnx_mark()));
  EXPECT_EQ(json::parse_strict(o.out, "").find("bytes")->as_integer(), std::ssize(file));
  for (const char* name :
       {"input_ids", "attention_mask", "batch_size", "sequence_length", "logits", "wte.weight"})
    EXPECT_NE(file.find(name), std::string::npos) << name;
  const auto& table = weights.at("wte.weight");
  EXPECT_NE(file.find(std::string(reinterpret_cast<const char*>(table.data()),
                                  table.size() * sizeof(float))),
            std::string::npos);
}

// A protocol buffer holds less than 2 GiB; --shard-size sets a smaller limit.
TEST_F(ConvertOnnx, LargeWeightsLieInASecondFile) {
  const std::vector<std::string> words = {
      run_folder(), path("my.onnx"), "--shard-size", "1KB", "--json"};
  const Outcome o = convert(words);

  ASSERT_EQ(o.code, 0) << o.err;
  const std::string model = files::read(path("my.onnx")), data = files::read(path("my.onnx.data"));
  EXPECT_TRUE(model.starts_with(interop::onnx_mark()));
  EXPECT_EQ(json::parse_strict(o.out, "").find("bytes")->as_integer(),
            std::ssize(model) + std::ssize(data));
  const auto& table = weights.at("wte.weight");
  const std::string bytes(reinterpret_cast<const char*>(table.data()),
                          table.size() * sizeof(float));
  EXPECT_EQ(model.find(bytes), std::string::npos);
  const std::size_t offset = data.find(bytes);
  ASSERT_NE(offset, std::string::npos);
  EXPECT_EQ(offset % 4096, 0U);
  for (const std::string& said :
       {std::string("location"), std::string("my.onnx.data"), std::to_string(bytes.size())})
    EXPECT_NE(model.find(said), std::string::npos) << said;
  EXPECT_THAT(convert(words).err, HasSubstr("already exists"));
  EXPECT_EQ(convert({run_folder(), path("my.onnx"), "--shard-size", "1KB", "--overwrite"}).code, 0);
  EXPECT_EQ(files::read(path("my.onnx.data")), data);
}

TEST_F(ConvertOnnx, TheWeightsOfAReplacedFileGoWithItAndNoOthers) {
  const std::vector<std::string> one = {run_folder(), path("my.onnx"), "--overwrite"};
  const std::vector<std::string> two = {
      run_folder(), path("my.onnx"), "--overwrite", "--shard-size", "1KB"};
  ASSERT_EQ(convert(two).code, 0);
  ASSERT_TRUE(fs::exists(path("my.onnx.data")));

  ASSERT_EQ(convert(one).code, 0);
  EXPECT_FALSE(fs::exists(path("my.onnx.data")));
  // A file of that name which the model does not use is somebody else's.
  files::write_atomic(path("my.onnx.data"), "mine");
  EXPECT_EQ(convert(one).code, 0);
  EXPECT_EQ(files::read(path("my.onnx.data")), "mine");
  EXPECT_THAT(convert(two).err, HasSubstr("my.onnx.data is kept"));
  EXPECT_EQ(files::read(path("my.onnx.data")), "mine");
  EXPECT_TRUE(fs::exists(path("my.onnx")));
}

TEST_F(ConvertOnnx, AFolderWithoutATokenizerIsConverted) {
  ASSERT_EQ(convert({run_folder(), path("hf")}).code, 0);
  fs::remove(path("hf/tokenizer.json"));

  EXPECT_EQ(convert({path("hf"), path("a.onnx")}).code, 0);
  ASSERT_EQ(convert({run_folder(), path("b.onnx")}).code, 0);
  EXPECT_EQ(files::read(path("a.onnx")), files::read(path("b.onnx")));
}

TEST_F(ConvertOnnx, OnlyItsOwnFilesAreReplaced) {
  ASSERT_EQ(convert({run_folder(), path("my.onnx")}).code, 0);
  files::write_atomic(path("theirs.onnx"), std::string(interop::onnx_mark()).replace(4, 1, "T"));

  EXPECT_THAT(convert({run_folder(), path("my.onnx")}).err, HasSubstr("already exists"));
  EXPECT_EQ(convert({run_folder(), path("my.onnx"), "--overwrite"}).code, 0);
  EXPECT_THAT(convert({run_folder(), path("theirs.onnx"), "--overwrite"}).err,
              HasSubstr("was not written by a conversion"));
}

TEST_F(ConvertOnnx, WhatAFileCannotHoldIsNamed) {
  const auto refused = [&](std::vector<std::string> words, int code, const char* reason) {
    words.insert(words.begin(), run_folder());
    const Outcome o = convert(words);
    EXPECT_EQ(o.code, code) << reason;
    EXPECT_THAT(o.err, HasSubstr(reason));
    EXPECT_FALSE(fs::exists(words[1]));
  };
  refused({path("x"), "--to", "onnx"}, 2, "a name that ends in .onnx");
  refused({path("x.onnx"), "--to", "torch"}, 2, "a name that ends in .onnx");
  refused({path("x.onnx"), "--dtype", "bf16"}, 2, "an ONNX file with --dtype bf16");
  refused({path("x.onnx"), "--ema"}, 2, "the moving average");
  EXPECT_EQ(convert({run_folder(), path("x.onnx"), "--dtype", "fp32"}).code, 0);
}

}  // namespace
}  // namespace tessera::cli
