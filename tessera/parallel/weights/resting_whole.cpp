// SPDX-License-Identifier: Apache-2.0
// Weights that rest in a tier of each rank twice: the part that the rank writes, and all of them,
// which the ranks gather once after each update. A rank can then read them at any time without the
// others. Memory: none, except for the buffers of RestingPlace and numel elements while gathered.
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/weights/coming.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

class RestingWholeWeights final : public ComingWeights {
 public:
  explicit RestingWholeWeights(const WeightPlace& place)
      : ComingWeights(place.world, place.layout.numel(), place.dtype),
        name_(place.layout.name()),
        world_(place.world),
        ranks_(*place.ranks.fold) {
    // The units of the parts are the numbers of flat buffers, which are fewer than this.
    constexpr std::size_t kUnitsOfParts = std::size_t{1} << 32U;
    TESSERA_REQUIRE(whole_.is_cpu(),
                    Unsupported,
                    "not built yet on a device: tiles of weights on the disks of several ranks",
                    "remove the section tiling, or set run.device to cpu");
    TESSERA_ASSERT(place.ranks.copies->size() == 1);
    own_ = hollow(place.layout.shard_numel(), dtype_, whole_.device());
    part_ = std::make_unique<RestingPart>(place.resting, own_, "weights of " + name_);
    all_ = hollow(place.layout.numel(), dtype_, whole_.device());
    all_part_ = std::make_unique<RestingPart>(
        RestingPlace{place.resting.buffers, place.resting.unit + kUnitsOfParts},
        all_,
        "all weights of " + name_);
  }

  /// As of "resting".
  static std::int64_t bytes(const WeightSizes& /*sizes*/) { return 0; }
  [[nodiscard]] RestingPart* resting() const override { return part_.get(); }
  void fetch() override { all_part_->fetch(); }

  void wait() override {
    post();
    if (complete_) return;
    all_part_->hold();
    std::memcpy(whole_.data_ptr(), all_.const_data_ptr(), all_.nbytes());
    all_part_->let_go(/*changed=*/false);
    complete_ = true;
  }
  void begin_write() override { release(); }
  void written() override {
    // One buffer suffices: the part is copied before all of the weights are held.
    part_->hold();
    const at::Tensor mine = own_.clone();
    part_->let_go(/*changed=*/false);
    all_part_->hold();
    const comm::WorkPtr work =
        world_.transport().all_gather(ranks_,
                                      span_of(mine),
                                      span_of(all_),
                                      TESSERA_HERE(fmt::format("gather weights of {}", name_)));
    work->wait();
    work->wait_reusable();
    all_part_->let_go(/*changed=*/true);
  }
  void settle() override {}
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    TESSERA_ASSERT(false && "weights that rest in a tier are not lent");
    return nullptr;
  }

 private:
  void start() override {
    complete_ = false;
    all_part_->fetch();
  }

  std::string name_;
  comm::World& world_;
  const comm::Group& ranks_;
  at::Tensor all_;
  std::unique_ptr<RestingPart> part_, all_part_;
  bool complete_ = false;  ///< if gathered: whole() has all values
};

TESSERA_WEIGHTS("resting_whole", RestingWholeWeights);

}  // namespace
}  // namespace tessera::parallel
