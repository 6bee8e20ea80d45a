// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/completions.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/shared_values.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/step_context.h"
#include "tessera/nn/token_log_probabilities.h"

namespace tessera::engine::rl {
namespace {

/// The objective's logits of the token after each text, fp32 [texts, vocabulary] on the host.
at::Tensor next_logits(TrainState& state, const nn::Batch& batch, nn::StepContext& context) {
  const nn::Outcome outcome = state.executor().infer(batch, context);
  const auto made = outcome.outputs.find("logits");
  TESSERA_REQUIRE(made != outcome.outputs.end(),
                  Shape,
                  "the policy's objective gives no logits of texts that are being made",
                  "choose the task's own objective");
  return made->second.select(1, -1).to(at::kCPU, at::kFloat).contiguous();
}

/// Removes completions that have ended from the rows once they are a quarter: each removal copies
/// the cache of the others.
void leave_ended(const std::vector<Completion>& all,
                 std::vector<std::size_t>& rows,
                 std::vector<std::int64_t>& from) {
  const auto ended = [&](std::size_t row) { return all[row].ended; };
  const auto gone = std::ranges::count_if(rows, ended);
  if (4 * gone < std::ssize(rows)) return;
  std::vector<std::size_t> left;
  std::vector<std::int64_t> left_from;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (ended(rows[i])) continue;
    left.push_back(rows[i]);
    left_from.push_back(from[i]);
  }
  rows = std::move(left);
  from = std::move(left_from);
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
  // Completions of one prompt share its forward: row `source` of the prompts.
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::int64_t> source;
  for (const Draw& draw : draws) {
    if (prompts.empty() || !std::ranges::equal(prompts.back(), draw.prompt))
      prompts.emplace_back(draw.prompt.begin(), draw.prompt.end());
    TESSERA_ASSERT(prompts.back().size() == prompts.front().size());
    source.push_back(std::ssize(prompts) - 1);
  }
  const std::int64_t length = prompts.empty() ? 0 : std::ssize(prompts.front());
  nn::StepContext context(nn::Mode::Prefill, 0);
  context.cache_capacity = length + options.max_new_tokens;
  // Row i of the batch is completion rows[i], and continues row from[i] of the batch before.
  std::vector<std::size_t> rows(draws.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  std::vector<std::int64_t> from = source;
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const bool mine = !rows.empty();
    if (others ? !others(mine) : !mine) break;
    state.world().show_life();
    if (!mine) {
      state.executor().infer_nothing();
      continue;
    }
    nn::Batch batch;
    if (i == 0) {
      batch = prompt_batch(prompts, static_cast<std::size_t>(length));
    } else {
      std::vector<std::vector<std::int32_t>> last;
      for (const std::size_t row : rows)
        last.push_back({out[row].ids.back()});
      batch = prompt_batch(last, 1);
      batch.set(nn::kCacheRow, at::tensor(from, at::kLong));
      context.set_mode(nn::Mode::Decode);
    }
    context.position = i == 0 ? 0 : length + i - 1;
    at::Tensor logits_NV = next_logits(state, batch, context);
    if (i == 0 && std::ssize(rows) > std::ssize(prompts))
      logits_NV = logits_NV.index_select(0, at::tensor(source, at::kLong));
    const nn::NextDistributions next(logits_NV, options.distribution);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Completion& one = out[rows[row]];
      if (one.ended) {  // it remains until there are fewer rows
        one.ids.push_back(options.end);
        continue;
      }
      const auto at = static_cast<std::int64_t>(row);
      const std::int64_t id = next.draw(at, options.vocabulary, draws[rows[row]].seed, i);
      one.ids.push_back(static_cast<std::int32_t>(id));
      one.log_probabilities.push_back(next.log_probability(at, id));
      one.entropy += next.entropy(at);
      one.ended = id == options.end;
    }
    from = i == 0 ? source : std::vector<std::int64_t>(rows.size());
    if (i > 0) std::iota(from.begin(), from.end(), std::int64_t{0});
    leave_ended(out, rows, from);
  }
  for (Completion& one : out)
    one.ids.resize(one.log_probabilities.size());
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
