// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/batch_uploads.h"

#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::parallel {

struct BatchUploads::State {
  struct Coming {
    nn::Batch batch;
    c10::Event arrived;
  };
  explicit State(c10::Device of) : device(of) {}
  [[nodiscard]] bool has_streams() const {
    return !device.is_cpu() && device.type() != c10::DeviceType::Meta;
  }

  c10::Device device;
  std::optional<c10::Stream> stream;  ///< made by the first upload
  std::map<int, Coming> coming;       ///< by the number of the micro-batch
};

BatchUploads::BatchUploads(c10::Device device) : state_(std::make_unique<State>(device)) {}

BatchUploads::~BatchUploads() = default;

void BatchUploads::post(int micro, const nn::Batch& batch) {
  State& all = *state_;
  if (!all.has_streams() || all.coming.contains(micro)) return;
  if (!all.stream)
    all.stream = c10::impl::VirtualGuardImpl(all.device.type()).getStreamFromGlobalPool(all.device);
  // The memory belongs to this stream, so that the copy waits for nothing.
  const c10::StreamGuard guard(*all.stream);
  State::Coming coming{batch.on(all.device), c10::Event(all.device.type())};
  coming.arrived.record(*all.stream);
  all.coming.emplace(micro, std::move(coming));
}

nn::Batch BatchUploads::take(int micro, const nn::Batch& batch) {
  State& all = *state_;
  if (all.device.is_cpu()) return batch;
  if (!all.has_streams()) return batch.on(all.device);
  post(micro, batch);
  const auto found = all.coming.find(micro);
  const c10::Stream current = c10::impl::VirtualGuardImpl(all.device.type()).getStream(all.device);
  found->second.arrived.block(current);
  nn::Batch out = std::move(found->second.batch);
  all.coming.erase(found);
  // The stream of the uploads may take the memory again only when the computation is done with it.
  for (const auto& [name, tensor] : out.tensors()) {
    if (tensor.numel() > 0) tensor.record_stream(current);
  }
  return out;
}

void BatchUploads::clear() {
  state_->coming.clear();
}

}  // namespace tessera::parallel
