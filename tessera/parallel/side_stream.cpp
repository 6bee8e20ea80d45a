// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/side_stream.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::parallel {

c10::Stream SideStream::stream() {
  if (!stream_)
    stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  return *stream_;
}

c10::Stream SideStream::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

void SideStream::follow_current() {
  c10::Event now(device_.type());
  now.record(current());
  now.block(stream());
}

void SideStream::follow(const StreamMark& mark) {
  if (mark) mark->block(stream());
}

void SideStream::lead_current(const StreamMark& mark) const {
  if (mark) mark->block(current());
}

StreamMark SideStream::mark() {
  auto out = std::make_shared<c10::Event>(device_.type());
  out->record(stream());
  return out;
}

StreamMark SideStream::mark_current() const {
  auto out = std::make_shared<c10::Event>(device_.type());
  out->record(current());
  return out;
}

void SideStream::finish(const StreamMark& mark) {
  if (mark && !mark->query()) mark->synchronize();
}

at::Tensor Uploads::room(std::int64_t bytes) {
  SideStream::finish(std::exchange(read_, nullptr));
  if (!room_.defined() || room_.numel() < bytes)
    room_ = at::empty({bytes}, at::dtype(at::kByte).pinned_memory(true));
  return room_.narrow(0, 0, bytes);
}

}  // namespace tessera::parallel
