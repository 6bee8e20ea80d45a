// SPDX-License-Identifier: Apache-2.0
// The sharing of every sample's tokens among ranks: which chunks of a sample, and which tensors of
// a batch, a rank holds.
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
class Objective;
class StepContext;

enum class ContextMode : std::uint8_t {
  /// Keys and values are passed around; each rank has an early and a late chunk, which balances the
  /// work under a causal mask.
  Ring,
  Ulysses  ///< ranks exchange tokens for heads before attention; each rank has one chunk
};

/// The group of ranks that share the tokens. Both pointers must outlive this struct.
struct ContextParallel {
  comm::World* world = nullptr;
  const comm::Group* group = nullptr;
  ContextMode mode = ContextMode::Ring;
};

/// Number of equal chunks into which a sample's tokens are split.
std::int64_t num_chunks(ContextMode mode, std::int64_t ranks);
/// The chunks of a rank, ascending; in a ring: i and 2 x ranks - 1 - i.
std::vector<std::int64_t> chunks_of(ContextMode mode, std::int64_t ranks, std::int64_t index);

/// This rank's tokens of x [B, T, ...], chunk after chunk. Throws Error{Shape} if T is not
/// divisible by the number of chunks.
at::Tensor own_tokens(const at::Tensor& x_BT, const ContextParallel& context);
/// The batch with only this rank's tokens, token types and labels; the labels stay complete if
/// `objective` reads whole samples. The attention mask and the document starts stay complete,
/// because queries see keys of other ranks.
Batch own_tokens(const Batch& batch,
                 const ContextParallel& context,
                 const Objective* objective = nullptr);

/// The inverse of own_tokens(), without a gradient: all tokens of x [B, T, ...], in their order, on
/// every rank. Costs an all-gather. Works on meta tensors.
at::Tensor all_tokens(const at::Tensor& own_BT, const ContextParallel& context);

/// The chunks of a sample that this rank holds inside tensor-parallel layers, in order; there the
/// tokens are not split further. Empty: the rank holds all.
std::vector<std::int64_t> own_chunks(const StepContext& context);
/// The equal parts of a sample that this rank holds between the layers, in order: its chunks, which
/// tensor-parallel ranks may split further. Empty: the rank holds all.
std::vector<std::int64_t> parts_of_sample(const StepContext& context);

}  // namespace tessera::nn
