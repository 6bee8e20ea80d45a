// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/completions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/shared_values.h"
#include "tessera/nn/step_context.h"
#include "tessera/nn/token_log_probabilities.h"
#include "tessera/ops/sampler.h"

namespace tessera::engine::rl {
namespace {

/// The objective's distributions of the token after each text, fp64 [texts, vocabulary].
at::Tensor next_distributions(TrainState& state, const nn::Batch& batch, nn::StepContext& context) {
  const nn::Outcome outcome = state.executor().infer(batch, context);
  const auto made = outcome.outputs.find("logits");
  TESSERA_REQUIRE(made != outcome.outputs.end(),
                  Shape,
                  "the policy's objective gives no logits of texts that are being made",
                  "choose the task's own objective");
  return made->second.select(1, -1).to(at::kCPU, at::kFloat).contiguous();
}

}  // namespace

std::vector<std::vector<std::int64_t>> units_of(std::span<const std::size_t> lengths,
                                                std::int64_t samples,
                                                std::int64_t prompts_at_once) {
  std::vector<std::vector<std::int64_t>> out;
  std::map<std::size_t, std::size_t> open;  // by length: the unit that is being filled
  for (std::size_t p = 0; p < lengths.size(); ++p) {
    const auto found = open.find(lengths[p]);
    if (found == open.end() || std::ssize(out[found->second]) >= prompts_at_once * samples) {
      open[lengths[p]] = out.size();
      out.emplace_back();
    }
    for (std::int64_t s = 0; s < samples; ++s)
      out[open[lengths[p]]].push_back(static_cast<std::int64_t>(p) * samples + s);
  }
  return out;
}

std::vector<Completion> draw_together(TrainState& state,
                                      std::span<const Draw> draws,
                                      const SamplingOptions& options,
                                      const std::function<bool(bool mine)>& others) {
  std::vector<Completion> out(draws.size());
  std::vector<std::vector<std::int32_t>> texts;
  for (const Draw& draw : draws) {
    texts.emplace_back(draw.prompt.begin(), draw.prompt.end());
    TESSERA_ASSERT(texts.back().size() == texts.front().size());
  }
  nn::StepContext context(nn::Mode::Prefill, 0);
  if (!texts.empty()) context.cache_capacity = std::ssize(texts.front()) + options.max_new_tokens;
  const auto goes_on = [](const Completion& one) { return !one.ended; };
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const bool mine = std::any_of(out.begin(), out.end(), goes_on);
    if (others ? !others(mine) : !mine) break;
    state.world().show_life();
    if (!mine) {
      state.executor().infer_nothing();
      continue;
    }
    const std::size_t tokens = i == 0 ? texts.front().size() : 1;
    if (i > 0) context.set_mode(nn::Mode::Decode);
    context.position = i == 0 ? 0 : std::ssize(texts.front()) - 1;
    const at::Tensor logits_BV = next_distributions(state, prompt_batch(texts, tokens), context);
    const at::Tensor log_p_BV = logits_BV.to(at::kDouble).div(options.temperature).log_softmax(1);
    const at::Tensor entropies_B = -(log_p_BV.exp() * log_p_BV).nan_to_num().sum(1);
    std::vector<std::int64_t> drawn(out.size(), 0);
    for (std::size_t b = 0; b < out.size(); ++b) {
      const auto row = static_cast<std::int64_t>(b);
      if (out[b].ended) {  // it continues to grow, unreported, so that all have the same length
        texts[b].push_back(options.end);
        continue;
      }
      const std::int64_t next = ops::sample_token(logits_BV.select(0, row),
                                                  options.vocabulary,
                                                  {.temperature = options.temperature},
                                                  draws[b].seed,
                                                  i);
      texts[b].push_back(static_cast<std::int32_t>(next));
      out[b].ids.push_back(static_cast<std::int32_t>(next));
      out[b].entropy += entropies_B[row].item<double>();
      drawn[b] = next;
    }
    const at::Tensor of_drawn_B =
        nn::label_log_probabilities_(logits_BV, at::tensor(drawn, at::kLong), options.temperature);
    for (std::size_t b = 0; b < out.size(); ++b) {
      if (out[b].ended) continue;
      out[b].log_probabilities.push_back(of_drawn_B[static_cast<std::int64_t>(b)].item<double>());
      out[b].ended = drawn[b] == options.end;
    }
  }
  return out;
}

Rows rows_of(std::span<const RowOf> rows, std::int64_t length, std::int32_t pad_id) {
  constexpr std::int64_t kUnlabelled = -100;
  const std::vector<std::int64_t> sizes = {std::ssize(rows), length};
  Rows out{at::full(sizes, static_cast<std::int64_t>(pad_id), at::kLong),
           at::full(sizes, kUnlabelled, at::kLong)};
  auto* ids = out.input_ids_BT.data_ptr<std::int64_t>();
  auto* labels = out.labels_BT.data_ptr<std::int64_t>();
  for (const RowOf& row : rows) {
    const std::int64_t prompt = std::ssize(row.prompt), all = prompt + std::ssize(row.completion);
    TESSERA_ASSERT(prompt > 0 && all <= length);
    std::ranges::copy(row.completion, std::ranges::copy(row.prompt, ids).out);
    std::ranges::copy(row.completion, labels + prompt - 1);
    ids += length;
    labels += length;
  }
  return out;
}

at::Tensor in_columns(const Rows& rows,
                      const std::function<double(std::int64_t row, std::int64_t token)>& value) {
  at::Tensor out_BT = at::zeros(rows.labels_BT.sizes(), at::kDouble);
  const auto* labels = rows.labels_BT.const_data_ptr<std::int64_t>();
  auto* to = out_BT.data_ptr<double>();
  const std::int64_t T = out_BT.size(1);
  for (std::int64_t b = 0; b < rows.size(); ++b) {
    for (std::int64_t t = 0, token = 0; t < T; ++t) {
      if (labels[b * T + t] >= 0) to[b * T + t] = value(b, token++);
    }
  }
  return out_BT;
}

at::Tensor output_of_rows(parallel::Executor& executor,
                          comm::World& world,
                          const Rows& rows,
                          std::int64_t micro_batch,
                          const char* name) {
  const std::int64_t size = rows.size(), T = rows.labels_BT.size(1);
  std::vector<double> values(static_cast<std::size_t>(size * T), 0.0);
  const comm::Group& group = world.group(mesh::AxisSet::dp());
  const auto compute = [&](std::int64_t first) {
    if (first >= size) return executor.infer_nothing();
    const std::int64_t count = std::min(micro_batch, size - first);
    nn::Batch batch;
    batch.set("input_ids", rows.input_ids_BT.narrow(0, first, count));
    batch.set("labels", rows.labels_BT.narrow(0, first, count));
    for (std::int64_t b = first; b < first + count; ++b)
      batch.sample_ids.push_back(b);
    nn::StepContext context(nn::Mode::Eval, 0);
    const nn::Outcome out = executor.infer(batch, context);
    world.show_life();
    world.transport().progress();
    const auto made = out.outputs.find(name);
    TESSERA_REQUIRE(made != out.outputs.end() && made->second.numel() == count * T,
                    Shape,
                    fmt::format("the objective gives no \"{}\" of every token", name),
                    "choose the task's own objective");
    const at::Tensor own = made->second.to(at::kCPU, at::kDouble).contiguous();
    std::copy_n(own.const_data_ptr<double>(), own.numel(), values.begin() + first * T);
  };
  for (std::int64_t first = 0; first < size; first += micro_batch * group.size())
    compute(first + micro_batch * group.index);
  share_values(world, values, "what a model says of completions");
  return at::tensor(values, at::kDouble).view({size, T});
}

}  // namespace tessera::engine::rl
