// SPDX-License-Identifier: Apache-2.0
// tessera prompt-eval: prints the answers of two models to the same prompts side by side.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/prompt_file.h"
#include "tessera/cli/terminal.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/generation_config.h"
#include "tessera/engine/open_model.h"
#include "tessera/launch/launch.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/reward_values.h"

namespace tessera::cli {
namespace {

struct PromptEvalFlags {
  std::array<std::string, 2> models;
  std::string prompts, html;
  std::optional<std::string> reward, baseline, finetuned;
  std::int64_t max_new_tokens = 100, seed = 1234;
  double temperature = 0.0;
  Common common;
};

bool parse(PromptEvalFlags& words, const std::vector<std::string>& line) {
  Arguments arguments("prompt-eval",
                      "Lets two models answer the same prompts and shows the answers side by side, "
                      "with the scores of a reward model where one is given.",
                      {"tessera prompt-eval runs/chat/1-sft runs/chat/3-rl --prompts prompts.jsonl",
                       "tessera prompt-eval A B --prompts FILE --reward runs/chat/2-reward --html "
                       "page.html"});
  arguments.positional("A", &words.models[0], "Run, checkpoint or folder", /*required=*/false);
  arguments.positional("B", &words.models[1], "The other one", /*required=*/false);
  arguments.option("--model_name_or_path_baseline,--model-name-or-path-baseline",
                   &words.baseline,
                   "DeepSpeed-Chat's word for A");
  arguments.option("--model_name_or_path_finetune,--model-name-or-path-finetune",
                   &words.finetuned,
                   "DeepSpeed-Chat's word for B");
  arguments.option("--prompts", &words.prompts, "Lines of JSON {\"prompt\": \"...\"}");
  arguments.option("--reward", &words.reward, "Reward model that scores the answers");
  arguments.option("--html", &words.html, "Page to write");
  arguments.option("--max-new-tokens", &words.max_new_tokens, "Length of an answer [100]");
  arguments.option("--temperature", &words.temperature, "0 is greedy [0]");
  arguments.option("--seed", &words.seed, "Of random choices [1234]");
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

/// One model's answers.
struct Answers {
  std::vector<std::string> texts;
  std::vector<double> scores;  ///< empty without a reward model
};

std::vector<double> scores_of_answers(const std::string& from,
                                      engine::OpenModel& model,
                                      const std::vector<std::vector<std::int32_t>>& prompts,
                                      const std::vector<std::vector<std::int32_t>>& answers) {
  std::vector<engine::rl::RowOf> rows;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    rows.push_back({prompts[i], answers[i]});
    longest = std::max(longest, prompts[i].size() + answers[i].size());
  }
  const auto length = static_cast<std::int64_t>(longest);
  const auto scorer = engine::rl::find_scorer(from, *model.tokenizer, length);
  engine::load_model(*scorer, *model.world);
  constexpr std::int64_t kAtOnce = 4;
  return engine::rl::scores_of(*scorer,
                               *model.world,
                               engine::rl::rows_of(rows, length, model.tokenizer->padding()),
                               kAtOnce);
}

Answers answers_of(const PromptEvalFlags& words,
                   const std::string& path,
                   const std::vector<std::string>& prompts) {
  const std::unique_ptr<engine::OpenModel> model = engine::find_model(path);
  engine::check_memory(*model, 1, launch::available_memory());
  engine::load_model(*model);
  engine::Generator generator(*model->executor, *model->tokenizer, model->shape);
  engine::GenerateOptions how;
  how.max_new_tokens = words.max_new_tokens;
  how.sampler = {.temperature = words.temperature};
  how.seed = static_cast<std::uint64_t>(words.seed);
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
  if (words.reward) out.scores = scores_of_answers(*words.reward, *model, asked, answered);
  return out;
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

std::string comparison_page(const PromptEvalFlags& words,
                            const std::vector<std::string>& prompts,
                            const std::array<Answers, 2>& answers) {
  std::string out =
      "<!doctype html>\n<meta charset=\"utf-8\">\n<title>Two "
      "models</title>\n<style>body{font-family:"
      "sans-serif}table{border-collapse:collapse;width:100%}td,th{border:1px solid #bbb;padding:"
      "0.5em;vertical-align:top;text-align:left;white-space:pre-wrap}</style>\n<table>\n<tr><th>"
      "prompt</th>";
  for (const std::string& model : words.models)
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

void print_comparison(const PromptEvalFlags& words,
                      const std::vector<std::string>& prompts,
                      const std::array<Answers, 2>& answers) {
  Terminal terminal;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    json::Value line = json::Value::object({{"prompt", json::Value::string(prompts[i])}});
    if (!words.common.json) terminal.line(fmt::format("--- {}", prompts[i]));
    for (std::size_t m = 0; m < answers.size(); ++m) {
      const Answers& one = answers[m];
      const std::string key = m == 0 ? "a" : "b";
      line[key] = json::Value::string(one.texts[i]);
      if (!one.scores.empty()) line["score_" + key] = json::Value::number(one.scores[i]);
      if (words.common.json) continue;
      terminal.data(one.scores.empty()
                        ? fmt::format("[{}]", words.models[m])
                        : fmt::format("[{}] score {:.4f}", words.models[m], one.scores[i]));
      terminal.data(one.texts[i]);
    }
    if (words.common.json) terminal.data(line.dump());
  }
  if (words.common.json || answers[0].scores.empty()) return;
  std::int64_t wins = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    wins += answers[1].scores[i] > answers[0].scores[i] ? 1 : 0;
  terminal.line(fmt::format("B scores higher on {} of {} prompts", wins, prompts.size()));
}

int prompt_eval(const std::vector<std::string>& line) {
  PromptEvalFlags words;
  if (!parse(words, line)) return kExitOk;
  if (words.baseline) words.models[0] = *words.baseline;
  if (words.finetuned) words.models[1] = *words.finetuned;
  TESSERA_REQUIRE(!words.models[0].empty() && !words.models[1].empty(),
                  Config,
                  "tessera prompt-eval: two models are compared, and one is missing",
                  "tessera prompt-eval A B --prompts FILE.jsonl");
  TESSERA_REQUIRE(!words.prompts.empty(),
                  Config,
                  "tessera prompt-eval: --prompts is missing",
                  "tessera prompt-eval A B --prompts FILE.jsonl");
  TESSERA_REQUIRE(words.max_new_tokens >= 1 && words.temperature >= 0,
                  Config,
                  "--max-new-tokens and --temperature: expected at least 1, and no negative number",
                  "");
  const std::vector<std::string> prompts = read_prompts(words.prompts);
  const std::array<Answers, 2> answers = {answers_of(words, words.models[0], prompts),
                                          answers_of(words, words.models[1], prompts)};
  if (!words.html.empty())
    files::write_atomic(words.html, comparison_page(words, prompts, answers));
  if (!words.common.quiet) print_comparison(words, prompts, answers);
  return kExitOk;
}

TESSERA_COMMAND("prompt-eval",
                "answers of two models to the same prompts, side by side",
                prompt_eval);

}  // namespace
}  // namespace tessera::cli
