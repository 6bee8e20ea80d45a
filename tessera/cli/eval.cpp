// SPDX-License-Identifier: Apache-2.0
// tessera eval: loss, perplexity and bits per byte on held-out text.
#include <algorithm>
#include <cmath>
#include <optional>
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
#include "tessera/engine/engine.h"
#include "tessera/engine/evaluate.h"
#include "tessera/engine/open_model.h"

namespace tessera::cli {
namespace {

constexpr std::int64_t kMicroBatch = 8;  // for data that is no run's own

struct EvalWords {
  std::string path;
  std::vector<std::string> data;
  std::optional<std::int64_t> batches;
  RankWords ranks;
  Common common;
};

bool parse(EvalWords& words, const std::vector<std::string>& line) {
  Arguments arguments(
      "eval",
      "Measures a run's newest checkpoint, a checkpoint or a Hugging Face folder on held-out text.",
      {"tessera eval runs/my",
       "tessera eval runs/my --data other.txt",
       "tessera eval runs/my -n 4               for a model that no rank can hold",
       "tessera eval ./gpt2 --data my.jsonl --json"});
  arguments.positional("MODEL", &words.path, "Run, checkpoint or Hugging Face folder");
  arguments.option(
      "--data",
      &words.data,
      "Text, folder or .bin/.idx pair, as data.train takes them [the run's validation]");
  arguments.option("--batches", &words.batches, "Stop after so many batches [all of the data]");
  words.ranks.declare(arguments);
  arguments.common(words.common, /*has_json=*/true);
  return arguments.parse(line);
}

/// What is measured: samples, their batch size, and who owns them.
struct HeldOut {
  std::shared_ptr<const data::Datasets> datasets;
  std::unique_ptr<data::Dataset> own;
  const data::Dataset* dataset = nullptr;
  std::int64_t micro_batch = kMicroBatch;
};

HeldOut held_out(const EvalWords& words, const engine::OpenModel& opened) {
  HeldOut out;
  std::optional<planner::Plan> plan;
  if (opened.config)
    plan = planner::make_plan(*opened.config, opened.trained_on, opened.source.string());
  if (plan) out.micro_batch = plan->config.eval.micro_batch;
  if (words.data.empty()) {
    TESSERA_REQUIRE(plan.has_value(),
                    Config,
                    fmt::format("{} has no validation data of its own", words.path),
                    "name some with --data");
    out.datasets = engine::open_data(*plan, {});
    TESSERA_REQUIRE(out.datasets->validation != nullptr,
                    Config,
                    fmt::format("{} was trained without validation data", words.path),
                    "name some with --data");
    out.dataset = out.datasets->validation.get();
    return out;
  }
  const std::vector<std::filesystem::path> sources(words.data.begin(), words.data.end());
  const auto tokens = data::tokens_of(sources, *opened.tokenizer, {});
  tokens->check_ids(opened.shape.vocab_size);
  const std::int64_t wanted = plan ? plan->sequence_length : opened.shape.max_positions;
  const std::int64_t length = std::min(wanted, tokens->tokens() - 1);
  TESSERA_REQUIRE(length >= 1,
                  Data,
                  fmt::format("{} has {} tokens, too few to predict one from another",
                              words.data.front(),
                              tokens->tokens()),
                  "name more text");
  out.own = data::make_windows(tokens, 0, tokens->tokens(), length, length);
  out.dataset = out.own.get();
  return out;
}

/// Bytes of the text that the labels of the first `samples` samples stand for.
std::int64_t label_bytes(const data::Dataset& dataset,
                         std::int64_t samples,
                         const data::Tokenizer& tokenizer) {
  const auto length = static_cast<std::size_t>(dataset.length());
  std::vector<std::int64_t> ids(length), labels(length), mask(length);
  std::int64_t bytes = 0;
  for (std::int64_t s = 0; s < samples; ++s) {
    dataset.get(s, ids.data(), labels.data(), mask.data());
    for (const std::int64_t label : labels) {
      if (label >= 0)
        bytes +=
            static_cast<std::int64_t>(tokenizer.bytes_of(static_cast<std::int32_t>(label)).size());
    }
  }
  return bytes;
}

void print(const EvalWords& words,
           const engine::EvalReport& report,
           std::int64_t bytes,
           const std::string& source) {
  const double bits = bytes == 0 ? 0.0
                                 : report.loss * static_cast<double>(report.tokens) /
                                       static_cast<double>(bytes) / std::log(2.0);
  Terminal terminal;
  if (words.common.json) {
    json::Value out = json::Value::object();
    out["loss"] = json::Value::number(report.loss);
    out["perplexity"] = json::Value::number(std::exp(report.loss));
    out["bits_per_byte"] = json::Value::number(bits);
    out["tokens"] = json::Value::integer(report.tokens);
    out["model"] = json::Value::string(source);
    terminal.line(out.dump());
    return;
  }
  terminal.line(
      fmt::format("loss {:.4f} | perplexity {:.3f} | {:.4f} bits per byte | {} tokens | {}",
                  report.loss,
                  std::exp(report.loss),
                  bits,
                  text::with_commas(report.tokens),
                  source));
}

int eval(const std::vector<std::string>& line) {
  EvalWords words;
  if (!parse(words, line)) return kExitOk;
  TESSERA_REQUIRE(!words.batches || *words.batches > 0,
                  Config,
                  fmt::format("--batches {}: expected 1 or more", words.batches.value_or(0)),
                  "");
  auto found = engine::find_model(words.path);
  const HeldOut data = held_out(words, *found);
  const std::int64_t size = data.dataset->size();
  const std::int64_t samples =
      words.batches ? std::min(size, *words.batches * data.micro_batch) : size;
  return with_model(std::move(found),
                    words.ranks,
                    engine::ReadAs::F32,
                    [&](engine::OpenModel& model, bool speaks) {
                      const engine::EvalReport report = engine::evaluate(
                          *model.executor, *model.world, *data.dataset, samples, data.micro_batch);
                      if (!speaks) return;
                      print(words,
                            report,
                            label_bytes(*data.dataset, samples, *model.tokenizer),
                            model.source.string());
                    });
}

TESSERA_COMMAND("eval", "measure a trained model on held-out text", eval);

}  // namespace
}  // namespace tessera::cli
