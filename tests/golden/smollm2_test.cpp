// SPDX-License-Identifier: Apache-2.0
// labels: exhaustive
// A published model read from its GGUF file, compared with an independent forward pass in float64
// by numpy on the weights that gguf.quants.dequantize gives, and with the text that transformers
// generates from the file (smollm2_reference.py: gguf 0.19.0, transformers 5.24.0). Needs
// tools/fetch_model.sh smollm2.
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <vector>

#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/files.h"
#include "tessera/models/model_source.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// How much fp32 sums of 30 layers may differ from float64, in a loss of 2.6.
constexpr double kLoss = 1e-4;

using Ids = std::vector<std::int64_t>;
// "The capital of France is Paris, a city known for its art."
const Ids kText = {504, 3575, 282, 4649, 314, 7042, 28, 253, 2240, 1343, 327, 624, 984, 30};
constexpr double kExpectedLoss = 2.6269095642103824;
// The tokens that transformers generates after the first five: " Paris.\n\nThe answer is:
// 2018-01-22 12:1". Each has a logit that is at least 0.06 above the next one.
constexpr std::ptrdiff_t kPrompt = 5;
const Ids kGreedy = {7042, 30, 198, 198, 504, 2988, 314, 42,  216, 34, 32, 33,
                     40,   29, 32,  33,  29,  34,   34,  216, 33,  34, 42, 33};

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path path = files::cache_dir() / "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!fs::exists(path)) GTEST_SKIP() << path << " is not there: tools/fetch_model.sh smollm2";
    const models::ModelSource source = models::open_model_source(path);
    config::Problems problems;
    const models::Resolved resolved = models::resolve(
        source.model, *source.model->vocab_size, std::nullopt, problems, config::Origins());
    problems.raise();
    vocab_size_ = resolved.vocab_size;
    runner_ = std::make_unique<test::ModelRunner>(resolved.model, DType::F32);
    const models::WeightSource weights = models::source_weights(source, resolved);
    runner_->fill([&](const ParamInfo& info, const at::Tensor& out) {
      weights(info, 0, info.numel(), out.data_ptr<float>());
    });
  }
  std::unique_ptr<test::ModelRunner> runner_;
  std::int64_t vocab_size_ = 0;
};

TEST_F(SmolLm2, GivesTheLossOfAText) {
  const at::Tensor ids = at::tensor(kText, at::kLong).view({1, -1});
  at::Tensor labels = at::full_like(ids, -100);
  labels.narrow(1, 0, ids.size(1) - 1).copy_(ids.narrow(1, 1, ids.size(1) - 1));
  nn::StepContext context(nn::Mode::Eval, 1);

  const nn::Outcome out = runner_->infer(test::make_batch(ids, labels), context);

  EXPECT_NEAR(out.terms.at(0).sum.item<double>() / static_cast<double>(kText.size() - 1),
              kExpectedLoss,
              kLoss);
}

TEST_F(SmolLm2, ContinuesAPromptAsTransformersDoes) {
  const Ids prompt(kText.begin(), kText.begin() + kPrompt);

  EXPECT_EQ(runner_->greedy(prompt, std::ssize(kGreedy), /*cached=*/true, vocab_size_), kGreedy);
  EXPECT_EQ(runner_->greedy(prompt, std::ssize(kGreedy), /*cached=*/false, vocab_size_), kGreedy);
}

}  // namespace
}  // namespace tessera
