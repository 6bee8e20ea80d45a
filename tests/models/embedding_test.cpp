// SPDX-License-Identifier: Apache-2.0
// Embeddings of whole samples: which hidden state they are, and that nothing is trained with them.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/objective.h"
#include "tessera/nn/functional.h"

namespace tessera::models {
namespace {

using test::ModelRunner;

// Legend: B batch, T tokens, C embed.
constexpr std::int64_t kC = 8, kVocab = 11;
// Means of a few float32 numbers.
constexpr double kTolerance = 1e-6;

/// A trunk of one block, which looks tokens up.
class Lookup final : public nn::Block {
 public:
  explicit Lookup(TrunkOutput trunk) : trunk_(std::move(trunk)) {}
  void declare(nn::Params& params) override { table_ = declare_table(params, trunk_); }
  nn::Outcome forward(nn::Flow /*in*/, const nn::Batch& batch, nn::StepContext& context) override {
    return {.flow = {.diff = {nn::embedding(batch.tensor("input_ids"), *table_, context)}}};
  }

 private:
  TrunkOutput trunk_;
  Param* table_ = nullptr;
};

nn::Model model_of(const std::string& options, bool causal = false, const char* dense = "") {
  Trunk trunk{.output = {.hidden_size = kC,
                         .norm = {.kind = NormKind::None},
                         .vocabulary = {"table", kVocab, /*tied=*/true},
                         .init_std = 1.0,
                         .causal = causal}};
  trunk.output.heads.sample.dense = dense;
  trunk.blocks.push_back(
      {"table", [output = trunk.output] { return std::make_unique<Lookup>(output); }});
  return with_objective(std::move(trunk), "embedding", json::parse(options, "options.json"));
}

/// A text of three tokens, and one with padding at its end.
nn::Batch batch_of() {
  nn::Batch batch = test::make_batch(
      at::tensor(std::vector<std::int64_t>{1, 2, 3, 4, 9, 9}, at::kLong).view({2, 3}));
  batch.set("attention_mask",
            at::tensor(std::vector<std::int64_t>{1, 1, 1, 1, 0, 0}, at::kLong).view({2, 3}));
  return batch;
}

struct Made {
  at::Tensor embeddings_BC;
  at::Tensor table;  ///< double
};
Made embeddings(const std::string& options, bool causal = false) {
  ModelRunner runner(model_of(options, causal));
  runner.initialize(1);
  nn::StepContext context(nn::Mode::Eval, 1);
  const nn::Outcome out = runner.infer(batch_of(), context);
  EXPECT_TRUE(out.terms.empty());
  return {out.outputs.at("embedding"), runner.weights.at("table").to(at::kDouble)};
}

void expect_rows(const Made& made, const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor wanted = at::stack({first, second});
  EXPECT_LT((made.embeddings_BC.to(at::kDouble) - wanted).abs().max().item<double>(), kTolerance);
}

TEST(Embedding, IsTheHiddenStateOfAToken) {
  const Made first = embeddings(R"({"pooling": "cls"})"),
             last = embeddings(R"({"pooling": "last"})");

  expect_rows(first, first.table[1], first.table[4]);
  expect_rows(last, last.table[3], last.table[4]);
}

TEST(Embedding, IsTheMeanOfWhatIsNotPadding) {
  const Made made = embeddings(R"({"pooling": "mean"})");

  expect_rows(made, (made.table[1] + made.table[2] + made.table[3]) / 3, made.table[4]);
}

TEST(Embedding, ReadsWhatATokenThatSeesAllHasSeen) {
  const Made encoder = embeddings("{}"), decoder = embeddings("{}", /*causal=*/true);

  expect_rows(
      encoder, (encoder.table[1] + encoder.table[2] + encoder.table[3]) / 3, encoder.table[4]);
  expect_rows(decoder, decoder.table[3], decoder.table[4]);
}

TEST(Embedding, IsWhatAPoolerMakesOfTheFirstToken) {
  ModelRunner runner(model_of(R"({"pooling": "pooler"})", false, "bert.pooler.dense"));
  runner.initialize(1);
  nn::StepContext context(nn::Mode::Eval, 1);
  const at::Tensor got = runner.infer(batch_of(), context).outputs.at("embedding");
  const auto weight = [&](const char* name) { return runner.weights.at(name).to(at::kDouble); };
  const at::Tensor first = at::stack({weight("table")[1], weight("table")[4]});
  const at::Tensor wanted = at::tanh(first.matmul(weight("bert.pooler.dense.weight").t()) +
                                     weight("bert.pooler.dense.bias"));

  EXPECT_LT((got.to(at::kDouble) - wanted).abs().max().item<double>(), kTolerance);
  EXPECT_THROW((void)model_of(R"({"pooling": "pooler"})"), Error);
  EXPECT_THROW((void)model_of(R"({"pooling": "pooler"})", false, "classifier.dense"), Error);
}

TEST(Embedding, IsOfLengthOneWhereThatIsAskedFor) {
  const Made made = embeddings(R"({"pooling": "cls", "normalize": true})");

  expect_rows(made, made.table[1] / made.table[1].norm(), made.table[4] / made.table[4].norm());
}

TEST(Embedding, HasNothingToTrain) {
  ModelRunner runner(model_of("{}"));
  runner.initialize(1);
  nn::Batch batch = batch_of();

  EXPECT_THROW(runner.train(batch), Error);
  batch.set("labels", at::zeros({2, 3}, at::kLong));
  nn::StepContext context(nn::Mode::Eval, 1);
  EXPECT_THROW(runner.infer(batch, context), Error);
}

}  // namespace
}  // namespace tessera::models
