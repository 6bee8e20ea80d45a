// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/step_simulator.h"

#include <algorithm>
#include <cstddef>
#include <deque>

#include "tessera/base/error.h"
#include "tessera/parallel/pipeline/simulate.h"

namespace tessera::predict {
namespace {

using parallel::Action;
using parallel::ActionKind;

/// One stage: its place in its list, and the times at which its streams are free.
struct Stage {
  std::size_t next = 0;
  double now = 0;            ///< the compute stream
  double link = 0;           ///< transfers of weights and gradients
  double reduced = 0;        ///< end of the last reduction
  std::deque<double> begun;  ///< when the last blocks began: gathers are begun then
  StageTime time;
};

class Simulator {
 public:
  Simulator(const parallel::StageActions& actions,
            const parallel::StageLayout& layout,
            int micros,
            const StepTimes& times)
      : actions_(actions),
        layout_(layout),
        micros_(micros),
        times_(times),
        count_(static_cast<int>(times.blocks.size())),
        stages_(actions.size()),
        free_(actions.size() * actions.size(), 0.0),
        arrived_(2 * (static_cast<std::size_t>(layout.parts()) + 1)) {}

  StepSimulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        while (stages_[s].next < actions_[s].size() &&
               act(static_cast<int>(s), actions_[s][stages_[s].next])) {
          ++stages_[s].next;
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s)
      TESSERA_ASSERT(stages_[s].next == actions_[s].size());
    return finish();
  }

 private:
  [[nodiscard]] const BlockTimes& of(int block) const {
    return times_.blocks[static_cast<std::size_t>(block)];
  }
  std::deque<double>& messages(int part, bool gradient) {
    return arrived_[2 * static_cast<std::size_t>(part) + (gradient ? 1 : 0)];
  }

  // Returns false if the action waits for a message that is not sent yet.
  bool act(int stage, const Action& action) {
    Stage& mine = stages_[static_cast<std::size_t>(stage)];
    const int part = layout_.part(stage, action.chunk);
    switch (action.kind) {
      case ActionKind::ReceiveFlow:
        return receive(mine, messages(part, false));
      case ActionKind::ReceiveGradient:
        return receive(mine, messages(part + 1, true));
      case ActionKind::SendFlow:
        send(stage, action.peer, part + 1, false);
        return true;
      case ActionKind::SendGradient:
        send(stage, action.peer, part, true);
        return true;
      case ActionKind::Load:
        return true;
      default:
        pass(mine, stage, action);
        return true;
    }
  }

  static bool receive(Stage& mine, std::deque<double>& queue) {
    if (queue.empty()) return false;
    const double arrival = queue.front();
    queue.pop_front();
    if (arrival > mine.now) {
      mine.time.idle += arrival - mine.now;
      mine.now = arrival;
    }
    return true;
  }

  void send(int stage, int peer, int part, bool gradient) {
    const Stage& mine = stages_[static_cast<std::size_t>(stage)];
    double& link =
        free_[static_cast<std::size_t>(stage) * stages_.size() + static_cast<std::size_t>(peer)];
    link = std::max(link, mine.now) +
           (times_.message ? times_.message(stage, peer, part, gradient) : 0.0);
    messages(part, gradient).push_back(link);
  }

  void pass(Stage& mine, int stage, const Action& action) {
    const auto [first, last] = layout_.blocks(stage, action.chunk, count_);
    const bool back = parallel::is_backward(action.kind);
    for (int i = 0; i < last - first; ++i)
      run_block(mine, back ? last - 1 - i : first + i, action);
  }

  static double seconds(const BlockTimes& block, ActionKind kind) {
    switch (kind) {
      case ActionKind::Forward:
        return block.forward;
      case ActionKind::Backward:
        return block.inputs + block.weights;
      case ActionKind::BackwardInputs:
        return block.inputs;
      default:
        return block.weights;
    }
  }

  // True if the weights are still there from the pass before.
  [[nodiscard]] bool kept(int block, const Action& action) const {
    const bool forward = action.kind == ActionKind::Forward;
    return (block == count_ - 1 && !forward) || (block == 0 && forward && action.micro > 0);
  }

  void run_block(Stage& mine, int b, const Action& action) {
    const BlockTimes& block = of(b);
    double delay = 0;
    if (block.gather > 0 && parallel::reads_weights(action.kind) && !kept(b, action)) {
      const double begun = mine.begun.empty() ? 0.0 : mine.begun.front();
      mine.link = std::max(mine.link, begun) + block.gather;
      delay = std::max(0.0, mine.link - mine.now);
    }
    mine.begun.push_back(mine.now + delay);
    if (static_cast<int>(mine.begun.size()) > times_.prefetch) mine.begun.pop_front();
    const bool reduces = block.reduce > 0 && parallel::makes_gradients(action.kind) &&
                         (!times_.reduce_once || action.micro == micros_ - 1);
    const double tax = times_.overlap_tax *
                       ((block.gather > 0 ? block.gather : 0.0) + (reduces ? block.reduce : 0.0));
    const double busy = seconds(block, action.kind);
    mine.time.weights += delay + tax;
    mine.time.busy += busy;
    mine.now += delay + busy + tax;
    if (!reduces) return;
    mine.link = std::max(mine.link, mine.now) + block.reduce;
    mine.reduced = mine.link;
  }

  // The wait of the next step's first forward pass of a stage for its updated weights.
  [[nodiscard]] double wait_for_updated(int stage) const {
    double now = 0, link = 0, wait = 0;
    for (int chunk = 0; chunk < layout_.chunks; ++chunk) {
      const auto [first, last] = layout_.blocks(stage, chunk, count_);
      for (int b = first; b < last; ++b) {
        link += of(b).gather_updated;
        const double delay = std::max(0.0, link - now);
        wait += delay;
        now += delay + of(b).forward;
      }
    }
    return wait;
  }

  StepSimulation finish() {
    StepSimulation out;
    double all = 0;
    for (Stage& stage : stages_) {
      stage.time.gradients = std::max(0.0, stage.reduced - stage.now);
      all = std::max(all, stage.now + stage.time.gradients);
    }
    double update = 0, updated = 0;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (s < times_.update.size()) update = std::max(update, times_.update[s]);
      updated = std::max(updated, wait_for_updated(static_cast<int>(s)));
    }
    for (Stage& stage : stages_) {
      stage.time.idle += all - stage.now - stage.time.gradients;
      stage.time.update = update;
      stage.time.updated = updated;
      out.stages.push_back(stage.time);
    }
    out.end = all + update + updated;
    return out;
  }

  const parallel::StageActions& actions_;
  const parallel::StageLayout& layout_;
  int micros_;
  const StepTimes& times_;
  int count_;
  std::vector<Stage> stages_;
  std::vector<double> free_;  // when the link from a stage to another one is free
  std::vector<std::deque<double>> arrived_;
};

StepSimulation simulate_exactly(const parallel::PipelineSchedule& schedule,
                                const parallel::StageLayout& layout,
                                int micros,
                                const StepTimes& times) {
  const parallel::PipelineSize size{layout.stages, layout.chunks, micros};
  const parallel::StageActions actions =
      layout.stages == 1 ? parallel::StageActions{parallel::accumulation_schedule(micros)}
                         : parallel::all_actions(schedule, size);
  return Simulator(actions, layout, micros, times).run();
}

/// a + times x (b - a).
StageTime extrapolated(const StageTime& a, const StageTime& b, double times) {
  const auto of = [&](double StageTime::*part) { return a.*part + times * (b.*part - a.*part); };
  return {of(&StageTime::busy),
          of(&StageTime::weights),
          of(&StageTime::idle),
          of(&StageTime::gradients),
          of(&StageTime::update),
          of(&StageTime::updated)};
}

}  // namespace

StepSimulation simulate_step(const parallel::PipelineSchedule& schedule,
                             const parallel::StageLayout& layout,
                             int micros,
                             const StepTimes& times) {
  const int round = std::max(layout.stages, 2);
  // The shorter steps end as the whole one does, also where the number of micro-batches must be a
  // multiple of the stages.
  const int rest = micros % round;
  const int few = 3 * round + rest, more = few + round;
  if (micros <= 6 * round) return simulate_exactly(schedule, layout, micros, times);
  const StepSimulation a = simulate_exactly(schedule, layout, few, times),
                       b = simulate_exactly(schedule, layout, more, times);
  const double rounds = static_cast<double>(micros - few) / round;
  StepSimulation out;
  out.end = a.end + rounds * (b.end - a.end);
  for (std::size_t s = 0; s < a.stages.size(); ++s)
    out.stages.push_back(extrapolated(a.stages[s], b.stages[s], rounds));
  return out;
}

}  // namespace tessera::predict
