// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/param_groups.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/block.h"

namespace tessera::parallel {
namespace {

struct GroupOptions {
  std::string pattern;
  std::optional<double> lr, weight_decay;
  bool frozen = false, non_freeze = false;
  json::Value frozen_until, frozen_from;

  void describe(config::Fields& f) {
    f.field("pattern",
            pattern,
            {.text = "Regular expression that matches anywhere in the parameter name."});
    f.field("lr", lr, {.text = "Learning rate of these parameters.", .min = 0});
    f.field("weight_decay", weight_decay, {.text = "Weight decay of these parameters.", .min = 0});
    f.field("frozen", frozen, {.text = "Whether these parameters are frozen (not trained)."});
    f.field("frozen_until",
            frozen_until,
            {.text = "Steps, \"epoch\" or \"N epochs\" until which these parameters are frozen.",
             .type = "integer or string"});
    f.field("frozen_from",
            frozen_from,
            {.text = "Steps, \"epoch\" or \"N epochs\" from which on they are frozen.",
             .type = "integer or string"});
    f.field(
        "non_freeze",
        non_freeze,
        {.text = "Must be false: after freeze_step the signs of all parameters are exchanged."});
  }
};

constexpr const char* kPath = "optimizer.groups";

void read_moments(const GroupOptions& options,
                  const std::string& path,
                  ParamGroup& group,
                  config::Problems& problems) {
  group.frozen_until = read_moment(options.frozen_until, path + ".frozen_until", problems);
  group.frozen_from = read_moment(options.frozen_from, path + ".frozen_from", problems);
  const auto& [until, from] = std::pair(group.frozen_until, group.frozen_from);
  if (!until && !from) return;
  if (options.frozen) {
    problems.add(group.place,
                 path + ".frozen",
                 "freezes for the whole training, so that frozen_until and frozen_from say nothing",
                 "remove frozen, or the other two");
  } else if (until && from && until->epochs == from->epochs && from->count <= until->count) {
    problems.add(
        group.place,
        path + ".frozen_from",
        fmt::format("is {}, and the parameters are frozen until {}: they are never trained",
                    from->text(),
                    until->text()),
        "set frozen_from to a later moment, or \"frozen\": true alone");
  }
}

}  // namespace

std::vector<ParamGroup> read_param_groups(const json::Value& groups, config::Problems& problems) {
  std::vector<ParamGroup> out;
  if (groups.is_null()) return out;
  if (!groups.is_array()) {
    problems.add(groups.place,
                 kPath,
                 "expected a list, found " + std::string(groups.type_name()),
                 R"("groups": [{"pattern": "wte", "lr": 1e-4}])");
    return out;
  }
  for (std::size_t i = 0; i < groups.items().size(); ++i) {
    const json::Value& item = groups.items()[i];
    const std::string path = fmt::format("{}[{}]", kPath, i);
    if (!item.is_object()) {
      problems.add(item.place, path, "expected an object, found " + std::string(item.type_name()));
      continue;
    }
    GroupOptions options;
    config::Problems part;
    config::Origins origins;
    config::read(item, options, part, origins);
    problems.adopt(part, path);
    if (options.pattern.empty()) {
      problems.add(item.place, path, "has no pattern", R"(add "pattern": "bias$")");
      continue;
    }
    if (options.non_freeze) {
      problems.add(
          item.place,
          path + ".non_freeze",
          "not built yet: true (after the freeze the signs of all parameters are exchanged)",
          "remove it; raise optimizer.params.freeze_step if signs are exchanged too early");
    }
    ParamGroup group{.pattern = options.pattern,
                     .regex = {},
                     .names = {},
                     .lr = options.lr,
                     .weight_decay = options.weight_decay,
                     .frozen = options.frozen,
                     .place = item.place};
    read_moments(options, path, group, problems);
    try {
      group.regex = text::tokenizers::regex_pattern(options.pattern);
    } catch (const Error&) {
      problems.add(item.place,
                   path,
                   fmt::format("\"{}\" is not a valid regular expression", options.pattern),
                   "escape its special characters with two backslashes");
      continue;
    }
    out.push_back(std::move(group));
  }
  return out;
}

namespace {

bool matches(const ParamGroup& group, const std::string& name) {
  if (group.regex == nullptr) return group.names.contains(name);
  text::tokenizers::Ranges found;
  try {
    group.regex->find(name, found);
  } catch (const Error&) {
    throw Error(
        Error::Kind::Config,
        fmt::format("the pattern \"{}\" of optimizer.groups takes more than 10 million steps "
                    "for the parameter {}",
                    group.pattern,
                    name),
        "write it without a repetition inside of another one");
  }
  return !found.empty();
}

}  // namespace

const ParamGroup* group_of(const std::vector<ParamGroup>& groups, const std::string& name) {
  const auto found = std::find_if(
      groups.begin(), groups.end(), [&](const ParamGroup& group) { return matches(group, name); });
  return found == groups.end() ? nullptr : &*found;
}

std::vector<std::string> trained_names(const nn::Model& model,
                                       const std::vector<ParamGroup>& groups) {
  std::vector<std::string> names;
  for (const auto& info : nn::parameters_of(model)) {
    const ParamGroup* const group = group_of(groups, info->name);
    if (info->trainable && (group == nullptr || !group->frozen)) names.push_back(info->name);
  }
  return names;
}

void check_param_groups(const std::vector<ParamGroup>& groups,
                        const nn::Model& model,
                        config::Problems& problems) {
  if (groups.empty()) return;
  const std::vector<std::string> names = trained_names(model, {});
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const bool fits = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches(groups[i], name);
    });
    if (fits) continue;
    problems.add(groups[i].place,
                 fmt::format("{}[{}].pattern", kPath, i),
                 fmt::format("\"{}\" matches no parameter name", groups[i].pattern),
                 fmt::format("names look like {}", names.empty() ? "" : names.back()));
  }
  if (trained_names(model, groups).empty()) {
    problems.add(groups.front().place,
                 kPath,
                 "every parameter is frozen: there is nothing to train",
                 "exclude some parameters from the frozen groups");
  }
}

std::function<bool(const std::string&)> frozen_by(std::vector<ParamGroup> groups) {
  const bool any = std::any_of(
      groups.begin(), groups.end(), [](const ParamGroup& group) { return group.frozen; });
  if (!any) return {};
  return [groups = std::move(groups)](const std::string& name) {
    const ParamGroup* group = group_of(groups, name);
    return group != nullptr && group->frozen;
  };
}

double weight_decay_of(const optim::Rule& rule, const std::vector<ParamGroup>& groups) {
  double out = rule.base_weight_decay();
  if (out != 0.0) return out;
  for (const ParamGroup& group : groups)
    out = std::max(out, group.weight_decay.value_or(0.0));
  return out;
}

void check_group_rates(const optim::Rule& rule,
                       const std::vector<ParamGroup>& groups,
                       config::Problems& problems) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ParamGroup& group = groups[i];
    if (!group.lr || group.frozen) continue;
    const std::string path = fmt::format("optimizer.groups[{}].lr", i);
    if (rule.makes_lr()) {
      problems.add(
          group.place,
          path,
          "the optimizer makes its rate by itself, for all parameters",
          "remove it, or give optimizer.params a lr (Adafactor: \"relative_step\": false)");
    } else if (*group.lr > 0.0 && !std::isfinite(*group.lr / rule.base_lr())) {
      problems.add(group.place,
                   path,
                   fmt::format("{} is not a multiple of optimizer.params.lr, which is {}",
                               *group.lr,
                               rule.base_lr()),
                   "set optimizer.params.lr above 0, and let the last group keep all others where "
                   "they are: {\"pattern\": \".\", \"frozen\": true}");
    }
  }
}

}  // namespace tessera::parallel
