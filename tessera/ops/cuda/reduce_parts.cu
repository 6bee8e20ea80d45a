// SPDX-License-Identifier: Apache-2.0
// The reduction of the parts of ranks. Compile without contraction (-fmad=false).
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {
namespace {

/// An element in memory and the value that is reduced.
template <class T>
struct Plain {
  using Stored = T;
  using Value = T;
  static __device__ __forceinline__ T get(const T* from) { return *from; }
  static __device__ __forceinline__ void put(T* to, T value) { *to = value; }
};
/// bf16, which is reduced in fp32.
struct Bf16 {
  using Stored = std::uint16_t;
  using Value = float;
  static __device__ __forceinline__ float get(const std::uint16_t* from) {
    return load(from, Lane{});
  }
  static __device__ __forceinline__ void put(std::uint16_t* to, float value) {
    store(to, value, Lane{});
  }
};

// The formulas of comm/reduce.cpp. Signed sums are unsigned ones, which wrap around.
struct Add {
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
  static __device__ __forceinline__ double of(double a, double b) { return a + b; }
  template <class T>
  static __device__ __forceinline__ T of(T a, T b) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct Larger {
  template <class T>
  static __device__ __forceinline__ T of(T a, T b) {
    return (a < b || b != b) ? b : a;
  }
};
struct Smaller {
  template <class T>
  static __device__ __forceinline__ T of(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};
struct Or {
  template <class T>
  static __device__ __forceinline__ T of(T a, T b) {
    return static_cast<T>(a | b);
  }
};

template <class Element, class How>
void start(const void* parts, i64 count, bool accumulate, void* out, i64 numel) {
  using Stored = typename Element::Stored;
  const auto* const from = static_cast<const Stored*>(parts);
  auto* const to = static_cast<Stored*>(out);
  each_element(0, numel, [=] __device__(i64 at, Lane) {
    typename Element::Value result = Element::get(from + at);
    if (accumulate) result = How::of(Element::get(to + at), result);
    for (i64 part = 1; part < count; ++part)
      result = How::of(result, Element::get(from + part * numel + at));
    Element::put(to + at, result);
  });
}

template <class Element>
void start(PartsOp op, const void* parts, i64 count, bool accumulate, void* out, i64 numel) {
  switch (op) {
    case PartsOp::Sum:
      return start<Element, Add>(parts, count, accumulate, out, numel);
    case PartsOp::Max:
      return start<Element, Larger>(parts, count, accumulate, out, numel);
    case PartsOp::Min:
      return start<Element, Smaller>(parts, count, accumulate, out, numel);
    case PartsOp::BitOr:
      if constexpr (!std::is_floating_point_v<typename Element::Value>)
        start<Element, Or>(parts, count, accumulate, out, numel);
  }
}

}  // namespace

void reduce_parts(DType dtype,
                  PartsOp op,
                  const void* parts,
                  std::int64_t count,
                  bool accumulate,
                  void* out,
                  std::int64_t numel) {
  switch (dtype) {
    case DType::F32:
      return start<Plain<float>>(op, parts, count, accumulate, out, numel);
    case DType::F64:
      return start<Plain<double>>(op, parts, count, accumulate, out, numel);
    case DType::BF16:
      return start<Bf16>(op, parts, count, accumulate, out, numel);
    case DType::I64:
      return start<Plain<std::int64_t>>(op, parts, count, accumulate, out, numel);
    case DType::I32:
      return start<Plain<std::int32_t>>(op, parts, count, accumulate, out, numel);
    default:
      start<Plain<std::uint8_t>>(op, parts, count, accumulate, out, numel);
  }
}

}  // namespace tessera::ops::cuda
