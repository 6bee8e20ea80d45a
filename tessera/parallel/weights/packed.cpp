// SPDX-License-Identifier: Apache-2.0
// Every rank has all weights in fewer bits (packed_weights.h), and unpacks them while they are
// used; they are frozen. Memory: that of PackedWeights, and numel elements more while gathered.
#include <memory>

#include "tessera/base/error.h"
#include "tessera/parallel/weights/coming.h"

namespace tessera::parallel {
namespace {

class Packed final : public ComingWeights {
 public:
  explicit Packed(const WeightPlace& place)
      : ComingWeights(place.world, place.layout.numel(), place.dtype) {
    packed_ = std::make_unique<PackedWeights>(place.layout, place.packing);
  }

  static std::int64_t bytes(const WeightSizes& sizes) {
    return packed_bytes(sizes.layout, sizes.packing);
  }
  [[nodiscard]] PackedWeights* packed() const override { return packed_.get(); }
  void wait() override { post(); }
  void begin_write() override { release(); }
  void written() override {}
  void settle() override {}
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    TESSERA_ASSERT(false && "packed weights are not lent");
    return nullptr;
  }

 private:
  void start() override { packed_->unpack(whole_); }

  std::unique_ptr<PackedWeights> packed_;
};

TESSERA_WEIGHTS("packed", Packed);

}  // namespace
}  // namespace tessera::parallel
