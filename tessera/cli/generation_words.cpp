// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/generation_words.h"

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

void GenerationWords::declare(Arguments& arguments) {
  arguments.option("--max-new-tokens", &max_new_tokens, "Maximum number of generated tokens [100]");
  arguments.option("--min-new-tokens", &min_new_tokens, "Minimum number of generated tokens [0]");
  arguments.option("--temperature", &temperature, "Sampling temperature; 0 is greedy [1.0]");
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
}

void GenerationWords::check() const {
  TESSERA_REQUIRE(max_new_tokens >= 0,
                  Config,
                  fmt::format("--max-new-tokens {} is negative", max_new_tokens),
                  "use 0 or more");
  TESSERA_REQUIRE(temperature >= 0,
                  Config,
                  fmt::format("--temperature {} is negative", temperature),
                  "use 0 for greedy text, 1.0 for the model's own distribution");
  TESSERA_REQUIRE(
      top_k >= 0, Config, fmt::format("--top-k {} is negative", top_k), "use 0 for all tokens");
  TESSERA_REQUIRE(top_p > 0 && top_p <= 1,
                  Config,
                  fmt::format("--top-p {} is not in (0, 1]", top_p),
                  "use 1.0 for all tokens");
  require(min_p >= 0 && min_p <= 1, "--min-p", min_p, "in [0, 1]");
  require(typical_p > 0 && typical_p <= 1, "--typical-p", typical_p, "in (0, 1]");
  require(
      epsilon_cutoff >= 0 && epsilon_cutoff < 1, "--epsilon-cutoff", epsilon_cutoff, "in [0, 1)");
  require(eta_cutoff >= 0 && eta_cutoff < 1, "--eta-cutoff", eta_cutoff, "in [0, 1)");
  require(repetition_penalty > 0, "--repetition-penalty", repetition_penalty, "above 0");
  require(
      no_repeat_ngram >= 0, "--no-repeat-ngram", static_cast<double>(no_repeat_ngram), "0 or more");
  TESSERA_REQUIRE(
      min_new_tokens >= 0 && min_new_tokens <= max_new_tokens,
      Config,
      fmt::format("--min-new-tokens {} with --max-new-tokens {}", min_new_tokens, max_new_tokens),
      "ask for at least as many tokens as must be made");
  const bool samples =
      top_k > 0 || top_p < 1 || min_p > 0 || typical_p < 1 || epsilon_cutoff > 0 || eta_cutoff > 0;
  TESSERA_REQUIRE(temperature > 0 ||
                      !(min_p > 0 || typical_p < 1 || epsilon_cutoff > 0 || eta_cutoff > 0) ||
                      !samples,
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

void GenerationWords::check_for_beams() const {
  // Temperature 0 does not sample either.
  const bool samples = (temperature != 1.0 && temperature != 0.0) || top_k > 0 || top_p < 1 ||
                       min_p > 0 || typical_p < 1 || epsilon_cutoff > 0 || eta_cutoff > 0;
  TESSERA_REQUIRE(!samples,
                  Config,
                  "beam search looks for the most likely text and draws nothing",
                  "drop --temperature, --top-k, --top-p, --min-p, --typical-p and the cut-offs, or "
                  "drop --beams");
  TESSERA_REQUIRE(stop.empty(), Config, "--stop with --beams", "use --stop-id, or drop --beams");
}

engine::GenerateOptions GenerationWords::options(const data::Tokenizer& tokenizer) const {
  engine::GenerateOptions out;
  out.max_new_tokens = max_new_tokens;
  out.sampler = {.temperature = temperature, .top_k = top_k, .top_p = top_p};
  out.seed = static_cast<std::uint64_t>(seed);
  out.ignore_eos = ignore_eos;
  out.stop_strings = stop;
  for (const std::string& word : stop_ids)
    out.stop_ids.push_back(stop_id(word));
  out.rules = {.repetition_penalty = repetition_penalty,
               .frequency_penalty = frequency_penalty,
               .presence_penalty = presence_penalty,
               .no_repeat_ngram = no_repeat_ngram,
               .bad_words = {},
               .min_new_tokens = min_new_tokens,
               .min_p = min_p,
               .typical_p = typical_p,
               .epsilon_cutoff = epsilon_cutoff,
               .eta_cutoff = eta_cutoff};
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
