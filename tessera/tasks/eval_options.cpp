// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/eval_options.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/config/choices.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/text_scores.h"

namespace tessera::tasks {
namespace {

constexpr double kMostMicroBatch = 1e5;
constexpr const char* kBest = "eval.best";
constexpr auto kWeights = std::to_array<config::Named<EvalWeights>>(
    {{EvalWeights::Trained, "trained"}, {EvalWeights::Ema, "ema"}});

enum class BestMode : std::uint8_t { Min, Max };
constexpr auto kBestModes =
    std::to_array<config::Named<BestMode>>({{BestMode::Min, "min"}, {BestMode::Max, "max"}});

/// The object form of eval.best.
struct BestForm {
  std::string metric = "loss";
  std::optional<BestMode> mode;
  void describe(config::Fields& f) {
    f.field("metric", metric, {.text = "Name of the metric."});
    f.choice("mode",
             mode,
             kBestModes,
             {.text = "Whether lower (min) or higher (max) values are better."});
  }
};

BestForm words_of(const json::Value& best, config::Problems& problems) {
  BestForm words;
  if (best.is_string()) words.metric = best.as_string();
  if (best.is_object()) {
    config::Origins origins;
    config::read(best, words, problems, origins);
  }
  return words;
}

}  // namespace

bool higher_is_better(std::string_view metric) {
  static constexpr auto kLow = std::to_array<std::string_view>(
      {"loss", "perplexity", "error", "mse", "rmse", "mae", "distance", "bits_per_byte"});
  const std::string lower = text::lower(metric);
  return std::none_of(
      kLow.begin(), kLow.end(), [&](std::string_view end) { return lower.ends_with(end); });
}

BestRule EvalOptions::rule() const {
  config::Problems ignored;
  const BestForm words = words_of(best, ignored);
  return {words.metric, words.mode ? *words.mode == BestMode::Max : higher_is_better(words.metric)};
}

void EvalOptions::describe(config::Fields& f) {
  f.field(
      "every",
      every,
      {.text = "Evaluate every N steps, or after every share of them (0.1), or with \"epoch\" at "
               "the end of every epoch, and at the end of training; 0 disables evaluation.",
       .unit = "steps",
       .min = 0,
       .type = "number or \"epoch\""});
  f.field("test_every",
          test_every,
          {.text = "Also evaluate data.test every N steps, or with \"epoch\" at the end of every "
                   "epoch, with the weights of that step; 0 evaluates it only once, after the "
                   "training.",
           .unit = "steps",
           .min = 0,
           .type = "number or \"epoch\""});
  f.field("batches",
          batches,
          {.text = "Number of validation batches per evaluation.",
           .unit = "batches",
           .min = 1,
           .default_text =
               "10; all of them for tasks with metrics of their own, and with early stopping"});
  f.field("micro_batch",
          micro_batch,
          {.text = "Number of sequences per evaluation batch; it does not depend on the layout.",
           .unit = "sequences",
           .min = 1,
           .max = kMostMicroBatch});
  f.field(
      "best",
      best,
      {.text = "The metric that decides which evaluation is the best: its name, such as "
               "\"accuracy\", or {\"metric\": \"f1\", \"mode\": \"max\"}. Without a mode, higher "
               "values are better, except of losses, perplexities and errors.",
       .default_text = "loss",
       .type = "string or object"});
  f.field("patience",
          patience,
          {.text = "Stop training after this number of consecutive evaluations without a gain.",
           .unit = "evaluations",
           .min = 1,
           .default_text = "no early stop"});
  f.field("patience_steps",
          patience_steps,
          {.text = "Stop training at an evaluation if the last gain was this number of steps "
                   "(batches) ago or more.",
           .unit = "steps",
           .min = 1,
           .default_text = "no early stop"});
  f.field("min_gain",
          min_gain,
          {.text = "Patience counts an evaluation as a gain only if it is better than the best "
                   "one so far by more than this.",
           .min = 0});
  f.field("generate",
          generate,
          {.text = "Let the model answer this number of validation samples (and of samples of "
                   "data.test) greedily at each evaluation, with at most eval.max_new_tokens "
                   "tokens each, and report exact_match, rouge1, rouge2, rougeL and bleu, which "
                   "eval.best may name. For the tasks seq2seq and sft.",
           .unit = "samples",
           .min = 0});
  f.choice("weights",
           weights,
           kWeights,
           {.text = "Evaluate the weights that are trained, or their moving average (trainer.ema); "
                    "also for the sample text and data.test."});
  f.field("prompt",
          prompt,
          {.text = "Prompt whose continuation is printed at every evaluation.",
           .default_text = "none"});
  f.field("max_new_tokens",
          max_new_tokens,
          {.text = "Length of the continuation, and of an answer at most (eval.generate).",
           .unit = "tokens",
           .min = 1,
           .max = 1e6});
  f.field("top_k",
          top_k,
          {.text = "Sample among the k most likely tokens; 0 uses all tokens, 1 is greedy.",
           .min = 0,
           .default_text = "40, or all of fewer"});
  f.field(
      "temperature",
      temperature,
      {.text = "Sampling temperature; 0 is greedy.", .min = 0, .max = 100, .default_text = "0.8"});
}

void check_eval(const EvalOptions& options,
                config::Problems& problems,
                const config::Origins& origins) {
  config::check_cadence(options.every, "eval.every", problems);
  config::check_cadence(options.test_every, "eval.test_every", problems);
  if (!options.best.is_null() && !options.best.is_string() && !options.best.is_object()) {
    problems.add(options.best.place,
                 kBest,
                 fmt::format("expected the name of a metric or an object, found {}",
                             options.best.type_name()),
                 R"(write "accuracy", or {"metric": "loss", "mode": "min"})");
    return;
  }
  config::Problems part;
  const BestForm words = words_of(options.best, part);
  problems.adopt(part, kBest);
  if (part.empty() && words.metric.empty())
    problems.add(options.best.place, kBest, "names no metric", R"(write "loss" or "accuracy")");
  if (options.min_gain > 0 && !options.stops_early()) {
    problems.add(origins.place("eval.min_gain"),
                 "eval.min_gain",
                 "has no effect without eval.patience or eval.patience_steps",
                 "set one of them, or remove eval.min_gain");
  }
  if (options.when().any() || problems.concern("eval.every")) return;
  for (const char* key : {"eval.patience", "eval.patience_steps", kBest}) {
    if (!origins.given(key)) continue;
    problems.add(origins.place(key),
                 key,
                 "has no effect without evaluations: eval.every is 0",
                 fmt::format("set eval.every, or remove {}", key));
  }
}

void check_answers(const EvalOptions& options,
                   const Task& task,
                   const data::DataOptions& data,
                   config::Problems& problems,
                   const config::Origins& origins) {
  constexpr const char* kGenerate = "eval.generate";
  const bool has_answers = task.has_answers();
  const auto refuse = [&](const char* key, std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  if (options.generate == 0) {
    const std::string metric = options.rule().metric;
    if (std::ranges::find(kTextScores, metric) != kTextScores.end() && has_answers) {
      refuse(kBest,
             fmt::format("{} is a score of answers, and the model writes none", metric),
             "set eval.generate to the number of samples to answer, such as 100");
    }
    return;
  }
  if (!has_answers) {
    refuse(kGenerate,
           "samples of this task have no answer that a model could write",
           "remove it; it is for the tasks seq2seq and sft");
  } else if (task.packs_records() && data.pack) {
    refuse(kGenerate,
           "samples may hold several texts, because data.pack is true",
           "set data.pack to false, or remove eval.generate");
  } else if (!options.when().any() && data.test.empty()) {
    refuse(kGenerate,
           "has no effect without evaluations: eval.every is 0, and data.test is not given",
           "set eval.every, or remove eval.generate");
  }
}

void settle_sampling(EvalOptions& options, std::int64_t vocab, const config::Origins& origins) {
  constexpr std::int64_t kTopK = 40;
  constexpr double kTemperature = 0.8;
  if (!origins.given("eval.top_k")) options.top_k = vocab > 0 ? std::min(kTopK, vocab) : kTopK;
  if (!origins.given("eval.temperature")) options.temperature = kTemperature;
}

}  // namespace tessera::tasks
