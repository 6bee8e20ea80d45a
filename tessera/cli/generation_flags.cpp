// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/generation_flags.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

void require(bool holds, const char* option, double value, const char* expected) {
  TESSERA_REQUIRE(
      holds, Config, fmt::format("{} {} is not {}", option, value, expected), "see --help");
}

std::int32_t stop_id(const std::string& word) {
  std::int32_t id = -1;
  const auto read = std::from_chars(word.data(), word.data() + word.size(), id);
  TESSERA_REQUIRE(read.ec == std::errc() && read.ptr == word.data() + word.size() && id >= 0,
                  Config,
                  "--stop-id " + word + " is not a token id",
                  "use a number of 0 or more");
  return id;
}

}  // namespace

void GenerationFlags::declare(Arguments& arguments) {
  arguments.option("--max-new-tokens", &max_new_tokens, "Maximum number of generated tokens [100]");
  arguments.option("--min-new-tokens", &min_new_tokens, "Minimum number of generated tokens [0]");
  arguments.option(
      "--temperature",
      &temperature,
      "Sampling temperature; 0 is greedy [1.0; Hugging Face folder without do_sample: 0, "
      "unless another option is about sampling]");
  arguments.option("--top-k", &top_k, "Sample from the k most likely tokens; 0 uses all [0]");
  arguments.option(
      "--top-p", &top_p, "Sample from the most likely tokens with this total probability [1.0]");
  arguments.option(
      "--min-p", &min_p, "Minimum probability, as a fraction of the most likely token's [0]");
  arguments.option("--typical-p",
                   &typical_p,
                   "Sample from the most typical tokens with this total probability [1.0]");
  arguments.option("--epsilon-cutoff", &epsilon_cutoff, "Minimum probability of a token [0]");
  arguments.option("--eta-cutoff",
                   &eta_cutoff,
                   "The same, lower where the model is uncertain (eta sampling) [0]");
  arguments.option("--repetition-penalty",
                   &repetition_penalty,
                   "Above 1: tokens of the prompt and the text become less likely [1.0]");
  arguments.option("--frequency-penalty",
                   &frequency_penalty,
                   "Number subtracted from a token's logit each time it was generated [0]");
  arguments.option("--presence-penalty",
                   &presence_penalty,
                   "Number subtracted once from the logit of every generated token [0]");
  arguments.option("--no-repeat-ngram",
                   &no_repeat_ngram,
                   "Length of token sequences that must not occur twice; 0 allows all [0]");
  arguments.option(
      "--bad-word", &bad_words, "Text whose tokens are never generated in a row; repeatable");
  arguments.option("--stop", &stop, "End before this text; repeatable");
  arguments.option("--stop-id", &stop_ids, "End at this token id; repeatable");
  arguments.option("--seed", &seed, "Random seed; the same seed gives the same text [1234]");
  arguments.flag("--ignore-eos", ignore_eos, "Continue after end of text");
  arguments.flag("--show-special", show_special, "Also print special tokens");
}

void GenerationFlags::check() const {
  TESSERA_REQUIRE(max_new_tokens >= 0,
                  Config,
                  fmt::format("--max-new-tokens {} is negative", max_new_tokens),
                  "use 0 or more");
  TESSERA_REQUIRE(temperature.value_or(1) >= 0,
                  Config,
                  fmt::format("--temperature {} is negative", temperature.value_or(1)),
                  "use 0 for greedy text, 1.0 for the model's own distribution");
  TESSERA_REQUIRE(top_k.value_or(0) >= 0,
                  Config,
                  fmt::format("--top-k {} is negative", top_k.value_or(0)),
                  "use 0 for all tokens");
  TESSERA_REQUIRE(top_p.value_or(1) > 0 && top_p.value_or(1) <= 1,
                  Config,
                  fmt::format("--top-p {} is not in (0, 1]", top_p.value_or(1)),
                  "use 1.0 for all tokens");
  const auto in_range = [](const std::optional<double>& value, double least, double most) {
    return !value || (*value >= least && *value <= most);
  };
  const auto below_one = [&](const std::optional<double>& value) {
    return in_range(value, 0, 1) && value.value_or(0) < 1;
  };
  require(in_range(min_p, 0, 1), "--min-p", min_p.value_or(0), "in [0, 1]");
  require(typical_p.value_or(1) > 0 && typical_p.value_or(1) <= 1,
          "--typical-p",
          typical_p.value_or(1),
          "in (0, 1]");
  require(below_one(epsilon_cutoff), "--epsilon-cutoff", epsilon_cutoff.value_or(0), "in [0, 1)");
  require(below_one(eta_cutoff), "--eta-cutoff", eta_cutoff.value_or(0), "in [0, 1)");
  require(repetition_penalty.value_or(1) > 0,
          "--repetition-penalty",
          repetition_penalty.value_or(1),
          "above 0");
  require(no_repeat_ngram.value_or(0) >= 0,
          "--no-repeat-ngram",
          static_cast<double>(no_repeat_ngram.value_or(0)),
          "0 or more");
  const std::int64_t least = min_new_tokens.value_or(0);
  TESSERA_REQUIRE(
      least >= 0 && least <= max_new_tokens,
      Config,
      fmt::format("--min-new-tokens {} with --max-new-tokens {}", least, max_new_tokens),
      "ask for at least as many tokens as must be made");
  TESSERA_REQUIRE(temperature.value_or(1) > 0 || !rules_draw(),
                  Config,
                  "--temperature 0 is greedy, and the cut-offs choose what is sampled",
                  "drop one of them");
  for (const std::string& text : stop) {
    TESSERA_REQUIRE(!text.empty(), Config, "--stop with an empty text", "name a text");
  }
  for (const std::string& text : bad_words) {
    TESSERA_REQUIRE(!text.empty(), Config, "--bad-word with an empty text", "name a text");
  }
  for (const std::string& word : stop_ids)
    (void)stop_id(word);
}

bool GenerationFlags::rules_draw() const {
  return min_p.value_or(0) > 0 || typical_p.value_or(1) < 1 || epsilon_cutoff.value_or(0) > 0 ||
         eta_cutoff.value_or(0) > 0;
}

bool GenerationFlags::asks_to_draw() const {
  return seed || top_k.value_or(0) > 0 || top_p.value_or(1) < 1 || rules_draw() || several;
}

void GenerationFlags::check_for_beams() const {
  // Temperature 0 does not sample either.
  const double heat = temperature.value_or(0);
  const bool samples = (heat != 1.0 && heat != 0.0) || top_k.value_or(0) > 0 ||
                       top_p.value_or(1) < 1 || rules_draw();
  TESSERA_REQUIRE(!samples,
                  Config,
                  "beam search looks for the most likely text and draws nothing",
                  "drop --temperature, --top-k, --top-p, --min-p, --typical-p and the cut-offs, or "
                  "drop --beams");
}

engine::GenerateOptions GenerationFlags::options(const text::Tokenizer& tokenizer,
                                                 const engine::GenerationConfig& folder,
                                                 bool draws) const {
  constexpr std::int64_t kSeed = 1234;
  // A folder that is greedy by default draws if the command asks for it.
  std::optional<double> folders_temperature = folder.temperature;
  if (folders_temperature == 0.0 && asks_to_draw()) folders_temperature.reset();
  // Greedy and beam search ignore the sampling options of a folder.
  const bool own = draws && temperature.value_or(1) > 0;
  const auto drawn =
      [own]<class T>(const std::optional<T>& given, const std::optional<T>& folders, T otherwise) {
        return given ? *given : own && folders ? *folders : otherwise;
      };
  engine::GenerateOptions out;
  out.max_new_tokens = max_new_tokens;
  out.sampler = {.temperature = drawn(temperature, folders_temperature, 1.0),
                 .top_k = drawn(top_k, folder.top_k, std::int64_t{0}),
                 .top_p = drawn(top_p, folder.top_p, 1.0)};
  out.seed = static_cast<std::uint64_t>(seed.value_or(kSeed));
  out.ignore_eos = ignore_eos;
  out.show_special = show_special;
  out.ends = folder.ends;
  out.stop_strings = stop;
  for (const std::string& word : stop_ids)
    out.stop_ids.push_back(stop_id(word));
  const std::int64_t least = min_new_tokens.value_or(folder.min_new_tokens.value_or(0));
  out.rules = {
      .repetition_penalty = repetition_penalty.value_or(folder.repetition_penalty.value_or(1.0)),
      .frequency_penalty = frequency_penalty,
      .presence_penalty = presence_penalty,
      .no_repeat_ngram = no_repeat_ngram.value_or(folder.no_repeat_ngram.value_or(0)),
      .bad_words = {},
      .min_new_tokens = std::min(least, max_new_tokens),
      .min_p = drawn(min_p, folder.min_p, 0.0),
      .typical_p = drawn(typical_p, folder.typical_p, 1.0),
      .epsilon_cutoff = drawn(epsilon_cutoff, folder.epsilon_cutoff, 0.0),
      .eta_cutoff = drawn(eta_cutoff, folder.eta_cutoff, 0.0)};
  for (const std::string& text : bad_words)
    tokenizer.encode(text, out.rules.bad_words.emplace_back());
  return out;
}

engine::EarlyStopping early_stopping_from_name(std::string_view name) {
  if (name == "full") return engine::EarlyStopping::Full;
  if (name == "heuristic") return engine::EarlyStopping::Heuristic;
  TESSERA_REQUIRE(name == "never",
                  Config,
                  "--early-stopping " + std::string(name),
                  "expected full, heuristic or never");
  return engine::EarlyStopping::Never;
}

}  // namespace tessera::cli
