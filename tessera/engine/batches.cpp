// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/batches.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/dtype.h"

namespace tessera::engine {

nn::Batch make_batch(const data::Dataset& dataset,
                     std::span<const std::int64_t> samples,
                     std::span<const std::int64_t> numbers) {
  TESSERA_ASSERT(samples.size() == numbers.size());
  const auto size = static_cast<std::int64_t>(samples.size());
  std::vector<at::Tensor> tensors;
  std::vector<std::byte*> memory;
  for (const data::TensorSpec& spec : dataset.tensors()) {
    std::vector<std::int64_t> shape = {size};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    tensors.push_back(at::empty(shape, to_torch(spec.dtype)));
    memory.push_back(static_cast<std::byte*>(tensors.back().data_ptr()));
  }
  data::SampleWriter writer(dataset, std::move(memory));
  for (std::int64_t b = 0; b < size; ++b) {
    const auto at = static_cast<std::size_t>(b);
    writer.read(samples[at], b, numbers[at]);
  }
  nn::Batch batch;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (writer.has(i)) batch.set(writer.tensors()[i].name, std::move(tensors[i]));
  }
  batch.sample_ids.assign(numbers.begin(), numbers.end());
  return batch;
}

nn::Batch make_batch(comm::World& world,
                     const data::Dataset& dataset,
                     std::span<const std::int64_t> samples,
                     std::span<const std::int64_t> numbers) {
  const comm::ActivityScope reads(world, Activity::ReadData);
  return make_batch(dataset, samples, numbers);
}

std::int64_t padding_of(const nn::Batch& batch) {
  if (batch.size() == 0 || !batch.has("attention_mask")) return 0;
  return batch.tensor("attention_mask").eq(0).sum().item<std::int64_t>();
}

nn::Batch prompt_batch(std::span<const std::int32_t> ids) {
  const std::vector<std::int32_t> text(ids.begin(), ids.end());
  return prompt_batch({&text, 1}, text.size());
}

namespace {

/// The last `tokens` of each sequence, [sequences, tokens].
at::Tensor ends_of(std::span<const std::vector<std::int32_t>> texts, std::size_t tokens) {
  at::Tensor ids = at::empty(
      {static_cast<std::int64_t>(texts.size()), static_cast<std::int64_t>(tokens)}, at::kLong);
  std::int64_t* to = ids.data_ptr<std::int64_t>();
  for (const std::vector<std::int32_t>& text : texts) {
    TESSERA_ASSERT(text.size() >= tokens);
    to = std::copy(text.end() - static_cast<std::ptrdiff_t>(tokens), text.end(), to);
  }
  return ids;
}

nn::Batch batch_of_texts(std::size_t count) {
  nn::Batch batch;
  for (std::size_t i = 0; i < count; ++i)
    batch.sample_ids.push_back(static_cast<std::int64_t>(i));
  return batch;
}

}  // namespace

nn::Batch prompt_batch(std::span<const std::vector<std::int32_t>> texts, std::size_t tokens) {
  nn::Batch batch = batch_of_texts(texts.size());
  batch.set("input_ids", ends_of(texts, tokens));
  return batch;
}

nn::Batch answer_batch(std::span<const std::int32_t> source,
                       std::span<const std::vector<std::int32_t>> texts,
                       std::size_t tokens) {
  const std::vector<std::vector<std::int32_t>> sources(texts.size(),
                                                       {source.begin(), source.end()});
  nn::Batch batch = batch_of_texts(texts.size());
  batch.set("input_ids", ends_of(sources, source.size()));
  batch.set("decoder_input_ids", ends_of(texts, tokens));
  return batch;
}

}  // namespace tessera::engine
