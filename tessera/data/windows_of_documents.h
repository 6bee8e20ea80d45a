// SPDX-License-Identifier: Apache-2.0
// Windows of a token stream that never contain tokens of two documents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/data/token_dataset.h"

namespace tessera::data {

/// A document is what lies between two end-of-text tokens. Its windows begin at its multiples of
/// `stride` and have at most `length` tokens; the last one ends with the document and is padded
/// with end of text, with labels of -100. The label of a document's last token is end of text.
/// Memory: 12 bytes a window.
class WindowsOfDocuments final : public TokenDataset {
 public:
  /// Finds the windows of the tokens [begin, end) of the stream, which are read once. `poll`: see
  /// TokenizeOptions.
  WindowsOfDocuments(std::shared_ptr<const TokenFile> tokens,
                     std::int64_t begin,
                     std::int64_t end,
                     std::int64_t length,
                     std::int64_t stride,
                     std::int32_t end_of_text,
                     const std::function<void()>& poll = {});

  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(begins_.size());
  }
  [[nodiscard]] std::int64_t length() const override { return length_; }
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override;
  /// The number of windows that begin before this token of the stream.
  [[nodiscard]] std::int64_t windows_before(std::int64_t token) const;

 private:
  void add_document(std::int64_t begin, std::int64_t end, std::int64_t stride);

  std::shared_ptr<const TokenFile> tokens_;
  std::int64_t end_, length_;
  std::int32_t end_of_text_;
  std::vector<std::int64_t> begins_;  // of windows, ascending
  std::vector<std::int32_t> counts_;  // of their tokens
};

}  // namespace tessera::data
