// SPDX-License-Identifier: Apache-2.0
// Samples of a dataset as the tensors of one micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"

namespace tessera::engine {

/// The tensors of `samples`, stacked: each tensor of the dataset with the samples as its first
/// dimension, an optional one only where one of these samples needs it. `numbers`: the number of
/// each sample in the whole run (the key of its dropout). There may be no samples.
nn::Batch make_batch(const data::Dataset& dataset,
                     std::span<const std::int64_t> samples,
                     std::span<const std::int64_t> numbers);
/// A batch of one text without labels, for generation.
nn::Batch prompt_batch(std::span<const std::int32_t> ids);
/// The last `tokens` of each of several texts that have so many.
nn::Batch prompt_batch(std::span<const std::vector<std::int32_t>> texts, std::size_t tokens);
/// The same of texts that answer `source`, for a decoder with an encoder: "decoder_input_ids" are
/// theirs, and "input_ids" the source in every row. An empty source: a cache has what the encoder
/// made of it.
nn::Batch answer_batch(std::span<const std::int32_t> source,
                       std::span<const std::vector<std::int32_t>> texts,
                       std::size_t tokens);

}  // namespace tessera::engine
