// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/alarms.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::rlhf {
namespace {

constexpr double kNearlyAll = 0.9, kMost = 0.5;
constexpr double kRepeating = 0.7;
constexpr double kCertain = 0.01;  ///< entropy per token, in nats
constexpr double kFar = 5.0;       ///< divergence per token, in nats
constexpr double kTimesLength = 4.0;

/// Up to three completions as JSON strings, shortened.
std::string some_of(std::span<const std::string> texts) {
  constexpr std::size_t kCount = 3, kLength = 60;
  std::string out;
  for (const std::string& text : texts.first(std::min(kCount, texts.size()))) {
    std::size_t end = std::min(kLength, text.size());
    while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U)
      --end;  // not within a character
    out += (out.empty() ? "" : ", ") + json::Value::string(text.substr(0, end)).dump() +
           (end < text.size() ? "..." : "");
  }
  return out;
}

}  // namespace

FirstRollouts::FirstRollouts(const json::Value& state) {
  const json::Value *rollouts = state.find("rollouts"), *length = state.find("length"),
                    *truncated = state.find("truncated");
  TESSERA_REQUIRE(
      rollouts != nullptr && length != nullptr && length->is_number() && truncated != nullptr &&
          truncated->is_number(),
      Format,
      fmt::format("\"first_rollouts\" in the checkpoint's metadata is {}", state.dump()),
      "resume from another checkpoint, or start over with --resume never");
  rollouts_ = rollouts->as_integer().value_or(0);
  length_ = length->as_double();
  truncated_ = truncated->as_double();
}

void FirstRollouts::add(const engine::Metrics& metrics) {
  const engine::Metric *length = engine::find_metric(metrics, "length"),
                       *truncated = engine::find_metric(metrics, "truncated");
  if (complete() || length == nullptr || truncated == nullptr) return;
  ++rollouts_;
  length_ += length->mean;
  truncated_ += truncated->mean;
}

json::Value FirstRollouts::state() const {
  return json::Value::object({{"rollouts", json::Value::integer(rollouts_)},
                              {"length", json::Value::number(length_)},
                              {"truncated", json::Value::number(truncated_)}});
}

std::vector<Alarm> alarms_of(const engine::Metrics& metrics,
                             std::span<const std::string> texts,
                             const FirstRollouts& first) {
  std::vector<Alarm> out;
  const auto value_of = [&](const char* name, double absent) {
    const engine::Metric* const found = engine::find_metric(metrics, name);
    return found == nullptr ? absent : found->mean;
  };
  const auto raise = [&](const char* name, const std::string& what, std::string fix) {
    out.push_back({name, fmt::format("{}; completions: {}", what, some_of(texts)), std::move(fix)});
  };
  const double equal = value_of("equal_groups", 0.0), truncated = value_of("truncated", 0.0);
  if (equal >= kNearlyAll) {
    raise("equal_groups",
          fmt::format("all rewards of a group are equal in {:.0f} % of groups: nothing is learned "
                      "of them",
                      100 * equal),
          "raise rl.samples or rl.temperature, choose prompts that are sometimes answered well, or "
          "add a reward that grows before an answer is perfect");
  }
  if (truncated >= kNearlyAll) {
    raise("truncated",
          fmt::format("{:.0f} % of the completions reach rl.max_new_tokens without an end",
                      100 * truncated),
          "raise rl.max_new_tokens, or begin with a model that was trained to end its answers");
  }
  const auto empty = static_cast<double>(std::ranges::count(texts, std::string()));
  if (!texts.empty() && empty >= kMost * static_cast<double>(texts.size())) {
    raise("empty",
          fmt::format("{:.0f} % of the completions are empty",
                      100 * empty / static_cast<double>(texts.size())),
          "see whether prompts end where an answer begins, and what an empty answer is rewarded "
          "with");
  }
  if (value_of("repetition", 0.0) >= kRepeating) {
    raise(
        "repeating",
        fmt::format("{:.0f} % of the sequences of three tokens of a completion occur in it before",
                    100 * value_of("repetition", 0.0)),
        "lower optimizer.lr, raise rl.kl.coefficient, or change a reward that repeating earns");
  }
  if (value_of("entropy", 1.0) < kCertain) {
    raise("collapsed",
          "every token is nearly certain: the policy has collapsed",
          "lower optimizer.lr, raise rl.kl.coefficient, or stop: nothing new is tried any more");
  }
  if (value_of("kl_reference", 0.0) > kFar) {
    raise("far",
          fmt::format("the divergence from the reference is {:.2f} a token",
                      value_of("kl_reference", 0.0)),
          "raise rl.kl.coefficient, or lower optimizer.lr");
  }
  if (const engine::Metric* const length = engine::find_metric(metrics, "length");
      length != nullptr && first.complete()) {
    const bool longer = length->mean >= kTimesLength * first.length();
    const bool shorter = kTimesLength * length->mean <= first.length() && first.truncated() < kMost;
    if (longer || shorter) {
      raise("length",
            fmt::format("completions have {:.4g} tokens on average, and had {:.4g} in the first "
                        "{} rollouts",
                        length->mean,
                        first.length(),
                        kRolloutsOfAlarm),
            longer ? "see whether longer answers earn more for their length alone; add the reward "
                     "overlong or length, or set rl.loss.type to dr_grpo or dapo"
                   : "see whether short answers earn as much as whole ones; add the reward length "
                     "or format, or raise rl.kl.coefficient");
    }
  }
  return out;
}

}  // namespace tessera::rlhf
