// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/upload.h"

#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "tessera/comm/transport.h"
#include "tessera/tensor/dtype.h"

namespace tessera {
namespace {

/// The tensors of the host of which storages on devices are copies.
class Originals {
 public:
  void add(const at::Tensor& made, at::Tensor host) {
    c10::StorageImpl* const storage = made.storage().unsafeGetStorageImpl();
    const std::lock_guard lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.made.expired(); });
    known_.insert_or_assign(storage, Entry{weak(made), std::move(host)});
  }
  /// The tensor of the host with the layout of `x`; undefined if it is not known.
  at::Tensor find(const at::Tensor& x) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(x.storage().unsafeGetStorageImpl());
    if (found == known_.end() || found->second.made.expired()) return {};
    const at::Tensor& host = found->second.host;
    if (host.scalar_type() != x.scalar_type()) return {};
    return host.as_strided(x.sizes(), x.strides(), x.storage_offset());
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  static Weak weak(const at::Tensor& of) { return of.storage().getWeakStorageImpl(); }
  struct Entry {
    Weak made;  ///< keeps the address from being used again
    at::Tensor host;
  };
  std::mutex mutex_;
  std::map<c10::StorageImpl*, Entry> known_;
};

Originals& originals() {
  static auto* const originals = new Originals;  // tensors of static objects are freed after it
  return *originals;
}

}  // namespace

at::Tensor tensor_of(const comm::Span& span) {
  const c10::Device device = to_torch(span.device);
  return at::for_blob(span.data, {static_cast<std::int64_t>(span.count)})
      .options(at::device(device).dtype(to_torch(span.dtype)))
      .target_device(device)
      .make_tensor();
}

at::Tensor on_device(const at::Tensor& host, c10::Device device) {
  if (!host.is_cpu() || device.is_cpu()) return host;
  if (host.numel() == 0 || device.type() == c10::DeviceType::Meta) return host.to(device);
  const at::Tensor pinned =
      at::empty(host.sizes(), at::dtype(host.scalar_type()).pinned_memory(true));
  pinned.copy_(host);
  at::Tensor out = at::empty(host.sizes(), host.options().device(device));
  out.copy_(pinned, /*non_blocking=*/true);
  originals().add(out, pinned);
  return out;
}

at::Tensor host_values(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  if (x.is_meta() || !x.has_storage()) return x.cpu();
  const at::Tensor known = originals().find(x);
  return known.defined() ? known : x.cpu();
}

at::Tensor landing_room(std::int64_t numel, at::ScalarType dtype, c10::Device device) {
  return at::empty({numel}, at::dtype(dtype).pinned_memory(!device.is_cpu()));
}

std::int64_t pinned_bytes(std::int64_t bytes) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

void wait_for_device(c10::Device device) {
  if (device.is_cpu() || device.type() == c10::DeviceType::Meta) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

}  // namespace tessera
