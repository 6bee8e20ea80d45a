// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/reward_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/text/tokenizer.h"

namespace tessera::rlhf {
namespace {

// Chance is 0.5; published reward models of small size reach 0.6 to 0.75.
constexpr double kLowAccuracy = 0.55, kHighCorrelation = 0.7, kManyEmpty = 0.2;

double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n,
               mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0.0;
}

/// Returns the number of tokens before the completion.
std::size_t prompt_size(const tasks::LearnedTokens& text) {
  return static_cast<std::size_t>(std::ranges::find(text.learned, 1) - text.learned.begin());
}

}  // namespace

std::vector<std::string> RewardCheck::complaints() const {
  std::vector<std::string> out;
  if (accuracy < kLowAccuracy) {
    out.push_back(
        fmt::format("it prefers the chosen text in {:.0f} % of {} held-out pairs, and "
                    "chance is 50 %",
                    100 * accuracy,
                    pairs));
  }
  if (std::abs(length_correlation) > kHighCorrelation) {
    out.push_back(fmt::format("its score follows the length of a text: the correlation is {:.2f}",
                              length_correlation));
  }
  if (empty_preferred > kManyEmpty) {
    out.push_back(
        fmt::format("it prefers an empty answer to the chosen one in {:.0f} % of the pairs",
                    100 * empty_preferred));
  }
  return out;
}

json::Value to_json(const RewardCheck& check) {
  return json::Value::object({{"pairs", json::Value::integer(check.pairs)},
                              {"accuracy", json::Value::number(check.accuracy)},
                              {"length_correlation", json::Value::number(check.length_correlation)},
                              {"empty_preferred", json::Value::number(check.empty_preferred)}});
}

RewardCheck check_reward(const tasks::PreferenceSamples& pairs,
                         std::int64_t length,
                         std::int32_t pad_id,
                         std::int32_t end,
                         const std::function<std::vector<double>(const Rows& rows)>& score) {
  std::vector<std::vector<std::int32_t>> texts;  // three of each pair
  for (std::int64_t i = 0; i < pairs.size(); ++i) {
    const auto [chosen, rejected] = pairs.texts(i);
    if (std::ssize(chosen.ids) > length || std::ssize(rejected.ids) > length) continue;
    const std::span<const std::int32_t> prompt =
        std::span(chosen.ids).first(std::min(prompt_size(chosen), chosen.ids.size() - 1));
    std::vector<std::int32_t> empty(prompt.begin(), prompt.end());
    empty.push_back(end);
    texts.insert(texts.end(), {chosen.ids, rejected.ids, std::move(empty)});
  }
  TESSERA_REQUIRE(!texts.empty(),
                  Data,
                  fmt::format("none of the {} held-out pairs of a reward model fits into {} tokens",
                              pairs.size(),
                              length),
                  "name pairs of shorter texts, or raise data.sequence_length");
  std::vector<RowOf> rows;
  for (std::vector<std::int32_t>& text : texts) {
    // A score belongs to the last token, and a row needs a token before its completion.
    if (text.size() == 1) text.insert(text.begin(), end);
    rows.push_back({std::span(text).first(1), std::span(text).subspan(1)});
  }
  const std::vector<double> scores = score(rows_of(rows, length, pad_id));
  RewardCheck out{.pairs = std::ssize(texts) / 3};
  std::vector<double> of_texts, lengths;
  for (std::size_t i = 0; i < texts.size(); i += 3) {
    out.accuracy += scores[i] > scores[i + 1] ? 1.0 : 0.0;
    out.empty_preferred += scores[i + 2] > scores[i] ? 1.0 : 0.0;
    for (const std::size_t text : {i, i + 1}) {
      of_texts.push_back(scores[text]);
      lengths.push_back(static_cast<double>(texts[text].size()));
    }
  }
  out.accuracy /= static_cast<double>(out.pairs);
  out.empty_preferred /= static_cast<double>(out.pairs);
  out.length_correlation = correlation(of_texts, lengths);
  return out;
}

void test_rewards(const planner::Plan& plan,
                  const std::vector<tasks::RlReward>& rewards,
                  const tasks::Prompts& prompts,
                  RewardValues& values,
                  comm::World& world,
                  const std::filesystem::path& run_dir) {
  json::Value all = json::Value::object();
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    const std::string& name = rewards[i].name;
    const tasks::PreferenceSamples* const pairs = prompts.pairs(name);
    if (pairs == nullptr) continue;
    const RewardCheck check =
        check_reward(*pairs,
                     planner::sequence_length_of(plan),
                     planner::tokenizer_of(plan)->padding(),
                     planner::tokenizer_of(plan)->end_of_text(),
                     [&](const Rows& rows) { return values.scores(i, rows); });
    all[name] = to_json(check);
    if (!world.is_leader()) continue;
    log::info(
        fmt::format("the reward model {} on held-out pairs: {}", name, to_json(check).dump()));
    for (const std::string& complaint : check.complaints())
      log::warn(fmt::format("the reward model {}: {}", name, complaint));
  }
  if (world.is_leader() && !run_dir.empty() && !all.members().empty())
    files::write_atomic(run_dir / "reward_models.json", all.dump() + "\n");
}

}  // namespace tessera::rlhf
