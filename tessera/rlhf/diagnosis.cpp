// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/diagnosis.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/engine/loss_terms.h"
#include "tessera/engine/metric_lines.h"
#include "tessera/rlhf/alarms.h"
#include "tessera/rlhf/end_check.h"
#include "tessera/rlhf/reward_check.h"

namespace tessera::rlhf {
namespace {

namespace fs = std::filesystem;

struct Recorded {
  std::int64_t step = 0;
  std::map<std::string, double> terms;
};

std::vector<Recorded> recorded_terms(const fs::path& run) {
  std::vector<Recorded> out;
  if (!fs::exists(run / "metrics.jsonl")) return out;
  engine::for_each_metric(files::read(run / "metrics.jsonl"),
                          [&](const std::string& /*line*/, const json::Value& line) {
                            const json::Value* const terms = line.find("terms");
                            if (terms == nullptr || !terms->is_object()) return;
                            Recorded one{.step = line.find("step")->as_integer().value_or(0),
                                         .terms = {}};
                            for (const auto& [name, value] : terms->members()) {
                              if (value.is_number()) one.terms[name] = value.as_double();
                            }
                            out.push_back(std::move(one));
                          });
  return out;
}

/// Returns the means of every term over the last `count` steps that have it.
engine::Metrics last_means(const std::vector<Recorded>& steps, std::size_t count) {
  std::map<std::string, std::pair<double, double>> sums;
  for (std::size_t i = steps.size() - std::min(count, steps.size()); i < steps.size(); ++i) {
    for (const auto& [name, value] : steps[i].terms) {
      sums[name].first += value;
      sums[name].second += 1.0;
    }
  }
  engine::Metrics out;
  for (const auto& [name, sum] : sums)
    out.push_back({name, sum.first / sum.second, sum.second});
  return out;
}

FirstRollouts first_of(const std::vector<Recorded>& steps) {
  FirstRollouts out;
  for (const Recorded& one : steps) {
    engine::Metrics metrics;
    for (const auto& [name, value] : one.terms)
      metrics.push_back({name, value});
    out.add(metrics);
    if (out.complete()) break;
  }
  return out;
}

double mean_reward(std::span<const Recorded> steps) {
  double sum = 0.0;
  for (const Recorded& one : steps)
    sum += one.terms.contains("reward") ? one.terms.at("reward") : 0.0;
  return sum / static_cast<double>(steps.size());
}

/// Returns the texts of the newest policy's completions. Memory: one rollout.
std::vector<std::string> last_texts(const fs::path& ledger) {
  std::vector<std::string> out;
  std::int64_t version = -1;
  std::ifstream file(ledger, std::ios::binary);
  for (std::string text; std::getline(file, text);) {
    if (file.eof()) break;  // incomplete
    const json::Value line = json::parse_strict(text, ledger.string());
    const json::Value *of = line.find("version"), *written = line.find("text");
    if (of == nullptr || written == nullptr) continue;
    if (of->as_integer() != version) out.clear();
    version = of->as_integer().value_or(-1);
    out.push_back(written->as_string());
  }
  return out;
}

void add_course(std::vector<std::string>& out, const std::vector<Recorded>& steps) {
  if (steps.empty()) {
    out.emplace_back("no update is recorded yet");
    return;
  }
  constexpr std::size_t kSome = 10;
  const std::span<const Recorded> all = steps;
  const std::size_t count = std::min(kSome, all.size());
  out.push_back(
      fmt::format("after {} updates: the reward is {:.4g} on average over the first {} "
                  "recorded updates and {:.4g} over the last",
                  steps.back().step,
                  mean_reward(all.first(count)),
                  count,
                  mean_reward(all.last(count))));
}

void add_returns(std::vector<std::string>& out, const fs::path& run) {
  if (!fs::exists(run / "roll_backs.jsonl")) return;
  for (const std::string& text : text::split(files::read(run / "roll_backs.jsonl"), '\n')) {
    if (text.empty()) continue;
    const json::Value line = json::parse_strict(text, "roll_backs.jsonl");
    const json::Value *alarm = line.find("alarm"), *after = line.find("after"),
                      *to = line.find("to");
    if (alarm == nullptr || after == nullptr || to == nullptr) continue;
    out.push_back(
        fmt::format("the alarm {} after {} updates sent the run back to the checkpoint of "
                    "{} updates",
                    alarm->as_string(),
                    after->dump(),
                    to->dump()));
  }
}

void add_tests(std::vector<std::string>& out, const fs::path& run) {
  const auto number = [](const json::Value& of, const char* key) {
    const json::Value* const found = of.find(key);
    return found != nullptr && found->is_number() ? found->as_double() : 0.0;
  };
  if (const fs::path file = run / "reward_models.json"; fs::exists(file)) {
    const json::Value models = json::parse_strict(files::read(file), file.string());
    for (const auto& [name, tested] : models.members()) {
      const RewardCheck check{.pairs = static_cast<std::int64_t>(number(tested, "pairs")),
                              .accuracy = number(tested, "accuracy"),
                              .length_correlation = number(tested, "length_correlation"),
                              .empty_preferred = number(tested, "empty_preferred")};
      for (const std::string& complaint : check.complaints())
        out.push_back(fmt::format("the reward model {}: {}", name, complaint));
    }
  }
  if (const fs::path file = run / "end_token.json"; fs::exists(file)) {
    const json::Value tested = json::parse_strict(files::read(file), file.string());
    const json::Value* const end = tested.find("end");
    const EndCheck check{.answers = static_cast<std::int64_t>(number(tested, "answers")),
                         .probability = number(tested, "probability"),
                         .end = end != nullptr ? end->as_string() : ""};
    if (const auto complaint = check.complaint())
      out.push_back(
          fmt::format("before the first update: {}; {}", *complaint, untrained_end_fix()));
  }
}

}  // namespace

std::vector<std::string> diagnosis_of(const fs::path& run) {
  std::vector<std::string> out;
  const fs::path ledger = run / "rollouts.jsonl";
  if (!fs::exists(ledger)) return out;
  const std::vector<Recorded> steps = recorded_terms(run);
  add_course(out, steps);
  add_returns(out, run);
  add_tests(out, run);
  const std::vector<Alarm> alarms =
      alarms_of(last_means(steps, kRolloutsOfAlarm), last_texts(ledger), first_of(steps));
  for (const Alarm& alarm : alarms)
    out.push_back(fmt::format("{} (alarm {}); {}", alarm.what, alarm.name, alarm.fix));
  if (alarms.empty() && !steps.empty())
    out.emplace_back("the last recorded rollouts raise no alarm");
  return out;
}

}  // namespace tessera::rlhf
