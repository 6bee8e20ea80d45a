// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/param.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/tensor/row_sum.h"

namespace tessera {

std::int64_t ParamInfo::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

mesh::Box ParamInfo::held() const {
  return box.begin.empty() ? mesh::whole(shape) : box;
}

Shape ParamInfo::local_shape() const {
  if (box.begin.empty()) return shape;
  Shape out;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    out.push_back(box.end[d] - box.begin[d]);
  return out;
}

std::int64_t ParamInfo::local_numel() const {
  return box.begin.empty() ? numel() : box.numel();
}

bool decays(const ParamInfo& info) {
  return info.matrix_shape.size() >= 2;
}

Role role_of(const Shape& shape, const std::vector<LogicalAxis>& axes, const Shape& matrix_shape) {
  if (shape.size() == 2 && !axes.empty() && axes.front() == LogicalAxis::Vocab)
    return Role::TokenTable;
  if (matrix_shape.size() < 2) return Role::Vector;
  const bool vocabulary = std::find(axes.begin(), axes.end(), LogicalAxis::Vocab) != axes.end();
  return vocabulary ? Role::OutputHead : Role::Matrix;
}

void GradSink::open(at::Tensor out, bool holds) {
  release();
  out_.front() = std::move(out);
  written_.assign(1, holds);
}

void GradSink::open(std::vector<at::Tensor> slices, bool holds) {
  TESSERA_ASSERT(!slices.empty());
  release();
  written_.assign(slices.size(), holds);
  out_ = std::move(slices);
}

void GradSink::open_rows(RowSum& rows, std::function<at::Tensor()> make_dense, bool holds) {
  release();
  rows_ = &rows;
  make_dense_ = std::move(make_dense);
  written_.assign(1, holds);
}

void GradSink::release() {
  out_.assign(1, at::Tensor());
  rows_ = nullptr;
  make_dense_ = nullptr;
}

const at::Tensor& GradSink::out(int slice) {
  if (const RowSum* const rows = std::exchange(rows_, nullptr)) {
    out_.front() = std::exchange(make_dense_, nullptr)();
    if (written_.front()) rows->add_to(out_.front().zero_(), 0);
  }
  return out_[at(slice)];
}

void GradSink::write(const at::Tensor& grad) {
  TESSERA_ASSERT(slices() == 1);
  const at::Tensor& to = out();
  TESSERA_ASSERT(to.defined());
  TESSERA_ASSERT(grad.sizes() == to.sizes());
  const c10::NoGradGuard no_grad;
  if (accumulate()) {
    to.add_(grad);
  } else {
    to.copy_(grad);
  }
  written();
}

void GradSink::close() {
  const c10::NoGradGuard no_grad;
  for (std::size_t slice = 0; slice < out_.size(); ++slice) {
    if (!written_[slice] && out_[slice].defined()) out_[slice].zero_();
  }
}

}  // namespace tessera
