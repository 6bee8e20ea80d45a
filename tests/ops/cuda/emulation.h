// SPDX-License-Identifier: Apache-2.0
// Runs CUDA kernels on the CPU: a fiber for each thread of a block, one block after the other.
//
// Between two barriers, a warp runs as far as it can before the next one starts, so that a kernel
// that lacks a barrier reads values that are not there yet; the order of warps and lanes is an
// option. Shared memory begins as NaNs. A barrier or a warp operation that only some threads reach
// is an exception with the places where the threads wait. Not found: effects of the memory model,
// and, without ThreadSanitizer, races between blocks. Threads: any; kernels run one after the
// other.
//
// With -fsanitize=thread each CUDA thread is a thread for the sanitizer, which only barriers put
// into order, and successive blocks are not in order: it finds races of a block's threads in shared
// and global memory, and races between neighbouring blocks. Compile emulation.cpp itself without
// that flag, and with TESSERA_EMULATION_TSAN. AddressSanitizer knows the threads' stacks.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#define TESSERA_EMULATION 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned of_x = 1, unsigned of_y = 1, unsigned of_z = 1)
      : x(of_x), y(of_y), z(of_z) {}
};

namespace tessera::emulation {

/// The order in which the warps of a block, and the lanes of a warp, run. Alternating: a warp runs
/// only to its next warp operation before the next warp runs, so that the warps stay abreast; in
/// the other orders it runs as far as it can.
enum class Order { Forward, Backward, Shuffled, Alternating };
inline constexpr Order kOrders[] = {
    Order::Forward, Order::Backward, Order::Shuffled, Order::Alternating};
const char* name(Order order);
/// The order of the kernels that are started from now on; `seed` is that of Order::Shuffled.
void set_order(Order order, std::uint64_t seed = 1);

inline constexpr int kWarp = 32;

/// The position of the running thread.
struct Position {
  dim3 thread{0, 0, 0}, block{0, 0, 0}, block_size, grid_size;
  int lane = 0;
};
const Position& position();

/// The array of the running block with this key: its memory is the same for all of its threads.
void* shared(const void* key, std::size_t bytes);
/// Waits for all threads of the block, or of the warp.
void wait_for_block(const char* where);
void wait_for_warp(const char* where);
/// Gives `word` to the other lanes of the warp and returns that of lane `from`, or the own one if
/// there is no such lane.
std::uint64_t exchange(std::uint64_t word, int from, const char* where);
/// Sets what runs each kernel, for example with access to the memory of a device; by default it is
/// called at once.
void set_surroundings(void (*around)(const std::function<void()>& kernel));
/// Runs a kernel. Throws std::runtime_error for sizes that CUDA refuses and for threads that wait
/// for ever.
void run(dim3 grid, dim3 block, const std::function<void()>& kernel);

template <class T>
T exchanged(T value, int from, const char* where) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static_assert(sizeof(T) == sizeof(Word));
  const auto word = __builtin_bit_cast(Word, value);
  return __builtin_bit_cast(T, static_cast<Word>(exchange(word, from, where)));
}

}  // namespace tessera::emulation

#define TESSERA_TEXT_OF(x) #x
#define TESSERA_TEXT(x) TESSERA_TEXT_OF(x)
#define TESSERA_PLACE __FILE__ ":" TESSERA_TEXT(__LINE__)

#define TESSERA_SHARED(type, name, count) \
  static const char name##_key = 0;       \
  type* const name =                      \
      static_cast<type*>(::tessera::emulation::shared(&name##_key, sizeof(type) * (count)))
#if defined(TESSERA_EMULATION_PTX)
#include "ops/cuda/ptx/launch.h"
#define TESSERA_LAUNCH(grid, block, kernel, ...) \
  ::tessera::emulation::launch(grid, block, #kernel, kernel, __VA_ARGS__)
#else
#define TESSERA_LAUNCH(grid, block, kernel, ...) \
  ::tessera::emulation::run(grid, block, [=] { (kernel)(__VA_ARGS__); })
#endif

#define threadIdx (::tessera::emulation::position().thread)
#define blockIdx (::tessera::emulation::position().block)
#define blockDim (::tessera::emulation::position().block_size)
#define gridDim (::tessera::emulation::position().grid_size)
#define __syncthreads() ::tessera::emulation::wait_for_block(TESSERA_PLACE)
#define __syncwarp(...) ::tessera::emulation::wait_for_warp(TESSERA_PLACE)

template <class T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int by) {
  return tessera::emulation::exchanged(
      value, tessera::emulation::position().lane ^ by, "__shfl_xor_sync");
}
/// `width` lanes form a group; the last lanes of one keep their value.
template <class T>
T __shfl_down_sync(unsigned /*mask*/, T value, int by, int width = tessera::emulation::kWarp) {
  const int lane = tessera::emulation::position().lane;
  const int from = lane % width + by < width ? lane + by : lane;
  return tessera::emulation::exchanged(value, from, "__shfl_down_sync");
}

template <class T>
T atomicMin(T* at, T value) {
  T before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < before && !__atomic_compare_exchange_n(
                               at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
