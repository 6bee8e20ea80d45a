// SPDX-License-Identifier: Apache-2.0
// Learns the pieces of a unigram language model from text. Source: Kudo 2018, "Subword
// regularization: improving neural network translation models with multiple subword candidates",
// section 3.2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/text/tokenizers/training.h"

namespace tessera::text::tokenizers {

struct UnigramOptions {
  std::int64_t pieces = 32000;  ///< most pieces; each character of the text is one in any case
  /// Number of substrings with which training starts.
  std::int64_t seeds = 1000000;
  int threads = 1;  ///< results do not depend on it
  std::function<void()> poll = {};
};

/// A piece and the logarithm of its probability.
using ScoredPiece = std::pair<std::string, double>;

/// Starts with the substrings of words with the largest products of frequency and length, finds
/// probabilities by expectation maximization, and drops in rounds the pieces whose removal costs
/// the text's likelihood least, until `pieces` are left. The result is sorted by decreasing
/// probability. Pieces have at most 16 characters and are within one word. Memory: 8 bytes for each
/// character of distinct words, and about 400 for each seed.
std::vector<ScoredPiece> learn_unigram(const PieceCounts& words, const UnigramOptions& options);

}  // namespace tessera::text::tokenizers
