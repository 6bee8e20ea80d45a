// SPDX-License-Identifier: Apache-2.0
// tessera prompt-eval: prints the answers of two models to the same prompts side by side.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/prompt_file.h"
#include "tessera/cli/terminal.h"
#include "tessera/rlhf/compared_answers.h"

namespace tessera::cli {
namespace {

using rlhf::Answers;

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
  const rlhf::AnswerOptions how = {.reward = words.reward,
                                   .max_new_tokens = words.max_new_tokens,
                                   .temperature = words.temperature,
                                   .seed = static_cast<std::uint64_t>(words.seed)};
  const std::array<Answers, 2> answers = {rlhf::answers_of(words.models[0], prompts, how),
                                          rlhf::answers_of(words.models[1], prompts, how)};
  if (!words.html.empty())
    files::write_atomic(words.html, rlhf::comparison_page(words.models, prompts, answers));
  if (!words.common.quiet) print_comparison(words, prompts, answers);
  return kExitOk;
}

TESSERA_COMMAND("prompt-eval",
                "print the answers of two models to the same prompts, side by side",
                prompt_eval);

}  // namespace
}  // namespace tessera::cli
