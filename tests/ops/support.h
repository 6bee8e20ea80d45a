// SPDX-License-Identifier: Apache-2.0
// Random tensors, float64 copies of them, and comparisons, for the tests of the operations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/philox.h"

namespace tessera::ops {

/// Uniform in [-1, 1), the same for the same seed; in bf16 and fp16 the values are exact
/// numbers of theirs.
inline at::Tensor random(at::IntArrayRef sizes,
                         std::uint64_t seed,
                         at::ScalarType dtype = at::kFloat) {
  at::Tensor out = at::empty(sizes, at::kFloat);
  float* to = out.data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    to[i] = 2.0F * uniform_float(Philox{seed}(static_cast<std::uint64_t>(i))[0]) - 1.0F;
  }
  return out.to(dtype);
}

inline at::Tensor int64s(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

/// Row-major float64 copy.
inline std::vector<double> doubles(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

/// Rounding of one store in this dtype, relative: bf16 has 8 bits, fp16 has 11.
inline double epsilon(at::ScalarType dtype) {
  if (dtype == at::kHalf) return 0x1p-11;
  return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-23;
}

/// Every element within `tolerance` of the largest expected one.
inline void expect_close(const at::Tensor& actual,
                         const std::vector<double>& expected,
                         double tolerance) {
  const std::vector<double> got = doubles(actual);
  ASSERT_EQ(got.size(), expected.size());
  double largest =
      // Inputs are near 1: values that are 0 in theory come out as rounding noise of the inputs.
      1e-2;
  for (const double value : expected)
    largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * largest) << "element " << i;
  }
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

/// fn's result with 1, 2 and 3 threads.
template <class Fn>
auto with_threads(Fn fn) {
  const int before = at::get_num_threads();
  std::vector<decltype(fn())> results;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    results.push_back(fn());
  }
  at::set_num_threads(before);
  return results;
}

}  // namespace tessera::ops
