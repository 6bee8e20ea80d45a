// SPDX-License-Identifier: Apache-2.0
// tessera generate: text as it is made.
#include "tessera/engine/generate.h"

#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {
namespace {

struct GenerateWords {
  std::string path, prompt, weights = "fp32";
  std::int64_t max_new_tokens = 100, top_k = 0, seed = 1234;
  double temperature = 1.0, top_p = 1.0;
  bool echo = false, ignore_eos = false;
  RankWords ranks;
  Common common;
};

bool parse(GenerateWords& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "generate",
      "Continues a text with a run's newest checkpoint, a checkpoint or a Hugging Face folder.",
      {"tessera generate runs/my --prompt \"ROMEO:\"",
       "tessera generate runs/my --prompt \"ROMEO:\" --temperature 0 --max-new-tokens 200 --echo",
       "tessera generate ./gpt2 --prompt \"Once upon a time\" --top-k 40 --seed 7",
       "tessera generate runs/my --weights bf16   in half of the bytes: about twice as fast",
       "tessera generate runs/my -n 4             for a model that no rank can hold"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.option("--prompt", &words.prompt, "Text to continue [start of a document]");
  arguments.option("--max-new-tokens", &words.max_new_tokens, "Tokens to make at most [100]");
  arguments.option("--temperature", &words.temperature, "0 takes the likeliest token [1.0]");
  arguments.option("--top-k", &words.top_k, "Draw from the k likeliest tokens; 0: from all [0]");
  arguments.option("--top-p",
                   &words.top_p,
                   "Draw from the likeliest tokens that make up this probability [1.0]");
  arguments.option("--seed", &words.seed, "The same seed gives the same text [1234]");
  arguments.flag("--echo", words.echo, "Print the prompt first");
  arguments.flag("--ignore-eos", words.ignore_eos, "Go on after end of text");
  arguments.option("--weights",
                   &words.weights,
                   "fp32, bf16 (with activations), or int8 with a scale a row [fp32]");
  words.ranks.declare(arguments);
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void check(const GenerateWords& words) {
  TESSERA_REQUIRE(words.max_new_tokens >= 0,
                  Config,
                  fmt::format("--max-new-tokens {} is negative", words.max_new_tokens),
                  "use 0 or more");
  TESSERA_REQUIRE(words.temperature >= 0,
                  Config,
                  fmt::format("--temperature {} is negative", words.temperature),
                  "use 0 for greedy text, 1.0 for the model's own distribution");
  TESSERA_REQUIRE(words.top_k >= 0,
                  Config,
                  fmt::format("--top-k {} is negative", words.top_k),
                  "use 0 for all tokens");
  TESSERA_REQUIRE(words.top_p > 0 && words.top_p <= 1,
                  Config,
                  fmt::format("--top-p {} is not in (0, 1]", words.top_p),
                  "use 1.0 for all tokens");
}

// Every rank makes the same text, because weights are gathered together; one prints it.
void generate_on(engine::OpenModel& model, const GenerateWords& words, bool speaks) {
  engine::GenerateOptions options;
  options.max_new_tokens = words.max_new_tokens;
  options.sampler = {.temperature = words.temperature, .top_k = words.top_k, .top_p = words.top_p};
  options.seed = static_cast<std::uint64_t>(words.seed);
  options.ignore_eos = words.ignore_eos;

  Terminal terminal;
  const bool streams = speaks && !words.common.json;
  std::string text = words.echo ? words.prompt : "";
  if (streams) terminal.stream(text);
  engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
  const engine::Generated made = generator.run(words.prompt, options, [&](std::string_view piece) {
    text += piece;
    if (streams) terminal.stream(piece);
  });
  if (!speaks) return;
  const double tokens_per_s =
      made.decode_s > 0 ? static_cast<double>(made.tokens.size()) / made.decode_s : 0.0;
  if (words.common.json) {
    json::Value out = json::Value::object();
    out["text"] = json::Value::string(text);
    for (const std::int32_t token : made.tokens)
      out["tokens"].push_back(json::Value::integer(token));
    out["ended"] = json::Value::boolean(made.ended);
    out["tokens_per_s"] = json::Value::number(tokens_per_s);
    terminal.line(out.dump());
    return;
  }
  terminal.stream("\n");
  if (words.common.verbose) {
    terminal.line(fmt::format("{} tokens, prompt read in {:.2f} s, then {:.1f} tokens/s",
                              made.tokens.size(),
                              made.prompt_s,
                              tokens_per_s));
  }
}

int generate(const std::vector<std::string>& line) {
  GenerateWords words;
  if (!parse(words, line)) return kExitOk;
  check(words);
  const engine::ReadAs as = engine::read_as_from_name(words.weights);
  if (words.common.verbose) show_log(log::Level::Info);
  return with_model(
      engine::find_model(words.path), words.ranks, as, [&](engine::OpenModel& model, bool speaks) {
        generate_on(model, words, speaks);
      });
}

TESSERA_COMMAND("generate", "continue a text with a trained model", generate);

}  // namespace
}  // namespace tessera::cli
