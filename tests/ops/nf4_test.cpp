// SPDX-License-Identifier: Apache-2.0
// Numbers in four bits: every kernel, compared with a search through the 16 values.
#include "tessera/ops/nf4.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/support.h"
#include "ops/variants.h"

#include "tessera/base/error.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops {
namespace {

struct Nf4 {
  at::Tensor codes, scales;
};

Nf4 narrow(const at::Tensor& values) {
  const std::int64_t blocks = (values.numel() + kNf4Block - 1) / kNf4Block;
  Nf4 out{at::empty({blocks * kNf4Block / 2}, at::kByte), at::empty({blocks}, at::kFloat)};
  to_nf4(values, out.codes, out.scales);
  return out;
}

unsigned code_at(const at::Tensor& codes, std::int64_t i) {
  const unsigned byte = codes.const_data_ptr<std::uint8_t>()[i / 2];
  return i % 2 == 0 ? byte >> 4 : byte & 15U;
}

TEST(Nf4, TakesTheNearestOf16ValuesOfEachBlock) {
  const at::Tensor x = random({5 * 64 + 23}, 1) * random({5 * 64 + 23}, 2);
  const Nf4 four = narrow(x);
  const float* const from = x.const_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    float scale = 0;
    for (std::int64_t j = i / 64 * 64; j < std::min(x.numel(), (i / 64 + 1) * 64); ++j)
      scale = std::max(scale, std::abs(from[j]));
    EXPECT_EQ(four.scales[i / 64].item<float>(), scale);
    double best = std::numeric_limits<double>::infinity();
    for (const float value : kNf4Values)
      best = std::min(best,
                      std::abs(static_cast<double>(value) * static_cast<double>(scale) -
                               static_cast<double>(from[i])));
    const double found = std::abs(static_cast<double>(kNf4Values[code_at(four.codes, i)]) *
                                      static_cast<double>(scale) -
                                  static_cast<double>(from[i]));
    EXPECT_LE(found, best + 1e-6) << i;
  }
}

TEST(Nf4, PacksTheFirstOfTwoIntoTheUpperHalf) {
  at::Tensor x = at::zeros({64});
  x[0] = -2.0F;
  x[1] = 2.0F;
  const Nf4 four = narrow(x);

  EXPECT_EQ(four.codes[0].item<int>(), 0x0F);
  EXPECT_EQ(four.codes[1].item<int>(), 0x77) << "zeros";
  EXPECT_EQ(four.scales[0].item<float>(), 2.0F);
}

TEST(Nf4, IsWidenedByValueAndScaleAndRoundedOnce) {
  const at::Tensor x = random({7 * 64 + 11}, 3);
  const Nf4 four = narrow(x);
  at::Tensor wide = at::empty({x.numel()}, at::kFloat);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    wide[i] = kNf4Values[code_at(four.codes, i)] * four.scales[i / 64].item<float>();

  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor out = at::empty({x.numel()}, dtype);
    from_nf4(four.codes, four.scales, out);
    EXPECT_TRUE(at::equal(out, wide.to(dtype))) << dtype;
  }
}

TEST(Nf4, OfWhatWasWidenedIsTheSame) {
  const Nf4 four = narrow(random({40 * 64}, 5));
  const at::Tensor wide = at::empty({40 * 64}, at::kFloat);
  from_nf4(four.codes, four.scales, wide);

  const Nf4 again = narrow(wide);

  EXPECT_TRUE(at::equal(again.codes, four.codes));
  EXPECT_TRUE(at::equal(again.scales, four.scales));
}

TEST(Nf4, HasTheSameBitsInEveryVariantAndForAnyNumberOfThreads) {
  const at::Tensor x = random({2000 * 64}, 7);
  const auto results = with_threads([&] { return narrow(x); });
  for (const Nf4& other : results) {
    EXPECT_TRUE(at::equal(other.codes, results[0].codes));
    EXPECT_TRUE(at::equal(other.scales, results[0].scales));
  }
  for (const auto& [name, kernels] : variants()) {
    SCOPED_TRACE(name);
    const Nf4 four{at::empty_like(results[0].codes), at::empty_like(results[0].scales)};
    kernels->narrow_nf4({.from = x.const_data_ptr<float>(),
                         .midpoints = kNf4Midpoints.data(),
                         .codes = four.codes.data_ptr<std::uint8_t>(),
                         .scales = four.scales.data_ptr<float>()},
                        0,
                        2000);
    EXPECT_TRUE(at::equal(four.codes, results[0].codes));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor expected = at::empty({x.numel()}, dtype), out = at::empty_like(expected);
      from_nf4(four.codes, four.scales, expected);
      kernels->widen_nf4[cpu::float_of(out)]({.codes = four.codes.const_data_ptr<std::uint8_t>(),
                                              .scales = four.scales.const_data_ptr<float>(),
                                              .table = kNf4Values.data(),
                                              .to = out.data_ptr()},
                                             0,
                                             2000);
      EXPECT_TRUE(same_bits(out, expected)) << dtype;
    }
  }
}

TEST(Nf4, IsRefusedForWhatIsNotFinite) {
  at::Tensor x = at::ones({130});
  x[129] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(narrow(x), Error);
  x[129] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(narrow(x), Error);
}

TEST(DynamicMapTable, IsThatOfBitsandbytes) {
  // bitsandbytes' create_dynamic_map(), with the same operations of libtorch.
  for (const bool both : {true, false}) {
    std::vector<float> expected = {0.0F, 1.0F};
    for (int decade = 0; decade < 7; ++decade) {
      const at::Tensor bounds = at::linspace(0.1, 1, both ? (1 << decade) + 1 : (2 << decade) + 1);
      const std::int64_t parts = bounds.numel() - 1;
      const at::Tensor means = (bounds.narrow(0, 0, parts) + bounds.narrow(0, 1, parts)) / 2.0 *
                               std::pow(10.0, decade - 6);
      for (std::int64_t i = 0; i < parts; ++i) {
        expected.push_back(means[i].item<float>());
        if (both) expected.push_back(-means[i].item<float>());
      }
    }
    std::sort(expected.begin(), expected.end());
    const auto& values = (both ? DynamicMap::both() : DynamicMap::positive()).values();
    for (std::size_t i = 0; i < 256; ++i)
      EXPECT_NEAR(values[i], expected[i], 2e-7 * std::abs(expected[i])) << i;
  }
}

TEST(Codes8, AreThoseOfOneThreadOnAnyNumberOfThreads) {
  const at::Tensor x = random({100'000}, 11) * random({100'000}, 12);
  const auto results = with_threads([&] {
    const at::Tensor codes = at::empty({100'000}, at::kByte), scales = at::empty({391}, at::kFloat),
                     wide = at::empty({100'000}, at::kFloat);
    to_codes8(x, 256, DynamicMap::both(), codes, scales);
    from_codes8(codes, scales, 256, DynamicMap::both(), wide);
    return wide;
  });

  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_TRUE(same_bits(results[0], results[2]));
  EXPECT_LE((results[0] - x).abs().max().item<float>(), 0.9F / 128);
}

}  // namespace
}  // namespace tessera::ops
