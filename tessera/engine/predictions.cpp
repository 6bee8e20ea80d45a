// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/predictions.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::engine {
namespace {

void append(const at::Tensor& tensor, std::vector<float>& out) {
  const at::Tensor values = tensor.to(at::kCPU).to(at::kFloat).contiguous();
  out.insert(out.end(), values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
}

/// [rows, width] of what has a row for each sample, or for each token.
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
    if (logits.size(0) > samples.size()) {  // of tokens
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
  // Sizes first. Every entry is written by one rank and is zero elsewhere, so that sums are exact.
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

}  // namespace tessera::engine
