// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/aten/philox.h"

#include <array>

#include <ATen/ATen.h>

#include "tessera/ops/arguments.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops::aten {
namespace {

// 32-bit words in int64, because not every device has unsigned arithmetic. The upper half of a
// product is right although its top bit is a sign.
constexpr std::int64_t kWord = 0xFFFFFFFF;

at::Tensor low(const at::Tensor& x) {
  return x.bitwise_and(kWord);
}
at::Tensor high(const at::Tensor& x) {
  return x.bitwise_right_shift(32).bitwise_and(kWord);
}

/// The four words of Philox{key}(counter, sample).
std::array<at::Tensor, 4> philox_words(std::uint64_t key,
                                       const at::Tensor& counters,
                                       const at::Tensor& samples) {
  std::array<at::Tensor, 4> c = {low(counters), high(counters), low(samples), high(samples)};
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor p0 = c[0] * std::int64_t{0xD2511F53}, p1 = c[2] * std::int64_t{0xCD9E8D57};
    c = {high(p1).bitwise_xor(c[1]).bitwise_xor(static_cast<std::int64_t>(k0)),
         low(p1),
         high(p0).bitwise_xor(c[3]).bitwise_xor(static_cast<std::int64_t>(k1)),
         low(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

}  // namespace

at::Tensor kept_elements(const at::Tensor& elements,
                         const at::Tensor& samples,
                         const DropoutKey& key) {
  const at::Tensor numbers = elements + key.element_offset;
  const std::array<at::Tensor, 4> words =
      philox_words(key.key, numbers.bitwise_right_shift(2), samples);
  const at::Tensor which = numbers.bitwise_and(3);
  at::Tensor word = words[0];
  for (std::int64_t i = 1; i < 4; ++i)
    word = at::where(which == i, words[static_cast<std::size_t>(i)], word);
  return word.bitwise_right_shift(8) >= static_cast<std::int64_t>(dropout_threshold(key.p));
}

at::Tensor sample_numbers(const DropoutKey& key, std::int64_t dims, at::Device device) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(dims), 1);
  sizes[0] = static_cast<std::int64_t>(key.sample_ids.size());
  return on_device(at::tensor(key.sample_ids, at::kLong), device).view(sizes);
}

at::Tensor drop(const at::Tensor& x, const at::Tensor& kept, const DropoutKey& key) {
  const at::Tensor wide = x.to(at::kFloat);
  return at::where(kept, wide * dropout_scale(key.p), at::zeros_like(wide));
}

}  // namespace tessera::ops::aten
