// SPDX-License-Identifier: Apache-2.0
#include "devices/simulated_gpu.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "devices/operation_facts.h"
#include "devices/simulated_kernels.h"
#include "devices/simulated_machine.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace tessera::test {
namespace {

// A simulated libtorch_cuda.so (fake_cuda/) registers the same device as CUDA's.
#if defined(TESSERA_SIMULATED_CUDA)
#define SIMULATED_KEY CUDA
#else
#define SIMULATED_KEY PrivateUse1
#endif
constexpr auto kType = c10::DeviceType::SIMULATED_KEY;
constexpr auto kKey = c10::DispatchKey::SIMULATED_KEY;
constexpr int kMostStreams = 1000;  // of a device
constexpr std::int64_t kEverything = std::numeric_limits<std::int64_t>::max();

thread_local int current_device = 0;
thread_local std::array<int, kSimulatedGpus> current_streams{};
/// True while the thread computes an operation of a device on the CPU: its copies are not work of
/// the device.
thread_local bool computing = false;
/// True if the thread has launched work on a device.
thread_local bool launches = false;

std::array<std::atomic<int>, 3> forgotten{};
bool forgets(Forgotten what) {
  return forgotten[static_cast<std::size_t>(what)] > 0;
}

/// Numbers for the checker.
int number_of(int device, int stream) {
  return device * kMostStreams + stream;
}
int number_of(const c10::Stream& stream) {
  return number_of(stream.device_index(), static_cast<int>(stream.id()));
}
int current_stream(int device) {
  return number_of(device, current_streams[static_cast<std::size_t>(device)]);
}
int host_of(int device) {
  return -1 - device;
}

OrderChecker::Range range_of(const at::Tensor& x) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < x.dim(); ++dim)
    last += (x.size(dim) - 1) * x.stride(dim);
  return {static_cast<const std::byte*>(x.const_data_ptr()),
          static_cast<std::size_t>((last + 1) * static_cast<std::int64_t>(x.element_size()))};
}

std::vector<OrderChecker::Range> ranges_of(const std::vector<at::Tensor>& tensors) {
  std::vector<OrderChecker::Range> out;
  for (const at::Tensor& x : tensors) {
    if (x.defined() && x.device().type() == kType && x.numel() > 0) out.push_back(range_of(x));
  }
  return out;
}

void access(int device,
            const std::string& what,
            const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes) {
  launches = true;
  machine().complete(current_stream(device), kEverything);
  const std::lock_guard lock(machine().mutex);
  ++machine().work.operations;
  machine().order.access(
      current_stream(device), host_of(device), what, ranges_of(reads), ranges_of(writes));
}

/// The variable SIMULATED_GPU_FAILS has the words with which the device fails; nullptr: it does
/// not.
const char* failure() {
  return std::getenv("SIMULATED_GPU_FAILS");
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(failure() == nullptr, "CUDA error: ", failure());
    void* const at = machine().memory.allocate(bytes);
    NewMemory::add(at);
    const std::lock_guard lock(machine().mutex);
    if (at != nullptr) {
      machine().owners[at] = {current_stream(current_device), {}};
      machine().allocated += static_cast<std::int64_t>(bytes);
      machine().most_allocated = std::max(machine().most_allocated, machine().allocated);
    }
    return {at, at, &release, c10::Device(kType, static_cast<c10::DeviceIndex>(current_device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {
    TORCH_CHECK(false, "a simulated device clones no storage");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream on) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    const std::lock_guard lock(machine().mutex);
    c10::CachingDeviceAllocator::DeviceStats out;
    out.allocated_bytes[0].current = machine().allocated;
    out.allocated_bytes[0].peak = machine().most_allocated;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {}
  static void release(void* at) {
    if (at == nullptr) return;
    NewMemory::remove(at);
    Machine& all = machine();
    const std::lock_guard lock(all.mutex);
    all.allocated -= static_cast<std::int64_t>(all.memory.bytes_at(at));
    const Machine::Owner& owner = all.owners.at(at);
    all.order.free({static_cast<const std::byte*>(at), all.memory.bytes_at(at)},
                   owner.stream,
                   host_of(owner.stream / kMostStreams),
                   owner.used);
    all.owners.erase(at);
    all.memory.release(at);
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const at = std::malloc(bytes == 0 ? 1 : bytes);
    const std::lock_guard lock(machine().mutex);
    machine().pinned[static_cast<std::byte*>(at)] = bytes;
    return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  /// Memory that is still being copied is given out again only after its copies are complete.
  static void release(void* at) {
    Machine& all = machine();
    const std::lock_guard lock(all.mutex);
    const auto block = all.pinned.find(static_cast<std::byte*>(at));
    const std::byte* const end = block->first + block->second;
    std::erase_if(all.flights, [&](const Flight& flight) {
      if (flight.pinned < block->first || flight.pinned >= end) return false;
      if (!flight.to_host) all.land(flight);
      return true;
    });
    all.pinned.erase(block);
    std::free(at);
  }
};

c10::Allocator* allocator() {
  static auto* const allocator = new DeviceAllocator;
  return allocator;
}

#if defined(TESSERA_SIMULATED_CUDA)
using Hooks = at::CUDAHooksInterface;
#else
using Hooks = at::PrivateUse1HooksInterface;
#endif

struct SimulatedHooks final : Hooks {
#if defined(TESSERA_SIMULATED_CUDA)
  explicit SimulatedHooks(at::CUDAHooksArgs /*none*/) {}
  void init() const override {}
  bool hasCUDA() const override {
    return true;
  }
  int getNumGPUs() const override {
    return kSimulatedGpus;
  }
  c10::DeviceIndex current_device() const override {
    return static_cast<c10::DeviceIndex>(test::current_device);
  }
#endif
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kSimulatedGpus;
  }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(machine().mutex);
    return machine().is_pinned(data);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* const allocator = new PinnedAllocator;
    return allocator;
  }
};

/// The work of a stream so far.
StreamClock work_of(int stream) {
  const std::lock_guard lock(machine().mutex);
  return machine().order.record(stream);
}

struct SimulatedGuard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  static c10::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }
  static c10::Stream stream(c10::Device device, int id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  static c10::Device resolved(c10::Device device) {
    return device.has_index() ? device : SimulatedGuard::device(current_device);
  }
  static c10::Stream fresh(c10::Device of) {
    static std::atomic<int> next{1};
    return stream(resolved(of), next++ % kMostStreams);
  }

  c10::Device exchangeDevice(c10::Device to) const override {
    return device(std::exchange(current_device, to.index()));
  }
  c10::Device getDevice() const override { return device(current_device); }
  void setDevice(c10::Device to) const override { current_device = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current_device = to.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kSimulatedGpus; }

  c10::Stream getStream(c10::Device of) const noexcept override {
    const c10::Device at = resolved(of);
    return stream(at, current_streams[static_cast<std::size_t>(at.index())]);
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(resolved(of), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool /*high*/) const override {
    return fresh(of);
  }
  c10::Stream getNewStream(c10::Device of, int /*priority*/) const override { return fresh(of); }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    int& current = current_streams[static_cast<std::size_t>(to.device_index())];
    return stream(to.device(), std::exchange(current, static_cast<int>(to.id())));
  }

  void* getStreamNativeHandle(const c10::Stream of) const override {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(number_of(of) + 1));
  }

  void record(void** event,
              const c10::Stream& on,
              const c10::DeviceIndex /*index*/,
              const c10::EventFlag /*flag*/) const override {
    const std::lock_guard lock(machine().mutex);
    if (*event == nullptr) *event = new StreamClock;
    auto& work = *static_cast<StreamClock*>(*event);
    work = machine().order.record(number_of(on));
    // Work that the host launches later cannot precede what the host knew at this point.
    for (const auto& [stream, number] : machine().order.record(host_of(on.device_index())))
      work[stream] = std::max(work[stream], number);
  }
  void block(void* event, const c10::Stream& waiting) const override {
    launches = true;
    const bool first = waiting.id() == 0;
    if (forgets(first ? Forgotten::WaitsOfComputation : Forgotten::WaitsOfOthers)) return;
    machine().complete(*static_cast<StreamClock*>(event));
    const std::lock_guard lock(machine().mutex);
    machine().order.wait(number_of(waiting), *static_cast<StreamClock*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<StreamClock*>(event);
  }
  // Who launches work never finds it to be complete without a wait, and must wait at last.
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return !launches && machine().is_complete(*static_cast<StreamClock*>(event));
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return false; }
  void synchronizeStream(const c10::Stream& of) const override {
    machine().complete(work_of(number_of(of)));
    const std::lock_guard lock(machine().mutex);
    machine().synchronize(
        host_of(of.device_index()), machine().order.record(number_of(of)), "a stream");
  }
  void synchronizeEvent(void* event) const override {
    machine().complete(*static_cast<StreamClock*>(event));
    const std::lock_guard lock(machine().mutex);
    machine().synchronize(host_of(current_device), *static_cast<StreamClock*>(event), "an event");
  }
  void synchronizeDevice(const c10::DeviceIndex of) const override {
    for (int id = 0; id < kMostStreams; ++id)
      machine().complete(work_of(number_of(of, id)));
    const std::lock_guard lock(machine().mutex);
    StreamClock all;
    for (int id = 0; id < kMostStreams; ++id) {
      for (const auto& [stream, number] : machine().order.record(number_of(of, id)))
        all[stream] = std::max(all[stream], number);
    }
    machine().synchronize(host_of(of), all, "a device");
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& on) const override {
    if (forgets(Forgotten::UseByStreams)) return;
    const std::lock_guard lock(machine().mutex);
    const auto owner = machine().owners.find(data.get());
    if (owner != machine().owners.end()) owner->second.used.push_back(number_of(on));
  }
};

void DeviceAllocator::recordStream(const c10::DataPtr& data, c10::Stream on) {
  SimulatedGuard().recordDataPtrOnStream(data, on);
}

/// The device of new tensors.
c10::Device chosen(std::optional<at::Device> device) {
  return SimulatedGuard::resolved(device.value_or(c10::Device(kType)));
}

at::Tensor empty(at::IntArrayRef sizes,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device,
                 std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(
      sizes, allocator(), c10::DispatchKeySet(kKey), dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes,
                         at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(
      sizes, strides, allocator(), c10::DispatchKeySet(kKey), dtype.value_or(at::kFloat));
}

/// Opens the memory of a tensor if it is on a device.
class Opened {
 public:
  explicit Opened(const at::Tensor& x)
      : open_(machine().memory, x.device().type() == kType ? x.data_ptr() : nullptr) {}

 private:
  GuardedMemory::Open open_;
};

/// The same memory as a tensor of the CPU, to be touched while it is opened.
at::Tensor on_host(const at::Tensor& x) {
  if (x.device().is_cpu()) return x;
  return at::for_blob(x.data_ptr(), x.sizes())
      .strides(x.strides())
      .options(at::device(at::kCPU).dtype(x.scalar_type()))
      .target_device(at::kCPU)
      .make_tensor();
}

void move_values(const at::Tensor& from, const at::Tensor& to) {
  const Opened source(from), destination(to);
  on_host(to).copy_(on_host(from));
}

/// The host waits for a copy, or the copy flies on if the host's memory is pinned.
void end_copy(
    const at::Tensor& on_device, const at::Tensor& host, bool to_host, bool may_fly, bool through) {
  Machine& all = machine();
  const int device = on_device.device().index();
  const std::lock_guard lock(all.mutex);
  const StreamClock now = all.order.record(current_stream(device));
  const bool pinned = all.is_pinned(host.const_data_ptr());
  if (!may_fly || !pinned || !host.is_contiguous()) {
    if (!pinned) ++all.work.pageable_copies;
    return all.synchronize(
        host_of(device), now, to_host ? "a copy to the host" : "a copy to the device");
  }
  auto* const at = static_cast<std::byte*>(host.data_ptr());
  all.flights.push_back({host_of(device), now, at, {at, at + host.nbytes()}, to_host, through});
  if (to_host) std::memset(at, 0xff, host.nbytes());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (computing) {
    move_values(from, to);
    return to;
  }
  const bool up = from.device().is_cpu(), down = to.device().is_cpu();
  const int device = (up ? to : from).device().index();
  TORCH_CHECK(up || down || to.device() == from.device(), "simulated devices have no links");
  access(device, up ? "a copy to the device" : down ? "a copy to the host" : "copy_", {from}, {to});
  const int stream = current_stream(device);
  const bool through = up && machine().show_arrived(stream, range_of(from));
  if (down) machine().write_over(stream, range_of(to));
  move_values(from, to);
  if (through) machine().hide_arrived(stream, range_of(from));
  if (up || down) end_copy(up ? to : from, up ? from : to, down, non_blocking, through);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    TORCH_CHECK(to.numel() == 0, "a simulated device resizes none but empty tensors");
    at::native::resize_(to, from.sizes());
  }
  return copy_from(from, to, false);
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  std::vector<at::Tensor> reads, writes;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    collect((*stack)[stack->size() - arguments.size() + i],
            alias != nullptr && alias->isWrite() ? writes : reads);
  }
  int device = current_device;
  for (const auto* const all : {&writes, &reads}) {
    for (const at::Tensor& x : *all) {
      if (x.defined() && x.device().type() == kType) device = x.device().index();
    }
  }
  const std::string& name = op.schema().name();
  access(device, name, reads, writes);
  const bool waits = makes_the_host_wait(name, reads);
  {
    const c10::DeviceGuard guard(SimulatedGuard::device(device));
    const bool before = std::exchange(computing, true);
    struct Restore {
      bool before;
      ~Restore() { computing = before; }
    } const restore{before};
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  }
  std::vector<at::Tensor> results;
  const std::size_t returns = op.schema().returns().size();
  for (std::size_t i = 0; i < returns; ++i)
    collect((*stack)[stack->size() - returns + i], results);
  access(device, name, {}, results);
  if (!waits) return;
  const std::lock_guard lock(machine().mutex);
  machine().synchronize(host_of(device), machine().order.record(current_stream(device)), name);
}

void record_stream(at::Tensor& x, c10::Stream stream) {
  SimulatedGuard().recordDataPtrOnStream(x.storage().data_ptr(), stream);
}

#if defined(TESSERA_SIMULATED_CUDA)
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  copy_from(from.sizes() == to.sizes() ? from : from.expand(to.sizes()), to, non_blocking);
  return to;
}
#endif

TORCH_LIBRARY_IMPL(aten, SIMULATED_KEY, m) {
#if defined(TESSERA_SIMULATED_CUDA)
  m.impl("copy_", TORCH_FN(copy_));
#endif
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}
TORCH_LIBRARY_IMPL(_, SIMULATED_KEY, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}
#if defined(TESSERA_SIMULATED_CUDA)
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, SimulatedHooks)
C10_REGISTER_GUARD_IMPL(CUDA, SimulatedGuard)
#else
C10_REGISTER_GUARD_IMPL(PrivateUse1, SimulatedGuard)
#endif

const bool kRegistered = [] {
#if !defined(TESSERA_SIMULATED_CUDA)
  c10::register_privateuse1_backend("simulated");
  at::RegisterPrivateUse1HooksInterface(new SimulatedHooks);
#endif
  c10::SetAllocator(kType, allocator());
  return true;
}();

}  // namespace

namespace {

int stream_of(void* handle) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle)) - 1;
}

std::vector<OrderChecker::Range> ranges_of(const std::vector<Bytes>& all) {
  std::vector<OrderChecker::Range> out;
  for (const Bytes& one : all)
    out.push_back({static_cast<const std::byte*>(one.data), one.bytes});
  return out;
}

}  // namespace

void on_simulated_stream(void* stream,
                         const std::string& what,
                         const std::vector<Bytes>& reads,
                         const std::vector<Bytes>& writes) {
  later_on_simulated_stream(stream, what, reads, writes, nullptr);
}

void later_on_simulated_stream(void* stream,
                               const std::string& what,
                               const std::vector<Bytes>& reads,
                               const std::vector<Bytes>& writes,
                               std::function<void()> complete) {
  launches = true;
  const int number = stream_of(stream);
  machine().complete(number, kEverything);
  const std::lock_guard lock(machine().mutex);
  ++machine().work.operations;
  machine().order.access(
      number, host_of(number / kMostStreams), what, ranges_of(reads), ranges_of(writes));
  if (!complete) return;
  std::shared_ptr<Pending>& of_stream = machine().pending[number];
  if (!of_stream) of_stream = std::make_shared<Pending>();
  of_stream->operations.push_back({machine().order.record(number)[number], std::move(complete)});
  ++machine().num_pending;
}

ScopedForgotten::ScopedForgotten(Forgotten what) : what_(what) {
  ++forgotten[static_cast<std::size_t>(what_)];
}

ScopedForgotten::~ScopedForgotten() {
  --forgotten[static_cast<std::size_t>(what_)];
}

void with_memory(const std::function<void()>& kernel) {
  GuardedMemory::OpenAll open(machine().memory);
  kernel();
}

bool is_simulated_memory(const void* data) {
  const std::lock_guard lock(machine().mutex);
  auto block = machine().owners.upper_bound(data);
  if (block == machine().owners.begin()) return false;
  --block;
  return static_cast<const std::byte*>(data) <
         static_cast<const std::byte*>(block->first) + machine().memory.bytes_at(block->first);
}

void copy_there(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  std::optional<GuardedMemory::Open> source, destination;
  if (is_simulated_memory(from)) source.emplace(machine().memory, const_cast<void*>(from));
  if (is_simulated_memory(to)) destination.emplace(machine().memory, to);
  std::memmove(to, from, bytes);
}

at::Device simulated_gpu(int index) {
  TORCH_CHECK(kRegistered && index >= 0 && index < kSimulatedGpus);
  return SimulatedGuard::device(index);
}

}  // namespace tessera::test
