// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/pretraining_texts.h"

#include <vector>

#include "tessera/engine/batches.h"

namespace tessera::rlhf {
namespace {

/// The numbers of texts begin here, so that their dropout differs from that of completions.
constexpr std::int64_t kFirstNumber = std::int64_t{1} << 48;

}  // namespace

nn::Batch PretrainingTexts::samples(std::int64_t updates,
                                    std::int64_t first,
                                    std::int64_t end) const {
  std::vector<std::int64_t> samples, numbers;
  for (std::int64_t i = first; i < end; ++i) {
    const std::int64_t number = updates * each_ + i;
    samples.push_back(order_(number / texts_.size(), number % texts_.size()));
    numbers.push_back(kFirstNumber + number);
  }
  const nn::Batch read = engine::make_batch(texts_, samples, numbers);
  nn::Batch out;
  for (const auto& [name, tensor] : read.tensors())
    out.set(name == "labels" ? "text_labels" : name, tensor);
  out.sample_ids = read.sample_ids;
  return out;
}

}  // namespace tessera::rlhf
