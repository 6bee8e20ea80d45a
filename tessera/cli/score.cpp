// SPDX-License-Identifier: Apache-2.0
// tessera score: computes the likelihood of each line of a file, or of the answers in it.
#include "tessera/engine/score.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/output_file.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/output_progress.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/text_lines.h"
#include "tessera/config/json.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/open_model.h"
#include "tessera/tasks/text_pairs.h"

namespace tessera::cli {
namespace {

struct ScoreFlags {
  std::string path, file, field, source_field, weights = "fp32", out;
  bool tokens = false;
  RankFlags ranks;
  bool last = false;  ///< of a run, the newest checkpoint
  Common common;
};

bool parse(ScoreFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "score",
      "Writes the log-probability and the perplexity of each line of a file, as "
      "JSON lines. A line's first token is given, not scored. With an encoder and a "
      "decoder: of each line's target, which answers its source.",
      {"tessera score runs/my lines.txt",
       "tessera score ./gpt2 texts.jsonl --field body --out scores.jsonl",
       "tessera score ./gpt2 lines.txt --tokens",
       "tessera score ./t5-small pairs.jsonl"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.positional("FILE", &words.file, "Text file, one text per line, or .jsonl");
  arguments.option("--field",
                   &words.field,
                   "Member of a .jsonl line that contains the scored text [text; with an encoder "
                   "and a decoder target, completion or text]");
  arguments.option("--source-field",
                   &words.source_field,
                   "Member that contains the text that an encoder reads [source or prompt]");
  arguments.option("--out", &words.out, "File for the scores [standard output]");
  arguments.flag("--tokens", words.tokens, "Also write the log-probability of each token");
  arguments.option("--weights",
                   &words.weights,
                   "fp32, bf16 (with bf16 activations), or int8 with one scale per row [fp32]");
  words.ranks.declare(arguments);
  add_last(arguments, &words.last);
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

bool answers(const engine::OpenModel& model) {
  return model.shape.trunk.output.target.has_value();
}

/// Reads the file. A text that answers no other has an empty source.
std::vector<LinePair> read_lines(const ScoreFlags& words, bool answers) {
  const auto or_default = [](const std::string& given, std::vector<std::string> otherwise) {
    return given.empty() ? std::move(otherwise) : std::vector<std::string>{given};
  };
  if (answers) {
    return read_line_pairs(words.file,
                           or_default(words.source_field, {"source", "prompt"}),
                           or_default(words.field, {"target", "completion", "text"}));
  }
  TESSERA_REQUIRE(words.source_field.empty(),
                  Config,
                  "--source-field names the text that an encoder reads, and the model is not an "
                  "encoder-decoder",
                  "remove it");
  std::vector<LinePair> out;
  for (std::string& text : read_text_lines(words.file, words.field.empty() ? "text" : words.field))
    out.push_back({.target = std::move(text)});
  return out;
}

std::vector<double> log_probabilities_of(engine::OpenModel& model, const LinePair& line) {
  const text::Tokenizer& tokenizer = *model.tokenizer;
  if (!answers(model)) {
    return engine::log_probabilities(
        *model.executor, model.shape, tokenizer.encode_prompt(line.target));
  }
  return engine::answer_log_probabilities(
      *model.executor,
      model.shape,
      engine::Generator(*model.executor, tokenizer, model.shape).encode(line.source),
      tasks::ids_with_end(line.target, tokenizer));
}

void score_on(engine::OpenModel& model,
              const ScoreFlags& words,
              const std::vector<LinePair>& lines,
              bool is_leader) {
  Terminal terminal;
  OutputFile file;
  if (is_leader && !words.out.empty()) file.open(words.out);
  const auto write = [&](const json::Value& value) {
    if (!is_leader) return;
    if (words.out.empty()) {
      terminal.data(value.dump());
      return;
    }
    file.write(value.dump() + '\n');
    file.flush();
  };
  std::vector<double> all;
  for (const LinePair& line : lines) {
    const std::vector<double> made = log_probabilities_of(model, line);
    all.insert(all.end(), made.begin(), made.end());
    write(told(made, words.tokens));
  }
  json::Value sum = told(all, false);
  sum["lines"] = json::Value::integer(static_cast<std::int64_t>(lines.size()));
  write(sum);
}

int score(const std::vector<std::string>& line) {
  ScoreFlags words;
  if (!parse(words, line)) return kExitOk;
  require_other_file(words.file, words.out);
  std::unique_ptr<engine::OpenModel> found =
      engine::find_model(model_at(words.path, words.last, words.common));
  const std::vector<LinePair> lines = read_lines(words, answers(*found));
  return with_model(
      std::move(found),
      words.ranks,
      engine::read_as_from_name(words.weights),
      [&](engine::OpenModel& model, bool is_leader) { score_on(model, words, lines, is_leader); });
}

TESSERA_COMMAND("score", "compute the likelihood of each line of a file", score);

}  // namespace
}  // namespace tessera::cli
