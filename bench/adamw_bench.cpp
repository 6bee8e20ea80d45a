// SPDX-License-Identifier: Apache-2.0
// Measures an AdamW update of fp32 parameters, for run_adamw.sh.
//
//   adamw_bench [THREADS [MILLIONS]]
//
// Prints one JSON line with the median rate in parameters per second, and in bytes per second of
// unavoidable traffic (28 bytes per parameter: four numbers are read, three are written).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/clock.h"
#include "tessera/ops/fused_adamw.h"

namespace {

constexpr int kRuns = 9;
constexpr double kBytes = 28;

void run(std::int64_t numel) {
  const at::Tensor master = at::randn({numel}) * 0.02, grad = at::randn({numel}) * 1e-3,
                   exp_avg = at::zeros({numel}), exp_avg_sq = at::zeros({numel});
  std::vector<double> seconds;
  for (int i = 0; i <= kRuns; ++i) {
    const double start = tessera::now_s();
    tessera::ops::adamw(
        master.data_ptr<float>(),
        exp_avg.data_ptr<float>(),
        exp_avg_sq.data_ptr<float>(),
        grad.const_data_ptr<float>(),
        nullptr,
        tessera::DType::F32,
        numel,
        {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .step = i + 1});
    if (i > 0) seconds.push_back(tessera::now_s() - start);  // the first run is a warm-up
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const std::string line = fmt::format(
      R"({{"what": "tessera adamw", "threads": {}, "params": {}, "params_per_s": {:.4g}, "gbs28": {:.2f}, "ms": {:.1f}}})",
      at::get_num_threads(),
      numel,
      static_cast<double>(numel) / median,
      kBytes * static_cast<double>(numel) / median / 1e9,
      1e3 * median);
  std::printf("%s\n", line.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
  run(std::int64_t{1000000} * (argc > 2 ? std::max(1, std::atoi(argv[2])) : 100));
  return 0;
}
