// SPDX-License-Identifier: Apache-2.0
// Models of ModelCenter as BMTrain saves them: each tensor is read as it was written, and a model
// other than GPT2 is rejected by name.
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/gpt_files.h"
#include "interop/modelcenter_files.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/formats/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace gpt = test::gpt;
namespace mc = test::modelcenter;

class ModelCenter : public test::ForeignCheckpoints {
 protected:
  Foreign opened(const mc::Options& options) {
    mc::write(path("m"), gpt::model_of(0), options);
    return open_foreign(path("m")).value();
  }
  void refuses(const mc::Options& options, const std::string& reason) {
    mc::write(path("m"), gpt::model_of(0), options);
    refused(path("m"), reason);
  }
  static mc::Options with(const std::string& more_config) {
    mc::Options out;
    out.config = fmt::format(R"({{"num_heads": 4, {}}})", more_config);
    return out;
  }
  static mc::Options holding(const std::string& tensor) {
    mc::Options out;
    out.more = {tensor};
    return out;
  }
};

/// The model's tensors to the bit: floats, or 16 bits that are the values themselves.
void expect_model(const std::vector<checkpoint::StreamedTensor>& read, bool half, bool head) {
  std::map<std::string, checkpoint::StreamedTensor> found;
  for (const checkpoint::StreamedTensor& tensor : read)
    found.emplace(tensor.name, tensor);
  const gpt::Model model = gpt::model_of(0);
  EXPECT_EQ(found.size(), model.size() - (head ? 0 : 1));
  for (const auto& [name, tensor] : model) {
    if (name == "lm_head.weight" && !head) continue;
    const auto at = found.find((name == "lm_head.weight" ? "" : "transformer.") + name);
    ASSERT_NE(at, found.end()) << name;
    EXPECT_EQ(at->second.shape, tensor.shape) << name;
    EXPECT_EQ(at->second.dtype, half ? DType::F16 : DType::F32) << name;
    if (!half) {
      EXPECT_EQ(test::values_of(at->second), tensor.values) << name;
      continue;
    }
    std::vector<std::uint16_t> bits(tensor.values.size()), expected;
    at->second.read(
        0, static_cast<std::int64_t>(bits.size()), reinterpret_cast<std::byte*>(bits.data()));
    for (const float value : tensor.values)
      expected.push_back(static_cast<std::uint16_t>(value));
    EXPECT_EQ(bits, expected) << name;
  }
}

TEST_F(ModelCenter, AModelHasHuggingFacesNamesAndLayout) {
  const Foreign read = opened({});

  expect_model(read.weights, false, false);
  EXPECT_EQ(read.weights.front().aliases, (std::vector<std::string>{"lm_head.weight"}));
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, std::int64_t>>{{"vocab_size", gpt::kVocab},
                                                         {"n_positions", gpt::kPositions},
                                                         {"n_embd", gpt::kWidth},
                                                         {"n_inner", gpt::kInner},
                                                         {"n_layer", gpt::kLayers},
                                                         {"n_head", gpt::kHeads}})
    EXPECT_EQ(integer_at(read.model_config, key, 0), value) << key;
  EXPECT_EQ(at_path(read.model_config, "activation_function")->as_string(), "gelu");
  EXPECT_EQ(number_at(read.model_config, "layer_norm_epsilon"), 1e-6);
}

TEST_F(ModelCenter, Fp16WeightsKeepTheirBits) {
  mc::Options options;
  options.dtype = DType::F16;

  expect_model(opened(options).weights, true, false);
}

TEST_F(ModelCenter, AFileUnderAnotherNameIsKnownByItsTensors) {
  mc::write(path("m"), gpt::model_of(0), {});
  fs::rename(path("m/pytorch_model.pt"), path("m/gpt2-3000.pt"));

  expect_model(open_foreign(path("m/gpt2-3000.pt")).value().weights, false, false);
}

TEST_F(ModelCenter, AHeadOfItsOwnIsReadWhereTheModelIsNotTied) {
  mc::Options untied = with(R"("tied": false)"), unsaid = with(R"("half": true)"), tied;
  for (mc::Options* options : {&untied, &unsaid, &tied})
    options->head = true;

  const Foreign of_untied = opened(untied);

  expect_model(of_untied.weights, false, true);
  EXPECT_EQ(at_path(of_untied.model_config, "tie_word_embeddings")->as_bool(), false);
  expect_model(opened(unsaid).weights, false, true);
  expect_model(opened(tied).weights, false, false);
}

TEST_F(ModelCenter, AnUntiedModelWithoutItsHeadIsRefused) {
  refuses(with(R"("tied": false)"), "has no tensor \"output_projection.weight\"");
}

TEST_F(ModelCenter, TheTanhFormOfGeluIsKeptApart) {
  const Foreign read = opened(with(R"("ffn_activate_fn": "gelu_new")"));

  EXPECT_EQ(at_path(read.model_config, "activation_function")->as_string(), "gelu_new");
}

TEST_F(ModelCenter, ModelsOfRelativeAttentionAreRefusedByName) {
  refuses(holding("position_bias.relative_attention_bias"), "relative_attention_bias");
  refuses(holding("position_bias_enc.relative_attention_bias"), "relative_attention_bias");
  refuses(with(R"("pos_bias_type": "relative")"), "its pos_bias_type is relative");
  refuses(with(R"("pos_bias_type": "rotary")"), "its pos_bias_type is rotary");
}

TEST_F(ModelCenter, OtherModelsOfTheirsAreRefusedByName) {
  refuses(holding("decoder.layers.0.self_att.self_attention.project_q.weight"), "has a decoder");
  refuses(holding("encoder.layers.0.ffn.ffn.w_in.w_0.weight"), "its MLP is gated");
  refuses(holding("token_type_embedding.weight"), "types of tokens");
  refuses(holding("block_position_embedding.weight"), "positions of blocks");
  refuses(holding("cls_projection.weight"), "\"cls_projection.weight\" is none of a GPT-2's");
  refuses(holding("output_projection.bias"), "its head has a bias");
  refuses(with(R"("ffn_activate_fn": "relu")"), "its activation is OPT's");
  refuses(with(R"("ffn_activate_fn": "silu")"), "its activation is silu");
  refuses(with(R"("length_scale": true)"), "scales by lengths");
  refuses(with(R"("attn_scale": false)"), "does not scale its attention");
  refuses(with(R"("post_layer_norm": true)"), "its norms follow the residual");
}

TEST_F(ModelCenter, WithoutTheNumberOfHeadsIsRefused) {
  refuses(holding("x"), "\"x\" is none of a GPT-2's");
  mc::Options headless;
  headless.config = "{}";
  refuses(headless, "config.json: has no num_heads");
  fs::remove(path("m/config.json"));
  refused(path("m"), "no config.json beside it");
}

}  // namespace
}  // namespace tessera::interop
