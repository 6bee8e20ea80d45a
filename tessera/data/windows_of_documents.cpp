// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/windows_of_documents.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

constexpr std::int64_t kIgnored = -100;
constexpr std::int64_t kTokensAtOnce = 1 << 16;

}  // namespace

WindowsOfDocuments::WindowsOfDocuments(std::shared_ptr<const TokenFile> tokens,
                                       std::int64_t begin,
                                       std::int64_t end,
                                       std::int64_t length,
                                       std::int64_t stride,
                                       std::int32_t end_of_text,
                                       const std::function<void()>& poll)
    : tokens_(std::move(tokens)), end_(end), length_(length), end_of_text_(end_of_text) {
  TESSERA_ASSERT(0 <= begin && begin <= end && end <= tokens_->tokens() && length > 0 &&
                 length <= std::numeric_limits<std::int32_t>::max() && stride > 0);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(kTokensAtOnce, end - begin)));
  std::int64_t document = begin;
  for (std::int64_t first = begin; first < end; first += kTokensAtOnce) {
    const std::int64_t count = std::min(kTokensAtOnce, end - first);
    tokens_->read(first, count, ids.data());
    for (std::int64_t t = 0; t < count; ++t) {
      if (ids[static_cast<std::size_t>(t)] != end_of_text) continue;
      add_document(document, first + t, stride);
      document = first + t + 1;
    }
    if (poll) poll();
  }
  add_document(document, end, stride);
}

void WindowsOfDocuments::add_document(std::int64_t begin, std::int64_t end, std::int64_t stride) {
  for (std::int64_t at = begin; at < end; at += stride) {
    const std::int64_t count = std::min(length_, end - at);
    begins_.push_back(at);
    counts_.push_back(static_cast<std::int32_t>(count));
    if (at + count == end) return;
  }
}

bool WindowsOfDocuments::get(std::int64_t index,
                             std::int64_t* input_ids,
                             std::int64_t* labels,
                             std::int64_t* mask) const {
  TESSERA_ASSERT(index >= 0 && index < size());
  const auto i = static_cast<std::size_t>(index);
  const std::int64_t begin = begins_[i], used = counts_[i];
  tokens_->read(begin, used, input_ids);
  std::copy_n(input_ids + 1, used - 1, labels);
  labels[used - 1] = end_of_text_;
  if (begin + used < end_) tokens_->read(begin + used, 1, labels + used - 1);
  std::fill_n(mask, used, 1);
  std::fill_n(input_ids + used, length_ - used, end_of_text_);
  std::fill_n(labels + used, length_ - used, kIgnored);
  std::fill_n(mask + used, length_ - used, 0);
  return used < length_;
}

std::int64_t WindowsOfDocuments::windows_before(std::int64_t token) const {
  return std::ranges::lower_bound(begins_, token) - begins_.begin();
}

}  // namespace tessera::data
