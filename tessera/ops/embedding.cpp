// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/embedding.h"

#include <cstring>

#include <ATen/ATen.h>

#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

void check_ids(const at::Tensor& ids, std::int64_t rows) {
  TESSERA_REQUIRE(ids.scalar_type() == at::kLong, Data, "token ids are not int64", "convert them");
  const std::int64_t* id = ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    TESSERA_REQUIRE(id[i] >= 0 && id[i] < rows,
                    Data,
                    "token id " + std::to_string(id[i]) + " at position " + std::to_string(i) +
                        " is outside the table of " + std::to_string(rows) + " rows",
                    "use the tokenizer that the model's vocabulary belongs to");
  }
}

}  // namespace

at::Tensor embedding(const at::Tensor& table_VC, const at::Tensor& ids_N) {
  const std::int64_t C = table_VC.size(1), N = ids_N.numel();
  std::vector<std::int64_t> sizes = ids_N.sizes().vec();
  sizes.push_back(C);
  at::Tensor y = at::empty(sizes, table_VC.options());
  if (table_VC.is_meta()) return y;
  const OpScope scope("embedding", [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(y.nbytes()), .shape = cpu::shape(y)};
  });
  const at::Tensor ids = ids_N.contiguous(), table = table_VC.contiguous();
  check_ids(ids, table.size(0));
  const std::size_t row = static_cast<std::size_t>(C) * table.element_size();
  const char* from = static_cast<const char*>(table.data_ptr());
  char* to = static_cast<char*>(y.data_ptr());
  const std::int64_t* id = ids.data_ptr<std::int64_t>();
  cpu::parallel(N, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(to + static_cast<std::size_t>(i) * row,
                  from + static_cast<std::size_t>(id[i]) * row,
                  row);
    }
  });
  return y;
}

void embedding_grad(const at::Tensor& dy_NC,
                    const at::Tensor& ids_N,
                    const at::Tensor& dw_VC,
                    bool accumulate) {
  if (dw_VC.is_meta() || dy_NC.is_meta()) return;
  const std::int64_t V = dw_VC.size(0), C = dw_VC.size(1), N = ids_N.numel();
  TESSERA_REQUIRE(
      dy_NC.numel() == N * C,
      Shape,
      "embedding gradient of " + cpu::shape(dy_NC) + " for " + std::to_string(N) + " tokens",
      "expected [" + std::to_string(N) + ", " + std::to_string(C) + "]");
  // Rows of the table are read and written; where nothing is added to, all of it is cleared.
  const OpScope scope("embedding backward", [&] {
    const double table = accumulate ? 0.0 : static_cast<double>(dw_VC.nbytes());
    return OpWork{.bytes = static_cast<double>(dy_NC.nbytes()) +
                           8.0 * static_cast<double>(dy_NC.numel()) + table,
                  .shape = cpu::shape(dy_NC)};
  });
  const at::Tensor ids = ids_N.contiguous(), dy = dy_NC.contiguous();
  check_ids(ids, V);
  float* to = cpu::destination(dw_VC, V * C, "the embedding's gradient");
  if (!accumulate) dw_VC.zero_();
  // Threads share the columns, not the tokens: every element is added to in token order, whatever
  // their number.
  const auto kernel = cpu::kernels().embedding_grad[cpu::float_of(dy)];
  cpu::parallel(C, 64, [&](std::int64_t begin, std::int64_t end) {
    kernel(dy.data_ptr(), ids.data_ptr<std::int64_t>(), to, N, C, begin, end);
  });
}

}  // namespace tessera::ops
