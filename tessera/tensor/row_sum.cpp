// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/row_sum.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"

namespace tessera {
namespace {

/// Minimum number of rows that justifies another thread.
constexpr std::int64_t kGrain = 64;

void add_floats(const float* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] += from[i];
}

}  // namespace

at::Tensor RowSum::values() const {
  if (!values_.defined()) return at::empty({0, width_}, at::kFloat);
  return values_.narrow(0, 0, std::ssize(rows_));
}

std::int64_t RowSum::place(std::int64_t row) {
  const auto [it, is_new] = places_.try_emplace(row, std::ssize(rows_));
  if (!is_new) return it->second;
  rows_.push_back(row);
  const std::int64_t room = values_.defined() ? values_.size(0) : 0;
  if (std::ssize(rows_) > room) {
    const memory::ScopedTag tag(memory::Tag::Gradients);
    at::Tensor more = at::zeros({std::max<std::int64_t>(kGrain, 2 * room), width_}, at::kFloat);
    if (room > 0) more.narrow(0, 0, room).copy_(values_);
    values_ = std::move(more);
  }
  return it->second;
}

float* RowSum::values_of(std::int64_t place) const {
  return values_.data_ptr<float>() + place * width_;
}

at::Tensor RowSum::places(const at::Tensor& rows_N) {
  const at::Tensor rows = rows_N.contiguous();
  at::Tensor places = at::empty({rows.numel()}, rows.options());
  const auto* const from = rows.const_data_ptr<std::int64_t>();
  std::transform(from, from + rows.numel(), places.data_ptr<std::int64_t>(), [&](std::int64_t row) {
    return place(row);
  });
  return places;
}

void RowSum::add(const RowSum& other) {
  TESSERA_ASSERT(width_ == other.width_);
  const at::Tensor from = other.values();
  const auto* next = from.const_data_ptr<float>();
  for (const std::int64_t here : other.rows_) {
    add_floats(next, width_, row(here));
    next += width_;
  }
}

void RowSum::add_to(const at::Tensor& flat, std::int64_t first) const {
  TESSERA_ASSERT(flat.is_contiguous() && flat.scalar_type() == at::kFloat);
  if (rows_.empty()) return;
  auto* const to = flat.data_ptr<float>();
  const auto* const from = values_.const_data_ptr<float>();
  const std::int64_t last = first + flat.numel();
  at::parallel_for(0, std::ssize(rows_), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = rows_[static_cast<std::size_t>(i)] * width_,
                         here = std::max(first, row), until = std::min(last, row + width_);
      add_floats(from + i * width_ + (here - row), until - here, to + (here - first));
    }
  });
}

}  // namespace tessera
