// SPDX-License-Identifier: Apache-2.0
// tessera convert of checkpoints of Megatron-LM, ModelCenter and llm.c: the digests are those of
// the same model in Hugging Face's layout, and a training state survives a round trip through
// tessera's format.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"
#include "interop/bmtrain/modelcenter_files.h"
#include "interop/gpt_files.h"
#include "interop/llmc/llmc_files.h"
#include "interop/megatron/megatron_files.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/interop/export.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
namespace gpt = interop::test::gpt;
namespace llmc = interop::test::llmc;
namespace meg = interop::test::megatron;
namespace mc = interop::test::modelcenter;
using ::testing::HasSubstr;
using ::testing::Not;

class ForeignConvert : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return dir_.path() / name; }
  static std::string digest(const std::string& path) {
    const Outcome o = run_program({"inspect", path, "--digest"});
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  }
  /// Returns the digests of the model as safetensors; in 16 bits a value is its bit pattern.
  std::string digest_of(const gpt::Model& model, DType dtype, bool head = false) {
    std::vector<checkpoint::StreamedTensor> tensors;
    for (const auto& [name, tensor] : model) {
      if (name == "lm_head.weight" && !head) continue;
      const auto read = [values = tensor.values, dtype](
                            std::int64_t begin, std::int64_t end, std::byte* out) {
        for (std::int64_t i = begin; i < end; ++i) {
          const float value = values[static_cast<std::size_t>(i)];
          const auto narrow = static_cast<std::uint16_t>(value);
          const bool whole = dtype == DType::F32;
          std::memcpy(out, whole ? static_cast<const void*>(&value) : &narrow, size_of(dtype));
          out += size_of(dtype);
        }
      };
      const bool bare = name == "lm_head.weight";
      tensors.push_back({(bare ? "" : "transformer.") + name, dtype, tensor.shape, read, {}});
    }
    const std::string folder = path("direct" + std::to_string(++folders_));
    fs::create_directory(folder);
    interop::write_hf_weights(folder, tensors, std::uint64_t{1} << 40);
    return digest(folder);
  }
  std::string converted(const std::string& from, const std::vector<std::string>& words = {}) {
    const std::string to = path("made" + std::to_string(++folders_));
    std::vector<std::string> all = {"convert", from, to};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome o = run_program(all);
    EXPECT_EQ(o.code, 0) << o.err;
    return to;
  }

 private:
  files::TempDir dir_;
  int folders_ = 0;
};

/// The layout has no padding, so that the vocabulary is that of the model.
meg::Layout layout_of(meg::Optimizer optimizer) {
  meg::Layout layout;
  layout.tensor = 2;
  layout.pipeline = 2;
  layout.chunks = 2;
  layout.optimizer = optimizer;
  layout.args = {{"vocab_size", interop::test::op::integer(gpt::kVocab)}};
  return layout;
}

TEST_F(ForeignConvert, MegatronsShardsHaveTheDigestsOfTheWholeModel) {
  meg::Layout untied = layout_of(meg::Optimizer::None);
  untied.untied = true;
  meg::write(path("tied"), layout_of(meg::Optimizer::None));
  meg::write(path("untied"), untied);

  EXPECT_EQ(digest(converted(path("tied"))), digest_of(gpt::model_of(0), DType::F32));
  EXPECT_EQ(digest(converted(path("untied"))), digest_of(gpt::model_of(0), DType::F32, true));
}

TEST_F(ForeignConvert, MegatronsMastersAreTheWeightsThatAreWritten) {
  meg::write(path("m"), layout_of(meg::Optimizer::Mixed));

  EXPECT_EQ(digest(converted(path("m"))), digest_of(gpt::model_of(meg::kMasterSet), DType::F32));
}

TEST_F(ForeignConvert, MegatronsTrainingSurvivesARoundTripBitForBit) {
  meg::Layout untied = layout_of(meg::Optimizer::Mixed);
  untied.untied = true;
  for (const meg::Layout& layout :
       {layout_of(meg::Optimizer::Mixed), layout_of(meg::Optimizer::Plain), untied}) {
    fs::remove_all(path("m"));
    meg::write(path("m"), layout);
    const std::string before = digest(path("m"));

    const std::string ours = converted(path("m"), {"--to", "tessera"});
    const std::string universal = converted(ours, {"--to", "deepspeed-universal"});

    EXPECT_THAT(before, HasSubstr("optimizer.exp_avg_sq.transformer.h.3.mlp.c_proj.weight F32"));
    EXPECT_EQ(digest(universal), before);
    EXPECT_EQ(run_program({"checkpoint", "verify", ours}).code, 0);
    const json::Value facts =
        json::parse_strict(run_program({"inspect", ours, "--json"}).out, "inspect");
    EXPECT_EQ(facts.find("step")->as_integer(), meg::kIteration);
    EXPECT_EQ(facts.find("samples")->as_integer(), 96);
  }
}

TEST_F(ForeignConvert, WithoutAnOptimizersStateATrainingIsRefusedAndWeightsAreNot) {
  meg::write(path("m"), layout_of(meg::Optimizer::Distributed));

  const Outcome universal =
      run_program({"convert", path("m"), path("ds"), "--to", "deepspeed-universal"});

  EXPECT_NE(universal.code, 0);
  EXPECT_FALSE(fs::exists(path("ds")));
  EXPECT_THAT(digest(converted(path("m"))), Not(HasSubstr("optimizer.")));
}

TEST_F(ForeignConvert, ModelCentersWeightsHaveTheDigestsOfTheWholeModel) {
  for (const DType dtype : {DType::F32, DType::F16}) {
    mc::Options options;
    options.dtype = dtype;
    mc::write(path("mc"), gpt::model_of(0), options);

    EXPECT_EQ(digest(converted(path("mc"))), digest_of(gpt::model_of(0), dtype));
  }
}

TEST_F(ForeignConvert, LlmcsWeightsHaveTheDigestsOfTheWholeModel) {
  const gpt::Model model = gpt::model_of(0, 4 * gpt::kWidth);
  for (const std::int32_t version : {1, 3, 5}) {
    files::write_atomic(path("gpt2.bin"), llmc::file(model, version));

    const std::string made = converted(path("gpt2.bin"));

    EXPECT_EQ(digest(made), digest_of(model, version == 5 ? DType::BF16 : DType::F32));
    const json::Value config =
        json::parse_strict(files::read(fs::path(made) / "config.json"), "config.json");
    EXPECT_EQ(config.find("vocab_size")->as_integer(), gpt::kVocab);
    EXPECT_EQ(config.find("torch_dtype")->as_string(), version == 5 ? "bfloat16" : "float32");
  }
}

TEST_F(ForeignConvert, LlmcsTruncatedFilesAreRefusedByBothCommands) {
  const std::string whole = llmc::file(gpt::model_of(0, 4 * gpt::kWidth), 5);
  files::write_atomic(path("gpt2.bin"), whole.substr(0, whole.size() - 2));

  const Outcome seen = run_program({"inspect", path("gpt2.bin")});
  const Outcome made = run_program({"convert", path("gpt2.bin"), path("x")});

  for (const Outcome& o : {seen, made}) {
    EXPECT_EQ(o.code, 4);
    EXPECT_THAT(o.err, HasSubstr("gpt2.bin: ends before its last parameter"));
  }
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(ForeignConvert, LlmcsTokenFilesAreCountedAndTruncatedOnesRefused) {
  for (const bool llama : {false, true}) {
    const std::string whole = llmc::tokens({7, 50256, 9}, llama);
    files::write_atomic(path("tokens.bin"), whole);
    const Outcome seen = run_program({"inspect", path("tokens.bin"), "--json"});
    files::write_atomic(path("tokens.bin"), whole.substr(0, whole.size() - 1));
    const Outcome cut = run_program({"inspect", path("tokens.bin")});

    EXPECT_EQ(json::parse_strict(seen.out, "inspect").find("tokens")->as_integer(), 3);
    EXPECT_NE(cut.code, 0);
    EXPECT_THAT(cut.err, HasSubstr("claims 3 tokens"));
  }
}

}  // namespace
}  // namespace tessera::cli
