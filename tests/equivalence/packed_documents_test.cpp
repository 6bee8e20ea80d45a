// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 300
// Samples of several documents, of other lengths in every sample, that do not see each other: they
// train on any ranks as on one.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "equivalence/family_layouts.h"
#include "equivalence/within_rounding.h"
#include "support/model_runner.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/ops/batch_invariance.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"

namespace tessera::test {
namespace {

TinyRun separate(const char* dropout = "0.1") {
  TinyRun run;
  run.use_separate_documents().set("model.dropout", dropout);
  return run;
}

// Else the other tests would show nothing.
TEST(PackedDocuments, ThatDoNotSeeEachOtherHaveAnotherLoss) {
  TinyRun joined = separate();
  joined.set("data.separate_documents", "false");

  EXPECT_NE(separate().train({.ranks = 1}, 1).losses, joined.train({.ranks = 1}, 1).losses);
}

// Documents extend over chunks of several ranks, lie within one, and begin with one. With dropout a
// ring computes probabilities; without it, the kernel for blocks of keys runs.
TEST(PackedDocuments, AreSharedByRanksThatShareTokens) {
  for (const char* dropout : {"0", "0.1"}) {
    for (const char* mode : {"ring", "ulysses"}) {
      expect_same(
          separate(dropout),
          {{.ranks = 2, .context = 2, .context_mode = mode},
           {.ranks = 4, .context = 4, .context_mode = mode},
           {.ranks = 4, .accumulation = 2, .stage = 2, .context = 2, .context_mode = mode},
           {.ranks = 4, .tensor = 2, .sequence = true, .context = 2, .context_mode = mode}});
    }
  }
}

TEST(PackedDocuments, AreReadByRanksThatShareLayers) {
  expect_same(separate(),
              {{.ranks = 2, .tensor = 2},
               {.ranks = 2, .tensor = 2, .sequence = true},
               {.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "2.5d", .depth = 2},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"}});
}

TEST(PackedDocuments, TrainThroughAPipelineAndZeroToTheBit) {
  const TinyRun run = separate();
  const Trace one = run.train({.ranks = 1, .accumulation = 4}, 3);

  EXPECT_EQ(run.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 3).losses, one.losses);
  EXPECT_EQ(run.train({.ranks = 4, .stage = 3}, 3).losses, one.losses);
}

TEST(PackedDocuments, InSixteenBitsStayWithinTheirRounding) {
  TinyRun run = separate("0");
  run.set("bf16.enabled", "true");

  expect_same(run,
              {{.ranks = 2, .context = 2},
               {.ranks = 2, .context = 2, .context_mode = "ulysses"},
               {.ranks = 2, .tensor = 2}},
              {kNarrowGradient, kNarrowLoss});
}

TEST(PackedDocuments, RecomputeChangesNothing) {
  TinyRun run = separate();
  const Trace plain = run.train({.ranks = 2, .context = 2}, 3);
  for (const char* granularity : {"selective", "full"}) {
    run.set("activation_checkpointing.granularity", '"' + std::string(granularity) + '"');
    EXPECT_EQ(run.train({.ranks = 2, .context = 2}, 3).digest, plain.digest) << granularity;
  }
}

/// Texts side by side in one row, and the same texts in a row each, with padding.
struct Packing {
  static constexpr std::array<std::int64_t, 3> kLengths = {5, 4, 7};
  static constexpr std::int64_t kTokens = 16, kLongest = 7;
  nn::Batch packed, padded;
  explicit Packing(std::int64_t vocabulary) {
    const auto batch = [](std::int64_t rows, std::int64_t tokens) {
      nn::Batch out;
      for (std::int64_t row = 0; row < rows; ++row)
        out.sample_ids.push_back(row);
      out.set("input_ids", at::zeros({rows, tokens}, at::kLong));
      out.set("labels", at::full({rows, tokens}, -100, at::kLong));
      return out;
    };
    packed = batch(1, kTokens);
    padded = batch(3, kLongest);
    packed.set("document_starts", at::zeros({1, kTokens}, at::kLong));
    padded.set("attention_mask", at::zeros({3, kLongest}, at::kLong));
    std::int64_t at = 0;
    for (std::int64_t text = 0; text < 3; ++text) {
      const std::int64_t length = kLengths[static_cast<std::size_t>(text)], start = at;
      for (std::int64_t t = 0; t < length; ++t, ++at) {
        const std::int64_t id = (7 * at * at + 3 * text + 1) % vocabulary;
        packed.tensor("input_ids")[0][at] = padded.tensor("input_ids")[text][t] = id;
        packed.tensor("document_starts")[0][at] = start;
        padded.tensor("attention_mask")[text][t] = 1;
        if (t > 0) {
          packed.tensor("labels")[0][at - 1] = padded.tensor("labels")[text][t - 1] = id;
        }
      }
    }
  }
  /// The first tokens of each text see each other in both directions.
  void add_prefixes() {
    const at::Tensor lengths = at::tensor({3, 1, 4}, at::kLong);
    padded.set("prefix_lengths", lengths);
    std::vector<at::Tensor> each;
    for (std::int64_t text = 0; text < 3; ++text)
      each.push_back(lengths[text].expand({kLengths[static_cast<std::size_t>(text)]}));
    packed.set("prefix_lengths", at::cat(each).unsqueeze(0));
  }
};

// The test uses kernels whose rows do not depend on each other. The usual kernels add in an order
// that depends on the number of rows.
TEST(PackedDocuments, HaveTheLogitsAndTheLossOfPaddedOnesToTheBit) {
  at::set_num_threads(1);
  for (const FamilyRow& row : family_rows()) {
    if (!row.packs()) continue;
    SCOPED_TRACE(row.name);
    const planner::Plan plan = run_of(row).plan({});
    ModelRunner runner(plan.model().resolved.model);
    runner.initialize(3);
    Packing batches(plan.model().resolved.vocab_size);
    if (row.task == "prefix_lm") batches.add_prefixes();
    const ops::BatchInvariance invariant;
    const auto outcome_of = [&](const nn::Batch& batch) {
      nn::StepContext context(nn::Mode::Eval, 1);
      context.want_logits = true;
      return runner.infer(batch, context);
    };

    const nn::Outcome packed = outcome_of(batches.packed), padded = outcome_of(batches.padded);

    std::int64_t at = 0;
    for (std::int64_t text = 0; text < 3; ++text) {
      const std::int64_t length = Packing::kLengths[static_cast<std::size_t>(text)];
      EXPECT_TRUE(packed.outputs.at("logits")[0]
                      .narrow(0, at, length)
                      .equal(padded.outputs.at("logits")[text].narrow(0, 0, length)))
          << "text " << text;
      at += length;
    }
    EXPECT_EQ(packed.terms.at(0).sum.item<double>(), padded.terms.at(0).sum.item<double>());
  }
}

}  // namespace
}  // namespace tessera::test
