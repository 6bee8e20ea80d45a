// SPDX-License-Identifier: Apache-2.0
// T5 and mT5 as transformers 4 and 5 write them: the stored tensors decide whether the head is
// tied. Source of the expectations: T5Config, MT5Config and tie_weights() of transformers 5.24.
#include "tessera/interop/huggingface/stored_head.h"

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/models/encoder_decoder_options.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {
namespace {

using ::testing::HasSubstr;

enum class Head { None, Same, Own, Alone };

struct Row {
  const char* config;
  Head head;
  bool tied, scaled;
  const char* warning = "";
};

/// A folder with the table, the head, and this config.json.
void write_folder(const std::filesystem::path& folder, const Row& row) {
  files::write_atomic(folder / "config.json", row.config);
  const std::array<float, 4> table = {1, 2, 3, 4}, other = {1, 2, 3, 5};
  const auto bytes = [](const std::array<float, 4>& values) {
    return std::as_bytes(std::span(values));
  };
  std::vector<checkpoint::TensorBytes> tensors;
  if (row.head != Head::Alone)
    tensors.push_back({"shared.weight", DType::F32, {2, 2}, bytes(table)});
  if (row.head == Head::Same || row.head == Head::Alone)
    tensors.push_back({"lm_head.weight", DType::F32, {2, 2}, bytes(table)});
  if (row.head == Head::Own)
    tensors.push_back({"lm_head.weight", DType::F32, {2, 2}, bytes(other)});
  checkpoint::write_safetensors(folder / "model.safetensors", tensors, {});
}

TEST(StoredHead, DecidesWhetherTheHeadIsTied) {
  // Each line: what the file says, the head in it, tied, scaled.
  const std::vector<Row> rows = {
      // transformers 4.
      {R"({"model_type": "t5"})", Head::None, true, true},
      {R"({"model_type": "t5", "tie_word_embeddings": true})", Head::Same, true, true},
      {R"({"model_type": "t5", "tie_word_embeddings": true})", Head::Alone, true, true},
      {R"({"model_type": "t5", "tie_word_embeddings": false})", Head::Own, false, false},
      {R"({"model_type": "t5", "tie_word_embeddings": false})", Head::Same, false, false},
      {R"({"model_type": "mt5", "tie_word_embeddings": false})", Head::Own, false, false},
      {R"({"model_type": "mt5", "tie_word_embeddings": true})", Head::None, true, true},
      // transformers 5.
      {R"({"model_type": "t5", "tie_word_embeddings": true, "scale_decoder_outputs": false,
           "transformers_version": "5.24.0"})",
       Head::Own,
       false,
       false},
      {R"({"model_type": "t5", "tie_word_embeddings": true, "scale_decoder_outputs": false,
           "transformers_version": "5.24.0"})",
       Head::None,
       true,
       false},
      {R"({"model_type": "t5", "tie_word_embeddings": true, "scale_decoder_outputs": true,
           "transformers_version": "5.24.0"})",
       Head::None,
       true,
       true},
      {R"({"model_type": "mt5", "tie_word_embeddings": true, "transformers_version": "5.24.0"})",
       Head::Own,
       false,
       false},
      {R"({"model_type": "mt5", "tie_word_embeddings": true, "transformers_version": "5.24.0"})",
       Head::None,
       true,
       false},
      // Contradictions.
      {R"({"model_type": "t5", "tie_word_embeddings": true})",
       Head::Own,
       false,
       true,
       "config.json says that the output layer is tied to the token embedding, but the weights "
       "have two different matrices"},
      {R"({"model_type": "t5", "tie_word_embeddings": false})",
       Head::None,
       true,
       false,
       "config.json says that the output layer is not tied to the token embedding, but the weights "
       "have one matrix for both"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.config + std::string(" head ") + std::to_string(static_cast<int>(row.head)));
    const files::TempDir folder;
    write_folder(folder.path(), row);
    std::string said;
    log::set_sink([&](log::Level, std::string_view message) { said += message; });

    const models::ModelSource source = models::open_model_source(folder.path());
    log::set_sink({});

    const auto* options = dynamic_cast<const models::EncoderDecoderOptions*>(&*source.model);
    ASSERT_NE(options, nullptr);
    EXPECT_EQ(options->tie_embeddings, row.tied);
    EXPECT_EQ(options->scale_output.value_or(options->tie_embeddings), row.scaled);
    EXPECT_THAT(said, HasSubstr(row.warning));
    EXPECT_EQ(said.empty(), std::string(row.warning).empty()) << said;
  }
}

}  // namespace
}  // namespace tessera::interop
