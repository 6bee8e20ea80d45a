// SPDX-License-Identifier: Apache-2.0
// tessera score: computes the likelihood of each line of a file.
#include "tessera/engine/score.h"

#include <cmath>
#include <fstream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/text_lines.h"
#include "tessera/config/json.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {
namespace {

struct ScoreWords {
  std::string path, file, field = "text", weights = "fp32", out;
  bool tokens = false;
  RankWords ranks;
  Common common;
};

bool parse(ScoreWords& words, const std::vector<std::string>& line) {
  Arguments arguments("score",
                      "Writes the log-probability and the perplexity of each line of a file, as "
                      "JSON lines. A line's first token is given, not scored.",
                      {"tessera score runs/my lines.txt",
                       "tessera score ./gpt2 texts.jsonl --field body --out scores.jsonl",
                       "tessera score ./gpt2 lines.txt --tokens"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.positional("FILE", &words.file, "Text file, one text per line, or .jsonl");
  arguments.option(
      "--field", &words.field, "Member of a .jsonl line that contains the text [text]");
  arguments.option("--out", &words.out, "File for the scores [standard output]");
  arguments.flag("--tokens", words.tokens, "Also write the log-probability of each token");
  arguments.option("--weights", &words.weights, "fp32 or bf16 (with bf16 activations) [fp32]");
  words.ranks.declare(arguments);
  arguments.common(words.common);
  return arguments.parse(line);
}

json::Value told(const std::vector<double>& log_probabilities, bool each) {
  const double sum = std::accumulate(log_probabilities.begin(), log_probabilities.end(), 0.0);
  const auto count = static_cast<std::int64_t>(log_probabilities.size());
  json::Value out = json::Value::object();
  out["tokens"] = json::Value::integer(count);
  out["log_probability"] = json::Value::number(sum);
  out["perplexity"] =
      count > 0 ? json::Value::number(std::exp(-sum / static_cast<double>(count))) : json::Value();
  if (each) {
    out["token_log_probabilities"] = json::Value::array({});
    for (const double value : log_probabilities)
      out["token_log_probabilities"].push_back(json::Value::number(value));
  }
  return out;
}

void score_on(engine::OpenModel& model,
              const ScoreWords& words,
              const std::vector<std::string>& texts,
              bool is_leader) {
  Terminal terminal;
  std::ofstream file;
  if (is_leader && !words.out.empty()) {
    file.open(words.out, std::ios::binary | std::ios::trunc);
    TESSERA_REQUIRE(file.good(), Io, "cannot write " + words.out, "choose another --out");
  }
  const auto write = [&](const json::Value& value) {
    if (!is_leader) return;
    if (words.out.empty()) {
      terminal.line(value.dump());
      return;
    }
    file << value.dump() << '\n' << std::flush;
    TESSERA_REQUIRE(file.good(), Io, "cannot write " + words.out, "is the disk full?");
  };
  std::vector<double> all;
  for (const std::string& text : texts) {
    const std::vector<std::int32_t> ids = model.tokenizer->encode_prompt(text);
    const auto made = engine::log_probabilities(*model.executor, model.shape, ids);
    all.insert(all.end(), made.begin(), made.end());
    write(told(made, words.tokens));
  }
  json::Value sum = told(all, false);
  sum["lines"] = json::Value::integer(static_cast<std::int64_t>(texts.size()));
  write(sum);
}

int score(const std::vector<std::string>& line) {
  ScoreWords words;
  if (!parse(words, line)) return kExitOk;
  const std::vector<std::string> texts = read_text_lines(words.file, words.field);
  return with_model(
      engine::find_model(words.path),
      words.ranks,
      engine::read_as_from_name(words.weights),
      [&](engine::OpenModel& model, bool is_leader) { score_on(model, words, texts, is_leader); });
}

TESSERA_COMMAND("score", "compute the likelihood of each line of a file", score);

}  // namespace
}  // namespace tessera::cli
