// SPDX-License-Identifier: Apache-2.0
#include "devices/guarded_device.h"

#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

#include <sys/mman.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace tessera::test {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;

/// Pages that are accessible only during a GuardedMemory::Open.
class GuardedMemory {
 public:
  void* allocate(std::size_t bytes) {
    const std::size_t whole = (bytes + kPage - 1) / kPage * kPage;
    if (whole == 0) return nullptr;
    void* at = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(at != MAP_FAILED, "no memory for the guarded device");
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<std::byte*>(at)] = {whole};
    return at;
  }
  void release(void* at) {
    if (at == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(static_cast<std::byte*>(at));
    munmap(at, block->second.bytes);
    blocks_.erase(block);
  }

  /// While it exists, the block that contains the tensor may be accessed.
  class Open {
   public:
    Open(GuardedMemory& memory, const at::Tensor& x) : memory_(memory), at_(data_of(x)) {
      memory_.open(at_, 1);
    }
    ~Open() { memory_.open(at_, -1); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    static std::byte* data_of(const at::Tensor& x) {
      return x.device().type() == kType ? static_cast<std::byte*>(x.data_ptr()) : nullptr;
    }
    GuardedMemory& memory_;
    std::byte* at_;
  };

 private:
  static constexpr std::size_t kPage = 4096;
  struct Block {
    std::size_t bytes = 0;
    int opened = 0;  ///< number of existing Opens
  };

  /// The tensor may begin anywhere in its block.
  void open(std::byte* at, int change) {
    if (at == nullptr) return;
    const std::lock_guard lock(mutex_);
    const auto block = std::prev(blocks_.upper_bound(at));
    if (at >= block->first + block->second.bytes) std::abort();
    block->second.opened += change;
    const int access = block->second.opened > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mprotect(block->first, block->second.bytes, access) != 0) std::abort();
  }

  std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;
};

GuardedMemory& memory() {
  static auto* const memory = new GuardedMemory;  // tensors of statics are freed after it
  return *memory;
}

struct GuardedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* at = memory().allocate(bytes);
    return {at, at, &release, c10::Device(kType, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {
    TORCH_CHECK(false, "the guarded device clones no storage");
  }
  static void release(void* at) { memory().release(at); }
};

c10::Allocator* allocator() {
  static auto* const allocator = new GuardedAllocator;
  return allocator;
}

struct GuardedHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
};

/// One device and one stream, whose work is done when its call returns.
struct GuardedGuard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return {kType, 0}; }
  c10::Device getDevice() const override { return {kType, 0}; }
  c10::Stream getStream(c10::Device /*device*/) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream /*stream*/) const noexcept override { return stream(); }
  void record(void** /*event*/,
              const c10::Stream& /*stream*/,
              const c10::DeviceIndex /*index*/,
              const c10::EventFlag /*flag*/) const override {}
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, 0)); }
};

at::Tensor empty(at::IntArrayRef sizes,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/,
                 std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes,
                                   allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef sizes,
                         at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(sizes,
                                           strides,
                                           allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

/// The same memory as a tensor of the CPU, to be touched within an Open.
at::Tensor on_host(const at::Tensor& x) {
  if (x.device().is_cpu()) return x;
  return at::for_blob(x.data_ptr(), x.sizes())
      .strides(x.strides())
      .options(at::device(at::kCPU).dtype(x.scalar_type()))
      .target_device(at::kCPU)
      .make_tensor();
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  if (to.numel() == 0) return to;
  const GuardedMemory::Open source(memory(), from), destination(memory(), to);
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    TORCH_CHECK(to.numel() == 0, "the guarded device resizes none but empty tensors");
    at::native::resize_(to, from.sizes());
  }
  return copy_from(from, to, false);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}
C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardedGuard)

const bool kRegistered = [] {
  c10::register_privateuse1_backend("guarded");
  at::RegisterPrivateUse1HooksInterface(new GuardedHooks);
  c10::SetAllocator(kType, allocator());
  return true;
}();

}  // namespace

at::Device guarded_device() {
  TORCH_CHECK(kRegistered);
  return {kType, 0};
}

}  // namespace tessera::test
