// SPDX-License-Identifier: Apache-2.0
// Sinkhorn's scaling of a router's scores, which gives every expert about as many tokens of a
// micro-batch. Legend: N tokens, E experts.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera::ops {

/// Replaces each value by its sum over the ranks that share the tokens of a micro-batch; empty: one
/// rank has all of them.
using SumOverRanks = std::function<void(std::span<double>)>;

/// Returns the logarithms of the factors c_E that scale the columns of exp(logits_NE): rows and
/// columns are scaled by turns, rows to the sum 1 / N and columns to the sum 1 / E, until the
/// factors of the columns change by at most 1e-4 in the mean. A token's choices are the experts of
/// the largest exp(logit) c. N counts the tokens of all ranks, which call it together and get the
/// same bits. Cost: O(N E) for each of some tens of rounds. Source: Megatron-LM's sinkhorn() (Clark
/// et al. 2022, "Unified scaling laws for routed language models").
std::vector<double> sinkhorn_shifts(const float* logits_NE,
                                    std::int64_t num_tokens,
                                    std::int64_t num_experts,
                                    const SumOverRanks& sum = {});

}  // namespace tessera::ops
