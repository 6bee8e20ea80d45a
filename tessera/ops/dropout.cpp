// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/dropout.h"

#include <iterator>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

OpWork work_of(const at::Tensor& x, double passes) {
  return {.bytes = passes * static_cast<double>(x.nbytes()), .shape = shape(x)};
}

/// plus + dropout(x); `plus` undefined: 0.
at::Tensor drawn(const at::Tensor& x, const at::Tensor& plus, const DropoutKey& key) {
  at::Tensor y = at::empty_like(x, x.options(), at::MemoryFormat::Contiguous);
  const OpScope scope("dropout", [&] { return work_of(x, plus.defined() ? 3.0 : 2.0); });
  if (x.is_meta()) return y;
  check_dropout(x, key);
  if (x.numel() == 0) return y;
  dropout_runs(x, key);
  backend(x.device()).dropout(x, plus, key, y);
  return y;
}

}  // namespace

void check_dropout(const at::Tensor& x, const DropoutKey& key) {
  TESSERA_REQUIRE(key.p <= 1.0, Config, fmt::format("dropout of {}", key.p), "choose from 0 to 1");
  TESSERA_REQUIRE(x.dim() > 0 && x.size(0) == std::ssize(key.sample_ids),
                  Shape,
                  fmt::format("dropout of {} with {} samples", shape(x), key.sample_ids.size()),
                  "give one sample id for each index of the first dimension");
}

at::Tensor dropout(const at::Tensor& x, const DropoutKey& key) {
  return key.active() ? drawn(x, {}, key) : x;
}

void check_residual(const at::Tensor& x, const at::Tensor& branch) {
  TESSERA_REQUIRE(x.sizes() == branch.sizes() && x.scalar_type() == branch.scalar_type(),
                  Shape,
                  "add_dropout of " + shape(x) + " and " + shape(branch),
                  "give both one shape and dtype");
}

at::Tensor add_dropout(const at::Tensor& x, const at::Tensor& branch, const DropoutKey& key) {
  check_residual(x, branch);
  return key.active() ? drawn(branch, x, key) : x + branch;
}

}  // namespace tessera::ops
