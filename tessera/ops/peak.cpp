// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/peak.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/linear.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {
namespace {

constexpr double kProbeS = 0.2;  // per measurement

/// The fastest of the repetitions that fit into kProbeS, because other processes can only slow it
/// down.
template <class Fn>
double best_seconds(Fn fn) {
  fn();  // starts threads and touches pages
  double best = 1e9;
  for (const double end = now_s() + kProbeS; now_s() < end;) {
    const double begin = now_s();
    fn();
    best = std::min(best, now_s() - begin);
  }
  return best;
}

double product_flops(at::ScalarType dtype, std::int64_t N, std::int64_t I, std::int64_t O) {
  const at::Tensor x = at::ones({N, I}, dtype), weight = at::ones({O, I}, dtype);
  const double seconds = best_seconds([&] { ops::linear(x, weight); });
  return 2.0 * static_cast<double>(N) * static_cast<double>(I) * static_cast<double>(O) / seconds;
}

}  // namespace

double peak_flops(DType dtype) {
  // A training may measure while it runs; its own memory is that without the operands.
  memory::Ledger own;
  const memory::ScopedLedger counted(own);
  const at::ScalarType type = to_torch(dtype);
  return std::max(product_flops(type, 1024, 1024, 1024), product_flops(type, 2048, 1024, 4096));
}

double peak_bytes() {
  memory::Ledger own;
  const memory::ScopedLedger counted(own);
  constexpr std::int64_t kFloats = std::int64_t{1} << 24;  // 64 MiB, beyond most caches
  const at::Tensor a = at::ones({kFloats}), b = at::ones({kFloats});
  at::Tensor sum = at::empty({kFloats});
  const double seconds = best_seconds([&] { at::add_out(sum, a, b); });
  return 3.0 * 4.0 * static_cast<double>(kFloats) / seconds;
}

}  // namespace tessera::ops
