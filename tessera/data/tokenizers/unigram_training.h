// SPDX-License-Identifier: Apache-2.0
// Learning the pieces of a unigram language model from text. Source: Kudo 2018, "Subword
// regularization: improving neural network translation models with multiple subword candidates",
// section 3.2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/tokenizers/training.h"

namespace tessera::data::tokenizers {

struct UnigramOptions {
  std::int64_t pieces = 32000;  ///< at most; each character of the text is one in any case
  /// Substrings that the learning begins with.
  std::int64_t seeds = 1000000;
  int threads = 1;  ///< no result depends on them
  std::function<void()> poll = {};
};

/// A piece and the logarithm of its probability.
using ScoredPiece = std::pair<std::string, double>;

/// Begins with the substrings of words that stand most often in them for their length, finds
/// probabilities by expectation maximization, and drops in rounds those pieces whose loss costs the
/// likelihood of the text least, until `pieces` are left. The result is sorted by falling
/// probability. Pieces have 16 characters at most and lie in one word. Memory: 8 bytes for each
/// character of different words, and some 400 for each seed.
std::vector<ScoredPiece> learn_unigram(const PieceCounts& words, const UnigramOptions& options);

}  // namespace tessera::data::tokenizers
