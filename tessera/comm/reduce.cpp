// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/copy.h"

namespace tessera::comm {
namespace {

#define TESSERA_INLINE inline __attribute__((always_inline))

/// Elements of a block: four arrays of this size fit in a first-level cache.
constexpr std::size_t kBlock = 1024;

/// The bits of a bf16 in memory; a separate type, so that it is not confused with an integer.
struct Bf16 {
  std::uint16_t bits;
};

template <class T>
struct Element {
  using Sum = T;
  static TESSERA_INLINE Sum load(T value) { return value; }
  static TESSERA_INLINE T store(Sum value) { return value; }
};
template <>
struct Element<Bf16> {
  using Sum = float;
  static TESSERA_INLINE Sum load(Bf16 value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
  }
  // Like to_bf16() of base/dtype.h, but without a branch, so that it vectorises.
  static TESSERA_INLINE Bf16 store(Sum value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
    const std::uint32_t quiet_nan = bits | 0x400000U;
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    return {static_cast<std::uint16_t>((is_nan ? quiet_nan : rounded) >> 16)};
  }
};

template <Op kOp, class T>
TESSERA_INLINE T combine(T a, T b) {
  if constexpr (kOp == Op::Sum) {
    if constexpr (std::is_floating_point_v<T>) return a + b;
    // Unsigned arithmetic wraps around; signed overflow would be undefined.
    else {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    }
  } else if constexpr (kOp == Op::Max) {
    return (a < b || b != b) ? b : a;
  } else if constexpr (kOp == Op::Min) {
    return (b < a || b != b) ? b : a;
  } else {
    return static_cast<T>(a | b);
  }
}

// `out` may be one of the inputs. Element i is read before it is written; ivdep asserts this.
#ifdef __clang__
#define TESSERA_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TESSERA_IVDEP _Pragma("GCC ivdep")
#endif

template <Op kOp, class T, int kInputs>
TESSERA_INLINE void reduce_once(T* out, const void* const* in, std::size_t count) {
  using E = Element<T>;
  const T* a = static_cast<const T*>(in[0]);
  const T* b = static_cast<const T*>(in[1]);
  const T* c = static_cast<const T*>(in[kInputs > 2 ? 2 : 1]);
  const T* d = static_cast<const T*>(in[kInputs > 3 ? 3 : 1]);
  TESSERA_IVDEP
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = combine<kOp>(E::load(a[i]), E::load(b[i]));
    if constexpr (kInputs > 2) sum = combine<kOp>(sum, E::load(c[i]));
    if constexpr (kInputs > 3) sum = combine<kOp>(sum, E::load(d[i]));
    out[i] = E::store(sum);
  }
}

template <Op kOp, class T>
TESSERA_INLINE void reduce_many(T* out,
                                const void* const* in,
                                std::size_t inputs,
                                std::size_t count) {
  using E = Element<T>;
  typename E::Sum sum[kBlock];
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(in[0]) + begin;
    for (std::size_t i = 0; i < n; ++i)
      sum[i] = E::load(first[i]);
    for (std::size_t k = 1; k < inputs; ++k) {
      const T* next = static_cast<const T*>(in[k]) + begin;
      for (std::size_t i = 0; i < n; ++i)
        sum[i] = combine<kOp>(sum[i], E::load(next[i]));
    }
    for (std::size_t i = 0; i < n; ++i)
      out[begin + i] = E::store(sum[i]);
  }
}

template <Op kOp, class T>
TESSERA_INLINE void reduce_any(T* out,
                               const void* const* in,
                               std::size_t inputs,
                               std::size_t count) {
  switch (inputs) {
    case 2:
      return reduce_once<kOp, T, 2>(out, in, count);
    case 3:
      return reduce_once<kOp, T, 3>(out, in, count);
    case 4:
      return reduce_once<kOp, T, 4>(out, in, count);
    default:
      return reduce_many<kOp, T>(out, in, inputs, count);
  }
}

using Kernel = void (*)(void* out, const void* const* in, std::size_t inputs, std::size_t count);

template <Op kOp, class T>
void reduce_baseline(void* out, const void* const* in, std::size_t inputs, std::size_t count) {
  reduce_any<kOp, T>(static_cast<T*>(out), in, inputs, count);
}

#ifdef __x86_64__
template <Op kOp, class T>
__attribute__((target("avx2"))) void fold_avx2(void* out,
                                               const void* const* in,
                                               std::size_t inputs,
                                               std::size_t count) {
  reduce_any<kOp, T>(static_cast<T*>(out), in, inputs, count);
}
#endif

template <Op kOp, class T>
Kernel pick() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return fold_avx2<kOp, T>;
#endif
  return reduce_baseline<kOp, T>;
}

template <class T>
Kernel pick(Op op) {
  switch (op) {
    case Op::Sum:
      return pick<Op::Sum, T>();
    case Op::Max:
      return pick<Op::Max, T>();
    case Op::Min:
      return pick<Op::Min, T>();
    case Op::BitOr:
      if constexpr (std::is_integral_v<T>) return pick<Op::BitOr, T>();
  }
  return nullptr;
}

Kernel pick(Op op, DType dtype) {
  switch (dtype) {
    case DType::F32:
      return pick<float>(op);
    case DType::F64:
      return pick<double>(op);
    case DType::BF16:
      return pick<Bf16>(op);
    case DType::I64:
      return pick<std::int64_t>(op);
    case DType::I32:
      return pick<std::int32_t>(op);
    case DType::U8:
      return pick<std::uint8_t>(op);
    default:
      return nullptr;
  }
}

/// Reduces `count` elements block by block and writes the result past the caches.
void reduce_past_caches(Kernel kernel,
                        std::byte* out,
                        std::span<const void* const> inputs,
                        std::size_t count,
                        std::size_t size) {
  alignas(64) std::byte block[kBlock * sizeof(double)];
  std::vector<const void*> in(inputs.size());
  // The first block ends at a cache line boundary.
  const std::size_t before = (64 - reinterpret_cast<std::uintptr_t>(out) % 64) % 64 / size;
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    end = std::min(count, begin + (begin == 0 && before != 0 ? before : kBlock));
    for (std::size_t k = 0; k < in.size(); ++k)
      in[k] = static_cast<const std::byte*>(inputs[k]) + begin * size;
    kernel(block, in.data(), in.size(), end - begin);
    copy_past_caches(out + begin * size, block, (end - begin) * size);
  }
  finish_past_caches();
}

Kernel require_kernel(Op op, DType dtype) {
  const Kernel kernel = pick(op, dtype);
  TESSERA_REQUIRE(kernel != nullptr,
                  Unsupported,
                  fmt::format("the reduction {} of {} is not supported", name(op), name(dtype)),
                  "reduce F32, F64, BF16, I64, I32 or U8; BitOr only integers");
  return kernel;
}

}  // namespace

bool can_reduce(Op op, DType dtype) noexcept {
  return pick(op, dtype) != nullptr;
}

void reduce_arrays(
    Op op, DType dtype, void* out, std::span<const void* const> inputs, std::size_t count) {
  TESSERA_ASSERT(!inputs.empty());
  const Kernel kernel = require_kernel(op, dtype);
  if (count == 0) return;
  const std::size_t size = size_of(dtype);
  if (inputs.size() == 1) {
    if (out != inputs[0]) copy_bytes(out, inputs[0], count * size);
  } else if (count * size < kPastCaches || std::ranges::find(inputs, out) != inputs.end()) {
    kernel(out, inputs.data(), inputs.size(), count);
  } else {
    reduce_past_caches(kernel, static_cast<std::byte*>(out), inputs, count, size);
  }
}

void reduce_in_place(Op op, DType dtype, std::span<void* const> buffers, std::size_t count) {
  const Kernel kernel = require_kernel(op, dtype);
  if (buffers.size() < 2) return;
  const std::size_t size = size_of(dtype);
  std::vector<const void*> in(buffers.size());
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t n = std::min(kBlock, count - begin);
    for (std::size_t k = 0; k < in.size(); ++k)
      in[k] = static_cast<const std::byte*>(buffers[k]) + begin * size;
    auto* sum = static_cast<std::byte*>(buffers[0]) + begin * size;
    kernel(sum, in.data(), in.size(), n);
    for (std::size_t k = 1; k < buffers.size(); ++k)
      std::memcpy(static_cast<std::byte*>(buffers[k]) + begin * size, sum, n * size);
  }
}

}  // namespace tessera::comm
