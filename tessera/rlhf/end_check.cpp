// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/end_check.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/text.h"

namespace tessera::rlhf {
namespace {

constexpr std::int64_t kMostRows = 16;
// A model that learned to end its answers gives the end of a typical one more than a tenth.
constexpr double kSmallProbability = 0.01;
constexpr double kNearlyAll = 0.9;

/// The answer of a record, without the spaces around it; empty if there is none.
std::string answer_of(const json::Value& record) {
  if (!record.is_object()) return {};
  for (const char* name : {"answer", "completion", "response", "chosen"}) {
    const json::Value* const found = record.find(name);
    if (found == nullptr) continue;
    if (found->is_string()) return std::string(text::trim(found->as_string()));
    if (found->is_number()) return found->dump();
  }
  return {};
}

std::string name_of(const std::vector<std::int32_t>& ends, const text::Tokenizer& tokenizer) {
  std::vector<std::string> out;
  for (const std::int32_t end : ends) {
    const std::string text = text::replace_invalid_utf8(std::string(tokenizer.bytes_of(end)));
    out.push_back(fmt::format("{} (number {})", json::Value::string(text).dump(), end));
  }
  return text::join(out, " or ");
}

}  // namespace

std::optional<std::string> EndCheck::complaint() const {
  if (probability >= kSmallProbability) return std::nullopt;
  return fmt::format(
      "the policy gives the end token {} a probability of {:.2g} behind the answers of {} records "
      "(warning {})",
      end,
      probability,
      answers,
      kUntrainedEnd);
}

json::Value to_json(const EndCheck& check) {
  return json::Value::object({{"answers", json::Value::integer(check.answers)},
                              {"probability", json::Value::number(check.probability)},
                              {"end", json::Value::string(check.end)}});
}

std::string untrained_end_fix() {
  return "train the policy on answers with their ends first (task sft), begin with a model whose "
         "tokenizer has the end token that its answers end with, or raise rl.max_new_tokens";
}

std::optional<EndCheck> check_end(
    const tasks::Prompts& prompts,
    const text::Tokenizer& tokenizer,
    std::int64_t length,
    const std::function<at::Tensor(const Rows& rows)>& log_probabilities) {
  const std::vector<std::int32_t> ends = prompts.ends(tokenizer);
  std::vector<const std::vector<std::int32_t>*> questions;
  std::vector<std::vector<std::int32_t>> answers;  // each with every end
  std::int64_t count = 0;
  for (std::int64_t i = 0;
       i < prompts.count() && (count == 0 || (count + 1) * std::ssize(ends) <= kMostRows);
       ++i) {
    const tasks::Prompt& prompt = prompts.prompt(i);
    const std::string text = answer_of(prompt.record);
    if (text.empty() || prompt.ids.empty()) continue;
    std::vector<std::int32_t> ids;
    tokenizer.encode(text, ids);
    ids.push_back(0);
    if (std::ssize(prompt.ids) + std::ssize(ids) > length) continue;
    for (const std::int32_t end : ends) {
      ids.back() = end;
      questions.push_back(&prompt.ids);
      answers.push_back(ids);
    }
    ++count;
  }
  if (answers.empty()) return std::nullopt;
  std::vector<RowOf> rows;
  for (std::size_t i = 0; i < answers.size(); ++i)
    rows.push_back({*questions[i], answers[i]});
  const at::Tensor found_BT = log_probabilities(rows_of(rows, length, tokenizer.padding()));
  EndCheck out{.answers = count, .end = name_of(ends, tokenizer)};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // The label of the last token of a row is one column before it.
    const std::int64_t column = std::ssize(rows[i].prompt) + std::ssize(rows[i].completion) - 2;
    out.probability += found_BT[static_cast<std::int64_t>(i)][column].exp().item<double>() /
                       static_cast<double>(count);
  }
  return out;
}

std::optional<std::string> complaint_of_first_rollout(const engine::Metrics& metrics,
                                                      const std::vector<std::int32_t>& ends,
                                                      const text::Tokenizer& tokenizer) {
  const engine::Metric* const truncated = engine::find_metric(metrics, "truncated");
  if (truncated == nullptr || truncated->mean < kNearlyAll) return std::nullopt;
  return fmt::format(
      "{:.0f} % of the completions of the first rollout reach rl.max_new_tokens without the end "
      "token {} (warning {})",
      100 * truncated->mean,
      name_of(ends, tokenizer),
      kUntrainedEnd);
}

}  // namespace tessera::rlhf
