// SPDX-License-Identifier: Apache-2.0
// Sharded weights that are sent as 8-bit codes (byte_codes.h): all ranks then compute with the same
// decoded values, and a rank's own part stays exact. Source: Wang et al. 2023, "ZeRO++" (qwZ).
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/byte_codes.h"
#include "tessera/parallel/weights/sharded.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

/// Memory: the rank's part, the codes of the parts that it keeps in memory that peers read, and
/// while gathered all codes until they are decoded.
class ShardedCodes final : public ShardedWeights {
 public:
  explicit ShardedCodes(const WeightPlace& place);
  static std::int64_t bytes(const WeightSizes& sizes) {
    return sizes.layout.shard_numel() * static_cast<std::int64_t>(size_of(sizes.dtype)) +
           byte_codes(sizes.layout.numel()) / sizes.inner;
  }
  static std::int64_t gathered_bytes(std::int64_t numel, DType dtype) {
    return ShardedWeights::gathered_bytes(numel, dtype) + byte_codes(numel);
  }

  void wait() override;
  void written() override;
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    return std::unique_ptr<WorkingWeights>(new ShardedCodes(*this));
  }

 private:
  ShardedCodes(const ShardedCodes& lender) : ShardedWeights(lender) {}
  void start() override;

  at::Tensor codes_;  ///< of all parts, until wait() has decoded them
};

const WeightPlace& require_host(const WeightPlace& place) {
  TESSERA_REQUIRE(device_of(place.world).is_cpu(),
                  Unsupported,
                  "weights travel in 8 bits between the memories of hosts only, and the model is "
                  "on a device",
                  "set zero_optimization.zero_quantized_weights to false");
  return place;
}

ShardedCodes::ShardedCodes(const WeightPlace& place)
    : ShardedWeights(require_host(place), byte_codes(place.layout.shard_numel()), DType::U8) {
  const memory::ScopedTag tag(memory::Tag::Parameters);
  own_ = at::zeros({place.layout.shard_numel()}, whole_.options());
}

void ShardedCodes::start() {
  const memory::ScopedTag tag(memory::Tag::Parameters);
  const std::int64_t parts = whole_.numel() / own_.numel();
  codes_ = at::empty({parts * byte_codes(own_.numel())}, whole_.options().dtype(at::kByte));
  gather(codes_);
}

void ShardedCodes::wait() {
  ShardedWeights::wait();
  if (!codes_.defined()) return;
  const c10::NoGradGuard no_grad;
  const at::Tensor all = std::exchange(codes_, at::Tensor());
  // A tensor of its own over the memory of whole(): autograd must not count this as a change.
  const at::Tensor out = whole_.detach();
  const std::int64_t part = own_.numel(), bytes = byte_codes(part);
  for (std::int64_t i = 0; i < out.numel() / part; ++i)
    decode_bytes(all.narrow(0, i * bytes, bytes), out.narrow(0, i * part, part));
}

void ShardedCodes::written() {
  encode_bytes(own_, mine());
  spread();
}

TESSERA_WEIGHTS("sharded_codes", ShardedCodes);

}  // namespace
}  // namespace tessera::parallel
