// SPDX-License-Identifier: Apache-2.0
// Data for benchmarks: uniform random tokens that are a function of the index and contain nothing
// to learn.
#pragma once

#include <cstdint>

#include "tessera/data/token_dataset.h"

namespace tessera::engine {

/// Usable from any thread.
class RandomTokens final : public data::TokenDataset {
 public:
  /// Tokens are below `vocab`.
  RandomTokens(std::int64_t length, std::int64_t vocab) : length_(length), vocab_(vocab) {}
  [[nodiscard]] std::int64_t size() const override { return std::int64_t{1} << 20; }
  [[nodiscard]] std::int64_t length() const override { return length_; }
  bool get(std::int64_t index,
           std::int64_t* ids,
           std::int64_t* labels,
           std::int64_t* mask) const override;

 private:
  std::int64_t length_, vocab_;
};

}  // namespace tessera::engine
