// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/kv_cache.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {

namespace {

bool fits(const at::Tensor& cache, const at::Tensor& like, std::int64_t tokens) {
  return cache.defined() && cache.size(0) == like.size(0) && cache.size(2) >= tokens;
}

at::Tensor grown(const at::Tensor& old,
                 std::int64_t kept,
                 const at::Tensor& like,
                 std::int64_t tokens) {
  at::Tensor out = at::empty({like.size(0), like.size(1), tokens, like.size(3)}, like.options());
  if (kept > 0) out.narrow(2, 0, kept).copy_(old.narrow(2, 0, kept));
  return out;
}

}  // namespace

void KvCache::write(std::int64_t position,
                    const at::Tensor& k_BHTK,
                    const at::Tensor& v_BHTK,
                    std::int64_t capacity) {
  TESSERA_ASSERT(position >= 0 && position <= length_);
  const c10::NoGradGuard no_grad;
  const std::int64_t end = position + k_BHTK.size(2);
  if (!fits(keys_, k_BHTK, end)) {
    const std::int64_t doubled = position > 0 ? 2 * keys_.size(2) : 0;
    const std::int64_t tokens = std::max({end, doubled, capacity});
    keys_ = grown(keys_, position, k_BHTK, tokens);
    if (v_BHTK.defined()) values_ = grown(values_, position, v_BHTK, tokens);
  }
  keys_.narrow(2, position, k_BHTK.size(2)).copy_(k_BHTK);
  if (v_BHTK.defined()) values_.narrow(2, position, v_BHTK.size(2)).copy_(v_BHTK);
  length_ = end;
}

void KvCache::select(const at::Tensor& rows_B) {
  const c10::NoGradGuard no_grad;
  if (rows_B.size(0) != keys_.size(0)) {
    for (at::Tensor* cache : {&keys_, &values_}) {
      if (!cache->defined()) continue;
      at::Tensor chosen = at::empty(
          {rows_B.size(0), cache->size(1), cache->size(2), cache->size(3)}, cache->options());
      chosen.narrow(2, 0, length_).copy_(cache->narrow(2, 0, length_).index_select(0, rows_B));
      *cache = std::move(chosen);
    }
    return;
  }
  if (at::equal(rows_B, at::arange(rows_B.size(0), rows_B.options()))) return;
  for (const at::Tensor& all : {keys_, values_}) {
    if (!all.defined()) continue;
    const at::Tensor seen = all.narrow(2, 0, length_);
    seen.copy_(seen.index_select(0, rows_B));
  }
}

at::Tensor KvCache::keys() const {
  return keys_.narrow(2, 0, length_);
}
at::Tensor KvCache::values() const {
  return values_.defined() ? values_.narrow(2, 0, length_) : keys();
}

bool is_paged(const Batch* batch) {
  return batch != nullptr && batch->has(kPageTable);
}

std::vector<std::size_t> text_numbers(const Batch& batch) {
  std::vector<std::size_t> out;
  if (!batch.has(kTextNumber)) return out;
  const at::Tensor numbers = host_values(batch.tensor(kTextNumber)).contiguous();
  for (std::int64_t b = 0; b < numbers.size(0); ++b)
    out.push_back(static_cast<std::size_t>(numbers.const_data_ptr<std::int64_t>()[b]));
  return out;
}

at::Tensor first_positions(const Batch& batch) {
  return batch.has(kTextPosition)
             ? host_values(batch.tensor(kTextPosition)).contiguous()
             : at::zeros({batch.tensor(kPageTable).size(0)}, at::TensorOptions(at::kLong));
}

namespace {

at::ScalarType dtype_of(const Batch& batch, const at::Tensor& like) {
  if (!batch.has(kPageForm)) return like.scalar_type();
  const auto form =
      static_cast<CacheForm>(host_values(batch.tensor(kPageForm)).item<std::int64_t>());
  if (form == CacheForm::Same) return like.scalar_type();
  return form == CacheForm::BF16 ? at::kBFloat16 : at::kChar;
}

/// Copies what `from` has to the first pages of `to`.
void take_over(const ops::KvPages& to, const ops::KvPages& from) {
  const auto copy = [&](at::Tensor ops::KvPages::*part) {
    if ((from.*part).defined()) (to.*part).narrow(0, 0, from.count()).copy_(from.*part);
  };
  copy(&ops::KvPages::keys_PGNK);
  copy(&ops::KvPages::values_PGNK);
  copy(&ops::KvPages::key_scales_PGN);
  copy(&ops::KvPages::value_scales_PGN);
}

}  // namespace

void PagedKvCache::write(const at::Tensor& k_BHTK,
                         const at::Tensor& v_BHTK,
                         const Batch& batch,
                         std::int64_t capacity) {
  const c10::NoGradGuard no_grad;
  const at::Tensor table_BW = host_values(batch.tensor(kPageTable)).contiguous();
  const std::int64_t had = pages_.keys_PGNK.defined() ? pages_.count() : 0,
                     needed = table_BW.numel() == 0 ? 0 : table_BW.max().item<std::int64_t>() + 1;
  if (had == 0 || needed > had) {
    const std::int64_t room = (capacity + kPageTokens - 1) / kPageTokens;
    ops::KvPages more = ops::kv_pages(
        std::max({needed, room, 2 * had}), kPageTokens, k_BHTK, dtype_of(batch, k_BHTK));
    if (!v_BHTK.defined()) {
      more.values_PGNK = more.keys_PGNK;
      more.value_scales_PGN = more.key_scales_PGN;
    }
    if (had > 0) take_over(more, pages_);
    pages_ = std::move(more);
  }
  if (batch.has(kPageCopies))
    ops::copy_pages(pages_, host_values(batch.tensor(kPageCopies)).contiguous());
  ops::write_pages(
      pages_, k_BHTK, v_BHTK.defined() ? v_BHTK : k_BHTK, table_BW, first_positions(batch));
}

}  // namespace tessera::nn
