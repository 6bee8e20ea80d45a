// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters: y = W x + scale * B (A dropout(x)), where W is frozen and A and B are trained.
// Sources: Hu et al. 2021, "LoRA: low-rank adaptation of large language models"; with a magnitude,
// Liu et al. 2024, "DoRA: weight-decomposed low-rank adaptation". The parameters have PEFT's names.
// Legend: R rank, I inputs, O outputs, V vocabulary, C channels.
//
// Where tensor-parallel ranks hold shares of the outputs of W, they hold the same shares of B and
// all of A; where they hold shares of its inputs, they hold the same shares of A and all of B. The
// additional communication therefore has only R channels. On a grid of ranks: grid_low_rank.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/tensor/param.h"

namespace tessera::nn {

/// An adapter of a weight [O..., I], or of a part of its outputs.
struct LowRankPart {
  std::string module;  ///< "model.layers.0.self_attn.q_proj": prefix of its parameters' names
  /// The box of outputs [O...] that the adapter covers. It may be smaller than all outputs in one
  /// dim at most, which must not be split over ranks.
  Shape begin, sizes;
  std::int64_t rank = 0;
  double scale = 1.0;    ///< multiplies B A x
  double dropout = 0.0;  ///< applied to x; none for a table
  /// DoRA: W + scale B A is divided by the norms of its rows, which are constants in the backward
  /// pass, and multiplied by a trained magnitude.
  bool magnitude = false;
};

/// The dim in which the part is smaller than the weight's outputs; -1 if it covers all outputs.
/// Throws Error{Unsupported} if the box is smaller in more than one dim.
int part_dim(const ParamInfo& weight, const LowRankPart& part);

/// Declares the parameters of the parts and gives the weight a layer form that applies them: A [R,
/// I] and B [O..., R] as `module`.lora_A.weight and .lora_B.weight, and a magnitude [O...] as
/// .lora_magnitude_vector. A is initialized uniformly, as a linear layer of PyTorch is, and B with
/// 0; the magnitude must be initialized with the norms of the rows of W. Parts must not overlap.
/// Throws Error{Unsupported} if the weight already has a form.
void add_low_rank(Params& params, Param& weight, std::vector<LowRankPart> parts);
/// The same for a table [V, C]: A [V, R], `module`.lora_embedding_A, is initialized with 0, and B
/// [C, R], .lora_embedding_B, from a normal distribution. The adapter applies to look-ups only, not
/// to a head that shares the table.
void add_low_rank_table(Params& params, Param& table, const LowRankPart& part);

/// Tensor of a batch, int64 [B]: the number of the adapter of each sample, from 0; -1: none.
inline constexpr const char* kAdapterNumber = "adapter_number";

/// One of several adapters of a weight: the parts of a matrix, or one part of a table; empty if the
/// adapter does not change the weight.
using LowRankChoice = std::vector<LowRankPart>;
/// Declares the parameters of several adapters of a weight, whose modules must differ, and gives
/// the weight a layer form that applies to each sample the one that kAdapterNumber names. Without
/// that tensor, layers compute the base. Only for models that are not trained. A sample's result
/// does not depend on the adapters of the others, as far as the product with W does not depend on
/// them. Cost: one product with W, and for each adapter in the batch its own products; where an
/// adapter has a magnitude, one product with W for each adapter in the batch. The layers' input
/// must have one row of its first dim per sample, else they throw Error{Unsupported}.
void add_low_rank_choice(Params& params, Param& weight, std::vector<LowRankChoice> adapters);
void add_low_rank_table_choice(Params& params, Param& table, std::vector<LowRankChoice> adapters);

/// While an object exists, the constructing thread computes layers without their adapters: the
/// model is its base. Destroy it on the same thread.
class WithoutAdapters {
 public:
  WithoutAdapters();
  ~WithoutAdapters();
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;
};

/// While an object exists, the constructing thread computes the products of weights with adapters
/// by one matrix each, W + scale B A (with a magnitude, its rows scaled), for inference: faster by
/// two small products, and rounded otherwise. Look-ups in tables are not changed. A matrix is made
/// at its first use and then kept, so that weights must not change while the object exists, and
/// must be held by this rank all the time. Memory: a copy of each weight that is used. Not on a
/// grid of ranks. Destroy it on the same thread.
class MergedAdapters {
 public:
  MergedAdapters();
  ~MergedAdapters();
  MergedAdapters(const MergedAdapters&) = delete;
  MergedAdapters& operator=(const MergedAdapters&) = delete;
  /// Returns the weight that `make` made for a form when this was called first.
  const Param& weight(const ParamExtension& form,
                      const std::function<std::unique_ptr<Param>()>& make);

 private:
  MergedAdapters* outer_;
  std::map<const ParamExtension*, std::unique_ptr<Param>> weights_;
};

}  // namespace tessera::nn
