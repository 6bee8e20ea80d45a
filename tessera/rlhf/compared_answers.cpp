// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/compared_answers.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/generation_config.h"
#include "tessera/engine/open_model.h"
#include "tessera/launch/launch.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/reward_values.h"

namespace tessera::rlhf {
namespace {

std::vector<double> scores_of_answers(const std::string& from,
                                      engine::OpenModel& model,
                                      const std::vector<std::vector<std::int32_t>>& prompts,
                                      const std::vector<std::vector<std::int32_t>>& answers) {
  std::vector<RowOf> rows;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    rows.push_back({prompts[i], answers[i]});
    longest = std::max(longest, prompts[i].size() + answers[i].size());
  }
  const auto length = static_cast<std::int64_t>(longest);
  const auto scorer = find_scorer(from, *model.tokenizer, length);
  engine::load_model(*scorer, *model.world);
  constexpr std::int64_t kAtOnce = 4;
  return scores_of(
      *scorer, *model.world, rows_of(rows, length, model.tokenizer->padding()), kAtOnce);
}

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Answers answers_of(const std::string& path,
                   const std::vector<std::string>& prompts,
                   const AnswerOptions& options) {
  const std::unique_ptr<engine::OpenModel> model = engine::find_model(path);
  engine::check_memory(*model, 1, launch::available_memory());
  engine::load_model(*model);
  engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
  engine::GenerateOptions how;
  how.max_new_tokens = options.max_new_tokens;
  how.sampler = {.temperature = options.temperature};
  how.seed = options.seed;
  how.ends = engine::generation_config_of(*model).ends;
  Answers out;
  std::vector<std::vector<std::int32_t>> asked, answered;
  for (const std::string& prompt : prompts) {
    asked.push_back(generator.encode(prompt));
    engine::Generated made = generator.run_ids(asked.back(), how, {});
    out.texts.push_back(text::replace_invalid_utf8(made.text));
    // The end is a token of the answer: a reward model was trained with it.
    if (made.ended || made.tokens.empty()) made.tokens.push_back(model->tokenizer->end_of_text());
    answered.push_back(std::move(made.tokens));
  }
  if (options.reward) out.scores = scores_of_answers(*options.reward, *model, asked, answered);
  return out;
}

std::string comparison_page(const std::array<std::string, 2>& models,
                            const std::vector<std::string>& prompts,
                            const std::array<Answers, 2>& answers) {
  std::string out =
      "<!doctype html>\n<meta charset=\"utf-8\">\n<title>Two "
      "models</title>\n<style>body{font-family:"
      "sans-serif}table{border-collapse:collapse;width:100%}td,th{border:1px solid #bbb;padding:"
      "0.5em;vertical-align:top;text-align:left;white-space:pre-wrap}</style>\n<table>\n<tr><th>"
      "prompt</th>";
  for (const std::string& model : models)
    out += "<th>" + html_text(model) + "</th>";
  out += "</tr>\n";
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    out += "<tr><td>" + html_text(prompts[i]) + "</td>";
    for (const Answers& one : answers) {
      out += "<td>" + html_text(one.texts[i]);
      if (!one.scores.empty()) out += fmt::format("\n<small>score {:.4f}</small>", one.scores[i]);
      out += "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace tessera::rlhf
