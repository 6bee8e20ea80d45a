// SPDX-License-Identifier: Apache-2.0
// labels: slow
// The number of collectives and messages in a step for every way to share a model, as formulas in
// layers, ranks and micro-batches.
#include <string>
#include <utility>
#include <vector>

#include "equivalence/zero_cost.h"
#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

constexpr std::int64_t kSamples = 4, kTokens = 16, kWidth = 64, kVocab = 512,
                       kRows = kSamples * kTokens;
constexpr std::int64_t kFloat = 4, kDouble = 8;  // bytes

// Collectives of every step, in any mode: counts of labels, losses of the micro-batches.
constexpr std::int64_t kOfAnyStep = 2;
// With tensor parallelism: sums of the gradient norm over the boxes.
constexpr std::int64_t kNormOfBoxes = 1;

TinyRun run_with(std::int64_t layers) {
  TinyRun run;
  run.set("model.num_layers", std::to_string(layers))
      .set("model.hidden_size", std::to_string(kWidth))
      .set("model.vocab_size", std::to_string(kVocab))
      .set("model.dropout", "0");
  return run;
}

/// Layers of the model and micro-batches of a step.
struct Size {
  std::int64_t layers, micros;
};
const std::vector<Size> kSizes = {{2, 1}, {3, 2}};

std::string text_of(const Size& size) {
  return std::to_string(size.layers) + " layers, " + std::to_string(size.micros) + " micro-batches";
}

/// All ranks do the same but in a pipeline.
comm::Traffic of_every_rank(const Size& size, Layout layout) {
  layout.accumulation = size.micros;
  layout.micro_batch = kSamples;
  layout.stage = 0;
  const Cost cost = cost_of(run_with(size.layers), layout);
  for (const comm::Traffic& traffic : cost.of_rank)
    EXPECT_EQ(traffic, cost.of_rank.front());
  return cost.of_rank.front();
}

/// Bytes that `ranks` exchange per step: four counts and the padding; the loss of each micro-batch
/// and seven numbers from every rank; one number for each sharded tensor, which are six per layer
/// and the table.
std::int64_t step_bytes(const Size& size, std::int64_t ranks) {
  return kDouble * (2 * 5 + ranks * (size.micros + 7) + 2 * (6 * size.layers + 1));
}

// ---- tensor parallelism ----

// A layer has attention and MLP, each with an all-reduce forward and one backward. The embedding's
// rows are added forward, the head's input gradient backward, and four numbers per token make the
// loss.
TEST(Calls, OfTensorParallelAreFourAllReducesALayer) {
  for (const std::int64_t ranks : {2, 4}) {
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + text_of(size));
      const std::int64_t all_reduces = 4 * size.layers + 2, gathers = 1;
      const comm::Traffic found = of_every_rank(
          size, {.ranks = static_cast<int>(ranks), .tensor = static_cast<int>(ranks)});

      EXPECT_EQ(found.calls, size.micros * (all_reduces + gathers) + kOfAnyStep + kNormOfBoxes);
      EXPECT_EQ(found.bytes,
                size.micros * (all_reduces * 2 * kFloat * kRows * kWidth +
                               gathers * ranks * 4 * kDouble * kRows) +
                    step_bytes(size, ranks));
    }
  }
}

// Each all-reduce becomes a gather of tokens and a scatter of sums; gradients of replicated
// parameters are added once a step.
TEST(Calls, OfSequenceParallelAreAScatterAndAGatherForEachAllReduce) {
  constexpr std::int64_t kRanks = 2;
  for (const Size& size : kSizes) {
    SCOPED_TRACE(text_of(size));
    const std::int64_t gathers = 4 * size.layers + 2, scatters = 4 * size.layers + 2, losses = 1;
    const std::int64_t whole = (6 * size.layers + kTokens + 2) * kWidth;
    const comm::Traffic found =
        of_every_rank(size, {.ranks = kRanks, .tensor = kRanks, .sequence = true});

    EXPECT_EQ(found.calls,
              size.micros * (gathers + scatters + losses) + 1 + kOfAnyStep + kNormOfBoxes);
    EXPECT_EQ(found.bytes,
              size.micros * ((gathers + scatters) * kFloat * kRows * kWidth +
                             losses * kRanks * 4 * kDouble * kRows) +
                  2 * kFloat * whole + step_bytes(size, kRanks));
  }
}

// A linear layer on q x q ranks: q broadcasts of its input and q of its weight forward; backward
// for each of two products q broadcasts and q - 1 messages to whom the sums belong; over a depth
// the weight's gradient is summed. A norm meets once forward and twice backward, a bias once.
TEST(Calls, OnASquareAreTheStepsOfSumma) {
  constexpr std::int64_t q = 2;
  for (const std::int64_t depth : {1, 2}) {
    const std::int64_t over_depth = depth > 1 ? 1 : 0;
    const std::int64_t linear = 2 * q + 2 * (q + q - 1) + over_depth, norm = 3, bias = 1;
    const std::int64_t layer = 4 * (linear + bias) + 2 * norm;
    // Rows are scattered forward and gathered backward.
    const std::int64_t table = 2 + over_depth;
    // The head sends terms of its logits; losses are added over vocabulary and samples.
    const std::int64_t head = (q + q - 1) + 2 * q + (q + q - 1) + over_depth + norm + 2;
    for (const Size& size : kSizes) {
      SCOPED_TRACE("depth " + std::to_string(depth) + ", " + text_of(size));
      const int ranks = static_cast<int>(depth * q * q);
      const comm::Traffic found = of_every_rank(size,
                                                {.ranks = ranks,
                                                 .tensor = ranks,
                                                 .mode = depth == 1 ? "2d" : "2.5d",
                                                 .depth = static_cast<int>(depth)});

      EXPECT_EQ(found.calls,
                size.micros * (size.layers * layer + 2 * table + head) + kOfAnyStep + kNormOfBoxes);
    }
  }
}

// Forward parts of input and weight are gathered and terms of the output scattered; backward the
// output's gradient and the weight for one product, the input for the other, whose terms are
// scattered.
TEST(Calls, OnACubeAreEightALinearLayer) {
  constexpr std::int64_t linear = 3 + 5, norm = 3, bias = 1;
  constexpr std::int64_t layer = 4 * (linear + bias) + 2 * norm, table = 4,
                         head = linear + norm + 2;
  for (const Size& size : kSizes) {
    SCOPED_TRACE(text_of(size));
    const comm::Traffic found = of_every_rank(size, {.ranks = 8, .tensor = 8, .mode = "3d"});

    EXPECT_EQ(found.calls,
              size.micros * (size.layers * layer + 2 * table + head) + kOfAnyStep + kNormOfBoxes);
  }
}

// ---- context parallelism ----

/// Gradients are added once a step, block after block: the table, positions, layers, the last norm.
std::int64_t sums_of_gradients(const Size& size) {
  return size.layers + 3;
}

TEST(Calls, OfARingAreItsRotations) {
  for (const std::int64_t ranks : {2, 4}) {
    // Keys and values of the others forward and again backward; their gradients come all the way
    // home.
    const std::int64_t forward = ranks - 1, backward = ranks - 1 + ranks;
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + text_of(size));
      const comm::Traffic found = of_every_rank(
          size, {.ranks = static_cast<int>(ranks), .context = static_cast<int>(ranks)});

      EXPECT_EQ(
          found.calls,
          size.micros * size.layers * (forward + backward) + sums_of_gradients(size) + kOfAnyStep);
    }
  }
}

// Queries, keys and values are exchanged together.
TEST(Calls, OfUlyssesAreTwoExchangesEitherWay) {
  for (const int ranks : {2, 4}) {
    for (const Size& size : kSizes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + text_of(size));
      const comm::Traffic found =
          of_every_rank(size, {.ranks = ranks, .context = ranks, .context_mode = "ulysses"});

      EXPECT_EQ(found.calls,
                size.micros * size.layers * (2 + 2) + sums_of_gradients(size) + kOfAnyStep);
    }
  }
}

// ---- pipelines ----

struct Schedule {
  std::string name;
  int chunks;
  bool folds;  ///< the model runs down the stages and back, so that its middle is on the last stage
};
const std::vector<Schedule> kSchedules = {{"gpipe", 1, false},
                                          {"1f1b", 1, false},
                                          {"interleaved", 2, false},
                                          {"zb-h1", 1, false},
                                          {"zb-v", 2, true}};

std::string pipeline(int stages, const Schedule& schedule, const std::string& more = "") {
  return R"({"size": )" + std::to_string(stages) + R"(, "schedule": ")" + schedule.name +
         R"(", "chunks": )" + std::to_string(schedule.chunks) + more + "}";
}

/// Messages that a stage sends for one micro-batch. Each of its parts sends activations to the next
/// part and gradients to the previous one, unless that part is on the same stage.
std::int64_t messages_of(const Schedule& schedule, int stages, int stage) {
  const std::int64_t first = stage == 0 ? 1 : 0, last = stage + 1 == stages ? 1 : 0;
  if (schedule.folds) return 2 * (1 - first) + 2 * (1 - last);
  return (schedule.chunks - last) + (schedule.chunks - first);
}

constexpr std::int64_t kFlowBytes = kFloat * kRows * kWidth;
// Besides kOfAnyStep: the stages' losses, and their sums of the norm.
constexpr std::int64_t kOfStages = 2;

TEST(Calls, OfAPipelineAreAMessageEitherWayAtEveryBound) {
  for (const auto& [stages, micros] : {std::pair{2, 6}, std::pair{4, 8}}) {
    TinyRun run = run_with(2 * stages);
    run.set("model.tie_embeddings", "false");
    for (const Schedule& schedule : kSchedules) {
      const Cost cost = cost_of(run,
                                {.ranks = stages,
                                 .accumulation = micros,
                                 .micro_batch = kSamples,
                                 .stage = 0,
                                 .pipeline = pipeline(stages, schedule)});
      for (int stage = 0; stage < stages; ++stage) {
        SCOPED_TRACE(schedule.name + ", stage " + std::to_string(stage) + " of " +
                     std::to_string(stages));
        const auto rank = static_cast<std::size_t>(stage);
        const std::int64_t messages = micros * messages_of(schedule, stages, stage);

        EXPECT_EQ(cost.messages[rank].calls, messages);
        EXPECT_EQ(cost.messages[rank].bytes, messages * kFlowBytes);
        EXPECT_EQ(cost.of_rank[rank].calls, messages + kOfStages + kOfAnyStep);
      }
    }
  }
}

// Once a step, not once a micro-batch; where the model comes back to the first stage none.
TEST(Calls, OfATiedTableAreItsGradientThereAndBack) {
  constexpr std::int64_t kMicros = 4;
  for (const Schedule& schedule : kSchedules) {
    const auto messages_with = [&](const std::string& tied) {
      TinyRun run = run_with(4);
      run.set("model.tie_embeddings", tied);
      return cost_of(run,
                     {.ranks = 2,
                      .accumulation = kMicros,
                      .micro_batch = kSamples,
                      .stage = 0,
                      .pipeline = pipeline(2, schedule)})
          .messages;
    };
    const auto tied = messages_with("true"), untied = messages_with("false");
    for (std::size_t rank = 0; rank < 2; ++rank) {
      SCOPED_TRACE(schedule.name + ", rank " + std::to_string(rank));
      const std::int64_t more = schedule.folds ? 0 : 1;

      EXPECT_EQ((tied[rank] - untied[rank]).calls, more);
      EXPECT_EQ((tied[rank] - untied[rank]).bytes, more * kFloat * kVocab * kWidth);
    }
  }
}

// Where several ranks hold a stage, all have the same activations: each sends its share, and the
// ranks of the next stage gather what they receive.
TEST(Calls, OfSharedFlowsAreAsManyOfASharesSize) {
  constexpr std::int64_t kMicros = 4;
  constexpr int kStages = 2, kTensor = 2;
  TinyRun run = run_with(4);
  run.set("model.tie_embeddings", "false");
  for (const Schedule& schedule : kSchedules) {
    const auto cost_with = [&](const std::string& more, bool sequence) {
      return cost_of(run,
                     {.ranks = kStages * kTensor,
                      .accumulation = kMicros,
                      .micro_batch = kSamples,
                      .stage = 0,
                      .pipeline = pipeline(kStages, schedule, more),
                      .tensor = kTensor,
                      .sequence = sequence});
    };
    const Cost whole = cost_with("", false),
               shares = cost_with(R"(, "scatter_gather": true)", false), cut = cost_with("", true);
    for (std::size_t rank = 0; rank < kStages * kTensor; ++rank) {
      SCOPED_TRACE(schedule.name + ", rank " + std::to_string(rank));
      const int stage = static_cast<int>(rank) / kTensor;
      const std::int64_t messages = kMicros * messages_of(schedule, kStages, stage);
      // With two stages each receives what the other one sends.
      const std::int64_t received = kMicros * messages_of(schedule, kStages, 1 - stage);

      EXPECT_EQ(whole.messages[rank].calls, messages);
      EXPECT_EQ(whole.messages[rank].bytes, messages * kFlowBytes);
      EXPECT_EQ(shares.messages[rank].calls, messages);
      EXPECT_EQ(shares.messages[rank].bytes, messages * kFlowBytes / kTensor);
      EXPECT_EQ((shares.of_rank[rank] - whole.of_rank[rank]).calls, received);
      EXPECT_EQ((shares.of_rank[rank] - whole.of_rank[rank]).bytes,
                received * kFlowBytes - messages * (kFlowBytes - kFlowBytes / kTensor));
      // With `sequence` the activations of a rank are a share already.
      EXPECT_EQ(cut.messages[rank].calls, messages);
      EXPECT_EQ(cut.messages[rank].bytes, messages * kFlowBytes / kTensor);
    }
  }
}

}  // namespace
}  // namespace tessera::test
