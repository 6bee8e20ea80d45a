// SPDX-License-Identifier: Apache-2.0
// tessera generate: prints text as it is generated.
#include "tessera/engine/generate.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/generation_flags.h"
#include "tessera/cli/model_task.h"
#include "tessera/cli/prompt_file.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/config/json.h"
#include "tessera/engine/adapters.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMostSamples = 1024, kMostBeams = 256, kMostAtOnce = 4096, kAtOnce = 8;

struct GenerateFlags {
  std::string path, prompt, weights = "fp32";
  std::string prompts, out;
  std::vector<std::string> adapters;
  std::int64_t samples = 1, beams = 1, returned = 1;
  std::optional<std::int64_t> at_once;
  double length_penalty = 1.0;
  std::string early_stopping = "heuristic";
  bool echo = false;
  GenerationFlags how;
  PromptFile file;  ///< for --prompts
  RankFlags ranks;
  bool last = false;  ///< of a run, the newest checkpoint
  Common common;
};

bool parse(GenerateFlags& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "generate",
      "Generates text with a run (its newest checkpoint, or the best if it stopped early), a "
      "checkpoint or a Hugging Face folder.",
      {"tessera generate runs/my --prompt \"ROMEO:\"",
       "tessera generate runs/my --prompt \"ROMEO:\" --temperature 0 --max-new-tokens 200 --echo",
       "tessera generate ./gpt2 --prompt \"Once upon a time\" --top-k 40 --seed 7",
       "tessera generate runs/my --weights bf16   half of the memory, about twice as fast",
       "tessera generate runs/my --prompt \"ROMEO:\" --samples 4",
       "tessera generate runs/my --prompt \"ROMEO:\" --beams 4 --return 2",
       "tessera generate runs/my --prompts in.jsonl --out out.jsonl --batch-size 16",
       "tessera generate ./base --adapter a=l/a --adapter b=l/b --prompts in.jsonl --out out.jsonl",
       "tessera generate runs/my -n 4             for a model that does not fit on one rank"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.option("--prompt", &words.prompt, "Prompt [start of a document]");
  words.how.declare(arguments);
  arguments.option(
      "--samples",
      &words.samples,
      "Number of texts to generate together, each with the next seed; printed at the end [1]");
  arguments.flag("--echo", words.echo, "Print the prompt first");
  arguments.option("--beams", &words.beams, "Number of beams; 1 disables beam search [1]");
  arguments.option(
      "--return", &words.returned, "Number of beam search results to print, best first [1]");
  arguments.option("--length-penalty",
                   &words.length_penalty,
                   "Beam search divides scores by length to this power [1.0]");
  arguments.option(
      "--early-stopping",
      &words.early_stopping,
      "When a beam search ends: full (as many finished texts as beams), heuristic (no beam has a "
      "better score now), or never (no beam can get a better score) [heuristic]");
  arguments.option(
      "--prompts",
      &words.prompts,
      "JSON lines, each with a \"prompt\"; the texts are written to --out in the same order, with "
      "the other members of their lines");
  arguments.option(
      "--out",
      &words.out,
      "File for the texts of --prompts; the same command continues it where it was interrupted");
  arguments.option("--batch-size",
                   &words.at_once,
                   "Number of texts of --prompts to generate together; no text depends on it [8]");
  arguments.option(
      "--adapter",
      &words.adapters,
      "PATH or NAME=PATH of an adapter of MODEL: a PEFT folder or a run; may be repeated. The "
      "first "
      "is used, except for lines of --prompts that have another one's name in \"adapter\", or null "
      "for none");
  arguments.option("--weights",
                   &words.weights,
                   "fp32, bf16 (with bf16 activations), or int8 with one scale per row [fp32]");
  words.ranks.declare(arguments);
  add_last(arguments, &words.last);
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

void check(const GenerateFlags& words) {
  words.how.check();
  TESSERA_REQUIRE(words.samples >= 1 && words.samples <= kMostSamples,
                  Config,
                  fmt::format("--samples {}: expected 1 to {}", words.samples, kMostSamples),
                  "");
  TESSERA_REQUIRE(words.prompts.empty() == words.out.empty(),
                  Config,
                  "--prompts and --out belong together",
                  "give both files");
  TESSERA_REQUIRE(words.prompts.empty() || (words.prompt.empty() && !words.echo),
                  Config,
                  "--prompts with --prompt or --echo",
                  "write the prompts into the file");
  const std::int64_t at_once = words.at_once.value_or(1);
  TESSERA_REQUIRE(at_once >= 1 && at_once <= kMostAtOnce,
                  Config,
                  fmt::format("--batch-size {}: expected 1 to {}", at_once, kMostAtOnce),
                  "");
  TESSERA_REQUIRE(!words.at_once || (!words.prompts.empty() && words.beams == 1),
                  Config,
                  "--batch-size belongs to --prompts without --beams",
                  "drop it");
  TESSERA_REQUIRE(words.beams >= 1 && words.beams <= kMostBeams,
                  Config,
                  fmt::format("--beams {}: expected 1 to {}", words.beams, kMostBeams),
                  "");
  TESSERA_REQUIRE(words.returned >= 1 && words.returned <= words.beams,
                  Config,
                  fmt::format("--return {} of --beams {}", words.returned, words.beams),
                  "return at most as many texts as there are beams");
  const bool plain = words.length_penalty == 1.0 && words.early_stopping == "heuristic";
  TESSERA_REQUIRE(words.beams > 1 || plain,
                  Config,
                  "--length-penalty and --early-stopping belong to beam search",
                  "add --beams");
  TESSERA_REQUIRE(words.beams == 1 || words.samples == 1,
                  Config,
                  "--samples with --beams",
                  "use --return for several texts of a beam search");
  TESSERA_REQUIRE(words.adapters.size() <= 1 || !words.prompts.empty(),
                  Config,
                  fmt::format("{} adapters for one prompt", words.adapters.size()),
                  "name one, or give --prompts, whose lines choose one");
  (void)early_stopping_from_name(words.early_stopping);
  if (words.beams > 1) words.how.check_for_beams();
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

/// Tokens per second for `tokens` in total, after the prompt was processed.
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
              const GenerateFlags& words,
              bool is_leader) {
  Terminal terminal;
  const bool streams = is_leader && !words.common.json;
  std::string text = words.echo ? text::replace_invalid_utf8(words.prompt) : "";
  if (streams) terminal.stream(text);
  const engine::Generated made = generator.run(words.prompt, options, [&](std::string_view piece) {
    text += piece;
    if (streams) terminal.stream(piece);
  });
  if (!is_leader) return;
  if (words.common.json) {
    json::Value out = text_json(text, made);
    out["tokens_per_s"] = json::Value::number(tokens_per_s(made.tokens.size(), made));
    terminal.data(out.dump());
    return;
  }
  terminal.stream("\n");
  if (words.common.verbose) tell_speed(terminal, made.tokens.size(), made);
}

/// Prints the texts after all have ended.
void several_texts(engine::Generator& generator,
                   const engine::GenerateOptions& options,
                   const GenerateFlags& words,
                   bool is_leader) {
  const std::vector<std::int32_t> prompt = generator.encode(words.prompt);
  const auto all = generator.run_samples(prompt, options, static_cast<int>(words.samples));
  if (!is_leader) return;
  Terminal terminal;
  json::Value out = json::Value::object();
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string text =
        text::replace_invalid_utf8((words.echo ? words.prompt : "") + all[i].text);
    tokens += all[i].tokens.size();
    if (words.common.json) {
      out["samples"].push_back(text_json(text, all[i]));
    } else {
      terminal.line(fmt::format("--- {} of {}", i + 1, all.size()));
      terminal.data(text);
    }
  }
  if (words.common.json) {
    out["tokens_per_s"] = json::Value::number(tokens_per_s(tokens, all.front()));
    terminal.data(out.dump());
  } else if (words.common.verbose) {
    tell_speed(terminal, tokens, all.front());
  }
}

/// The best texts of a beam search, with their scores.
void beams(engine::Generator& generator,
           const engine::GenerateOptions& options,
           const GenerateFlags& words,
           bool is_leader) {
  const std::vector<std::int32_t> prompt = generator.encode(words.prompt);
  const auto all = generator.run_beams(prompt, options, static_cast<int>(words.returned));
  if (!is_leader) return;
  Terminal terminal;
  json::Value out = json::Value::object();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string text =
        text::replace_invalid_utf8((words.echo ? words.prompt : "") + all[i].made.text);
    if (words.common.json) {
      json::Value one = text_json(text, all[i].made);
      one["score"] = json::Value::number(all[i].score);
      out["beams"].push_back(std::move(one));
    } else {
      if (all.size() > 1)
        terminal.line(fmt::format("--- {} of {}, score {:.4f}", i + 1, all.size(), all[i].score));
      terminal.data(text);
    }
  }
  if (words.common.json) terminal.data(out.dump());
}

// Every rank generates the same text, because weights are gathered together; one prints it.
void generate_on(engine::OpenModel& model, const GenerateFlags& words, bool is_leader) {
  engine::GenerateOptions options = words.how.options(
      *model.tokenizer, engine::generation_config_of(model), /*draws=*/words.beams == 1);
  options.beams = static_cast<int>(words.beams);
  if (!words.adapters.empty()) options.adapter = 0;
  options.length_penalty = words.length_penalty;
  options.early_stopping = early_stopping_from_name(words.early_stopping);
  engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
  if (!words.prompts.empty()) {
    texts_of_file(generator, options, words.file, is_leader);
  } else if (words.beams > 1) {
    beams(generator, options, words, is_leader);
  } else if (words.samples == 1) {
    one_text(generator, options, words, is_leader);
  } else {
    several_texts(generator, options, words, is_leader);
  }
}

/// Reads NAME=PATH, or PATH alone: its last folder is then the name.
engine::AdapterName adapter_from(const std::string& word) {
  const std::size_t mark = word.find('=');
  engine::AdapterName out;
  out.path = word.substr(mark == std::string::npos ? 0 : mark + 1);
  out.name = mark == std::string::npos ? out.path.lexically_normal().filename().string()
                                       : word.substr(0, mark);
  if (out.name.empty()) out.name = out.path.lexically_normal().parent_path().filename().string();
  TESSERA_REQUIRE(!out.name.empty() && !out.path.empty() && out.name.find('/') == std::string::npos,
                  Config,
                  fmt::format("--adapter {}: expected PATH or NAME=PATH", word),
                  "a name has no slash");
  return out;
}

int generate(const std::vector<std::string>& line) {
  GenerateFlags words;
  if (!parse(words, line)) return kExitOk;
  check(words);
  words.how.several = words.samples > 1;
  std::vector<engine::AdapterName> adapters;
  std::vector<std::string> names;
  for (const std::string& word : words.adapters) {
    adapters.push_back(adapter_from(word));
    names.push_back(adapters.back().name);
  }
  if (!words.prompts.empty())
    words.file = open_prompt_file(words.prompts, words.out, std::move(names));
  words.file.returned = static_cast<int>(words.returned);
  words.file.samples = static_cast<int>(words.samples);
  words.file.at_once = static_cast<int>(words.at_once.value_or(kAtOnce));
  words.file.quiet = words.common.quiet;
  const engine::ReadAs as = engine::read_as_from_name(words.weights);
  const std::filesystem::path path = model_at(words.path, words.last, words.common);
  if (!words.prompts.empty()) {
    std::vector<std::filesystem::path> inputs = {path};
    for (const engine::AdapterName& adapter : adapters)
      inputs.push_back(adapter.path);
    words.file.progress = OutputProgress(words.out, command_text("generate", line, inputs));
    words.file.made = words.file.progress.kept(words.file.made, words.file.prompts.size());
  }
  std::unique_ptr<engine::OpenModel> model = engine::find_model(path);
  require_generation(model->shape.objective, words.path);
  engine::add_adapters(*model, adapters);
  return with_model(
      std::move(model), words.ranks, as, [&](engine::OpenModel& opened, bool is_leader) {
        generate_on(opened, words, is_leader);
      });
}

TESSERA_COMMAND("generate", "continue a text with a trained model", generate);

}  // namespace
}  // namespace tessera::cli
