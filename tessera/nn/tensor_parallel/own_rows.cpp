// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/own_rows.h"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {
namespace {

void check_ids(const at::Tensor& ids, std::int64_t V) {
  if (ids.numel() == 0 || ids.is_meta()) return;
  const auto [least, most] = at::aminmax(host_values(ids));
  const std::int64_t low = least.item<std::int64_t>(), high = most.item<std::int64_t>();
  TESSERA_REQUIRE(
      low >= 0 && high < V,
      Data,
      fmt::format("token id {} is outside the table of {} rows", low < 0 ? low : high, V),
      "use the tokenizer that the model's vocabulary belongs to");
}

}  // namespace

OwnRows own_rows(const at::Tensor& ids_N, const ParamInfo& table) {
  check_ids(ids_N, table.shape.front());
  const mesh::Box box = table.held();
  const std::int64_t first = box.begin.front(), last = box.end.front();
  OwnRows out;
  out.elsewhere_N = ids_N.lt(first).bitwise_or_(ids_N.ge(last));
  out.rows_N = (ids_N - first).masked_fill_(out.elsewhere_N, 0);
  return out;
}

RowGradients gradients_of(const OwnRows& own, const at::Tensor& dy_NC) {
  if (dy_NC.is_meta()) return {at::empty_like(dy_NC), at::empty_like(own.rows_N)};
  const at::Tensor here = own.elsewhere_N.logical_not().nonzero().squeeze(1);
  return {dy_NC.index_select(0, here), own.rows_N.index_select(0, here)};
}

}  // namespace tessera::nn
