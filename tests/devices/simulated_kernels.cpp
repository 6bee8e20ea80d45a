// SPDX-License-Identifier: Apache-2.0
#include "devices/simulated_kernels.h"

#include <cstddef>
#include <deque>
#include <utility>

#include "devices/simulated_machine.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::test {
namespace {

/// The operation whose kernels the thread starts; nullptr: none.
thread_local ScopedKernels* kernels_of = nullptr;

/// The memory of the tensors that are on a device.
std::vector<Bytes> bytes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Bytes> out;
  for (const at::Tensor& x : tensors) {
    if (!x.defined() || x.is_cpu() || x.numel() == 0) continue;
    std::int64_t last = 0;
    for (std::int64_t dim = 0; dim < x.dim(); ++dim)
      last += (x.size(dim) - 1) * x.stride(dim);
    out.push_back({x.const_data_ptr(), static_cast<std::size_t>(last + 1) * x.element_size()});
  }
  return out;
}

void* stream_of_thread() {
  const c10::impl::VirtualGuardImpl guard(simulated_gpu(0).type());
  return guard.getStream(guard.getDevice()).native_handle();
}

}  // namespace

void NewMemory::add(const void* at) {
  if (kernels_of != nullptr && at != nullptr) kernels_of->allocated_.push_back(at);
}

void NewMemory::remove(const void* at) {
  for (ScopedKernels* scope = kernels_of; scope != nullptr; scope = scope->before_)
    std::erase(scope->allocated_, at);
}

ScopedKernels::ScopedKernels(std::string what,
                             const std::vector<at::Tensor>& reads,
                             const std::vector<at::Tensor>& writes)
    : ScopedKernels(std::move(what), bytes_of(reads), bytes_of(writes)) {}

ScopedKernels::ScopedKernels(std::string what, std::vector<Bytes> reads, std::vector<Bytes> writes)
    : what_(std::move(what)), reads_(std::move(reads)), writes_(std::move(writes)) {
  for (std::vector<Bytes>* const all : {&reads_, &writes_})
    std::erase_if(*all, [](const Bytes& one) { return one.data == nullptr || one.bytes == 0; });
  on_simulated_stream(stream_of_thread(), what_, reads_, writes_);
  before_ = std::exchange(kernels_of, this);
}

ScopedKernels::~ScopedKernels() {
  kernels_of = before_;
  // What an inner operation returns belongs to the outer one too.
  if (before_ != nullptr)
    before_->allocated_.insert(before_->allocated_.end(), allocated_.begin(), allocated_.end());
}

void ScopedKernels::wrote(const at::Tensor& result) const {
  on_simulated_stream(stream_of_thread(), what_, {}, bytes_of({result}));
}

void with_own_memory(const std::function<void()>& kernel) {
  using Use = GuardedMemory::Use;
  std::deque<GuardedMemory::Open> opened;
  if (kernels_of != nullptr) {
    for (const Bytes& one : kernels_of->reads_)
      opened.emplace_back(machine().memory, one.data, Use::Read);
    for (const Bytes& one : kernels_of->writes_)
      opened.emplace_back(machine().memory, one.data, Use::Write);
    for (const void* const at : kernels_of->allocated_)
      opened.emplace_back(machine().memory, at, Use::Write);
  }
  kernel();
}

}  // namespace tessera::test
