// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/freezing.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/parallel/layer_decay.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/param_groups.h"

namespace tessera::parallel {
namespace {

constexpr const char* kEvery = "optimizer.gradual_unfreezing.every";
constexpr const char* kGroups = "optimizer.groups";
constexpr Moment kBeginning = {};

/// The number of "N epochs" or "epoch".
std::optional<std::int64_t> epochs_in(std::string_view text) {
  if (text == "epoch") return 1;
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc() || (unit != " epochs" && unit != " epoch")) return std::nullopt;
  return count;
}

/// The moment at which each parameter thaws: the head and what follows the layers at the
/// beginning, then one more group of layers at a time from the last to the first, and what precedes
/// the layers at the end.
std::map<std::string, Moment> thaws_of(const nn::Model& model,
                                       const Moment& every,
                                       std::int64_t layers) {
  const std::map<std::string, std::int64_t> depths = layer_depths(model);
  std::int64_t top = 0;
  for (const auto& [name, depth] : depths)
    top = std::max(top, depth);
  const std::int64_t count = top - 2;  // layers
  std::map<std::string, Moment> out;
  for (const auto& [name, depth] : depths) {
    const std::int64_t below = std::max<std::int64_t>(0, count + 1 - depth);
    out[name] = {every.count * ((below + layers - 1) / layers), every.epochs};
  }
  return out;
}

}  // namespace

std::string Moment::text() const {
  if (!epochs) return fmt::format("step {}", count);
  return fmt::format("{} {}", count, count == 1 ? "epoch" : "epochs");
}

std::optional<Moment> read_moment(const json::Value& value,
                                  const std::string& path,
                                  config::Problems& problems) {
  if (value.is_null()) return std::nullopt;
  const bool number = value.is_number();
  const auto count = number              ? value.as_integer()
                     : value.is_string() ? epochs_in(value.as_string())
                                         : std::nullopt;
  if (count && *count >= 1) return Moment{*count, !number};
  problems.add(value.place,
               path,
               fmt::format("expected a number of steps or of epochs, found {}",
                           number || value.is_string() ? value.dump() : value.type_name()),
               "set it to a number of steps from 1 on, \"epoch\", or \"2 epochs\"");
  return std::nullopt;
}

void FreezeSchedule::add(const std::string& parameter, const Span& span) {
  const auto found = std::find(spans_.begin(), spans_.end(), span);
  sets_[parameter] = static_cast<int>(found - spans_.begin()) + 1;
  if (found == spans_.end()) spans_.push_back(span);
}

int FreezeSchedule::set_of(const std::string& parameter) const {
  const auto found = sets_.find(parameter);
  return found == sets_.end() ? 0 : found->second;
}

bool FreezeSchedule::freezes_all(const std::vector<bool>& frozen) const {
  return !some_always_ && std::find(frozen.begin(), frozen.end(), false) == frozen.end();
}

std::vector<bool> FreezeSchedule::frozen_sets(const Progress& now) const {
  std::vector<bool> out;
  for (const Span& span : spans_)
    out.push_back(span.frozen(now));
  return out;
}

FreezeSchedule make_freeze_schedule(const optim::UnfreezingOptions& options,
                                    const std::vector<ParamGroup>& groups,
                                    const nn::Model& model,
                                    const std::vector<std::string>& trained,
                                    config::Problems& problems,
                                    const config::Origins& origins) {
  FreezeSchedule out;
  std::map<std::string, Moment> thaws;
  if (const auto every = read_moment(options.every, kEvery, problems)) {
    check_layers(kEvery, model, problems, origins);
    thaws = thaws_of(model, *every, options.layers);
  } else if (options.every.is_null() && options.layers != 1) {
    problems.add(origins.place("optimizer.gradual_unfreezing.layers"),
                 "optimizer.gradual_unfreezing.layers",
                 "has no effect without gradual_unfreezing.every",
                 "add \"every\": \"epoch\" or a number of steps");
  }
  bool at_first = false, at_last = false;
  for (const std::string& name : trained) {
    const ParamGroup* group = group_of(groups, name);
    FreezeSchedule::Span span;
    if (group != nullptr && (group->frozen_until || group->frozen_from)) {
      span = {group->frozen_until.value_or(kBeginning), group->frozen_from};
    } else if (const auto found = thaws.find(name); found != thaws.end()) {
      span.until = found->second;
    }
    at_first = at_first || !span.frozen({});
    at_last = at_last || !span.from;
    if (span == FreezeSchedule::Span()) {
      out.leave_some();
    } else {
      out.add(name, span);
    }
  }
  if (trained.empty() || (at_first && at_last)) return out;
  const bool by_layers = !thaws.empty();
  problems.add(by_layers ? origins.place(kEvery) : groups.front().place,
               by_layers ? kEvery : kGroups,
               fmt::format("every parameter is frozen at the {} of the training: there is nothing "
                           "to train",
                           at_first ? "end" : "beginning"),
               "leave some parameters without frozen_until and frozen_from, such as those of the "
               "head");
  return out;
}

void check_freeze_schedule(const FreezeSchedule& schedule,
                           const optim::UnfreezingOptions& options,
                           const nn::Model& model,
                           bool has_adapter,
                           const optim::Rule& rule,
                           config::Problems& problems,
                           const config::Origins& origins) {
  if (!schedule.any()) return;
  const char* const path = options.every.is_null() ? kGroups : kEvery;
  const auto refuse = [&](std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  if (has_adapter) {
    refuse("not built: parameters of an adapter are trained from the first to the last step",
           "remove frozen_until, frozen_from and gradual_unfreezing, or the section adapter");
  }
  const bool whole =
      std::any_of(schedule.sets().begin(), schedule.sets().end(), [&](const auto& scheduled) {
        for (const auto& info : nn::parameters_of(model)) {
          if (info->name != scheduled.first) continue;
          const auto states = rule.state(facts_of(*info));
          return std::any_of(states.begin(), states.end(), [](const optim::StateSpec& state) {
            return state.extent != optim::Extent::Elements;
          });
        }
        return false;
      });
  if (rule.compressed() != nullptr || whole) {
    refuse(
        fmt::format(
            "not built: {} of a parameter that is trained in a part of the training only",
            rule.compressed() != nullptr ? "compressed exchanges" : "factored states (Adafactor)"),
        "use AdamW, Adam, SGD, Lion, LAMB, LARS or Muon, or freeze for the whole training");
  }
}

std::vector<std::string> freezing_notes(const FreezeSchedule& schedule) {
  std::vector<std::string> out;
  const auto& spans = schedule.spans();
  for (std::size_t set = 0; set < spans.size(); ++set) {
    std::vector<std::string> names;
    for (const auto& [name, number] : schedule.sets()) {
      if (number == static_cast<int>(set) + 1) names.push_back(name);
    }
    std::string when;
    if (spans[set].until != kBeginning) when = "until " + spans[set].until.text();
    if (spans[set].from) when += (when.empty() ? "from " : " and from ") + spans[set].from->text();
    out.push_back(fmt::format("frozen {}: {}", when, text::join_some(names, ", ")));
  }
  return out;
}

}  // namespace tessera::parallel
