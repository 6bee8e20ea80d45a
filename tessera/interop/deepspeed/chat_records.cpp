// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/deepspeed/chat_records.h"

#include <algorithm>
#include <array>
#include <string>

#include "tessera/base/text.h"

namespace tessera::interop {
namespace {

/// Places of the question and of the answer in a record: names of members, with dots between them,
/// and "0" for the first item of a list.
struct OwnFields {
  std::string_view dataset, question, answer;
};
constexpr auto kOwnFields = std::to_array<OwnFields>(
    {{"wangrui6/Zhihu-KOL", "INSTRUCTION", "RESPONSE"},
     {"Cohere/miracl-zh-queries-22-12", "query", "positive_passages.0.text"},
     {"Cohere/miracl-ja-queries-22-12", "query", "positive_passages.0.text"},
     {"Hello-SimpleAI/HC3-Chinese", "question", "human_answers.0"},
     {"mkqa-Chinese", "queries.zh_cn", "answers.zh_cn.0.text"},
     {"mkqa-Japanese", "queries.ja", "answers.ja.0.text"},
     {"lmqg/qg_jaquad", "question", "sentence"},
     {"lmqg/qag_jaquad", "questions.0", "paragraph"}});

const OwnFields* find(std::string_view dataset) {
  const auto* const found = std::ranges::find_if(
      kOwnFields, [&](const OwnFields& one) { return one.dataset == dataset; });
  return found == kOwnFields.end() ? nullptr : found;
}

std::optional<std::string> text_at(const json::Value& record, std::string_view place) {
  const json::Value* at = &record;
  for (const std::string& step : text::split(std::string(place), '.')) {
    if (at->is_array()) {
      at = at->items().empty() ? nullptr : &at->items().front();
    } else {
      at = at->is_object() ? at->find(step) : nullptr;
    }
    if (at == nullptr) return std::nullopt;
  }
  if (!at->is_string()) return std::nullopt;
  return at->as_string();
}

}  // namespace

bool has_own_fields(std::string_view dataset) {
  return find(dataset) != nullptr;
}

bool has_train_split_alone(std::string_view dataset) {
  constexpr auto kNames =
      std::to_array<std::string_view>({"Dahoas/synthetic-instruct-gptj-pairwise",
                                       "openai/webgpt_comparisons",
                                       "wangrui6/Zhihu-KOL",
                                       "Hello-SimpleAI/HC3-Chinese",
                                       "mkqa-Chinese",
                                       "mkqa-Japanese"});
  return std::ranges::find(kNames, dataset) != kNames.end();
}

std::optional<json::Value> chat_record(std::string_view dataset, const json::Value& record) {
  const OwnFields* const fields = find(dataset);
  if (fields == nullptr) return std::nullopt;
  const auto question = text_at(record, fields->question), answer = text_at(record, fields->answer);
  if (!question || !answer) return std::nullopt;
  return json::Value::object(
      {{"prompt", json::Value::string(" Human: " + *question + " Assistant:")},
       {"chosen", json::Value::string(" " + *answer)}});
}

}  // namespace tessera::interop
