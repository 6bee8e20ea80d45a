// SPDX-License-Identifier: Apache-2.0
// tessera convert --dtype: every number is rounded once, and those out of range are reported.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cli/convert_support.h"
#include "cli/program.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/weights.h"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Returns the numbers of fp16 from 0 on, by their definition in IEEE 754: 5 exponent bits, 10
/// fraction bits. After the largest one follows the next value of that pattern, which infinity
/// replaces.
std::vector<double> halves() {
  std::vector<double> out;
  for (int bits = 0; bits <= 0x7C00; ++bits) {
    const int exponent = bits >> 10, fraction = bits & 1023;
    out.push_back(exponent == 0 ? std::ldexp(fraction, -24)
                                : std::ldexp(1024 + fraction, exponent - 25));
  }
  return out;
}

/// Returns the nearest of them; of two equally near ones the even one.
std::uint16_t nearest_half(double value) {
  static const std::vector<double> all = halves();
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double size = std::fabs(value);
  if (size >= all.back()) return sign | 0x7C00;
  const auto above =
      static_cast<std::size_t>(std::upper_bound(all.begin(), all.end(), size) - all.begin());
  const std::size_t below = above - 1;
  const double up = all[above] - size, down = size - all[below];
  const bool rises = up < down || (up == down && above % 2 == 0);
  return static_cast<std::uint16_t>(sign | (rises ? above : below));
}

template <class T>
checkpoint::TensorBytes bytes_of(const std::string& name, DType dtype, std::vector<T>& values) {
  return {
      name, dtype, {static_cast<std::int64_t>(values.size())}, std::as_bytes(std::span(values))};
}

std::vector<std::uint16_t> halves_in(const std::vector<interop::Weight>& weights,
                                     const std::string& name) {
  for (const interop::Weight& weight : weights) {
    if (weight.name != name) continue;
    EXPECT_EQ(weight.dtype, DType::F16);
    std::vector<std::uint16_t> out(static_cast<std::size_t>(weight.numel()));
    weight.copy(0, weight.numel(), reinterpret_cast<std::byte*>(out.data()));
    return out;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Narrowed : public Conversions {
 protected:
  /// Returns numbers of all magnitudes, beginning with difficult ones for fp16.
  static std::vector<float> floats() {
    std::vector<float> out = {0.0F,     -0.0F,    1.0F,    65504.0F, 65519.996F, 65520.0F,
                              -65520.F, 65536.0F, 3e38F,   -3e38F,   kInfinity,  -kInfinity,
                              2049.0F,  2051.0F,  6.1e-5F, 6e-8F,    2.98e-8F,   2.9802322e-8F,
                              3e-8F,    1e-8F,    1e-45F,  -1e-30F,  0.1F,       -0.33333334F};
    for (std::uint32_t i = 0; i < 100'000; ++i) {
      const auto bits = static_cast<std::uint32_t>(mix64(7, i));
      float value = 0;
      std::memcpy(&value, &bits, 4);
      // Arbitrary floats, and values around the range of fp16.
      out.push_back(i % 2 == 0 ? value : std::ldexp(static_cast<float>(bits), -46 + bits % 32));
    }
    std::erase_if(out, [](float value) { return std::isnan(value); });
    return out;
  }
};

TEST_F(Narrowed, ToFp16EveryNumberIsTheNearestAndThoseTooLargeAreCounted) {
  std::vector<float> single = floats();
  std::vector<double> wide;
  for (const float value : single)
    wide.push_back(static_cast<double>(value) * (1 + 1e-12));  // beyond ties of fp32
  checkpoint::write_safetensors(
      path("m.safetensors"),
      {bytes_of("single", DType::F32, single), bytes_of("wide", DType::F64, wide)},
      {});

  const Outcome o = convert({path("m.safetensors"), path("m.bin"), "--dtype", "fp16"});

  ASSERT_EQ(o.code, 0) << o.err;
  const auto weights = interop::open_weight_file(path("m.bin"));
  const auto got_single = halves_in(weights, "single"), got_wide = halves_in(weights, "wide");
  ASSERT_EQ(got_single.size(), single.size());
  ASSERT_EQ(got_wide.size(), wide.size());
  int lost_single = 0, lost_wide = 0;
  for (std::size_t i = 0; i < single.size(); ++i) {
    ASSERT_EQ(got_single[i], nearest_half(single[i])) << single[i];
    ASSERT_EQ(got_wide[i], nearest_half(wide[i])) << wide[i];
    if (std::isfinite(single[i]) && std::fabs(single[i]) >= 65520) ++lost_single;
    if (std::isfinite(wide[i]) && std::fabs(wide[i]) >= 65520) ++lost_wide;
  }
  EXPECT_GT(lost_single, 0);
  EXPECT_THAT(
      o.err, HasSubstr(fmt::format("{} numbers were too large for fp16", lost_single + lost_wide)));
  EXPECT_THAT(o.err, HasSubstr(fmt::format("{} of them in single", lost_single)));
}

TEST_F(Narrowed, NansStayNans) {
  std::vector<float> values(3, std::numeric_limits<float>::quiet_NaN());
  const std::uint32_t faint = 0x7F800001;  // its fraction is below the last bit of fp16
  std::memcpy(&values[1], &faint, 4);
  checkpoint::write_safetensors(path("m.safetensors"), {bytes_of("w", DType::F32, values)}, {});

  const Outcome o = convert({path("m.safetensors"), path("m.bin"), "--dtype", "fp16"});

  ASSERT_EQ(o.code, 0) << o.err;
  for (const std::uint16_t bits : halves_in(interop::open_weight_file(path("m.bin")), "w")) {
    EXPECT_EQ(bits & 0x7C00, 0x7C00);
    EXPECT_NE(bits & 0x03FF, 0);
  }
  EXPECT_THAT(o.err, Not(HasSubstr("became infinite")));
}

TEST_F(Narrowed, ARunsOwnWeightsAreRoundedAsTheyAreTransposed) {
  const Outcome o = convert({run_folder(), path("hf"), "--dtype", "fp16"});

  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, Not(HasSubstr("became infinite")));
  const auto got = halves_in(interop::open_weights(path("hf")), "transformer.h.1.mlp.c_fc.weight");
  const std::vector<float>& ours = weights.at("h.1.mlp.c_fc.weight");  // [4 * 8, 8]
  ASSERT_EQ(got.size(), ours.size());
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t column = 0; column < 32; ++column)
      EXPECT_EQ(got[row * 32 + column], nearest_half(ours[column * 8 + row]));
  }
}

TEST_F(Narrowed, WhatBf16CannotHoldIsReportedToo) {
  std::vector<float> values = {1.0F, std::numeric_limits<float>::max()};
  checkpoint::write_safetensors(path("m.safetensors"), {bytes_of("w", DType::F32, values)}, {});

  const Outcome bf16 = convert({path("m.safetensors"), path("b.bin"), "--dtype", "bf16"});
  const Outcome fp32 = convert({path("m.safetensors"), path("f.bin"), "--dtype", "fp32"});

  EXPECT_THAT(bf16.err, HasSubstr("1 number was too large for BF16"));
  EXPECT_THAT(fp32.err, Not(HasSubstr("became infinite")));
}

}  // namespace
}  // namespace tessera::cli
