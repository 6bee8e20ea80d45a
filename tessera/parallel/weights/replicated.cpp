// SPDX-License-Identifier: Apache-2.0
// Every rank has all weights and writes all of them (ZeRO stage 0, or a single rank). Memory: numel
// elements that peers could read.
#include <memory>

#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/dtype.h"

namespace tessera::parallel {
namespace {

class ReplicatedWeights final : public WorkingWeights {
 public:
  explicit ReplicatedWeights(const WeightPlace& place)
      : WorkingWeights(place.dtype),
        region_(place.world.transport().allocate(
            static_cast<std::size_t>(place.layout.numel()) * size_of(dtype_),
            memory::Tag::Parameters)) {
    whole_ = own_ = tensor_over(region_, place.layout.numel(), dtype_);
  }

  [[nodiscard]] bool gathered() const override { return true; }
  void post() override {}
  void wait() override {}
  void release() override {}
  void begin_write() override {}
  void written() override {}
  void settle() override {}
  void forget() override {
    WorkingWeights::forget();
    region_.reset();
  }
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    return std::make_unique<ReplicatedWeights>(*this);
  }

 private:
  comm::RegionPtr region_;
};

TESSERA_WEIGHTS("replicated", ReplicatedWeights);

}  // namespace
}  // namespace tessera::parallel
