// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/written_texts.h"

#include <algorithm>
#include <utility>

namespace tessera::engine {
namespace {

/// Returns whether the token is not part of a text, as one that ends a turn is: its own bytes are
/// other ones.
bool is_special(const text::Tokenizer& tokenizer, std::int32_t id) {
  std::vector<std::int32_t> plain;
  tokenizer.encode(tokenizer.bytes_of(id), plain, /*special=*/false);
  return plain != std::vector<std::int32_t>{id};
}

}  // namespace

PromptAndAnswer prompt_of(const data::Dataset& dataset,
                          std::int64_t index,
                          bool answers,
                          std::int32_t end_of_text) {
  data::Sample sample(dataset, index);
  const auto ids = sample.values<std::int64_t>("input_ids"),
             labels = sample.values<std::int64_t>("labels");
  PromptAndAnswer out;
  const auto is_label = [](std::int64_t label) { return label >= 0; };
  const auto first = std::ranges::find_if(labels, is_label);
  const auto last = std::find_if_not(first, labels.end(), is_label);
  if (first == labels.end()) return out;
  for (auto at = first; at != last; ++at)
    out.answer.push_back(static_cast<std::int32_t>(*at));
  if (!out.answer.empty() && out.answer.back() == end_of_text) out.answer.pop_back();
  if (answers) {
    const bool masked = sample.has("attention_mask");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!masked || sample.values<std::int64_t>("attention_mask")[i] != 0)
        out.prompt.push_back(static_cast<std::int32_t>(ids[i]));
    }
    return out;
  }
  // A label is the token behind its place.
  const auto prompt = static_cast<std::size_t>(first - labels.begin()) + 1;
  for (std::size_t i = 0; i < prompt; ++i)
    out.prompt.push_back(static_cast<std::int32_t>(ids[i]));
  return out;
}

std::vector<tasks::WrittenText> write_texts(Generator& generator,
                                            const data::Dataset& dataset,
                                            const text::Tokenizer& tokenizer,
                                            std::int64_t count,
                                            bool answers,
                                            const GenerateOptions& options,
                                            const std::function<void(std::int64_t)>& told) {
  std::vector<tasks::WrittenText> out;
  for (std::int64_t i = 0; i < std::min(count, dataset.size()); ++i) {
    PromptAndAnswer sample = prompt_of(dataset, i, answers, tokenizer.end_of_text());
    if (sample.prompt.empty()) continue;
    GenerateOptions own = options;
    if (!sample.answer.empty() && is_special(tokenizer, sample.answer.back())) {
      own.stop_ids.push_back(sample.answer.back());
      sample.answer.pop_back();
    }
    const Generated made = generator.run_ids(std::move(sample.prompt), own, {});
    out.push_back({tokenizer.decode(made.tokens), tokenizer.decode(sample.answer)});
    if (told) told(i + 1);
  }
  return out;
}

}  // namespace tessera::engine
