// SPDX-License-Identifier: Apache-2.0
// tessera generate: text as it is made.
#include "tessera/engine/generate.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/command.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMostSamples = 1024;

struct GenerateWords {
  std::string path, prompt, weights = "fp32";
  std::int64_t max_new_tokens = 100, top_k = 0, seed = 1234, samples = 1;
  double temperature = 1.0, top_p = 1.0;
  bool echo = false, ignore_eos = false;
  RankWords ranks;
  Common common;
};

bool parse(GenerateWords& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "generate",
      "Generates text with a run's newest checkpoint, a checkpoint or a Hugging Face folder.",
      {"tessera generate runs/my --prompt \"ROMEO:\"",
       "tessera generate runs/my --prompt \"ROMEO:\" --temperature 0 --max-new-tokens 200 --echo",
       "tessera generate ./gpt2 --prompt \"Once upon a time\" --top-k 40 --seed 7",
       "tessera generate runs/my --weights bf16   half of the memory, about twice as fast",
       "tessera generate runs/my --prompt \"ROMEO:\" --samples 4",
       "tessera generate runs/my -n 4             for a model that does not fit on one rank"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.option("--prompt", &words.prompt, "Prompt [start of a document]");
  arguments.option(
      "--max-new-tokens", &words.max_new_tokens, "Maximum number of generated tokens [100]");
  arguments.option("--temperature", &words.temperature, "Sampling temperature; 0 is greedy [1.0]");
  arguments.option("--top-k", &words.top_k, "Sample from the k most likely tokens; 0 uses all [0]");
  arguments.option("--top-p",
                   &words.top_p,
                   "Sample from the most likely tokens with this total probability [1.0]");
  arguments.option("--seed", &words.seed, "Random seed; the same seed gives the same text [1234]");
  arguments.option(
      "--samples",
      &words.samples,
      "Number of texts to generate together, each with the next seed; printed at the end [1]");
  arguments.flag("--echo", words.echo, "Print the prompt first");
  arguments.flag("--ignore-eos", words.ignore_eos, "Continue after end of text");
  arguments.option("--weights",
                   &words.weights,
                   "fp32, bf16 (with bf16 activations), or int8 with one scale per row [fp32]");
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
  TESSERA_REQUIRE(words.samples >= 1 && words.samples <= kMostSamples,
                  Config,
                  fmt::format("--samples {}: expected 1 to {}", words.samples, kMostSamples),
                  "");
  TESSERA_REQUIRE(words.top_p > 0 && words.top_p <= 1,
                  Config,
                  fmt::format("--top-p {} is not in (0, 1]", words.top_p),
                  "use 1.0 for all tokens");
}

json::Value text_json(const std::string& text, const engine::Generated& made) {
  json::Value tokens = json::Value::array({});
  for (const std::int32_t token : made.tokens)
    tokens.push_back(json::Value::integer(token));
  json::Value out = json::Value::object();
  out["text"] = json::Value::string(text);
  out["tokens"] = std::move(tokens);
  out["ended"] = json::Value::boolean(made.ended);
  return out;
}

/// What was made of `tokens` in all, after the prompt was read.
double tokens_per_s(std::size_t tokens, const engine::Generated& made) {
  return made.decode_s > 0 ? static_cast<double>(tokens) / made.decode_s : 0.0;
}

void tell_speed(Terminal& terminal, std::size_t tokens, const engine::Generated& made) {
  terminal.line(fmt::format("{} tokens, prompt read in {:.2f} s, then {:.1f} tokens/s",
                            tokens,
                            made.prompt_s,
                            tokens_per_s(tokens, made)));
}

void one_text(engine::Generator& generator,
              const engine::GenerateOptions& options,
              const GenerateWords& words,
              bool speaks) {
  Terminal terminal;
  const bool streams = speaks && !words.common.json;
  std::string text = words.echo ? text::replace_invalid_utf8(words.prompt) : "";
  if (streams) terminal.stream(text);
  const engine::Generated made = generator.run(words.prompt, options, [&](std::string_view piece) {
    text += piece;
    if (streams) terminal.stream(piece);
  });
  if (!speaks) return;
  if (words.common.json) {
    json::Value out = text_json(text, made);
    out["tokens_per_s"] = json::Value::number(tokens_per_s(made.tokens.size(), made));
    terminal.line(out.dump());
    return;
  }
  terminal.stream("\n");
  if (words.common.verbose) tell_speed(terminal, made.tokens.size(), made);
}

/// They are told when all have ended.
void several_texts(engine::Generator& generator,
                   const data::Tokenizer& tokenizer,
                   const engine::GenerateOptions& options,
                   const GenerateWords& words,
                   bool speaks) {
  std::vector<std::int32_t> prompt;
  tokenizer.encode(words.prompt, prompt);
  const auto all = generator.run_samples(prompt, options, static_cast<int>(words.samples));
  if (!speaks) return;
  Terminal terminal;
  json::Value out = json::Value::object();
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::string bytes;
    for (const std::int32_t token : all[i].tokens)
      bytes += tokenizer.bytes_of(token);
    const std::string text = text::replace_invalid_utf8((words.echo ? words.prompt : "") + bytes);
    tokens += all[i].tokens.size();
    if (words.common.json) {
      out["samples"].push_back(text_json(text, all[i]));
    } else {
      terminal.line(fmt::format("--- {} of {}", i + 1, all.size()));
      terminal.line(text);
    }
  }
  if (words.common.json) {
    out["tokens_per_s"] = json::Value::number(tokens_per_s(tokens, all.front()));
    terminal.line(out.dump());
  } else if (words.common.verbose) {
    tell_speed(terminal, tokens, all.front());
  }
}

// Every rank makes the same text, because weights are gathered together; one prints it.
void generate_on(engine::OpenModel& model, const GenerateWords& words, bool speaks) {
  engine::GenerateOptions options;
  options.max_new_tokens = words.max_new_tokens;
  options.sampler = {.temperature = words.temperature, .top_k = words.top_k, .top_p = words.top_p};
  options.seed = static_cast<std::uint64_t>(words.seed);
  options.ignore_eos = words.ignore_eos;
  engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
  if (words.samples == 1) {
    one_text(generator, options, words, speaks);
  } else {
    several_texts(generator, *model.tokenizer, options, words, speaks);
  }
}

int generate(const std::vector<std::string>& line) {
  GenerateWords words;
  if (!parse(words, line)) return kExitOk;
  check(words);
  const engine::ReadAs as = engine::read_as_from_name(words.weights);
  return with_model(
      engine::find_model(words.path), words.ranks, as, [&](engine::OpenModel& model, bool speaks) {
        generate_on(model, words, speaks);
      });
}

TESSERA_COMMAND("generate", "continue a text with a trained model", generate);

}  // namespace
}  // namespace tessera::cli
