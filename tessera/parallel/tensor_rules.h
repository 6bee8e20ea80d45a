// SPDX-License-Identifier: Apache-2.0
// What ranks that share layers (parallel.tensor), or the tokens of a sample, require of a model.
// Problems have the place of the key to change.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "tessera/config/fields.h"
#include "tessera/nn/block.h"
#include "tessera/optim/options.h"
#include "tessera/parallel/options.h"

namespace tessera::parallel {

/// Modes other than 1d arrange their ranks in squares.
void check_grid(const TensorOptions& tensor,
                config::Problems& problems,
                const config::Origins& origins);
/// Every rank must have an equal number of heads, features, and so on, or at least one of them.
/// `knows`: whether the size with this key is known.
void check_cuts(const TensorOptions& tensor,
                const nn::Model& model,
                const std::function<bool(const char* key)>& knows,
                config::Problems& problems,
                const config::Origins& origins);
/// Reports layers of a program's own model that the ranks of `tensor` (mode 1d) cannot share.
void check_shared_layers(const TensorOptions& tensor,
                         const nn::Model& model,
                         config::Problems& problems);
/// Reports an optimizer that needs whole gradients, of which ranks that share layers have parts.
void check_shared_gradients(const optim::OptimizerOptions& optimizer,
                            config::Problems& problems,
                            const config::Origins& origins);
/// True if it is known how layers are split; problems with it were reported.
bool knows_cut(const TensorOptions& tensor, const config::Problems& problems);

/// Number of ranks, of `size` ranks in mode 1d, that have the same head of keys and values because
/// there are more ranks than such heads: 1 if there are enough heads, if they do not divide the
/// ranks, if some ranks would have no query, or if layers differ.
std::int64_t ranks_that_share_a_head(const nn::Model& model, std::int64_t size);
/// The grid of `size` ranks in a row that share every layer of a model (mode 1d).
TensorOptions::Grid ranks_in_a_row(const nn::Model& model, std::int64_t size);

/// The first block that may need all tokens of a sample between its layers; nullptr: none.
const nn::BlockSpec* block_of_all_tokens(const nn::Model& model);
std::string needs_all_tokens(const nn::BlockSpec& block);
inline constexpr const char* kSayByToken =
    ", or override nn::Block::works_by_token() where each token is worked on by itself";
/// The first block that a grid of ranks cannot split, and what of it; nullptr: none.
const nn::BlockSpec* block_off_grid(const nn::Model& model, std::string& obstacle);
/// The numbers of heads of the layers that have any.
std::set<std::int64_t> heads_of(const nn::Model& model);

}  // namespace tessera::parallel
