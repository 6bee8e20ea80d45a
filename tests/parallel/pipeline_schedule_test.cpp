// SPDX-License-Identifier: Apache-2.0
// labels: fast
// Every schedule of every size is complete, ordered and free of deadlock, and has the cost that its
// paper gives.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/parallel/pipeline/schedule.h"
#include "tessera/parallel/pipeline/simulate.h"

namespace tessera::parallel {
namespace {

/// For sums of a few hundred times.
constexpr double kRounding = 1e-12;
constexpr int kMostStages = 8, kMostChunks = 4, kMostMicros = 32;

/// Calls fn(schedule, size) for all sizes that the schedule takes.
template <class Fn>
void for_each_size(const std::string& name, Fn fn) {
  const PipelineSchedule& schedule = pipeline_schedules().get(name);
  for (int p = 1; p <= kMostStages; ++p) {
    for (int v = schedule.least_chunks; v <= std::min(kMostChunks, schedule.most_chunks); ++v) {
      for (int m = 1; m <= kMostMicros; ++m) {
        if (schedule.full_round && m < p) continue;
        SCOPED_TRACE(name + " p " + std::to_string(p) + " v " + std::to_string(v) + " m " +
                     std::to_string(m));
        fn(schedule, PipelineSize{p, v, m});
      }
    }
  }
}

Simulation priced(const PipelineSchedule& schedule,
                  const PipelineSize& size,
                  const PassTimes& times = {}) {
  return simulate(all_actions(schedule, size), size, schedule.placement, times);
}

TEST(PipelineSchedules, OfEverySizeHaveNoFault) {
  for (const std::string& name : pipeline_schedules().names()) {
    int sizes = 0;
    for_each_size(name, [&](const PipelineSchedule& schedule, const PipelineSize& size) {
      const StageActions lists = all_actions(schedule, size);
      // GPipe and interleaving run ahead by more than a message; the transport holds 64.
      const bool ahead = name == "gpipe" || name == "interleaved";
      for (const int room : {ahead ? 64 : 1, 64})
        EXPECT_EQ(find_fault(lists, size, schedule.placement, room).value_or("none"), "none");
      ++sizes;
    });
    EXPECT_GT(sizes, 0) << name;
  }
}

TEST(PipelineSchedules, AreFoundByNameAndMissedWithTheNearest) {
  EXPECT_EQ(pipeline_schedules().names(),
            (std::vector<std::string>{"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v"}));
  try {
    (void)pipeline_schedules().get("1f1");
    FAIL() << "a name that is not there was found";
  } catch (const Error& error) {
    EXPECT_NE(error.text().find("1f1b"), std::string::npos) << error.text();
  }
}

/// The paper's figure of 1F1B: four stages, the second of them.
TEST(PipelineSchedules, OneForwardOneBackwardWarmsUpBehindTheStagesBehind) {
  const std::vector<Action> list =
      pipeline_schedules().get("1f1b").computes({.stages = 4, .micros = 4}, 1);

  std::string text;
  for (const Action& action : list)
    text += (action.kind == ActionKind::Forward ? " F" : " B") + std::to_string(action.micro);
  EXPECT_EQ(text, " F0 F1 F2 B0 F3 B1 B2 B3");
}

/// bubble = (p - 1) / m of the ideal time; GPipe keeps all micro-batches, 1F1B those under way.
TEST(PipelineCost, OfGpipeAnd1F1BIsTheClosedForm) {
  for (const char* name : {"gpipe", "1f1b"}) {
    for_each_size(name, [&](const PipelineSchedule& schedule, const PipelineSize& size) {
      const Simulation cost = priced(schedule, size);
      const double p = size.stages, m = size.micros;
      EXPECT_NEAR(cost.bubble(), (p - 1) / m, kRounding);
      for (int r = 0; r < size.stages; ++r) {
        const int kept = name == std::string("gpipe") ? size.micros : size.stages - r;
        EXPECT_EQ(cost.stages[static_cast<std::size_t>(r)].most_kept, std::min(kept, size.micros));
      }
    });
  }
}

/// bubble = (p - 1) / (v m) of the ideal time, where backward takes twice as long as forward.
// The second of two stages takes `slow` times as long: it waits for one forward pass and never
// again, and the first has one backward pass left when it is done.
TEST(PipelineCost, OfAStageThatIsSlowerIsWhatTheOtherWaitsForIt) {
  for (const int m : {1, 4, 16}) {
    for (const double slow : {1.0, 1.5, 3.0}) {
      const PipelineSchedule& gpipe = pipeline_schedules().get("gpipe");
      const PipelineSize size{2, 1, m};
      const std::vector<PassTimes> times = {{1, 1, 1}, {slow, slow, slow}};

      const Simulation out = simulate(all_actions(gpipe, size), size, gpipe.placement, times);

      const double whole = 1 + 3 * slow * m + 2;
      EXPECT_DOUBLE_EQ(out.stages[0].end - out.stages[0].begin, whole);
      EXPECT_DOUBLE_EQ(out.stages[1].end - out.stages[1].begin, 3 * slow * m);
    }
  }
}

// One micro-batch: forward on both stages, backward on both, and a message after the first three.
TEST(PipelineCost, OfMessagesAndUpdateIsAddedToTheLongestPath) {
  const PipelineSchedule& gpipe = pipeline_schedules().get("gpipe");
  const PipelineSize size{2, 1, 1};
  StepPrices times;
  times.message = [](int from, int to, int part, bool gradient) {
    EXPECT_EQ(part, 1);
    EXPECT_EQ(from, gradient ? 1 : 0);
    EXPECT_EQ(to, gradient ? 0 : 1);
    return gradient ? 0.25 : 0.5;
  };
  times.update = 2;

  const Simulation out = simulate(all_actions(gpipe, size), size, gpipe.placement, times);

  EXPECT_DOUBLE_EQ(out.stages[1].begin, 1 + 0.5);
  EXPECT_DOUBLE_EQ(out.stages[1].end, 1.5 + 3);
  EXPECT_DOUBLE_EQ(out.stages[0].end, 4.5 + 0.25 + 2);
  EXPECT_DOUBLE_EQ(out.end, 6.75 + 2);
}

// Flows take three passes and gradients one: the second flow waits for the first, so that forward
// passes of stage 1 begin at 4 and 7, backward passes end at 10 and 12, and those of stage 0 begin
// when their gradients arrive, at 11 and 13.
TEST(PipelineCost, OfAMessageIncludesTheWaitForItsLink) {
  const PipelineSchedule& gpipe = pipeline_schedules().get("gpipe");
  const PipelineSize size{2, 1, 2};
  StepPrices times;
  times.message = [](int, int, int, bool gradient) { return gradient ? 1.0 : 3.0; };

  const Simulation out = simulate(all_actions(gpipe, size), size, gpipe.placement, times);

  EXPECT_DOUBLE_EQ(out.stages[1].begin, 4);
  EXPECT_DOUBLE_EQ(out.stages[1].end, 12);
  EXPECT_DOUBLE_EQ(out.end, 15);
}

TEST(PipelineCost, OfFreeMessagesIsThatOfPassTimes) {
  for (const std::string& name : pipeline_schedules().names()) {
    for_each_size(name.c_str(), [&](const PipelineSchedule& schedule, const PipelineSize& size) {
      const StageActions actions = all_actions(schedule, size);
      const Simulation plain = simulate(actions, size, schedule.placement, PassTimes()),
                       priced = simulate(actions, size, schedule.placement, StepPrices());
      EXPECT_EQ(plain.bubble(), priced.bubble());
      EXPECT_EQ(plain.end, priced.end);
    });
  }
}

TEST(PipelineCost, OfInterleavedIsTheClosedForm) {
  for_each_size("interleaved", [&](const PipelineSchedule& schedule, const PipelineSize& size) {
    const Simulation cost = priced(schedule, size);
    const double p = size.stages, v = size.chunks, m = size.micros;
    if (size.micros % size.stages != 0) {
      // Rounds of more micro-batches than stages wait no longer than those of as many.
      EXPECT_LT(cost.bubble(), (p - 1) / m);
      return;
    }
    EXPECT_NEAR(cost.bubble(), (p - 1) / (v * m), kRounding);
    for (int r = 0; r < size.stages; ++r) {
      const int warm_up = 2 * (size.stages - 1 - r) + (size.chunks - 1) * size.stages;
      const int kept = size.micros == size.stages ? size.micros * size.chunks : warm_up + 1;
      EXPECT_EQ(cost.stages[static_cast<std::size_t>(r)].most_kept,
                std::min(kept, size.micros * size.chunks));
    }
  });
}

/// (p - 1) (forward + inputs - weights) of waiting; no stage keeps more than the first of 1F1B.
TEST(PipelineCost, OfZeroBubbleH1IsThePapers) {
  const PassTimes times{.forward = 1.0, .inputs = 1.125, .weights = 0.875};
  for_each_size("zb-h1", [&](const PipelineSchedule& schedule, const PipelineSize& size) {
    const Simulation cost = priced(schedule, size, times);
    const double p = size.stages, m = size.micros;
    for (const Simulation::Stage& stage : cost.stages)
      EXPECT_LE(stage.most_kept, std::min(size.stages, size.micros));
    // With fewer micro-batches than stages there are not enough weight gradients to fill the
    // bubbles.
    if (size.micros < size.stages) return;
    EXPECT_NEAR(cost.bubble(),
                (p - 1) * (times.forward + times.inputs - times.weights) /
                    (m * (times.forward + times.inputs + times.weights)),
                kRounding);
  });
}

/// No waiting at all, and two halves of a stage for each of p micro-batches.
TEST(PipelineCost, OfZeroBubbleVIsThePapers) {
  for_each_size("zb-v", [&](const PipelineSchedule& schedule, const PipelineSize& size) {
    const Simulation cost = priced(schedule, size);
    for (const Simulation::Stage& stage : cost.stages)
      EXPECT_LE(stage.most_kept, 2 * size.stages);
    if (size.micros >= 2 * size.stages - 1) {
      EXPECT_DOUBLE_EQ(cost.bubble(), 0.0);
    }
  });
}

// -- forward passes only ------------------------------------------------------------------------

StageActions forward_lists(Placement placement, const PipelineSize& size) {
  StageActions out;
  for (int stage = 0; stage < size.stages; ++stage)
    out.push_back(forward_actions(placement, size, stage));
  return out;
}

/// Calls fn(placement, size) for sizes of all numbers of stages and chunks that the placement has.
template <class Fn>
void for_each_placement(Fn fn) {
  for (const Placement placement : {Placement::Loop, Placement::Fold}) {
    const bool loop = placement == Placement::Loop;
    for (int p = 1; p <= kMostStages; ++p) {
      for (int v = 1; v <= (loop ? kMostChunks : 2); ++v) {
        for (const int m : {1, 2, 3, 7, 8, kMostMicros}) {
          SCOPED_TRACE(std::string(loop ? "loop" : "fold") + " p " + std::to_string(p) + " v " +
                       std::to_string(v) + " m " + std::to_string(m));
          fn(placement, PipelineSize{p, v, m});
        }
      }
    }
  }
}

TEST(ForwardPasses, OfEveryPlacementAndSizeHaveNoFault) {
  for_each_placement([](Placement placement, const PipelineSize& size) {
    const StageActions lists = forward_lists(placement, size);
    for (const int room : {1, 64})
      EXPECT_EQ(find_fault(lists, size, placement, room, Passes::Forward).value_or("none"), "none");
  });
}

TEST(ForwardPasses, GoThroughAStageOneMicroBatchAfterTheOther) {
  for_each_placement([](Placement placement, const PipelineSize& size) {
    for (const std::vector<Action>& list : forward_lists(placement, size)) {
      std::vector<std::pair<int, int>> passes, expected;
      for (const Action& action : list) {
        if (action.kind == ActionKind::Forward) passes.emplace_back(action.micro, action.chunk);
      }
      for (int m = 0; m < size.micros; ++m) {
        for (int c = 0; c < size.chunks; ++c)
          expected.emplace_back(m, c);
      }
      EXPECT_EQ(passes, expected);
    }
  });
}

TEST(ForwardPasses, ThatAreWrongAreFound) {
  const PipelineSize size{.stages = 2, .micros = 3};
  const StageActions lists = forward_lists(Placement::Loop, size);
  const auto fault = [&](const StageActions& wrong) {
    return find_fault(wrong, size, Placement::Loop, 64, Passes::Forward).value_or("none");
  };

  StageActions incomplete = lists;
  incomplete[1].pop_back();
  EXPECT_EQ(fault(incomplete), "stage 1: chunk 0, micro-batch 2 is not completed");
  // Each pass of the last stage is a receive and a forward.
  StageActions crossed = lists;
  std::rotate(crossed[1].begin(), crossed[1].begin() + 2, crossed[1].begin() + 4);
  EXPECT_EQ(fault(crossed),
            "stage 1: receive of a flow of chunk 0, micro-batch 1 meets micro-batch 0");
  EXPECT_EQ(fault(all_actions(pipeline_schedules().get("1f1b"), size)),
            "stage 0: load of chunk 0, micro-batch 0 is not part of a forward pass");
}

// -- errors that the checker finds ---------------------------------------------------------------

class Checker : public ::testing::Test {
 protected:
  PipelineSize size_{.stages = 2, .micros = 3};
  StageActions lists_ = all_actions(pipeline_schedules().get("1f1b"), size_);

  [[nodiscard]] std::string fault(int room = 64) const {
    return find_fault(lists_, size_, Placement::Loop, room).value_or("none");
  }
  std::vector<Action>::iterator find(int stage, ActionKind kind, int micro) {
    auto& list = lists_[static_cast<std::size_t>(stage)];
    return std::find_if(list.begin(), list.end(), [&](const Action& action) {
      return action.kind == kind && action.micro == micro;
    });
  }
};

TEST_F(Checker, FindsWhatIsMissing) {
  lists_[1].erase(find(1, ActionKind::Backward, 2));

  EXPECT_EQ(fault(),
            "stage 1: send of a gradient of chunk 0, micro-batch 2 comes before its backward");
}

TEST_F(Checker, FindsGradientsOutOfOrder) {
  std::swap(*find(0, ActionKind::Backward, 0), *find(0, ActionKind::Backward, 1));

  EXPECT_NE(fault(), "none");
}

TEST_F(Checker, FindsAMessageThatNobodySends) {
  lists_[0].erase(find(0, ActionKind::SendFlow, 2));

  EXPECT_EQ(fault(), "stage 0: chunk 0, micro-batch 2 is not completed");
}

TEST_F(Checker, FindsMessagesThatCross) {
  const Action send = *find(0, ActionKind::SendFlow, 0);
  lists_[0].erase(find(0, ActionKind::SendFlow, 0));
  lists_[0].insert(find(0, ActionKind::SendFlow, 1) + 1, send);

  EXPECT_EQ(fault(), "stage 1: receive of a flow of chunk 0, micro-batch 0 meets micro-batch 1");
}

TEST_F(Checker, FindsADeadlock) {
  size_.micros = 1;
  lists_ = all_actions(pipeline_schedules().get("1f1b"), size_);
  std::swap(*find(0, ActionKind::SendFlow, 0), *find(0, ActionKind::ReceiveGradient, 0));

  EXPECT_EQ(fault(), "stage 0: receive of a gradient of chunk 0, micro-batch 0 waits for ever");
}

TEST_F(Checker, FindsARoomThatIsTooSmall) {
  lists_ = all_actions(pipeline_schedules().get("gpipe"), size_);

  EXPECT_EQ(fault(1), "none");
  EXPECT_NE(fault(0), "none");
}

}  // namespace
}  // namespace tessera::parallel
