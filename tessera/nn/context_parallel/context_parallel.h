// SPDX-License-Identifier: Apache-2.0
// How ranks share the tokens of every sample: which chunks of it a rank has, and what of a batch.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::comm {
class World;
struct Group;
}  // namespace tessera::comm

namespace tessera::nn {

class Batch;
class StepContext;

enum class ContextMode : std::uint8_t {
  Ring,  ///< keys and values travel; a rank has an early and a late chunk, so that all see as many
  Ulysses  ///< before attention ranks exchange tokens for heads; a rank has one chunk
};

/// The ranks that share the tokens. Both pointers outlive it.
struct ContextParallel {
  comm::World* world = nullptr;
  const comm::Group* group = nullptr;
  ContextMode mode = ContextMode::Ring;
};

/// Chunks of one size that a sample's tokens are cut into.
std::int64_t num_chunks(ContextMode mode, std::int64_t ranks);
/// Those of a rank, ascending: i and 2 x ranks - 1 - i of a ring.
std::vector<std::int64_t> chunks_of(ContextMode mode, std::int64_t ranks, std::int64_t index);

/// This rank's tokens of x [B, T, ...], chunk after chunk. Error{Shape} where T does not divide.
at::Tensor own_tokens(const at::Tensor& x_BT, const ContextParallel& context);
/// The batch with this rank's tokens, their types and their labels; the attention mask and where
/// documents begin stay whole, because queries see the other ranks' keys.
Batch own_tokens(const Batch& batch, const ContextParallel& context);

/// The way back without a gradient: all tokens of x [B, T, ...], in their order, on every rank. An
/// all-gather. Works on meta.
at::Tensor all_tokens(const at::Tensor& own_BT, const ContextParallel& context);

/// Which of a sample's equal parts this rank has inside tensor-parallel layers, where the tokens
/// are not cut once more: its chunks, in order. Empty: it has all.
std::vector<std::int64_t> own_chunks(const StepContext& context);
/// Which of a sample's equal parts this rank has between the layers, in order: its chunks, of which
/// tensor-parallel ranks may share the tokens once more. Empty: it has all.
std::vector<std::int64_t> parts_of_sample(const StepContext& context);

}  // namespace tessera::nn
