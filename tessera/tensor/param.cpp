// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/param.h"

#include <functional>
#include <numeric>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"

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

void GradSink::write(const at::Tensor& grad) {
  TESSERA_ASSERT(out_.defined());
  TESSERA_ASSERT(grad.sizes() == out_.sizes());
  const c10::NoGradGuard no_grad;
  if (accumulate()) {
    out_.add_(grad);
  } else {
    out_.copy_(grad);
  }
  written();
}

void GradSink::close() {
  if (written_ || !out_.defined()) return;
  const c10::NoGradGuard no_grad;
  out_.zero_();
}

}  // namespace tessera
