// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/prefix_records.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tessera::tasks {

PrefixRecords::PrefixRecords(std::unique_ptr<RecordDataset> samples)
    : samples_(std::move(samples)) {
  count_in(*samples_);
}

std::vector<data::TensorSpec> PrefixRecords::tensors() const {
  std::vector<data::TensorSpec> out = samples_->tensors();
  out.push_back({.name = "prefix_lengths", .dtype = DType::I64});
  return out;
}

void PrefixRecords::read(std::int64_t index, data::SampleWriter& out) const {
  samples_->read(index, out);
  // Label t is the token after t: the prefix ends with the first token that has a label.
  const std::span<const std::int64_t> labels = out.tensor<std::int64_t>("labels");
  const auto first = std::ranges::find_if(labels, [](std::int64_t label) { return label >= 0; });
  const auto before = static_cast<std::int64_t>(first - labels.begin());
  out.set("prefix_lengths", std::min(before + 1, std::ssize(labels)));
}

std::string PrefixRecords::fingerprint() const {
  return samples_->fingerprint() + " prefix";
}

std::unique_ptr<RecordDataset> PrefixRecords::split_off(std::int64_t count) {
  return std::make_unique<PrefixRecords>(samples_->split_off(count));
}

}  // namespace tessera::tasks
