// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's checkpoints of every grid and generation, constructed by hand: each tensor is read
// back as it was written, and unreadable ones are rejected or reported.
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/megatron/megatron_files.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace meg = test::megatron;
namespace op = test::op;
using meg::Layout;
using meg::Optimizer;
using test::values_of;
using ::testing::HasSubstr;

class Megatron : public test::ForeignCheckpoints {
 protected:
  Foreign opened(const Layout& layout) {
    const fs::path folder = path(fmt::format("m{}", ++folders_));
    meg::write(folder, layout);
    return open_foreign(folder).value();
  }
  /// Checks that the sharded model was read, with a table of `rows` rows.
  void expect_model(const std::vector<checkpoint::StreamedTensor>& read,
                    int set,
                    const Layout& layout,
                    std::int64_t rows = meg::kPadded) {
    std::map<std::string, checkpoint::StreamedTensor> found;
    for (const checkpoint::StreamedTensor& tensor : read)
      EXPECT_TRUE(found.emplace(tensor.name, tensor).second) << tensor.name;
    std::size_t expected = 0;
    for (auto [name, tensor] : meg::model_of(set)) {
      const bool head = name == "lm_head.weight";
      if (head && !layout.untied) continue;
      if (head || name == "wte.weight") {
        tensor.shape[0] = rows;
        tensor.values.resize(static_cast<std::size_t>(rows * meg::kWidth), meg::kPadding);
      }
      const std::string theirs = (head ? "" : "transformer.") + name;
      ASSERT_TRUE(found.contains(theirs)) << theirs;
      EXPECT_EQ(found.at(theirs).shape, tensor.shape) << theirs;
      EXPECT_EQ(values_of(found.at(theirs)), tensor.values) << theirs;
      ++expected;
    }
    EXPECT_EQ(found.size(), expected);
  }
  void refuses(const Layout& layout, const std::string& reason) {
    const fs::path folder = path(fmt::format("m{}", ++folders_));
    meg::write(folder, layout);
    refused(folder, reason);
  }

 private:
  int folders_ = 0;
};

TEST_F(Megatron, RanksAreJoinedWhateverTheGridWas) {
  for (const auto& [tensor, pipeline, chunks] : {std::tuple(1, 1, 1),
                                                 std::tuple(2, 1, 1),
                                                 std::tuple(1, 2, 1),
                                                 std::tuple(4, 2, 1),
                                                 std::tuple(2, 4, 1)}) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", tensor, pipeline, chunks));
    Layout layout;
    layout.tensor = tensor;
    layout.pipeline = pipeline;
    layout.chunks = chunks;

    const Foreign read = opened(layout);

    expect_model(read.weights, meg::kWeightSet, layout);
    EXPECT_EQ(read.step, meg::kIteration);
    EXPECT_EQ(read.samples, 96);
    EXPECT_EQ(read.files, static_cast<std::size_t>(tensor * pipeline));
    EXPECT_EQ(read.weights.front().aliases, (std::vector<std::string>{"lm_head.weight"}));
    EXPECT_EQ(at_path(read.model_config, "activation_function")->as_string(), "gelu_fast");
    EXPECT_EQ(integer_at(read.model_config, "vocab_size", 0), meg::kPadded);
    EXPECT_EQ(at_path(read.model_config, "tie_word_embeddings"), nullptr);
  }
}

TEST_F(Megatron, VirtualStagesOfAnInterleavedPipelineAreInTheModelsOrder) {
  for (const auto& [tensor, pipeline, chunks] :
       {std::tuple(1, 2, 2), std::tuple(2, 2, 2), std::tuple(1, 1, 4), std::tuple(1, 1, 2)}) {
    for (const meg::Names& words : {meg::kFused, meg::kLegacy}) {
      SCOPED_TRACE(fmt::format("{} x {} x {} {}", tensor, pipeline, chunks, words.layers));
      Layout layout;
      layout.tensor = tensor;
      layout.pipeline = pipeline;
      layout.chunks = chunks;
      layout.words = words;

      const Foreign read = opened(layout);

      expect_model(read.weights, meg::kWeightSet, layout);
      EXPECT_THAT(read.what, HasSubstr(fmt::format("{} virtual stages each", chunks)));
    }
  }
}

TEST_F(Megatron, StagesMayHoldUnlikeManyLayers) {
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{1, 2, 1}, {0, 2, 2}, {3, 1, 0}}) {
    Layout layout;
    layout.pipeline = 3;
    layout.layers = layers;

    expect_model(opened(layout).weights, meg::kWeightSet, layout);
  }
}

TEST_F(Megatron, EveryGenerationsNamesAreKnown) {
  for (const meg::Names& words : {meg::kCore, meg::kFused, meg::kLegacy, meg::kOldest}) {
    SCOPED_TRACE(fmt::format("{} {}", words.layers, words.norm_1));
    Layout layout;
    layout.tensor = 2;
    layout.words = words;

    expect_model(opened(layout).weights, meg::kWeightSet, layout);
  }
}

TEST_F(Megatron, EveryOrderOfTheFusedProjectionIsUndone) {
  for (const int version : {0, 1, 2, 3}) {
    for (const std::int64_t tensor : {1, 2}) {
      SCOPED_TRACE(fmt::format("version {}, {} ranks", version, tensor));
      Layout layout;
      layout.tensor = tensor;
      layout.version = version;
      layout.words = meg::kOldest;

      expect_model(opened(layout).weights, meg::kWeightSet, layout);
    }
  }
}

TEST_F(Megatron, AHeadOfItsOwnIsReadAndSaid) {
  for (const auto& [words, pipeline] :
       {std::pair(meg::kCore, 1), std::pair(meg::kCore, 2), std::pair(meg::kLegacy, 2)}) {
    Layout layout;
    layout.tensor = 2;
    layout.pipeline = pipeline;
    layout.words = words;
    layout.untied = true;

    const Foreign read = opened(layout);

    expect_model(read.weights, meg::kWeightSet, layout);
    EXPECT_TRUE(read.weights.front().aliases.empty());
    EXPECT_EQ(at_path(read.model_config, "tie_word_embeddings")->as_bool(), false);
  }
}

TEST_F(Megatron, PaddingGoesWhereTheTrueVocabularyIsKnown) {
  Layout known;
  known.tensor = 2;
  known.untied = true;
  known.args = {{"vocab_size", op::integer(meg::kVocab)}};
  // Its end-of-text token is not counted in --vocab-size.
  Layout counted_apart = known;
  counted_apart.args = {{"vocab_size", op::integer(meg::kVocab - 1)},
                        {"tokenizer_type", op::text("NullTokenizer")}};
  Layout whole_shard = known;  // the rows of the last rank are all padding
  whole_shard.tensor = 4;
  whole_shard.args = {{"vocab_size", op::integer(9)}};

  const Foreign read = opened(known);

  expect_model(read.weights, meg::kWeightSet, known, meg::kVocab);
  EXPECT_EQ(integer_at(read.model_config, "vocab_size", 0), meg::kVocab);
  EXPECT_THAT(read.what, HasSubstr("10 of its 12 token rows"));
  expect_model(opened(counted_apart).weights, meg::kWeightSet, counted_apart, meg::kVocab);
  expect_model(opened(whole_shard).weights, meg::kWeightSet, whole_shard, 9);
}

TEST_F(Megatron, PaddingStaysAndIsSaidWhereTheVocabularyIsNotKnown) {
  Layout unsaid;
  Layout other;  // Megatron would not have rounded to this number of rows
  other.args = {{"vocab_size", op::integer(7)}};
  Layout larger;
  larger.args = {{"vocab_size", op::integer(50'257)}};

  for (const Layout& layout : {unsaid, other, larger}) {
    const Foreign read = opened(layout);

    expect_model(read.weights, meg::kWeightSet, layout, meg::kPadded);
    EXPECT_THAT(read.what, HasSubstr("12 token rows with any padding"));
  }
}

TEST_F(Megatron, AMixedPrecisionTrainingComesWithMastersAndMoments) {
  for (const auto& [tensor, pipeline, chunks, vectors_first] : {std::tuple(1, 1, 1, false),
                                                                std::tuple(2, 1, 1, true),
                                                                std::tuple(2, 2, 1, false),
                                                                std::tuple(1, 2, 2, true)}) {
    for (const meg::Names& words : {meg::kCore, meg::kOldest}) {
      SCOPED_TRACE(fmt::format("{} x {} x {} {}", tensor, pipeline, chunks, words.layers));
      Layout layout;
      layout.tensor = tensor;
      layout.pipeline = pipeline;
      layout.chunks = chunks;
      layout.words = words;
      layout.optimizer = Optimizer::Mixed;
      layout.vectors_first = vectors_first;

      const Foreign read = opened(layout);

      expect_model(read.weights, meg::kMasterSet, layout);
      ASSERT_EQ(read.state.size(), 2U);
      expect_model(read.state.at("exp_avg"), meg::kMomentSet, layout);
      expect_model(read.state.at("exp_avg_sq"), meg::kVarianceSet, layout);
      EXPECT_TRUE(read.state.at("exp_avg").front().aliases.empty());
      EXPECT_EQ(read.step, meg::kIteration);
      EXPECT_EQ(read.skipped, meg::kIteration - meg::kUpdates);
      EXPECT_EQ(read.lr, 0.25);
      EXPECT_EQ(at_path(read.loss_scaler, "scaler")->as_string(), "megatron");
      EXPECT_EQ(number_at(read.loss_scaler, "scale"), 4096.0);
      EXPECT_EQ(integer_at(read.loss_scaler, "clean_steps", -1), 5);
      EXPECT_EQ(integer_at(read.loss_scaler, "hysteresis_left", -1), 1);
    }
  }
}

TEST_F(Megatron, AnFp32TrainingKeepsOneGroupAndNoMasters) {
  Layout layout;
  layout.tensor = 2;
  layout.pipeline = 2;
  layout.optimizer = Optimizer::Plain;

  const Foreign read = opened(layout);

  expect_model(read.weights, meg::kWeightSet, layout);
  expect_model(read.state.at("exp_avg"), meg::kMomentSet, layout);
  expect_model(read.state.at("exp_avg_sq"), meg::kVarianceSet, layout);
  EXPECT_EQ(read.skipped, meg::kIteration - meg::kUpdates);
  EXPECT_TRUE(read.loss_scaler.is_null());
}

TEST_F(Megatron, MomentsLoseThePaddingAsTheWeightsDo) {
  Layout layout;
  layout.tensor = 2;
  layout.optimizer = Optimizer::Mixed;
  layout.args = {{"vocab_size", op::integer(meg::kVocab)}};

  const Foreign read = opened(layout);

  expect_model(read.weights, meg::kMasterSet, layout, meg::kVocab);
  expect_model(read.state.at("exp_avg_sq"), meg::kVarianceSet, layout, meg::kVocab);
}

TEST_F(Megatron, SaysWhatItsOptimizerWas) {
  Layout layout;
  layout.optimizer = Optimizer::Mixed;

  const Foreign read = opened(layout);

  EXPECT_EQ(at_path(read.config, "optimizer.type")->as_string(), "AdamW");
  EXPECT_EQ(number_at(read.config, "optimizer.params.lr"), 0.5);
  EXPECT_EQ(number_at(read.config, "optimizer.params.weight_decay"), 0.125);
  EXPECT_EQ(number_at(read.config, "optimizer.params.betas.0"), 0.75);
  EXPECT_EQ(number_at(read.config, "optimizer.params.betas.1"), 0.875);
  EXPECT_EQ(number_at(read.config, "gradient_clipping"), 1.0);
}

TEST_F(Megatron, AnOptimizerThatIsNotReadLeavesTheWeightsAndSaysWhy) {
  const auto state_of = [](const std::vector<std::string>& keys, int groups) {
    meg::Members kept;
    for (const std::string& key : keys)
      kept.emplace_back(key, op::kNone);
    std::vector<std::string> listed;
    for (int g = 0; g < groups; ++g)
      listed.push_back(op::dict({{"params", op::list_of({op::integer(g)})}}));
    return op::dict({{"state", "}(" + op::integer(0) + op::dict(kept) + "u"},
                     {"param_groups", op::list_of(listed)}});
  };
  const auto spoiled = [](std::size_t member, const std::string& value) {
    Layout layout;
    layout.optimizer = Optimizer::Mixed;
    layout.spoil = [member, value](meg::Members& optimizer) { optimizer[member].second = value; };
    return layout;
  };
  Layout none, elsewhere;
  elsewhere.optimizer = Optimizer::Distributed;
  const std::string no_masters = op::list_of({op::list_of({}), op::list_of({})});
  for (const auto& [layout, reason] : std::vector<std::pair<Layout, std::string>>{
           {none, "none was saved"},
           {elsewhere, "a distributed optimizer keeps it elsewhere"},
           {spoiled(0, state_of({"exp_avg"}, 3)), "its 3 groups keep no names"},
           {spoiled(0, state_of({"exp_avg", "exp_inf"}, 2)), "it keeps \"exp_inf\""},
           {spoiled(0, state_of({"exp_avg"}, 2)), "it keeps nothing of its parameters"},
           {spoiled(2, no_masters), "it is of other parameters than the model"}}) {
    SCOPED_TRACE(reason);
    const Foreign read = opened(layout);

    EXPECT_THAT(read.what, HasSubstr("its weights alone: of its optimizer's state " + reason));
    EXPECT_TRUE(read.state.empty());
    EXPECT_EQ(read.skipped, 0);
    EXPECT_EQ(read.weights.size(), 2U + 12 * meg::kLayers + 2);
  }
}

TEST_F(Megatron, AMissingRankIsNamed) {
  Layout layout;
  layout.tensor = 2;
  layout.pipeline = 2;
  for (const auto& [t, p] : {std::pair(0, 0), std::pair(1, 0), std::pair(1, 1), std::pair(0, 1)}) {
    const fs::path folder = path(fmt::format("missing{}{}", t, p));
    meg::write(folder, layout);
    fs::remove_all(meg::rank_file(folder, layout, t, p).parent_path());

    refused(folder,
            fmt::format("the file of tensor-parallel rank {}, pipeline rank {} is missing", t, p));
  }
}

TEST_F(Megatron, TheLastRanksAreMissedToo) {
  Layout layout;
  layout.pipeline = 2;
  meg::write(path("m"), layout);
  fs::remove_all(meg::rank_file(path("m"), layout, 0, 1).parent_path());

  refused(path("m"), "tensor-parallel rank 0, pipeline rank 1 is missing");
}

TEST_F(Megatron, LayersThatTheArgsDoNotCountAreRefused) {
  for (const std::int64_t said : {3, 5}) {
    Layout layout;
    layout.pipeline = 2;
    layout.args = {{"num_layers", op::integer(said)}};

    refuses(layout, fmt::format("its stages hold 4 layers, and its args say {}", said));
  }
}

TEST_F(Megatron, ModelsThatAreNotGpt2AreRefusedByName) {
  const auto with = [](const std::string& key, const std::string& value) {
    Layout layout;
    layout.args = {{key, value}};
    return layout;
  };
  refuses(with("swiglu", "\x88"), "its MLP is gated or its norms are RMSNorm, and its positions");
  refuses(with("squared_relu", "\x88"), "its activation is a squared ReLU");
  refuses(with("group_query_attention", "\x88"), "its attention is grouped");
  refuses(with("multi_latent_attention", "\x88"), "its attention is latent");
  refuses(with("qk_layernorm", "\x88"), "its queries and keys have norms");
  refuses(with("normalization", op::text("RMSNorm")), "and its positions are not rotary");
  refuses(with("apply_layernorm_1p", "\x88"), "its norms keep their weight less one");
  refuses(with("apply_residual_connection_post_layernorm", "\x88"), "residuals begin behind");
  refuses(with("position_embedding_type", op::text("rope")), "its MLP is not gated by SiLU");
  refuses(with("use_rotary_position_embeddings", "\x88"), "its MLP is not gated by SiLU");
  refuses(with("num_experts", op::integer(8)), "it has experts");
  refuses(with("kv_channels", op::integer(5)), "its heads do not make up its width");
  refuses(with("add_bias_linear", "\x89"), "it has no biases");
  refuses(with("num_layers", op::integer(-1)), "have no num_layers");
  refuses(with("hidden_size", op::integer(std::int64_t{1} << 62)), "have no hidden_size");
  refuses(with("num_attention_heads", op::integer(3)), "do not divide its width");
  refuses(with("hidden_size", op::integer(16)), "of width 16");
  refuses(with("ffn_hidden_size", op::integer(32)), "and [32, 8] fits the rest");
}

TEST_F(Megatron, WhatOtherProgramsClassesLeaveInAFileIsPassedOver) {
  Layout layout;
  layout.args = {
      {"exit_signal", op::global("signal", "Signals") + op::tuple({op::integer(15)}) + "R"},
      {"position_embedding_type", op::text("learned_absolute")},
      {"attention_backend",
       op::global("megatron.core.transformer.enums", "AttnBackend") + op::tuple({op::integer(5)}) +
           "R"},
      {"_extra_state", op::global("_io", "BytesIO") + ")\x81"}};

  expect_model(opened(layout).weights, meg::kWeightSet, layout);
}

TEST_F(Megatron, TheDistributedFormatIsRefusedByName) {
  fs::create_directories(path("m/iter_0000012"));
  files::write_atomic(path("m/latest_checkpointed_iteration.txt"), "12");
  for (const char* file : {"common.pt", ".metadata", "__0_0.distcp"})
    files::write_atomic(path("m/iter_0000012") / file, "x");

  refused(path("m"), "torch_dist, which is not read");
  refused(path("m/iter_0000012"), "torch_dist, which is not read");
}

}  // namespace
}  // namespace tessera::interop
