// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/predictions.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/nn/step_context.h"

namespace tessera::engine {
namespace {

void append(const at::Tensor& tensor, std::vector<float>& out) {
  const at::Tensor values = tensor.to(at::kCPU).to(at::kFloat).contiguous();
  out.insert(out.end(), values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
}

/// [rows, width] of a tensor with one row per sample, or per token.
at::Tensor rows_of(const at::Tensor& tensor, std::int64_t rows) {
  return tensor.reshape({rows, tensor.numel() / std::max<std::int64_t>(rows, 1)});
}

}  // namespace

void PredictionsOfBatches::add(std::size_t batch,
                               const nn::Outcome& outcome,
                               const nn::Batch& samples) {
  const auto found = outcome.outputs.find("logits");
  if (found == outcome.outputs.end()) return;
  at::Tensor logits = found->second;
  const char* const name = samples.has("label") ? "label" : "labels";
  const bool labelled = samples.has(name);
  std::int64_t rows = logits.numel() / logits.size(-1);
  logits = rows_of(logits, rows);
  at::Tensor labels;
  if (labelled) {
    labels = rows_of(samples.tensor(name), rows);
    if (logits.size(0) > samples.size()) {  // one row per token
      const at::Tensor kept = labels.select(1, 0).ge(0);
      logits = logits.index({kept.to(logits.device())});
      labels = labels.index({kept});
    }
  }
  tasks::Predictions& out = batches_.at(batch);
  out.width = logits.size(1);
  append(logits, out.values);
  if (!labelled) return;
  out.label_width = labels.size(1);
  append(labels, out.labels);
}

tasks::Predictions PredictionsOfBatches::gather(comm::World& world,
                                                const comm::Group& group) const {
  // Sizes are exchanged first. One rank writes each entry and the others have zero, so the sums are
  // exact.
  std::vector<double> sizes;
  for (const tasks::Predictions& batch : batches_) {
    sizes.insert(sizes.end(),
                 {static_cast<double>(batch.rows()),
                  static_cast<double>(batch.width),
                  static_cast<double>(batch.label_width)});
  }
  sizes = world.all_reduce(
      group, std::move(sizes), comm::Op::Sum, TESSERA_HERE("sizes of predictions"));
  tasks::Predictions out;
  std::size_t values = 0, labels = 0;
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    const auto rows = static_cast<std::size_t>(sizes[3 * i]);
    out.width = std::max(out.width, static_cast<std::int64_t>(sizes[3 * i + 1]));
    out.label_width = std::max(out.label_width, static_cast<std::int64_t>(sizes[3 * i + 2]));
    values += rows * static_cast<std::size_t>(sizes[3 * i + 1]);
    labels += rows * static_cast<std::size_t>(sizes[3 * i + 2]);
  }
  std::vector<double> all(values + labels, 0.0);
  std::size_t at_value = 0, at_label = values;
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    std::ranges::copy(batches_[i].values, all.begin() + static_cast<std::ptrdiff_t>(at_value));
    std::ranges::copy(batches_[i].labels, all.begin() + static_cast<std::ptrdiff_t>(at_label));
    const auto rows = static_cast<std::size_t>(sizes[3 * i]);
    at_value += rows * static_cast<std::size_t>(sizes[3 * i + 1]);
    at_label += rows * static_cast<std::size_t>(sizes[3 * i + 2]);
  }
  all = world.all_reduce(group, std::move(all), comm::Op::Sum, TESSERA_HERE("predictions"));
  out.values.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(values));
  out.labels.assign(all.begin() + static_cast<std::ptrdiff_t>(values), all.end());
  return out;
}

namespace {

/// The rows of the predictions that belong to each sample.
std::vector<std::int64_t> rows_of_samples(const data::Dataset& dataset,
                                          std::int64_t first,
                                          std::int64_t last) {
  const std::vector<data::TensorSpec> specs = dataset.tensors();
  const bool of_tokens = std::ranges::find(specs, "labels", &data::TensorSpec::name) != specs.end();
  std::vector<std::int64_t> out(static_cast<std::size_t>(last - first), 1);
  for (std::int64_t i = first; of_tokens && i < last; ++i) {
    data::Sample sample(dataset, i);
    out[static_cast<std::size_t>(i - first)] = std::ranges::count_if(
        sample.values<std::int64_t>("labels"), [](std::int64_t label) { return label >= 0; });
  }
  return out;
}

}  // namespace

void predict(parallel::Executor& executor,
             comm::World& world,
             const data::Dataset& dataset,
             std::int64_t first,
             std::int64_t micro_batch,
             const std::function<void(std::int64_t sample, const tasks::Predictions& rows)>& sink) {
  TESSERA_REQUIRE(executor.model().context_parallel() == nullptr,
                  Unsupported,
                  "predictions of a model whose ranks share the tokens of a sample",
                  "leave out parallel.context");
  const comm::Group& group = world.group(mesh::AxisSet::dp());
  const comm::Group& all = world.group(mesh::AxisSet{mesh::Axis::Pp} | mesh::AxisSet::tokens());
  constexpr std::int64_t kRounds = 8;  // batches between two exchanges
  const std::int64_t window = kRounds * group.size() * micro_batch;
  for (std::int64_t begin = first; begin < dataset.size(); begin += window) {
    const std::int64_t end = std::min(dataset.size(), begin + window);
    const std::int64_t batches = (end - begin + micro_batch - 1) / micro_batch;
    PredictionsOfBatches made(static_cast<std::size_t>(batches));
    for (std::int64_t round = 0; round < batches; round += group.size()) {
      const std::int64_t batch = round + group.index;
      if (batch >= batches) {
        executor.infer_nothing();
        continue;
      }
      std::vector<std::int64_t> indices;
      for (std::int64_t i = begin + batch * micro_batch;
           i < std::min(end, begin + (batch + 1) * micro_batch);
           ++i)
        indices.push_back(i);
      nn::StepContext context(nn::Mode::Eval, 0);
      context.want_logits = true;
      const nn::Batch samples = make_batch(world, dataset, indices, indices);
      made.add(static_cast<std::size_t>(batch), executor.infer(samples, context), samples);
      world.show_life();
      world.transport().progress();
    }
    const tasks::Predictions rows = made.gather(world, all);
    const std::vector<std::int64_t> counts = rows_of_samples(dataset, begin, end);
    auto at = rows.values.begin();
    for (std::int64_t i = begin; i < end; ++i) {
      const auto values = counts[static_cast<std::size_t>(i - begin)] * rows.width;
      tasks::Predictions one{.width = rows.width, .label_width = 0, .values = {}, .labels = {}};
      one.values.assign(at, at + values);
      at += values;
      sink(i, one);
    }
  }
}

}  // namespace tessera::engine
