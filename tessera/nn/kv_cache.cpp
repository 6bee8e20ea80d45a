// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/kv_cache.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"

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
    values_ = grown(values_, position, v_BHTK, tokens);
  }
  keys_.narrow(2, position, k_BHTK.size(2)).copy_(k_BHTK);
  values_.narrow(2, position, v_BHTK.size(2)).copy_(v_BHTK);
  length_ = end;
}

void KvCache::select(const at::Tensor& rows_B) {
  const c10::NoGradGuard no_grad;
  if (rows_B.size(0) != keys_.size(0)) {
    for (at::Tensor* cache : {&keys_, &values_}) {
      at::Tensor chosen = at::empty(
          {rows_B.size(0), cache->size(1), cache->size(2), cache->size(3)}, cache->options());
      chosen.narrow(2, 0, length_).copy_(cache->narrow(2, 0, length_).index_select(0, rows_B));
      *cache = std::move(chosen);
    }
    return;
  }
  if (at::equal(rows_B, at::arange(rows_B.size(0), rows_B.options()))) return;
  for (const at::Tensor& seen : {keys(), values()})
    seen.copy_(seen.index_select(0, rows_B));
}

at::Tensor KvCache::keys() const {
  return keys_.narrow(2, 0, length_);
}
at::Tensor KvCache::values() const {
  return values_.narrow(2, 0, length_);
}

std::vector<TextRow> text_rows(const Batch& batch) {
  std::vector<TextRow> out;
  if (!batch.has(kTextNumber)) return out;
  const at::Tensor &numbers = batch.tensor(kTextNumber), &positions = batch.tensor(kTextPosition);
  TESSERA_ASSERT(numbers.sizes() == positions.sizes() && numbers.is_contiguous() &&
                 positions.is_contiguous());
  for (std::int64_t b = 0; b < numbers.size(0); ++b)
    out.push_back({static_cast<std::size_t>(numbers.const_data_ptr<std::int64_t>()[b]),
                   positions.const_data_ptr<std::int64_t>()[b]});
  return out;
}

}  // namespace tessera::nn
