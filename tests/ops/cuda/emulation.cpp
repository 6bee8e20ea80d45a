// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/emulation.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TESSERA_EMULATION_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace tessera::emulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10U;
constexpr unsigned kMostThreads = 1024;

// Saves the registers that a call keeps and the stack pointer in *save, and goes on with the stack
// `load`.
extern "C" void tessera_switch_stack(void** save, void* load);
asm(R"(
.pushsection .text
.type tessera_switch_stack, @function
tessera_switch_stack:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
.size tessera_switch_stack, .-tessera_switch_stack
.popsection
)");

void at_once(const std::function<void()>& kernel) {
  kernel();
}
void (*surroundings)(const std::function<void()>&) = at_once;

enum class State { Ready, AtBlock, AtWarp, Done };

struct Fiber {
  Position position;
  State state = State::Ready;
  void* stack_pointer = nullptr;
  std::unique_ptr<std::byte[]> stack;
  const char* where = "";
  std::uint64_t words[2] = {};  // of the last two exchanges, by turns
  unsigned exchanges = 0, barriers = 0, warp_waits = 0;
  void* sanitizer_stack = nullptr;
  void* known_threads[2] = {};  ///< to ThreadSanitizer, in even and in odd blocks
};

/// A stack of its own for the scheduler is that of run().
struct Scheduler {
  std::vector<Fiber> fibers;
  Fiber* running = nullptr;
  void* stack_pointer = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::map<const void*, std::vector<std::byte>> shared[2];  // of even and of odd blocks
  unsigned block_number = 0;                                // of the running block
  void* own_thread = nullptr;                               // to ThreadSanitizer
  Order order = Order::Forward;
  std::mt19937_64 random;
  void* sanitizer_stack = nullptr;
  const void* stack_bottom = nullptr;
  std::size_t stack_size = 0;
};
Scheduler& scheduler() {
  static Scheduler one;
  return one;
}

// What a release of one of these tags precedes is in order with what follows its acquisition. A
// barrier uses two tags by turns: a thread that has passed it may reach the next one before another
// thread leaves it. A block follows the last one but one, whose shared memory it has.
struct Tags {
  char launch = 0, shared = 0, ends[4] = {}, block[2] = {}, warps[kMostThreads / kWarp][2] = {};
} tags;
void release_tag([[maybe_unused]] char& tag) {
#if defined(TESSERA_EMULATION_TSAN)
  __tsan_release(&tag);
#endif
}
void acquire_tag([[maybe_unused]] char& tag) {
#if defined(TESSERA_EMULATION_TSAN)
  __tsan_acquire(&tag);
#endif
}

// AddressSanitizer must know which stack is in use, and ThreadSanitizer which thread runs.
void announce([[maybe_unused]] void** keep, [[maybe_unused]] const Fiber* to) {
#if defined(TESSERA_EMULATION_TSAN)
  constexpr unsigned kNoOrder = 1;
  const Scheduler& of = scheduler();
  __tsan_switch_to_fiber(to != nullptr ? to->known_threads[of.block_number % 2] : of.own_thread,
                         kNoOrder);
#endif
#if defined(__SANITIZE_ADDRESS__)
  const Scheduler& s = scheduler();
  if (to != nullptr)
    __sanitizer_start_switch_fiber(keep, to->stack.get(), kStackBytes);
  else
    __sanitizer_start_switch_fiber(keep, s.stack_bottom, s.stack_size);
#endif
}
void arrived([[maybe_unused]] void* kept, [[maybe_unused]] bool in_fiber) {
#if defined(__SANITIZE_ADDRESS__)
  Scheduler& s = scheduler();
  if (in_fiber)
    __sanitizer_finish_switch_fiber(kept, &s.stack_bottom, &s.stack_size);
  else
    __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#endif
}

/// Returns to the scheduler, and comes back when the scheduler resumes the fiber.
void leave(State state, const char* where) {
  Scheduler& s = scheduler();
  Fiber& self = *s.running;
  self.state = state;
  self.where = where;
  announce(state == State::Done ? nullptr : &self.sanitizer_stack, nullptr);
  tessera_switch_stack(&self.stack_pointer, s.stack_pointer);
  arrived(self.sanitizer_stack, true);
}

void first_function() {
  arrived(nullptr, true);
  const unsigned number = scheduler().block_number;
  acquire_tag(tags.launch);
  acquire_tag(tags.ends[(number + 2) % 4]);
  (*scheduler().kernel)();
  release_tag(tags.ends[number % 4]);
  leave(State::Done, "the end of the kernel");
  std::abort();
}

void resume(Fiber& fiber) {
  Scheduler& s = scheduler();
  s.running = &fiber;
  announce(&s.sanitizer_stack, &fiber);
  tessera_switch_stack(&s.stack_pointer, fiber.stack_pointer);
  arrived(s.sanitizer_stack, false);
  s.running = nullptr;
}

void prepare(Fiber& fiber) {
  if (!fiber.stack) fiber.stack.reset(new std::byte[kStackBytes]);
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.stack.get(), kStackBytes);  // frames of the last block
#endif
#if defined(TESSERA_EMULATION_TSAN)
  for (void*& known : fiber.known_threads)
    if (known == nullptr) known = __tsan_create_fiber(0);
#endif
  // At the first instruction of a function the stack pointer is 8 below a multiple of 16.
  auto top =
      reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStackBytes) & ~std::uintptr_t{15};
  auto* words = reinterpret_cast<std::uint64_t*>(top) - 2;
  *words = reinterpret_cast<std::uint64_t>(&first_function);  // what `ret` takes
  words -= 6;                                                 // the registers
  std::fill_n(words, 6, 0);
  fiber.stack_pointer = words;
  fiber.state = State::Ready;
  fiber.exchanges = fiber.barriers = fiber.warp_waits = 0;
}

std::vector<std::size_t> ordered(std::size_t begin, std::size_t end) {
  Scheduler& s = scheduler();
  std::vector<std::size_t> out(end - begin);
  std::iota(out.begin(), out.end(), begin);
  if (s.order == Order::Backward) std::reverse(out.begin(), out.end());
  if (s.order == Order::Shuffled) std::shuffle(out.begin(), out.end(), s.random);
  return out;
}

[[noreturn]] void refuse(std::size_t begin, std::size_t end) {
  std::map<std::string, int> places;
  for (std::size_t i = begin; i < end; ++i)
    ++places[scheduler().fibers[i].where];
  std::string text = "threads of a kernel wait for others that never come:";
  for (const auto& [where, count] : places)
    text += " " + std::to_string(count) + " at " + where + ";";
  throw std::runtime_error(text);
}

/// If all threads in [begin, end) are in `state`, they may go on. One that has ended keeps the
/// others waiting, because CUDA leaves open what then happens.
bool release(std::size_t begin, std::size_t end, State state) {
  std::vector<Fiber>& fibers = scheduler().fibers;
  const auto first = fibers.begin() + static_cast<std::ptrdiff_t>(begin),
             last = fibers.begin() + static_cast<std::ptrdiff_t>(end);
  if (!std::all_of(first, last, [&](const Fiber& fiber) { return fiber.state == state; }))
    return false;
  // Barriers in two places are two barriers.
  for (auto fiber = first; fiber != last; ++fiber) {
    if (std::strcmp(fiber->where, first->where) != 0) refuse(begin, end);
  }
  for (auto fiber = first; fiber != last; ++fiber)
    fiber->state = State::Ready;
  return true;
}

/// Runs the threads of a warp to their next barrier or warp operation. Returns true if it was a
/// warp operation, which all of them have reached.
bool run_warp(std::size_t begin, std::size_t end) {
  for (const std::size_t i : ordered(begin, end)) {
    Fiber& fiber = scheduler().fibers[i];
    if (fiber.state == State::Ready) resume(fiber);
  }
  return release(begin, end, State::AtWarp);
}

/// Runs all warps as far as barriers allow.
void run_warps(std::size_t threads) {
  const std::size_t warps = (threads + kWarp - 1) / kWarp;
  const bool alternating = scheduler().order == Order::Alternating;
  for (bool again = true; again;) {
    again = false;
    for (const std::size_t warp : ordered(0, warps)) {
      const std::size_t begin = warp * kWarp, end = std::min(threads, begin + kWarp);
      while (run_warp(begin, end)) {
        again = again || alternating;
        if (alternating) break;
      }
    }
  }
}

void run_block() {
  Scheduler& s = scheduler();
  const std::size_t threads = s.fibers.size();
  for (Fiber& fiber : s.fibers)
    prepare(fiber);
  ++s.block_number;
  for (auto& [key, memory] : s.shared[s.block_number % 2]) {
    // Not by memset, which ThreadSanitizer would see.
    for (volatile std::byte& byte : memory)
      byte = std::byte{0xff};
  }
  do {
    run_warps(threads);
  } while (release(0, threads, State::AtBlock));
  const bool ended = std::all_of(s.fibers.begin(), s.fibers.end(), [](const Fiber& fiber) {
    return fiber.state == State::Done;
  });
  if (!ended) refuse(0, threads);
}

}  // namespace

const char* name(Order order) {
  constexpr const char* kNames[] = {"Forward", "Backward", "Shuffled", "Alternating"};
  return kNames[static_cast<int>(order)];
}

void set_order(Order order, std::uint64_t seed) {
  scheduler().order = order;
  scheduler().random.seed(seed);
}

const Position& position() {
  return scheduler().running->position;
}

void* shared(const void* key, std::size_t bytes) {
  Scheduler& s = scheduler();
  std::vector<std::byte>& memory = s.shared[s.block_number % 2][key];
  if (memory.empty()) {
    memory.assign(bytes, std::byte{0xff});
    release_tag(tags.shared);
  }
  acquire_tag(tags.shared);
  return memory.data();
}

void wait_for_block(const char* where) {
  char& tag = tags.block[scheduler().running->barriers++ % 2];
  release_tag(tag);
  leave(State::AtBlock, where);
  acquire_tag(tag);
}

void wait_for_warp(const char* where) {
  const Scheduler& s = scheduler();
  const auto warp = static_cast<std::size_t>(s.running - s.fibers.data()) / kWarp;
  char& tag = tags.warps[warp][s.running->warp_waits++ % 2];
  release_tag(tag);
  leave(State::AtWarp, where);
  acquire_tag(tag);
}

std::uint64_t exchange(std::uint64_t word, int from, const char* where) {
  Scheduler& s = scheduler();
  Fiber& self = *s.running;
  const unsigned turn = self.exchanges++ % 2;
  self.words[turn] = word;
  wait_for_warp(where);
  const auto number = static_cast<std::size_t>(&self - s.fibers.data());
  const std::size_t other = number - static_cast<std::size_t>(self.position.lane) +
                            static_cast<std::size_t>(std::clamp(from, 0, kWarp - 1));
  if (from < 0 || from >= kWarp || other >= s.fibers.size()) return word;
  return s.fibers[other].words[turn];
}

void set_surroundings(void (*around)(const std::function<void()>& kernel)) {
  surroundings = around;
}

namespace {

void run_blocks(dim3 grid, dim3 block, const std::function<void()>& kernel);

}  // namespace

void run(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  static std::mutex one_kernel;
  const std::lock_guard lock(one_kernel);
  surroundings([&] { run_blocks(grid, block, kernel); });
}

namespace {

void run_blocks(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  constexpr unsigned kMostBlocks = 65535;
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > kMostThreads || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > kMostBlocks || grid.z > kMostBlocks)
    throw std::runtime_error("a kernel was started with sizes that CUDA refuses");
  Scheduler& s = scheduler();
  s.kernel = &kernel;
  s.fibers.resize(threads);
  for (auto& shared : s.shared)
    shared.clear();
#if defined(TESSERA_EMULATION_TSAN)
  s.own_thread = __tsan_get_current_fiber();
#endif
  release_tag(tags.launch);
  for (unsigned i = 0; i < threads; ++i) {
    Position& at = s.fibers[i].position;
    at.thread = {i % block.x, i / block.x % block.y, i / (block.x * block.y)};
    at.block_size = block;
    at.grid_size = grid;
    at.lane = static_cast<int>(i) % kWarp;
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        for (Fiber& fiber : s.fibers)
          fiber.position.block = {x, y, z};
        run_block();
      }
    }
  }
  for (char& end : tags.ends)
    acquire_tag(end);
}

}  // namespace

}  // namespace tessera::emulation
