// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/completions.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/shared_values.h"
#include "tessera/nn/step_context.h"

namespace tessera::rlhf {
namespace {

// Length, end, entropy, prompt, round, halves of the seed, lag; then ids and log-probabilities.
constexpr std::size_t kFacts = 8;

}  // namespace

std::size_t numbers_of_completion(std::int64_t longest) {
  return kFacts + 2 * static_cast<std::size_t>(longest);
}

void to_numbers(const Completion& completion, std::int64_t longest, double* to) {
  TESSERA_ASSERT(std::ssize(completion.ids) <= longest &&
                 completion.ids.size() == completion.log_probabilities.size());
  to[0] = static_cast<double>(completion.ids.size());
  to[1] = completion.ended ? 1.0 : 0.0;
  to[2] = completion.entropy;
  to[3] = static_cast<double>(completion.prompt);
  to[4] = static_cast<double>(completion.round);
  to[5] = static_cast<double>(completion.seed >> 32U);
  to[6] = static_cast<double>(completion.seed & 0xffffffffU);
  to[7] = static_cast<double>(completion.lag);
  std::ranges::copy(completion.ids, to + kFacts);
  std::ranges::copy(completion.log_probabilities, to + kFacts + longest);
}

Completion completion_of_numbers(const double* from, std::int64_t longest) {
  const auto size = static_cast<std::size_t>(from[0]);
  Completion out;
  out.ended = from[1] > 0;
  out.entropy = from[2];
  out.prompt = static_cast<std::int64_t>(from[3]);
  out.round = static_cast<std::int64_t>(from[4]);
  out.seed = static_cast<std::uint64_t>(from[5]) << 32U | static_cast<std::uint64_t>(from[6]);
  out.lag = static_cast<std::int64_t>(from[7]);
  out.ids.resize(size);
  std::transform(from + kFacts, from + kFacts + size, out.ids.begin(), [](double id) {
    return static_cast<std::int32_t>(id);
  });
  const double* const values = from + kFacts + longest;
  out.log_probabilities.assign(values, values + size);
  return out;
}

std::vector<std::vector<std::int64_t>> units_of(std::int64_t prompts,
                                                std::int64_t samples,
                                                std::int64_t prompts_at_once) {
  std::vector<std::vector<std::int64_t>> out;
  for (std::int64_t p = 0; p < prompts; ++p) {
    if (p % prompts_at_once == 0) out.emplace_back();
    for (std::int64_t s = 0; s < samples; ++s)
      out.back().push_back(p * samples + s);
  }
  return out;
}

std::int64_t Rows::columns(std::int64_t first, std::int64_t count) const {
  constexpr std::int64_t kMultiple = 16;
  std::int64_t longest = 1;
  for (std::int64_t b = first; b < first + count; ++b)
    longest = std::max(longest, lengths[static_cast<std::size_t>(b)]);
  return std::min((longest + kMultiple - 1) / kMultiple * kMultiple, input_ids_BT.size(1));
}

Rows rows_of(std::span<const RowOf> rows, std::int64_t length, std::int32_t pad_id) {
  constexpr std::int64_t kUnlabelled = -100;
  const std::vector<std::int64_t> sizes = {std::ssize(rows), length};
  Rows out{at::full(sizes, static_cast<std::int64_t>(pad_id), at::kLong),
           at::full(sizes, kUnlabelled, at::kLong),
           {}};
  auto* ids = out.input_ids_BT.data_ptr<std::int64_t>();
  auto* labels = out.labels_BT.data_ptr<std::int64_t>();
  for (const RowOf& row : rows) {
    const std::int64_t prompt = std::ssize(row.prompt), all = prompt + std::ssize(row.completion);
    TESSERA_ASSERT(prompt > 0 && all <= length);
    std::ranges::copy(row.completion, std::ranges::copy(row.prompt, ids).out);
    std::ranges::copy(row.completion, labels + prompt - 1);
    out.lengths.push_back(all);
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
    const std::int64_t columns = rows.columns(first, count);
    const auto part = [&](const at::Tensor& of_BT) {
      return of_BT.narrow(0, first, count).narrow(1, 0, columns).contiguous();
    };
    nn::Batch batch;
    batch.set("input_ids", part(rows.input_ids_BT));
    batch.set("labels", part(rows.labels_BT));
    for (std::int64_t b = first; b < first + count; ++b)
      batch.sample_ids.push_back(b);
    nn::StepContext context(nn::Mode::Eval, 0);
    const nn::Outcome out = executor.infer(batch, context);
    world.show_life();
    world.transport().progress();
    const auto made = out.outputs.find(name);
    TESSERA_REQUIRE(made != out.outputs.end() && made->second.numel() == count * columns,
                    Shape,
                    fmt::format("the objective gives no \"{}\" of every token", name),
                    "choose the task's own objective");
    const at::Tensor own = made->second.to(at::kCPU, at::kDouble).contiguous();
    const auto* from = own.const_data_ptr<double>();
    for (std::int64_t b = first; b < first + count; ++b, from += columns)
      std::copy_n(from, columns, values.begin() + b * T);
  };
  for (std::int64_t first = 0; first < size; first += micro_batch * group.size())
    compute(first + micro_batch * group.index);
  engine::share_values(world, values, "what a model says of completions");
  return at::tensor(values, at::kDouble).view({size, T});
}

}  // namespace tessera::rlhf
