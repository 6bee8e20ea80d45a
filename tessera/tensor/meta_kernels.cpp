// SPDX-License-Identifier: Apache-2.0
// Operators on meta tensors that libtorch implements in Python only: the shapes and dtypes of their
// results, so that the memory of a block that uses them can be predicted.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <torch/library.h>

namespace tessera {
namespace {

at::Tensor where_on_meta(const at::Tensor& condition, const at::Tensor& x, const at::Tensor& y) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), x.sizes()), y.sizes());
  return at::empty(sizes, at::device(at::kMeta).dtype(at::result_type(x, y)));
}

at::Tensor& logical_on_meta(const at::Tensor& x, const at::Tensor& y, at::Tensor& out) {
  out.resize_(at::infer_size(x.sizes(), y.sizes()));
  return out;
}

at::Tensor& logical_not_on_meta(const at::Tensor& x, at::Tensor& out) {
  out.resize_(x.sizes());
  return out;
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("where.self", TORCH_FN(where_on_meta));
  library.impl("logical_and.out", TORCH_FN(logical_on_meta));
  library.impl("logical_or.out", TORCH_FN(logical_on_meta));
  library.impl("logical_xor.out", TORCH_FN(logical_on_meta));
  library.impl("logical_not.out", TORCH_FN(logical_not_on_meta));
}

}  // namespace
}  // namespace tessera
