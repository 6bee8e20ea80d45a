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
  // The batch is known on the host, so that neither the number of tokens nor checks of rows make
  // the host wait for a device.
  const at::Tensor ids = ids_N.is_meta() ? ids_N : host_values(ids_N);
  const at::Device device = ids_N.device();
  const at::Tensor elsewhere = ids.lt(first).bitwise_or_(ids.ge(last)),
                   rows = (ids - first).masked_fill_(elsewhere, 0);
  OwnRows out{on_device(rows, device), on_device(elsewhere, device), {}, {}};
  if (ids.is_meta()) return out;
  const at::Tensor here = elsewhere.logical_not().nonzero().squeeze(1);
  out.here_M = on_device(here, device);
  out.rows_here_M = on_device(rows.index_select(0, here), device);
  return out;
}

RowGradients gradients_of(const OwnRows& own, const at::Tensor& dy_NC) {
  if (dy_NC.is_meta()) return {at::empty_like(dy_NC), at::empty_like(own.rows_N)};
  return {dy_NC.index_select(0, own.here_M), own.rows_here_M};
}

}  // namespace tessera::nn
