// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/page_tables.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/nn/kv_cache.h"

namespace tessera::nn {

std::int64_t PageTables::take() {
  const auto free = std::ranges::find(sharing_, 0);
  const std::int64_t page = free - sharing_.begin();
  if (free == sharing_.end()) sharing_.push_back(0);
  sharing_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PageTables::give_back(std::int64_t page) {
  std::int64_t& sharing = sharing_[static_cast<std::size_t>(page)];
  TESSERA_ASSERT(sharing > 0);
  --sharing;
}

std::size_t PageTables::add(std::vector<std::int64_t> pages) {
  const auto free = std::ranges::find(open_, false);
  const auto number = static_cast<std::size_t>(free - open_.begin());
  if (free == open_.end()) {
    open_.push_back(true);
    sequences_.emplace_back();
  }
  open_[number] = true;
  sequences_[number] = std::move(pages);
  return number;
}

std::size_t PageTables::begin(std::int64_t tokens) {
  std::vector<std::int64_t> pages;
  for (std::int64_t at = 0; at < tokens; at += page_tokens_)
    pages.push_back(take());
  return add(std::move(pages));
}

std::size_t PageTables::fork(std::size_t sequence) {
  TESSERA_ASSERT(open_.at(sequence));
  for (const std::int64_t page : sequences_[sequence])
    ++sharing_[static_cast<std::size_t>(page)];
  return add(std::vector<std::int64_t>(sequences_[sequence]));
}

void PageTables::make_room(std::size_t sequence, std::int64_t position) {
  TESSERA_ASSERT(open_.at(sequence));
  const auto column = static_cast<std::size_t>(position / page_tokens_);
  TESSERA_ASSERT(column <= sequences_[sequence].size());
  if (column == sequences_[sequence].size()) {
    sequences_[sequence].push_back(take());
    return;
  }
  const std::int64_t shared = sequences_[sequence][column];
  if (sharing_[static_cast<std::size_t>(shared)] == 1) return;
  const std::int64_t own = take();
  give_back(shared);
  copies_.emplace_back(shared, own);
  sequences_[sequence][column] = own;
}

void PageTables::end(std::size_t sequence) {
  TESSERA_ASSERT(open_.at(sequence));
  for (const std::int64_t page : sequences_[sequence])
    give_back(page);
  sequences_[sequence].clear();
  open_[sequence] = false;
}

void PageTables::describe(std::span<const std::size_t> rows, Batch& batch) {
  std::size_t most = 1;
  for (const std::size_t row : rows)
    most = std::max(most, sequences_.at(row).size());
  const at::Tensor table_BW =
      at::full({std::ssize(rows), static_cast<std::int64_t>(most)}, -1, at::kLong);
  auto* to = table_BW.data_ptr<std::int64_t>();
  for (const std::size_t row : rows) {
    std::ranges::copy(sequences_[row], to);
    to += most;
  }
  batch.set(kPageTable, table_BW);
  if (form_ != CacheForm::Same)
    batch.set(kPageForm, at::tensor(static_cast<std::int64_t>(form_), at::kLong));
  if (copies_.empty()) return;
  const at::Tensor copies_M2 = at::empty({std::ssize(copies_), 2}, at::kLong);
  auto* pair = copies_M2.data_ptr<std::int64_t>();
  for (const auto& [from, own] : copies_) {
    *pair++ = from;
    *pair++ = own;
  }
  batch.set(kPageCopies, copies_M2);
  copies_.clear();
}

std::int64_t PageTables::used() const {
  return std::ranges::count_if(sharing_, [](std::int64_t sharing) { return sharing > 0; });
}

}  // namespace tessera::nn
