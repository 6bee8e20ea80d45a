// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/peak.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/linear.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/upload.h"

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

double product_flops(const at::TensorOptions& options,
                     std::int64_t N,
                     std::int64_t I,
                     std::int64_t O) {
  const at::Tensor x = at::ones({N, I}, options), weight = at::ones({O, I}, options);
  const double seconds = best_seconds([&] {
    ops::linear(x, weight);
    wait_for_device(x.device());
  });
  return 2.0 * static_cast<double>(N) * static_cast<double>(I) * static_cast<double>(O) / seconds;
}

}  // namespace

double peak_flops(DType dtype, Device device) {
  // A training may measure while it runs; its own memory is that without the operands.
  memory::Ledger own;
  const memory::ScopedLedger counted(own);
  const at::TensorOptions options = at::device(to_torch(device)).dtype(to_torch(dtype));
  constexpr std::int64_t N = 2048, I = 1024, O = 4096;
  constexpr double kFast = 2.0 * N * I * O / 2e-3;
  const double most =
      std::max(product_flops(options, 1024, 1024, 1024), product_flops(options, N, I, O));
  if (device.kind == DeviceKind::Cpu || most < kFast) return most;
  return std::max(most, product_flops(options, 8192, 8192, 8192));
}

double peak_bytes(Device device) {
  memory::Ledger own;
  const memory::ScopedLedger counted(own);
  constexpr std::int64_t kFloats = std::int64_t{1} << 24;  // 64 MiB, beyond most caches
  const at::TensorOptions options = at::device(to_torch(device)).dtype(at::kFloat);
  const at::Tensor a = at::ones({kFloats}, options), b = at::ones({kFloats}, options);
  at::Tensor sum = at::empty({kFloats}, options);
  const double seconds = best_seconds([&] {
    at::add_out(sum, a, b);
    wait_for_device(sum.device());
  });
  return 3.0 * 4.0 * static_cast<double>(kFloats) / seconds;
}

}  // namespace tessera::ops
