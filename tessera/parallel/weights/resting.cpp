// SPDX-License-Identifier: Apache-2.0
// Sharded weights whose parts rest in a tier, also on a single rank. A part is read ahead of its
// use; the gather itself takes place when the weights are waited for. Memory: none, except for the
// buffers of RestingPlace and numel elements while gathered.
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/parallel/weights/coming.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

const WeightPlace& require_host(const WeightPlace& place) {
  TESSERA_REQUIRE(device_of(place.world).is_cpu(),
                  Unsupported,
                  "weights of ranks on a device cannot rest on a disk yet",
                  "set zero_optimization.offload_param.device to \"none\"");
  TESSERA_REQUIRE(place.ranks.copies->size() == 1,
                  Unsupported,
                  "weights that rest on a disk are gathered from all ranks, and groups of ranks "
                  "hold copies of them",
                  "remove zero_optimization.zero_hpz_partition_size and mics_shard_size");
  return place;
}

class RestingWeights final : public ComingWeights {
 public:
  explicit RestingWeights(const WeightPlace& place)
      : ComingWeights(require_host(place).world, place.layout.numel(), place.dtype),
        name_(place.layout.name()),
        world_(place.world),
        ranks_(*place.ranks.inner) {
    own_ = hollow(place.layout.shard_numel(), dtype_, whole_.device());
    part_ = std::make_unique<RestingPart>(place.resting, own_, "weights of " + name_);
  }

  /// The buffers are counted for all weights of a rank together (weight_bytes.h).
  static std::int64_t bytes(const WeightSizes& /*sizes*/) { return 0; }
  [[nodiscard]] RestingPart* resting() const override { return part_.get(); }

  void wait() override {
    post();
    if (complete_) return;
    part_->hold();
    if (ranks_.size() == 1) {
      std::memcpy(whole_.data_ptr(), own_.const_data_ptr(), own_.nbytes());
    } else {
      const comm::WorkPtr work =
          world_.transport().all_gather(ranks_,
                                        span_of(own_),
                                        span_of(whole_),
                                        TESSERA_HERE(fmt::format("gather weights of {}", name_)));
      work->wait();
      work->wait_reusable();
    }
    part_->let_go(/*changed=*/false);
    complete_ = true;
  }
  void begin_write() override { release(); }
  void written() override {}
  void settle() override {}
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    TESSERA_ASSERT(false && "weights that rest in a tier are not lent");
    return nullptr;
  }

 private:
  void start() override {
    complete_ = false;
    part_->fetch();
  }

  std::string name_;
  comm::World& world_;
  const comm::Group& ranks_;
  std::unique_ptr<RestingPart> part_;
  bool complete_ = false;  ///< if gathered: whole() has all values
};

TESSERA_WEIGHTS("resting", RestingWeights);

}  // namespace
}  // namespace tessera::parallel
