// SPDX-License-Identifier: Apache-2.0
// Operations on single elements: activations, dropout; and rows of a table by id. Compile without
// contraction (-fmad=false).
#include "tessera/ops/cuda/dropout.h"
#include "tessera/ops/cuda/kernels.h"
#include "tessera/ops/cuda/lanes.h"

namespace tessera::ops::cuda {

namespace {

constexpr float kQuick = 1.702F;
constexpr float kTanh = 0.79788456080286536F;  // sqrt(2 / pi)
constexpr float kCube = 0.044715F;
constexpr float kInvRootTwo = 0.70710678118654752F;
constexpr float kInvRootTwoPi = 0.39894228040143268F;

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

/// The value of an activation and its derivative. 1 + tanh(u) is written as 2 sigmoid(2 u), which
/// does not cancel.
struct Slope {
  float value, slope;
};
__device__ __forceinline__ Slope activation_at(float x, Activation activation) {
  switch (activation) {
    case Activation::GeluTanh: {
      const float gate = sigmoid(2.0F * kTanh * (x + kCube * x * x * x));
      const float inner = 2.0F * kTanh * (1.0F + 3.0F * kCube * x * x);
      return {x * gate, gate + x * gate * (1.0F - gate) * inner};
    }
    case Activation::Gelu: {
      const float below = 0.5F * erfcf(-x * kInvRootTwo);
      return {x * below, below + x * expf(-0.5F * x * x) * kInvRootTwoPi};
    }
    case Activation::Relu:
      return {x > 0.0F ? x : 0.0F, x > 0.0F ? 1.0F : 0.0F};
    case Activation::SquaredRelu: {
      const float positive = x > 0.0F ? x : 0.0F;
      return {positive * positive, 2.0F * positive};
    }
    case Activation::QuickGelu: {
      const float gate = sigmoid(kQuick * x);
      return {x * gate, gate + kQuick * x * gate * (1.0F - gate)};
    }
    case Activation::Silu:
      break;
  }
  const float gate = sigmoid(x);
  return {x * gate, gate + x * gate * (1.0F - gate)};
}

template <class T>
void start_activate(const T* x, i64 numel, Activation activation, T* y) {
  each_element(0, numel, [=] __device__(i64 at, Lane lane) {
    store(y + at, activation_at(load(x + at, lane), activation).value, lane);
  });
}
template <class T>
void start_activate_grad(const T* dy, const T* x, i64 numel, Activation activation, T* dx) {
  each_element(0, numel, [=] __device__(i64 at, Lane lane) {
    store(dx + at, load(dy + at, lane) * activation_at(load(x + at, lane), activation).slope, lane);
  });
}
template <class T>
void start_gated(const T* x, i64 rows, i64 width, Activation activation, T* y) {
  each_element(0, rows * width, [=] __device__(i64 at, Lane lane) {
    const T* const gate = x + at / width * 2 * width + at % width;
    store(
        y + at, activation_at(load(gate, lane), activation).value * load(gate + width, lane), lane);
  });
}
template <class T>
void start_gated_grad(const T* dy, const T* x, i64 rows, i64 width, Activation activation, T* dx) {
  each_element(0, rows * width, [=] __device__(i64 at, Lane lane) {
    const i64 place = at / width * 2 * width + at % width;
    const float d = load(dy + at, lane), up = load(x + place + width, lane);
    const Slope gate = activation_at(load(x + place, lane), activation);
    store(dx + place, d * up * gate.slope, lane);
    store(dx + place + width, d * gate.value, lane);
  });
}

template <class T>
void start_dropout(const DropoutElements& a, const T* x, const T* plus, T* y) {
  each_element(0, a.numel, [=] __device__(i64 at, Lane lane) {
    const float kept = dropped(a, at, load(x + at, lane));
    store(y + at, plus != nullptr ? load(plus + at, lane) + kept : kept, lane);
  });
}

template <class T>
void start_embedding_grad(const T* dy, const SortedIds& ids, i64 channels, float* dw) {
  // Each element belongs to the first place of an id, and adds the rows of that id in token order.
  each_element(0, ids.count * channels, [=] __device__(i64 at, Lane lane) {
    const i64 first = at / channels, c = at % channels, id = ids.ids[first];
    if (first > 0 && ids.ids[first - 1] == id) return;
    float sum = dw[id * channels + c];
    for (i64 i = first; i < ids.count && ids.ids[i] == id; ++i)
      sum += load(dy + ids.places[i] * channels + c, lane);
    dw[id * channels + c] = sum;
  });
}

/// fn(T*) for the type of the elements.
template <class Fn>
void for_type(DType dtype, Fn fn) {
  if (dtype == DType::F32) return fn(static_cast<float*>(nullptr));
  if (dtype == DType::F16) return fn(static_cast<Half*>(nullptr));
  fn(static_cast<std::uint16_t*>(nullptr));
}
template <class T>
const T* as(T* /*type*/, const void* memory) {
  return static_cast<const T*>(memory);
}
template <class T>
T* as(T* /*type*/, void* memory) {
  return static_cast<T*>(memory);
}

}  // namespace

void activate(DType dtype, const void* x, std::int64_t numel, Activation activation, void* y) {
  for_type(dtype, [&](auto* t) { start_activate(as(t, x), numel, activation, as(t, y)); });
}

void activate_grad(DType dtype,
                   const void* dy,
                   const void* x,
                   std::int64_t numel,
                   Activation activation,
                   void* dx) {
  for_type(dtype, [&](auto* t) {
    start_activate_grad(as(t, dy), as(t, x), numel, activation, as(t, dx));
  });
}

void gated(DType dtype,
           const void* x,
           std::int64_t rows,
           std::int64_t width,
           Activation activation,
           void* y) {
  for_type(dtype, [&](auto* t) { start_gated(as(t, x), rows, width, activation, as(t, y)); });
}

void gated_grad(DType dtype,
                const void* dy,
                const void* x,
                std::int64_t rows,
                std::int64_t width,
                Activation activation,
                void* dx) {
  for_type(dtype, [&](auto* t) {
    start_gated_grad(as(t, dy), as(t, x), rows, width, activation, as(t, dx));
  });
}

void dropout(
    DType dtype, const DropoutElements& elements, const void* x, const void* plus, void* y) {
  for_type(dtype, [&](auto* t) { start_dropout(elements, as(t, x), as(t, plus), as(t, y)); });
}

void embedding_grad(
    DType dtype, const void* dy, const SortedIds& ids, std::int64_t channels, float* dw) {
  for_type(dtype, [&](auto* t) { start_embedding_grad(as(t, dy), ids, channels, dw); });
}

}  // namespace tessera::ops::cuda
