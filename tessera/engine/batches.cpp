// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/batches.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::engine {

nn::Batch make_batch(const data::Dataset& dataset,
                     std::span<const std::int64_t> samples,
                     std::span<const std::int64_t> numbers) {
  TESSERA_ASSERT(samples.size() == numbers.size());
  const auto size = static_cast<std::int64_t>(samples.size());
  const std::int64_t length = dataset.length();
  const at::Tensor input_ids = at::empty({size, length}, at::kLong);
  const at::Tensor labels = at::empty({size, length}, at::kLong);
  const at::Tensor mask = at::empty({size, length}, at::kLong);
  bool padded = false;
  for (std::int64_t b = 0; b < size; ++b) {
    const std::int64_t at = b * length;
    padded |= dataset.get(samples[static_cast<std::size_t>(b)],
                          input_ids.data_ptr<std::int64_t>() + at,
                          labels.data_ptr<std::int64_t>() + at,
                          mask.data_ptr<std::int64_t>() + at);
  }
  nn::Batch batch;
  batch.set("input_ids", input_ids);
  batch.set("labels", labels);
  if (padded) batch.set("attention_mask", mask);
  if (dataset.separates_documents()) {
    const at::Tensor starts = at::empty({size, length}, at::kLong);
    for (std::int64_t b = 0; b < size; ++b) {
      dataset.document_starts(input_ids.data_ptr<std::int64_t>() + b * length,
                              starts.data_ptr<std::int64_t>() + b * length);
    }
    batch.set("document_starts", starts);
  }
  batch.sample_ids.assign(numbers.begin(), numbers.end());
  return batch;
}

nn::Batch prompt_batch(std::span<const std::int32_t> ids) {
  const std::vector<std::int32_t> text(ids.begin(), ids.end());
  return prompt_batch({&text, 1}, text.size());
}

nn::Batch prompt_batch(std::span<const std::vector<std::int32_t>> texts, std::size_t tokens) {
  at::Tensor input_ids = at::empty(
      {static_cast<std::int64_t>(texts.size()), static_cast<std::int64_t>(tokens)}, at::kLong);
  std::int64_t* to = input_ids.data_ptr<std::int64_t>();
  nn::Batch batch;
  for (const std::vector<std::int32_t>& text : texts) {
    TESSERA_ASSERT(text.size() >= tokens);
    to = std::copy(text.end() - static_cast<std::ptrdiff_t>(tokens), text.end(), to);
    batch.sample_ids.push_back(static_cast<std::int64_t>(batch.sample_ids.size()));
  }
  batch.set("input_ids", std::move(input_ids));
  return batch;
}

}  // namespace tessera::engine
