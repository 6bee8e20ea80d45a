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

}  // namespace

std::vector<double> log_probabilities(parallel::Executor& executor,
                                      const models::Resolved& model,
                                      const std::vector<std::int32_t>& ids) {
  TESSERA_REQUIRE(!model.trunk.output.target,
                  Unsupported,
                  "the log-probabilities of a text alone, of a model that answers one text by "
                  "another",
                  "score it with tessera eval and pairs of texts");
  const std::string& objective = model.objective.name;
  TESSERA_REQUIRE(model.trunk.output.causal,
                  Unsupported,
                  fmt::format("scores are log-probabilities of next tokens, and a model with the "
                              "objective {} sees them",
                              objective),
                  objective.starts_with("masked_lm")
                      ? "measure the loss of masked tokens: tessera eval MODEL --data FILE --task "
                        "masked_lm"
                      : "score with a model that continues text");
  for (const std::int32_t id : ids) {
    TESSERA_REQUIRE(
        id >= 0 && id < model.vocab_size,
        Data,
        fmt::format("token {} is not below the model's vocabulary of {}", id, model.vocab_size),
        "use the tokenizer that the model was trained with");
  }
  const auto size = static_cast<std::int64_t>(ids.size()), vocab = model.vocab_size;
  std::vector<double> out;
  std::int64_t begin = 0;
  while (static_cast<std::int64_t>(out.size()) + 1 < size) {
    const std::int64_t length = std::min(size - begin, model.max_positions);
    nn::StepContext context(nn::Mode::Prefill, 0);
    context.position = 0;
    context.cache_capacity = length;
    context.want_logits = true;
    const nn::Outcome outcome =
        executor.infer(prompt_batch(std::span(ids).subspan(static_cast<std::size_t>(begin),
                                                           static_cast<std::size_t>(length))),
                       context);
    at::Tensor logits;
    if (const auto made = outcome.outputs.find("logits"); made != outcome.outputs.end())
      logits = made->second.to(at::kFloat).contiguous().view({-1});
    logits = executor.from_objective(logits, length * vocab).to(at::kCPU).contiguous();
    const float* rows = logits.data_ptr<float>();
    for (std::int64_t next = static_cast<std::int64_t>(out.size()) + 1; next < begin + length;
         ++next) {
      const float* row = rows + (next - 1 - begin) * vocab;
      out.push_back(static_cast<double>(row[ids[static_cast<std::size_t>(next)]]) -
                    log_sum_exp(row, vocab));
    }
    begin += std::max<std::int64_t>(1, length / 2);
    begin = std::min(begin, static_cast<std::int64_t>(out.size()));
  }
  return out;
}

}  // namespace tessera::engine
