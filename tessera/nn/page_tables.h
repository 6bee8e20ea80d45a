// SPDX-License-Identifier: Apache-2.0
// Assigns the pages of a paged KV cache to sequences. Sequences share the pages of a common prefix;
// a shared page is copied before one of them writes into it. One table serves all blocks of a
// model, each of which has its own memory for the same pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/nn/cache_form.h"

namespace tessera::nn {

class PageTables {
 public:
  explicit PageTables(std::int64_t page_tokens, CacheForm form = CacheForm::Same)
      : page_tokens_(page_tokens), form_(form) {}
  /// Returns the number of a new sequence with pages for `tokens` tokens. Numbers of sequences that
  /// have ended are used again, as are pages, the lowest first.
  std::size_t begin(std::int64_t tokens);
  /// Returns a new sequence that shares all pages of another one.
  std::size_t fork(std::size_t sequence);
  /// Provides a page for `position` that no other sequence has: position may be at most one token
  /// behind the last one. Throws Error{Bug} for a position further on.
  void make_room(std::size_t sequence, std::int64_t position);
  /// Frees the pages that no other sequence has.
  void end(std::size_t sequence);
  /// Sets kPageTable and kPageForm of the batch to those of `rows`, and kPageCopies to the copies
  /// that make_room() has decided since the last call, if there are any.
  void describe(std::span<const std::size_t> rows, Batch& batch);
  /// Returns the number of pages that sequences have.
  [[nodiscard]] std::int64_t used() const;

 private:
  std::int64_t take();
  void give_back(std::int64_t page);
  std::size_t add(std::vector<std::int64_t> pages);
  std::int64_t page_tokens_;
  CacheForm form_;
  std::vector<std::vector<std::int64_t>> sequences_;
  std::vector<bool> open_;             ///< of each sequence
  std::vector<std::int64_t> sharing_;  ///< number of sequences that have the page
  std::vector<std::pair<std::int64_t, std::int64_t>> copies_;
};

}  // namespace tessera::nn
