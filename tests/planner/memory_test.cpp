// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/memory.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/comm/transports/travel_memory.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/report/first_table.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Plan plan_of(const std::string& preset, const std::string& members, int ranks = 1) {
  const std::string text = R"({"model": {"preset": ")" + preset +
                           R"("}, "data": {"train": "a.txt", "sequence_length": 128}, )" + members +
                           "}";
  return make_plan(json::parse(text, "c.json"), ranks, "my.json");
}

// The preset nano with a byte vocabulary and 128 positions, counted by hand: a layer has 12 C^2 +
// 13 C values, the tables 256 C and 128 C, the last norm 2 C.
constexpr std::int64_t kC = 128;
constexpr std::int64_t kNano = 4 * (12 * kC * kC + 13 * kC) + 256 * kC + 128 * kC + 2 * kC;
constexpr std::int64_t kTied =
    256 * kC;  // the token table has a gradient from the embedding and one from the head
// In flat buffers each parameter begins at a chunk of 1024 elements: matrices fill their chunks,
// and each of a layer's eight vectors and of the last norm's two has one.
constexpr std::int64_t kLayer = 12 * kC * kC + 8 * 1024;
constexpr std::int64_t kPadded = 4 * kLayer + 256 * kC + 128 * kC + 2 * 1024;
// Room for a micro-batch's gradient: two of the four layers, one of everything else.
constexpr std::int64_t kTransient = 2 * kLayer + 256 * kC + 128 * kC + 2 * 1024;
// Values of the second of two ranks, which has more than the first: of a layer's 200 chunks the
// first 100 are those of the first norm, attention, the second norm and 30 of the MLP's first
// matrix; the first rank has half of the tables and the weights of the last norm besides.
constexpr std::int64_t kSecondHalf =
    kNano - (4 * (2 * kC + (3 * kC + 3) * kC + (kC + 1) * kC + 2 * kC + 30 * 1024) + 128 * kC +
             64 * kC + kC);

TEST(MemoryEstimates, OfOneRankInFp32) {
  const MemoryEstimate need = estimate_memory(plan_of("nano", R"("train_batch_size": 4)"));

  EXPECT_EQ(need.parameters, 4 * kPadded);
  EXPECT_EQ(need.optimizer, 8 * kNano);
  EXPECT_EQ(need.gradients, 4 * (kPadded + kTied));
  EXPECT_GT(need.shared, 0);
}

TEST(MemoryEstimates, OfUpdatesOnTheHostAreNotInTheMemoryOfTheGpu) {
  const std::string gpu = R"("train_batch_size": 4, "run": {"device": "cuda"})";
  const MemoryEstimate
      there = estimate_memory(plan_of("nano", gpu)),
      here = estimate_memory(plan_of(
          "nano",
          gpu + R"(, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}})"));

  EXPECT_EQ(there.optimizer, 8 * kNano);
  EXPECT_EQ(there.on_host, 0);
  EXPECT_EQ(here.optimizer, 0);
  // Masters and moments, and the gradient and the weights of a layer, which is the largest buffer.
  EXPECT_EQ(here.on_host, 4 * kPadded + 8 * kNano + 8 * kLayer);
  EXPECT_EQ(there.total() - here.total(), there.optimizer);
  EXPECT_THAT(here.text(), HasSubstr("in the host's memory"));
}

TEST(MemoryEstimates, OfWeightsInTheHostsMemoryAreGatheredOnTheGpuOnly) {
  const auto estimate = [](const std::string& more) {
    return estimate_memory(plan_of("nano",
                                   R"("train_batch_size": 4, "run": {"device": "cuda"},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0)" +
                                       more + "}"));
  };
  const MemoryEstimate there = estimate(""),
                       weights = estimate(R"(, "offload_param": {"device": "cpu"})"),
                       both = estimate(R"(, "offload_param": {"device": "cpu"},
                           "offload_optimizer": {"device": "cpu"})");

  // Pinned memory of each buffer is rounded up to a power of two.
  EXPECT_GE(weights.on_host, 4 * kPadded);
  EXPECT_LE(weights.on_host, 8 * kPadded);
  // Masters of their own beside the states, from which an update sends the weights down.
  EXPECT_EQ(weights.optimizer, 8 * kNano + 4 * kPadded);
  EXPECT_LT(weights.parameters, there.parameters);
  // The weights are the masters, and only gradients travel.
  EXPECT_EQ(both.optimizer, 0);
  EXPECT_EQ(both.on_host, weights.on_host + 8 * kNano + 4 * kLayer);
  EXPECT_EQ(both.parameters, weights.parameters);
}

TEST(MemoryEstimates, OfActivationsInTheHostsMemoryAreOnTheirWayOnTheGpuOnly) {
  const auto estimate = [](const std::string& more) {
    return estimate_memory(plan_of("gpt2-small",
                                   R"("train_batch_size": 4, "run": {"device": "cuda"},
        "tokenizer": {"type": "gpt2"}, "activation_checkpointing": {"granularity": "full")" +
                                       more + "}"));
  };
  const MemoryEstimate there = estimate(""),
                       one = estimate(R"(, "offload": {"device": "cpu", "buffer_count": 1})"),
                       two = estimate(R"(, "cpu_checkpointing": true)");
  // The inputs of 12 layers, 4 samples of 128 tokens in fp32.
  constexpr std::int64_t kInput = 4LL * 128 * 768 * 4;
  ASSERT_EQ(there.unknown, "");
  EXPECT_EQ(there.on_host, 0);
  EXPECT_GE(one.on_host, 12 * kInput);
  EXPECT_LE(one.on_host, 2 * 13 * kInput);
  EXPECT_LT(one.activations, there.activations);
  EXPECT_EQ(two.activations - one.activations, kInput);
}

TEST(MemoryEstimates, OfATiedTableCountOnceWhereABatchHasFewOfItsRows) {
  const auto gradients = [](const std::string& members, int ranks) {
    const std::string tokenizer = R"("tokenizer": {"type": "gpt2"}, )";
    return estimate_memory(plan_of("gpt2-small", tokenizer + members, ranks)).gradients;
  };
  constexpr std::int64_t kTable = 4LL * 50304 * 768, kRow = 4LL * 768, kTokens = 128;  // fp32

  for (const int ranks : {1, 2}) {
    const std::string batch = fmt::format(R"("train_batch_size": {})", ranks);
    const std::int64_t few = gradients(batch, ranks),
                       whole = gradients(batch + R"(, "gradient_reduction": "once",
                           "zero_optimization": {"stage": 2})",
                                         ranks);
    EXPECT_EQ(few, whole) << "either way of the reduction";
    const std::int64_t many = gradients(R"("train_micro_batch_size_per_gpu": 128)", ranks);
    // The rank's own rows and those of all ranks that it owns, each with room to grow, and the rows
    // that are sent.
    const std::int64_t kept = ranks == 1 ? 2 + 2 : 2 + 2 * 2 + 2 * 2;
    EXPECT_EQ(many - few, kTable / ranks - kept * kTokens * kRow);
  }
}

TEST(MemoryEstimates, OfRowsGrowWithTheMicroBatchesUntilTheyAreTheTable) {
  const auto gradients = [](int accumulation, int micro_batch) {
    return estimate_memory(plan_of("gpt2-small",
                                   fmt::format(R"("tokenizer": {{"type": "gpt2"}},
                           "gradient_accumulation_steps": {},
                           "train_micro_batch_size_per_gpu": {})",
                                               accumulation,
                                               micro_batch)))
        .gradients;
  };
  constexpr std::int64_t kTable = 4LL * 50304 * 768, kRow = 4LL * 768, kTokens = 128;  // fp32

  // In addition to a table: the rows of 4 micro-batches with room to grow, or those of many in a
  // table.
  EXPECT_EQ(gradients(4, 128) - gradients(4, 1), kTable - (2 + 2 * 4) * kTokens * kRow);
  EXPECT_EQ(gradients(512, 128) - gradients(512, 1), -2 * kTokens * kRow);
}

TEST(MemoryEstimates, OfATiedTableHaveAtMostAsManyRowsAsTheTokenizerHasIds) {
  const auto gradients = [](const char* tokenizer) {
    const std::string text = fmt::format(
        R"({{"model": {{"preset": "gpt2-small", "vocab_size": 50304}}, "tokenizer": {{"type": "{}"}},
            "data": {{"train": "a.txt", "sequence_length": 128}},
            "train_micro_batch_size_per_gpu": 16}})",
        tokenizer);
    return estimate_memory(make_plan(json::parse(text, "c.json"), 1, "my.json")).gradients;
  };
  constexpr std::int64_t kRow = 4LL * 768, kTokens = 16 * 128, kIds = 256;

  // A rank's own rows and the sums, each with room to grow.
  EXPECT_EQ(gradients("gpt2") - gradients("byte"), 4 * (kTokens - kIds) * kRow);
}

TEST(MemoryEstimates, MessagesNeedARingForEachGroupAndChannel) {
  const auto messages = [](const std::string& members, int ranks) {
    return estimate_memory(plan_of("nano", R"("train_batch_size": 8, )" + members, ranks)).messages;
  };
  const auto ring = static_cast<std::int64_t>(comm::memory_of_ring());
  const auto stage = [](int number) {
    return fmt::format(
        R"("zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}})", number);
  };

  EXPECT_EQ(messages(stage(0), 1), 0);
  // All ranks, and those that sum their gradients.
  for (const int number : {0, 1, 2})
    EXPECT_EQ(messages(stage(number), 2), 2 * ring) << number;
  EXPECT_EQ(messages(stage(3), 2), 3 * ring) << "and those that gather weights";
  // All ranks, the column of stages, the flows, and the tied table, which is copied.
  const std::int64_t pipeline =
      messages(R"("train_micro_batch_size_per_gpu": 4, "parallel": {"pipeline": {"size": 2}})", 2);
  EXPECT_GE(pipeline, 4 * ring + 4 * kTied);
  EXPECT_LT(pipeline, 4 * ring + 4 * kTied + (2 << 20));
  EXPECT_EQ(messages(R"("run": {"device": "cuda"}, )" + stage(0), 2), 0) << "that is NCCL's";
}

TEST(MemoryEstimates, AccumulationNeedsRoomForSomeBlocks) {
  const MemoryEstimate need = estimate_memory(
      plan_of("nano", R"("train_batch_size": 4, "gradient_accumulation_steps": 2)"));

  EXPECT_EQ(need.gradients, 4 * (kPadded + kTied) + 4 * kTransient);
  // The second forward pass finds the first one's gradients, but not the first one's batch: two
  // samples of 128 tokens and labels.
  EXPECT_EQ(need.shared, 2 * 128 * 2 * 8);
}

TEST(MemoryEstimates, ShardMomentsAndMastersOverRanks) {
  const MemoryEstimate whole = estimate_memory(plan_of(
      "nano",
      R"("train_batch_size": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 0})",
      2));
  const MemoryEstimate sharded =
      estimate_memory(plan_of("nano", R"("train_batch_size": 4, "bf16": {"enabled": true})", 2));

  EXPECT_EQ(whole.parameters, 2 * kPadded);
  EXPECT_EQ(whole.optimizer, 8 * kNano + 4 * kPadded);
  EXPECT_EQ(sharded.optimizer, 8 * kSecondHalf + 4 * kPadded / 2);
  EXPECT_EQ(sharded.gradients, 4 * (kPadded + kTied) / 2 + 4 * kTransient);
}

TEST(MemoryEstimates, Fp16NeedsWhatBf16Needs) {
  const std::string batch = R"("train_batch_size": 4, "zero_optimization": {"stage": 2}, )";
  const MemoryEstimate half =
      estimate_memory(plan_of("nano", batch + R"("fp16": {"enabled": true})", 2));
  const MemoryEstimate brain =
      estimate_memory(plan_of("nano", batch + R"("bf16": {"enabled": true})", 2));

  EXPECT_EQ(half.parameters, brain.parameters);
  EXPECT_EQ(half.optimizer, brain.optimizer);
  EXPECT_EQ(half.gradients, brain.gradients);
  // Both have activations of 16 bits; what kernels need for themselves depends on the CPU.
  const std::int64_t wide =
      estimate_memory(plan_of("nano", batch + R"("fp16": {"enabled": false})", 2)).activations;
  EXPECT_LT(half.activations, wide);
  EXPECT_LT(brain.activations, wide);
}

TEST(MemoryEstimates, WithoutFp32MastersOneParameterAtATimeIsWide) {
  const std::string batch = R"("train_batch_size": 4, "zero_optimization": {"stage": 1}, )";
  const MemoryEstimate pure = estimate_memory(
      plan_of("nano",
              batch + R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
                 "data_types": {"grad_accum_dtype": "fp32"})",
              2));
  const MemoryEstimate narrow = estimate_memory(
      plan_of("nano",
              batch + R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                          "bf16_optimizer_states": true})",
              2));

  constexpr std::int64_t kWidest = 4 * kC * kC;  // either matrix of the MLP
  EXPECT_EQ(pure.parameters, 2 * kPadded);
  EXPECT_EQ(pure.optimizer, 8 * kSecondHalf + 4 * kWidest);
  EXPECT_EQ(pure.gradients, 4 * (kPadded + kTied) / 2 + 4 * kTransient);
  EXPECT_EQ(narrow.optimizer, 4 * kSecondHalf + 12 * kWidest);
  EXPECT_LT(narrow.gradients, pure.gradients);
}

TEST(MemoryEstimates, EveryStageNeedsNoMoreThanTheOneBefore) {
  std::vector<MemoryEstimate> needs;
  for (const char* stage : {"0", "1", "2", "3"}) {
    needs.push_back(estimate_memory(plan_of(
        "gpt2-small",
        std::string(
            R"("train_batch_size": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": )") +
            stage + "}",
        4)));
  }

  EXPECT_GT(needs[0].total(), needs[1].total());
  EXPECT_GE(needs[1].total(), needs[2].total());
  EXPECT_GT(needs[2].total(), needs[3].total());
}

TEST(MemoryEstimates, RunningBlocksTwiceKeepsOnlyTheirInputs) {
  const auto with = [](const std::string& kind) {
    return estimate_memory(plan_of(
        "gpt2-small",
        R"("train_batch_size": 4, "activation_checkpointing": {"granularity": ")" + kind + "\"}"));
  };

  EXPECT_LT(with("full").activations, with("none").activations / 2);
  EXPECT_EQ(with("full").gradients, with("none").gradients);
}

TEST(MemoryEstimates, ActivationsFollowTheMicroBatchAndHoldTheLogits) {
  const MemoryEstimate one = estimate_memory(
      plan_of("nano", R"("train_batch_size": 16, "gradient_accumulation_steps": 16)"));
  const MemoryEstimate eight = estimate_memory(
      plan_of("nano", R"("train_batch_size": 16, "gradient_accumulation_steps": 2)"));

  const MemoryEstimate two = estimate_memory(
      plan_of("nano", R"("train_batch_size": 4, "gradient_accumulation_steps": 2)"));
  // The room that kernels need for themselves does not follow the size exactly: the libraries
  // choose them by the CPU and by the number of rows.
  constexpr double kRoomOfKernels = 0.1;
  const std::int64_t of_sample = two.activations - one.activations;
  EXPECT_NEAR(static_cast<double>(eight.activations),
              static_cast<double>(one.activations + 7 * of_sample),
              kRoomOfKernels * static_cast<double>(eight.activations));
  EXPECT_GT(one.activations, 128 * 256 * 4);
}

TEST(MemoryEstimates, NeitherDropoutNorPaddingKeepProbabilities) {
  const auto activations = [](const std::string& model, const std::string& data) {
    const Plan plan = make_plan(json::parse(R"({"model": {)" + model +
                                                R"(}, "train_batch_size": 1,
                "data": {"train": "a", "sequence_length": 1024)" +
                                                data + "}}",
                                            "c"),
                                1,
                                "m");
    return static_cast<double>(estimate_memory(plan).activations);
  };

  const double plain = activations("", "");
  // Probabilities of 4 heads in one of 4 layers would be 4 x 1024 x 1024 numbers.
  EXPECT_NEAR(activations(R"("dropout": 0.1)", ""), plain, 4.0 * 1024 * 1024);
  EXPECT_EQ(activations("", R"(, "pack": false)"), plain);
}

TEST(MemoryChecks, PassWhatFits) {
  const Plan plan = plan_of("nano", R"("train_batch_size": 4)", 2);
  EXPECT_EQ(check_memory(plan, 4 * kGiB).total(), estimate_memory(plan).total());
}

TEST(MemoryChecks, RefuseGpt3WithBothNumbersAndSmallerPresets) {
  const Plan plan = plan_of("gpt3", R"("train_batch_size": 2)", 2);

  try {
    check_memory(plan, 8 * kGiB);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 5);
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("8.0 GiB"), HasSubstr("TiB"), HasSubstr("2 ranks"), HasSubstr("optimizer")));
    EXPECT_THAT(error.fix(), HasSubstr("model.preset gpt2-"));
  }
}

TEST(MemoryChecks, PassOverPresetsWhoseHeadsCannotBeDivided) {
  // 96 heads over 32 ranks; the smaller presets have 12 to 40.
  const Plan plan =
      plan_of("gpt3", R"("train_batch_size": 1, "parallel": {"tensor": {"size": 32}})", 32);

  try {
    check_memory(plan, 8 * kGiB);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), 5) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("32 ranks"));
  }
}

TEST(MemoryChecks, ChangesThatAreOfferedFit) {
  const Plan plan = plan_of("gpt2-small", R"("train_batch_size": 64)", 2);

  const std::vector<std::string> changes = changes_that_fit(plan, 6 * kGiB);

  ASSERT_THAT(changes, SizeIs(3));
  EXPECT_THAT(changes[0], HasSubstr("train_micro_batch_size_per_gpu"));
  EXPECT_THAT(changes, Contains(HasSubstr("sequence_length")));
}

TEST(FirstTables, SayWhatIsTrainedAndWhetherItFits) {
  const PlanWithData plan(plan_of("nano", R"("train_batch_size": 12)", 2), {.max_steps = 100});
  report::TableFacts facts;
  facts.train_tokens = 1'000'000;
  facts.train_samples = 7812;
  facts.free_disk_bytes = 10 * kGiB;
  facts.available_memory_bytes = 4 * kGiB;
  facts.run_dir = "runs/my";

  const std::vector<std::string> lines = report::first_table(plan, facts);

  EXPECT_LE(lines.size(), 25U);
  for (const char* words : {"4 layers x 128 x 4 heads",
                            "842,496",
                            "1,000,000 tokens",
                            "12 sequences = micro 6 x accumulation 1 x ranks 2",
                            "4.0 GiB free",
                            "10.0 GiB free",
                            "runs/my",
                            "from the beginning",
                            "1234"}) {
    EXPECT_THAT(lines, Contains(HasSubstr(words))) << words;
  }
}

TEST(FirstTables, EstimateTheTimeFromAStepWhereTokensAreNotKnown) {
  const PlanWithData plan(plan_of("nano", R"("train_batch_size": 12)", 2), {.max_steps = 100});
  report::TableFacts facts;
  facts.train_samples = 1200;
  facts.tokens_are_known = false;
  facts.step_s = 3;

  EXPECT_THAT(report::first_table(plan, facts),
              Contains(HasSubstr(
                  "100 steps, 1.00 passes over the data; about 5m00s at 3s a step, as measured")));

  facts.resume_step = 60;
  EXPECT_THAT(report::first_table(plan, facts),
              Contains(HasSubstr("; about 2m00s for the remaining 40 steps at 3s a step")));

  facts.tokens_are_known = true;
  facts.tokens_per_s = static_cast<double>(1200 * plan.data().sequence_length) / 300;  // 3 s a step
  EXPECT_THAT(report::first_table(plan, facts),
              Contains(HasSubstr("; about 2m00s for the remaining 40 steps at")));
}

TEST(FirstTables, CountImagesAsImages) {
  const Plan texts = plan_of("nano", R"("train_batch_size": 2)");
  ModelPlan model = texts.model();
  model.resolved.trunk.output.modality = models::Modality::Images;
  const PlanWithData plan(with(texts, std::move(model)), {});
  report::TableFacts facts;
  facts.train_tokens = facts.train_samples = 1200;
  facts.validation_tokens = 80;

  const std::vector<std::string> lines = report::first_table(plan, facts);

  EXPECT_THAT(lines, Contains(HasSubstr("a.txt: 1,200 images")));
  EXPECT_THAT(lines, Contains(HasSubstr(": 80 images, ")));
  EXPECT_THAT(lines, Each(Not(HasSubstr(" tokens"))));
}

TEST(FirstTables, CountTheShortBatchAtTheEndOfAnEpochAsItIs) {
  const auto length_line = [](const std::string& members, std::int64_t steps) {
    const std::string text =
        R"({"model": {"preset": "nano"}, "train_batch_size": 8,
            "train_micro_batch_size_per_gpu": 4,
            "data": {"train": "a.txt", "sequence_length": 100, "drop_last": false})" +
        members + "}";
    const PlanWithData plan(make_plan(json::parse(text, "c.json"), 1, "my.json"),
                            {.max_steps = steps});
    report::TableFacts facts;
    facts.train_samples = 10;
    for (const std::string& line : report::first_table(plan, facts)) {
      if (line.starts_with("length")) return line;
    }
    return std::string();
  };

  // Batches of 8 and 2, by turns.
  EXPECT_THAT(length_line("", 2), HasSubstr("1.0k tokens, 1.00 passes"));
  EXPECT_THAT(length_line("", 5), HasSubstr("2.8k tokens, 2.80 passes"));
  // 4, 4, 2 and from then on as above.
  EXPECT_THAT(length_line(R"(, "rampup_batch_size": [4, 4, 8])", 5),
              HasSubstr("2.0k tokens, 2.00 passes"));
}

TEST(FirstTables, SayWhenCheckpointsAreWritten) {
  const auto table = [](const std::string& options) {
    const std::string text =
        R"({"model": {"preset": "nano"}, "train_batch_size": 4, "eval": {"every": 5},
            "data": {"train": "a.txt", "sequence_length": 128, "validation_fraction": 0.1},
            "checkpoint": )" +
        options + "}";
    return report::first_table(
        PlanWithData(make_plan(json::parse(text, "c.json"), 1, "my.json"), {}),
        report::TableFacts());
  };
  EXPECT_THAT(table("{}"), Contains(HasSubstr("every 15 minutes")));
  EXPECT_THAT(
      table(R"({"every": 5, "every_minutes": 0.5, "best": true})"),
      Contains(HasSubstr("every 5 steps and every 0.5 minutes and at the best evaluation")));
  EXPECT_THAT(table(R"({"best": true, "keep": 3})"), Contains(HasSubstr("x 4 kept")));
  EXPECT_THAT(table(R"({"every": 0})"), Contains(HasSubstr("at the end only")));
  EXPECT_THAT(table(R"({"every": 5})"), Contains(HasSubstr("while it saves")));
  for (const char* options : {R"({"every": 0})", R"({"every": 5, "async": false})"})
    EXPECT_THAT(table(options), Not(Contains(HasSubstr("while it saves")))) << options;
}

TEST(MemoryOfSaving, TrainingWaitsWhereTheCopyDoesNotFit) {
  const Plan plan =
      plan_of("gpt2-small", R"("train_batch_size": 4, "checkpoint": {"every": 5})", 2);
  const auto both =
      static_cast<std::uint64_t>(2 * (estimate_memory(plan).total() + saving_bytes(plan)));
  // Masters and two moments, halved; a layer has 12 C^2 + 13 C values.
  constexpr std::int64_t kWide = 768;
  constexpr std::int64_t kSmall = 12 * (12 * kWide * kWide + 13 * kWide) + (256 + 128 + 2) * kWide;
  EXPECT_EQ(saving_bytes(plan), kSmall * 12 / 2);

  const PlacedPlan enough = place(PlanWithData(plan, {}), both * 100 / 94);
  EXPECT_TRUE(enough.run().saves_in_background);

  const PlacedPlan tight = place(PlanWithData(plan, {}), both);
  EXPECT_FALSE(tight.run().saves_in_background);
  EXPECT_EQ(saving_bytes(tight), 0);
  EXPECT_THAT(tight.notes(), Contains(HasSubstr("training waits while a checkpoint is written")));
  EXPECT_EQ(tight.memory().total(), estimate_memory(plan).total());
}

TEST(MemoryOfCopies, IsThatOfTwoSetsOfTwoHosts) {
  const Plan without = plan_of("gpt2-small", R"("train_batch_size": 4)", 2);
  const Plan with = plan_of("gpt2-small",
                            R"("train_batch_size": 4, "run": {"min_hosts": 1},
                               "checkpoint": {"peer_copies": 1})",
                            2);

  const std::int64_t share = checkpoint_bytes(with) / 2;
  EXPECT_EQ(estimate_memory(without).copies, 0);
  EXPECT_EQ(estimate_memory(with).copies, 4 * share);
  EXPECT_EQ(estimate_memory(with).total(), estimate_memory(without).total() + 4 * share);
  EXPECT_THAT(estimate_memory(with).text(), HasSubstr("copies "));
}

TEST(FirstTables, StayShortHoweverManyChangesThereAre) {
  const PlanWithData plan(plan_of("nano", R"("train_batch_size": 12)"), {});
  report::TableFacts facts;
  facts.changes.assign(40, "optimizer.params.lr 0.1 -> 0.2");

  const std::vector<std::string> lines = report::first_table(plan, facts);

  EXPECT_THAT(lines, SizeIs(25));
  EXPECT_THAT(lines.back(), HasSubstr("more changes"));
}

TEST(FirstTables, SayWhereTheNotesStandThatTheyHaveNoRoomFor) {
  const PlanWithData plan(with_notes(plan_of("nano", R"("train_batch_size": 12)"),
                                     std::vector<std::string>(40, "a note")),
                          {});
  report::TableFacts facts;
  facts.more_notes = "in runs/a/logs/rank_00000.log";

  const std::vector<std::string> lines = report::first_table(plan, facts);

  EXPECT_THAT(lines, SizeIs(25));
  EXPECT_THAT(lines.back(), HasSubstr("more notes in runs/a/logs/rank_00000.log"));
}

TEST(FirstTables, WarnWhenTheDiskIsTooSmall) {
  const PlanWithData plan(plan_of("gpt2-small", R"("train_batch_size": 2)"), {});
  report::TableFacts facts;
  facts.free_disk_bytes = kGiB;

  EXPECT_THAT(report::first_table(plan, facts), Contains(HasSubstr("NOT ENOUGH")));
}

/// The bytes that a rank needs, in bf16 with fp32 masters and full recomputation.
double gib_of(const std::string& model, const std::string& more, int ranks) {
  const std::string text = R"({"model": )" + model + R"(, "data": {"train": "a.txt"},
      "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
      "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
      "activation_checkpointing": {"granularity": "full"}, )" +
                           more + "}";
  const MemoryEstimate need =
      estimate_memory(make_plan(json::parse(text, "c.json"), ranks, "my.json"));
  return static_cast<double>(need.total()) / static_cast<double>(kGiB);
}

// The sizes for which BMTrain names hardware: BERT-large on a card of 11 GB, a GPT of 13 billion
// parameters on 8 cards of 40 GB, and GPT-3 on several hosts of these. docs/coming_from/bmtrain.md
// has the table.
TEST(MemoryEstimates, FitTheTiersOfHardwareThatBmtrainNames) {
  EXPECT_LT(gib_of(R"({"family": "bert", "preset": "bert-large-uncased"})",
                   R"("task": {"type": "masked_lm", "params": {"mask_token_id": 7}})",
                   1),
            8.0);
  constexpr double kCard = 40e9 / static_cast<double>(kGiB);
  EXPECT_LT(gib_of(R"({"num_layers": 40, "hidden_size": 5120, "num_heads": 40,
                       "max_positions": 512, "vocab_size": 50304})",
                   R"("zero_optimization": {"stage": 3})",
                   8),
            kCard);
  EXPECT_LT(gib_of(R"({"preset": "gpt3"})", R"("zero_optimization": {"stage": 3})", 256), kCard);
}

// docs/adapters.md has the figure.
TEST(MemoryEstimates, OfSevenBillionParametersInFourBitsAreBelowEightGibibytes) {
  EXPECT_LT(gib_of(R"({"family": "llama", "preset": "llama2-7b", "max_positions": 512})",
                   R"("adapter": {"type": "lora", "r": 8, "quantize_base": "nf4"})",
                   1),
            8.0);
}

}  // namespace
}  // namespace tessera::planner
