// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/score.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/embed.h"
#include "tessera/models/objective.h"

namespace tessera::engine {
namespace {

/// log(sum(exp(row))) in float64.
double log_sum_exp(const float* row, std::int64_t count) {
  const double most = *std::max_element(row, row + count);
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += std::exp(static_cast<double>(row[i]) - most);
  return most + std::log(sum);
}

/// The logits of a batch of one sequence of `length` tokens, fp32 [length * vocabulary] on the CPU.
at::Tensor logits_of(parallel::Executor& executor,
                     const models::Resolved& model,
                     const nn::Batch& batch,
                     std::int64_t length) {
  nn::StepContext context(nn::Mode::Prefill, 0);
  context.position = 0;
  context.cache_capacity = length;
  context.want_logits = true;
  const nn::Outcome outcome = executor.infer(batch, context);
  at::Tensor logits;
  if (const auto made = outcome.outputs.find("logits"); made != outcome.outputs.end())
    logits = made->second.to(at::kFloat).contiguous().view({-1});
  return executor.from_objective(logits, length * model.vocab_size).to(at::kCPU).contiguous();
}

/// The logarithm of the probability of `id` under a row of logits.
double log_probability(const float* row, std::int32_t id, std::int64_t vocab) {
  return static_cast<double>(row[id]) - log_sum_exp(row, vocab);
}

}  // namespace

std::vector<double> log_probabilities(parallel::Executor& executor,
                                      const models::Resolved& model,
                                      const std::vector<std::int32_t>& ids) {
  TESSERA_REQUIRE(
      !model.trunk.output.target,
      Unsupported,
      "a model that answers one text by another has no log-probabilities of a text alone",
      "give the text that it answers, too");
  const std::string& objective = model.objective.name;
  TESSERA_REQUIRE(model.trunk.output.causal,
                  Unsupported,
                  fmt::format("scores are log-probabilities of next tokens, and a model with the "
                              "objective {} sees them",
                              objective),
                  models::traits_of(objective).predicts == models::Predicts::HiddenToken
                      ? "measure the loss of masked tokens: tessera eval MODEL --data FILE --task "
                        "masked_lm"
                      : "score with a model that continues text");
  require_known_ids(ids, model);
  const auto size = static_cast<std::int64_t>(ids.size()), vocab = model.vocab_size;
  std::vector<double> out;
  std::int64_t begin = 0;
  while (static_cast<std::int64_t>(out.size()) + 1 < size) {
    const std::int64_t length = std::min(size - begin, model.max_positions);
    const at::Tensor logits =
        logits_of(executor,
                  model,
                  prompt_batch(std::span(ids).subspan(static_cast<std::size_t>(begin),
                                                      static_cast<std::size_t>(length))),
                  length);
    const float* rows = logits.data_ptr<float>();
    for (std::int64_t next = static_cast<std::int64_t>(out.size()) + 1; next < begin + length;
         ++next) {
      out.push_back(log_probability(
          rows + (next - 1 - begin) * vocab, ids[static_cast<std::size_t>(next)], vocab));
    }
    begin += std::max<std::int64_t>(1, length / 2);
    begin = std::min(begin, static_cast<std::int64_t>(out.size()));
  }
  return out;
}

std::vector<double> answer_log_probabilities(parallel::Executor& executor,
                                             const models::Resolved& model,
                                             const std::vector<std::int32_t>& source,
                                             const std::vector<std::int32_t>& target) {
  TESSERA_REQUIRE(model.trunk.output.target,
                  Unsupported,
                  "scoring pairs of a source and a target needs an encoder-decoder model",
                  "give it one text");
  require_known_ids(source, model);
  require_known_ids(target, model);
  if (target.empty()) return {};
  // The decoder reads the target shifted by one token, as in training.
  std::vector<std::int32_t> read = {
      static_cast<std::int32_t>(model.trunk.output.target->start_token)};
  read.insert(read.end(), target.begin(), target.end() - 1);
  const auto length = static_cast<std::int64_t>(read.size());
  const at::Tensor logits =
      logits_of(executor, model, answer_batch(source, {&read, 1}, read.size()), length);
  const float* row = logits.data_ptr<float>();
  std::vector<double> out;
  for (const std::int32_t id : target) {
    out.push_back(log_probability(row, id, model.vocab_size));
    row += model.vocab_size;
  }
  return out;
}

}  // namespace tessera::engine
