// SPDX-License-Identifier: Apache-2.0
// Converts samples of a dataset to the tensors of one micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/data/dataset.h"
#include "tessera/nn/block.h"

namespace tessera::engine {

/// Stacks the tensors of `samples`: each tensor of the dataset gets the samples as its first
/// dimension; an optional tensor is present only if one of these samples needs it. `numbers`: the
/// number of each sample in the whole run, which keys its dropout. `samples` may be empty.
nn::Batch make_batch(const data::Dataset& dataset,
                     std::span<const std::int64_t> samples,
                     std::span<const std::int64_t> numbers);
/// The same as an Activity::ReadData of this rank.
nn::Batch make_batch(comm::World& world,
                     const data::Dataset& dataset,
                     std::span<const std::int64_t> samples,
                     std::span<const std::int64_t> numbers);
/// The number of positions of a batch that are padding.
std::int64_t padding_of(const nn::Batch& batch);
/// A batch of one sequence without labels, for generation.
nn::Batch prompt_batch(std::span<const std::int32_t> ids);
/// The last `tokens` tokens of each of several sequences, which must have at least that many.
nn::Batch prompt_batch(std::span<const std::vector<std::int32_t>> texts, std::size_t tokens);
/// The same for sequences that answer `source`, for an encoder-decoder model: "decoder_input_ids"
/// are theirs, and "input_ids" has the source in every row. If `source` is empty, a cache holds the
/// encoder's output.
nn::Batch answer_batch(std::span<const std::int32_t> source,
                       std::span<const std::vector<std::int32_t>> texts,
                       std::size_t tokens);

}  // namespace tessera::engine
