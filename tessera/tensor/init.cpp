// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/init.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"

namespace tessera {

namespace {

// Pairs of normal numbers computed at a time. The code below is straight arithmetic without
// branches or library calls, so that compilers vectorise it and every machine computes the same
// bits.
constexpr std::int64_t kPairs = 256;

#define TESSERA_INLINE inline __attribute__((always_inline))

TESSERA_INLINE double from_bits(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
TESSERA_INLINE std::uint64_t to_bits(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Evaluates a polynomial; coefficients from the highest power down.
template <std::size_t N>
TESSERA_INLINE double polynomial(const double (&coefficients)[N], double z) {
  double value = coefficients[0];
#pragma GCC unroll 16
  for (std::size_t i = 1; i < N; ++i)
    value = value * z + coefficients[i];
  return value;
}
constexpr double kAtanh[] = {1.0 / 23,
                             1.0 / 21,
                             1.0 / 19,
                             1.0 / 17,
                             1.0 / 15,
                             1.0 / 13,
                             1.0 / 11,
                             1.0 / 9,
                             1.0 / 7,
                             1.0 / 5,
                             1.0 / 3,
                             1.0};
constexpr double kSine[] = {1.0 / 355687428096000,
                            -1.0 / 1307674368000,
                            1.0 / 6227020800,
                            -1.0 / 39916800,
                            1.0 / 362880,
                            -1.0 / 5040,
                            1.0 / 120,
                            -1.0 / 6,
                            1.0};
constexpr double kCosine[] = {-1.0 / 6402373705728000,
                              1.0 / 20922789888000,
                              -1.0 / 87178291200,
                              1.0 / 479001600,
                              -1.0 / 3628800,
                              1.0 / 40320,
                              -1.0 / 720,
                              1.0 / 24,
                              -1.0 / 2,
                              1.0};

// -2 log(u) for u in (0, 1): u = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m
// + 1)).
TESSERA_INLINE double minus_two_log(double u) {
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDULL;
  const std::uint64_t bits = to_bits(u) - kSqrtHalf;
  const std::uint64_t sign_fill = 0ULL - (bits >> 63);
  const std::uint64_t exponent = (bits >> 52) | (sign_fill << 12);
  const double m = from_bits((bits & 0x000FFFFFFFFFFFFFULL) + kSqrtHalf);
  // Converts a small integer to double through the mantissa of 1.5 * 2^52.
  const double e = from_bits(exponent + 0x4338000000000000ULL) - 0x1.8p52;
  const double s = (m - 1.0) / (m + 1.0);
  return -2.0 * (e * 0x1.62e42fefa39efp-1 + 2.0 * s * polynomial(kAtanh, s * s));
}

// cos and sin of 2 pi u for u in (0, 1): the nearest quarter turn, and Taylor series of the
// remainder.
TESSERA_INLINE void turn(double u, double& cosine, double& sine) {
  const double shifted = u * 4.0 + 0x1.8p52;
  const std::uint64_t quarter = to_bits(shifted);
  const double r = (u * 4.0 - (shifted - 0x1.8p52)) * 0x1.921fb54442d18p0, z = r * r;
  const std::uint64_t s = to_bits(r * polynomial(kSine, z)), c = to_bits(polynomial(kCosine, z));
  const std::uint64_t odd = 0ULL - (quarter & 1U);
  const std::uint64_t cosine_sign = ((quarter + 1U) & 2U) << 62, sine_sign = (quarter & 2U) << 62;
  cosine = from_bits(((c & ~odd) | (s & odd)) ^ cosine_sign);
  sine = from_bits(((s & ~odd) | (c & odd)) ^ sine_sign);
}

// The four words of kPairs consecutive counters below 2^63, as Philox::operator() computes them;
// each round is applied to all of them.
TESSERA_INLINE void philox_words(std::uint64_t key,
                                 std::uint64_t first,
                                 std::uint32_t (&c)[4][kPairs]) {
  for (std::int64_t i = 0; i < kPairs; ++i) {
    const std::uint64_t counter = first + static_cast<std::uint64_t>(i);
    c[0][i] = static_cast<std::uint32_t>(counter);
    c[1][i] = static_cast<std::uint32_t>(counter >> 32);
    c[2][i] = c[3][i] = 0;
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U) {
    for (std::int64_t i = 0; i < kPairs; ++i) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0][i],
                          p1 = std::uint64_t{0xCD9E8D57U} * c[2][i];
      c[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ c[1][i] ^ k0;
      c[1][i] = static_cast<std::uint32_t>(p1);
      c[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ c[3][i] ^ k1;
      c[3][i] = static_cast<std::uint32_t>(p0);
    }
  }
}

// Like uniform_double(), but without a conversion from 64-bit integers, which vector registers
// lack.
TESSERA_INLINE double uniform(std::uint32_t hi, std::uint32_t lo) {
  constexpr std::uint64_t kTwo52 = 0x4330000000000000ULL;
  const double high = from_bits(kTwo52 | hi) - 0x1.0p52,
               low = from_bits(kTwo52 | (lo >> 11)) - 0x1.0p52;
  return (high * 0x1.0p21 + low + 0.5) * 0x1.0p-53;
}

// Source: Box and Muller 1958.
TESSERA_INLINE void normal_pairs(Philox random, std::int64_t first, double std, float* out) {
  std::uint32_t words[4][kPairs];
  float cosines[kPairs], sines[kPairs];
  philox_words(random.key, static_cast<std::uint64_t>(first), words);
  for (std::int64_t i = 0; i < kPairs; ++i) {
    const double radius = std * __builtin_sqrt(minus_two_log(uniform(words[0][i], words[1][i])));
    double cosine, sine;
    turn(uniform(words[2][i], words[3][i]), cosine, sine);
    cosines[i] = static_cast<float>(radius * cosine);
    sines[i] = static_cast<float>(radius * sine);
  }
  for (std::int64_t i = 0; i < kPairs; ++i) {
    out[2 * i] = cosines[i];
    out[2 * i + 1] = sines[i];
  }
}

void normal_pairs_baseline(Philox random, std::int64_t first, double std, float* out) {
  normal_pairs(random, first, std, out);
}

#if defined(__x86_64__)
// Without fused multiply-add the wider registers compute the same bits.
__attribute__((target("avx2"))) void normal_pairs_avx2(Philox random,
                                                       std::int64_t first,
                                                       double std,
                                                       float* out) {
  normal_pairs(random, first, std, out);
}
#endif

auto choose_normal_pairs() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return normal_pairs_avx2;
#endif
  return normal_pairs_baseline;
}

// Writes elements [begin, end) of the parameter to out[0, end - begin).
void normal_range(Philox random, double std, std::int64_t begin, std::int64_t end, float* out) {
  static const auto make_pairs = choose_normal_pairs();
  constexpr std::int64_t kBlock = 2 * kPairs;
  float values[kBlock];
  for (std::int64_t block = begin / kBlock * kBlock; block < end; block += kBlock) {
    make_pairs(random, block / 2, std, values);
    const std::int64_t from = std::max(begin, block), to = std::min(end, block + kBlock);
    std::copy(values + (from - block), values + (to - block), out + (from - begin));
  }
}

// The normal number of an element in its n-th draw.
float redrawn(Philox random, double std, std::int64_t index, std::uint64_t n) {
  const auto words = random(static_cast<std::uint64_t>(index / 2), n);
  const double radius = std * __builtin_sqrt(minus_two_log(uniform(words[0], words[1])));
  double cosine, sine;
  turn(uniform(words[2], words[3]), cosine, sine);
  return static_cast<float>(radius * (index % 2 == 0 ? cosine : sine));
}

// Replaces values further than `bound` from 0. Source: rejection sampling, von Neumann 1951.
void truncate_range(
    Philox random, double std, double bound, std::int64_t begin, std::int64_t end, float* out) {
  const auto limit = static_cast<float>(bound);
  for (std::int64_t i = begin; i < end; ++i) {
    float& value = out[i - begin];
    for (std::uint64_t n = 1; std::abs(value) > limit; ++n)
      value = redrawn(random, std, i, n);
  }
}

// The same of values in [-bound, bound): one counter for each element.
void uniform_range(Philox random, double bound, std::int64_t begin, std::int64_t end, float* out) {
  std::uint32_t words[4][kPairs];
  for (std::int64_t block = begin; block < end; block += kPairs) {
    philox_words(random.key, static_cast<std::uint64_t>(block), words);
    const std::int64_t count = std::min(kPairs, end - block);
    for (std::int64_t i = 0; i < count; ++i) {
      out[block - begin + i] =
          static_cast<float>(bound * (2.0 * uniform(words[0][i], words[1][i]) - 1.0));
    }
  }
}

Philox stream_of(const ParamInfo& info, std::uint64_t seed) {
  return Philox{mix64(seed, files::xxh3(std::as_bytes(std::span(info.name))))};
}

}  // namespace

void initialize_range(const ParamInfo& info,
                      std::uint64_t seed,
                      std::int64_t begin,
                      at::Tensor out) {
  TESSERA_ASSERT(out.scalar_type() == at::kFloat && out.dim() == 1 && out.is_contiguous());
  TESSERA_ASSERT(begin >= 0 && begin + out.numel() <= info.numel());
  const c10::NoGradGuard no_grad;
  switch (info.init.kind) {
    case Init::Kind::Zeros:
      out.zero_();
      return;
    case Init::Kind::Ones:
      out.fill_(1.0);
      return;
    case Init::Kind::Normal:
    case Init::Kind::Truncated:
    case Init::Kind::Uniform:
      break;
  }
  const Philox random = stream_of(info, seed);
  float* values = out.data_ptr<float>();
  if (info.init.kind == Init::Kind::Uniform) {
    uniform_range(random, info.init.std, begin, begin + out.numel(), values);
    return;
  }
  const std::int64_t others = info.numel() / info.shape.front();
  constexpr std::int64_t kGrain = 16384;
  at::parallel_for(0, out.numel(), kGrain, [&](std::int64_t from, std::int64_t to) {
    const std::int64_t first = begin + from, last = begin + to,
                       middle = std::clamp(others, first, last);
    normal_range(random, info.init.first_std, first, middle, values + from);
    normal_range(random, info.init.std, middle, last, values + from + (middle - first));
    if (info.init.kind == Init::Kind::Truncated)
      truncate_range(
          random, info.init.std, info.init.cutoff * info.init.std, first, last, values + from);
  });
}

}  // namespace tessera
