// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/pipeline/simulate.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::parallel {
namespace {

const char* name(ActionKind kind) {
  static constexpr std::array<const char*, 9> kNames = {"load",
                                                        "forward",
                                                        "backward",
                                                        "backward of inputs",
                                                        "backward of weights",
                                                        "receive of a flow",
                                                        "send of a flow",
                                                        "receive of a gradient",
                                                        "send of a gradient"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string text(int stage, const Action& action) {
  return fmt::format("stage {}: {} of chunk {}, micro-batch {}",
                     stage,
                     name(action.kind),
                     action.chunk,
                     action.micro);
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::SendFlow || kind == ActionKind::SendGradient;
}
bool is_receive(ActionKind kind) {
  return kind == ActionKind::ReceiveFlow || kind == ActionKind::ReceiveGradient;
}

/// Tracks one chunk and micro-batch through a stage's list.
struct Passed {
  bool received_flow = false, forward = false, sent_flow = false, received_gradient = false,
       inputs = false, weights = false, sent_gradient = false;
};

/// Checks a stage's list on its own.
class ListCheck {
 public:
  ListCheck(const PipelineSize& size, Placement placement, int stage, Passes passes)
      : size_(size),
        layout_{size.stages, size.chunks, placement, {}},
        stage_(stage),
        trains_(passes == Passes::Training),
        passed_(static_cast<std::size_t>(size.chunks * size.micros)),
        loaded_(static_cast<std::size_t>(size.micros), false),
        next_gradient_(static_cast<std::size_t>(size.chunks), 0) {}

  std::optional<std::string> run(const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      if (action.chunk < 0 || action.chunk >= size_.chunks || action.micro < 0 ||
          action.micro >= size_.micros)
        return text(stage_, action) + " does not exist";
      if (const char* fault = step(action)) return text(stage_, action) + " " + fault;
    }
    for (int c = 0; c < size_.chunks; ++c) {
      for (int m = 0; m < size_.micros; ++m) {
        const Passed& passed = at(c, m);
        const int part = layout_.part(stage_, c);
        const bool done = (trains_ ? passed.weights : passed.forward) &&
                          passed.sent_flow == crosses(part + 1) &&
                          passed.sent_gradient == (trains_ && crosses(part - 1));
        if (!done)
          return fmt::format("stage {}: chunk {}, micro-batch {} is not completed", stage_, c, m);
      }
    }
    return std::nullopt;
  }

 private:
  Passed& at(int chunk, int micro) {
    return passed_[static_cast<std::size_t>(chunk * size_.micros + micro)];
  }
  [[nodiscard]] bool crosses(int part) const {
    return part >= 0 && part < layout_.parts() && layout_.stage_of_part(part) != stage_;
  }
  /// True if the previous or next part, which is on the same stage, has reached the state `what`.
  bool neighbour_done(int part, int micro, bool Passed::*what) {
    if (part < 0 || part >= layout_.parts() || crosses(part)) return true;
    return at(layout_.chunk_of_part(part), micro).*what;
  }
  static bool once(bool& done) { return !std::exchange(done, true); }
  static bool is_of_forward(ActionKind kind) {
    return kind == ActionKind::ReceiveFlow || kind == ActionKind::Forward ||
           kind == ActionKind::SendFlow;
  }

  const char* step(const Action& action) {
    if (!trains_ && !is_of_forward(action.kind)) return "is not part of a forward pass";
    Passed& passed = at(action.chunk, action.micro);
    const int part = layout_.part(stage_, action.chunk);
    const auto c = static_cast<std::size_t>(action.chunk),
               m = static_cast<std::size_t>(action.micro);
    const int other =
        action.kind == ActionKind::ReceiveFlow || action.kind == ActionKind::SendGradient
            ? part - 1
            : part + 1;
    if (is_send(action.kind) || is_receive(action.kind)) {
      if (!crosses(other) || action.peer != layout_.stage_of_part(other)) return "has another peer";
    }
    switch (action.kind) {
      case ActionKind::Load:
        if (loaded_[m]) return "happens twice";
        loaded_[m] = true;
        return nullptr;
      case ActionKind::ReceiveFlow:
        return once(passed.received_flow) ? nullptr : "happens twice";
      case ActionKind::Forward:
        if (trains_ && !loaded_[m]) return "comes before its load";
        if (passed.received_flow != crosses(part - 1) ||
            !neighbour_done(part - 1, action.micro, &Passed::forward))
          return "comes before what it begins with";
        return once(passed.forward) ? nullptr : "happens twice";
      case ActionKind::SendFlow:
        if (!passed.forward) return "comes before its forward";
        return once(passed.sent_flow) ? nullptr : "happens twice";
      case ActionKind::ReceiveGradient:
        return once(passed.received_gradient) ? nullptr : "happens twice";
      case ActionKind::Backward:
      case ActionKind::BackwardInputs:
        if (!passed.forward || passed.received_gradient != crosses(part + 1) ||
            !neighbour_done(part + 1, action.micro, &Passed::inputs))
          return "comes before what it begins with";
        if (!once(passed.inputs)) return "happens twice";
        return action.kind == ActionKind::Backward ? weights(passed, action, c) : nullptr;
      case ActionKind::BackwardWeights:
        if (!passed.inputs) return "comes before that of its inputs";
        return weights(passed, action, c);
      case ActionKind::SendGradient:
        if (!passed.inputs) return "comes before its backward";
        return once(passed.sent_gradient) ? nullptr : "happens twice";
    }
    return "is unknown";
  }
  const char* weights(Passed& passed, const Action& action, std::size_t chunk) {
    if (!once(passed.weights)) return "happens twice";
    return next_gradient_[chunk]++ == action.micro ? nullptr : "is out of order";
  }

  PipelineSize size_;
  StageLayout layout_;
  int stage_;
  bool trains_;
  std::vector<Passed> passed_;
  std::vector<bool> loaded_;
  std::vector<int> next_gradient_;
};

/// Plays the lists against each other: calls fn(stage, action, earliest) for every action, in a
/// possible order of execution. `earliest`: the time at which the message that the action waits for
/// has arrived. If no stage can continue, returns the action at which each one waits.
class Replay {
 public:
  Replay(const StageActions& stages, const PipelineSize& size, Placement placement, int room)
      : stages_(stages), layout_{size.stages, size.chunks, placement, {}}, room_(room) {}

  /// fn returns the time at which the action ends; of a send, at which its message arrives.
  template <class Fn>
  std::optional<std::string> run(Fn fn) {
    const std::size_t p = stages_.size();
    std::vector<std::size_t> at(p, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < p; ++s) {
        while (at[s] < stages_[s].size()) {
          const Action& action = stages_[s][at[s]];
          const auto [possible, fault] = take(static_cast<int>(s), action, fn);
          if (!fault.empty()) return fault;
          if (!possible) break;
          ++at[s];
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < p; ++s) {
      if (at[s] < stages_[s].size())
        return text(static_cast<int>(s), stages_[s][at[s]]) + " waits for ever";
    }
    for (const auto& [key, messages] : channels_) {
      if (!messages.empty())
        return fmt::format("stage {}: a message of part {} is never received", key[0], key[2]);
    }
    return std::nullopt;
  }

 private:
  struct Message {
    int micro;
    double arrived;
  };
  /// Identifies a message: sender, receiver, part whose flow or gradient it is, direction.
  using Key = std::array<int, 4>;

  template <class Fn>
  std::pair<bool, std::string> take(int stage, const Action& action, Fn& fn) {
    if (!is_send(action.kind) && !is_receive(action.kind)) {
      fn(stage, action, 0.0);
      return {true, {}};
    }
    const int part = layout_.part(stage, action.chunk);
    const bool gradient =
        action.kind == ActionKind::SendGradient || action.kind == ActionKind::ReceiveGradient;
    if (is_send(action.kind)) {
      const int boundary = gradient ? part : part + 1;
      auto& channel = channels_[{stage, action.peer, boundary, gradient}];
      if (static_cast<int>(channel.size()) >= room_) return {false, {}};
      channel.push_back({action.micro, fn(stage, action, 0.0)});
      return {true, {}};
    }
    const int boundary = gradient ? part + 1 : part;
    auto& channel = channels_[{action.peer, stage, boundary, gradient}];
    if (channel.empty()) return {false, {}};
    const Message message = channel.front();
    if (message.micro != action.micro)
      return {false, fmt::format("{} meets micro-batch {}", text(stage, action), message.micro)};
    channel.pop_front();
    fn(stage, action, message.arrived);
    return {true, {}};
  }

  const StageActions& stages_;
  StageLayout layout_;
  int room_;
  std::map<Key, std::deque<Message>> channels_;
};

}  // namespace

StageActions all_actions(const PipelineSchedule& schedule, const PipelineSize& size) {
  StageActions out;
  for (int stage = 0; stage < size.stages; ++stage)
    out.push_back(pipeline_actions(schedule, size, stage));
  return out;
}

std::optional<std::string> find_fault(const StageActions& stages,
                                      const PipelineSize& size,
                                      Placement placement,
                                      int room,
                                      Passes passes) {
  TESSERA_ASSERT(static_cast<int>(stages.size()) == size.stages);
  for (int stage = 0; stage < size.stages; ++stage) {
    ListCheck check(size, placement, stage, passes);
    if (auto fault = check.run(stages[static_cast<std::size_t>(stage)])) return fault;
  }
  return Replay(stages, size, placement, room).run([](int, const Action&, double) { return 0.0; });
}

double Simulation::bubble() const {
  double most = 0;
  for (const Stage& stage : stages)
    most = std::max(most, (stage.end - stage.begin) / stage.busy - 1);
  return most;
}

Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    const PassTimes& times) {
  return simulate(stages, size, placement, {&times, 1});
}

Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    std::span<const PassTimes> times) {
  TESSERA_ASSERT(times.size() == 1 || times.size() == stages.size());
  StepPrices step;
  step.passes = [times](int stage, int) {
    return times[times.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  };
  return simulate(stages, size, placement, step);
}

Simulation simulate(const StageActions& stages,
                    const PipelineSize& size,
                    Placement placement,
                    const StepPrices& times) {
  const StageLayout layout{size.stages, size.chunks, placement, {}};
  Simulation out;
  const auto p = static_cast<std::size_t>(size.stages);
  out.stages.resize(p);
  std::vector<double> now(p, 0.0);
  std::vector<int> kept(p, 0);
  const auto cost = [&](int stage, const Action& action) {
    const PassTimes time = times.passes ? times.passes(stage, action.chunk) : PassTimes();
    switch (action.kind) {
      case ActionKind::Forward:
        return time.forward;
      case ActionKind::Backward:
        return time.inputs + time.weights;
      case ActionKind::BackwardInputs:
        return time.inputs;
      case ActionKind::BackwardWeights:
        return time.weights;
      default:
        return 0.0;
    }
  };
  std::map<std::pair<int, int>, double> free;  // when the last message of a link has arrived
  const auto arrival = [&](int stage, const Action& action, double sent) {
    const bool gradient = action.kind == ActionKind::SendGradient;
    const int part = layout.part(stage, action.chunk) + (gradient ? 0 : 1);
    double& link = free[{stage, action.peer}];
    link = std::max(link, sent) +
           (times.message ? times.message(stage, action.peer, part, gradient) : 0.0);
    return link;
  };
  const auto act = [&](int stage, const Action& action, double earliest) {
    const auto s = static_cast<std::size_t>(stage);
    Simulation::Stage& of = out.stages[s];
    if (action.kind == ActionKind::Forward) of.most_kept = std::max(of.most_kept, ++kept[s]);
    if (makes_gradients(action.kind)) --kept[s];
    now[s] = std::max(now[s], earliest);
    if (of.busy == 0) of.begin = now[s];
    const double seconds = cost(stage, action);
    now[s] += seconds;
    of.busy += seconds;
    of.end = now[s];
    return is_send(action.kind) ? arrival(stage, action, now[s]) : now[s];
  };
  const auto fault = Replay(stages, size, placement, size.chunks * size.micros).run(act);
  TESSERA_ASSERT(!fault);
  for (const Simulation::Stage& stage : out.stages)
    out.end = std::max(out.end, stage.end);
  out.end += times.update;
  return out;
}

}  // namespace tessera::parallel
