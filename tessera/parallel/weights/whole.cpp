// SPDX-License-Identifier: Apache-2.0
// Every rank has all weights and writes its part of them, which it then sends to all (ZeRO stages 1
// and 2). Memory: numel elements that peers read.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/working_weights.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

class WholeWeights final : public WorkingWeights {
 public:
  explicit WholeWeights(const WeightPlace& place)
      : WorkingWeights(place.dtype),
        name_(place.layout.name()),
        world_(place.world),
        group_(*place.ranks.fold),
        region_(place.world.transport().allocate(
            static_cast<std::size_t>(place.layout.numel()) * size_of(dtype_),
            memory::Tag::Parameters)) {
    whole_ = tensor_over(region_, place.layout.numel(), dtype_);
    own_ = whole_.narrow(0, place.layout.shard_begin(group_.index), place.layout.shard_numel());
  }

  /// Weights over the memory of complete ones.
  WholeWeights(const WholeWeights& lender)
      : WorkingWeights(lender),
        name_(lender.name_),
        world_(lender.world_),
        group_(lender.group_),
        region_(lender.region_) {}

  [[nodiscard]] bool gathered() const override { return gathered_; }
  void post() override;
  void wait() override;
  void release() override {}
  void begin_write() override;
  void written() override { post(); }
  void settle() override { wait(); }
  void forget() override {
    TESSERA_ASSERT(works_.empty());
    WorkingWeights::forget();
    region_.reset();
  }
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    return std::make_unique<WholeWeights>(*this);
  }

 private:
  std::string name_;
  comm::World& world_;
  const comm::Group& group_;
  comm::RegionPtr region_;
  std::vector<comm::WorkPtr> works_;  ///< the last gather
  bool gathered_ = true;
};

void WholeWeights::post() {
  if (gathered_) return;
  gathered_ = true;
  for (const comm::WorkPtr& work : works_)
    work->wait_reusable();
  works_.clear();
  works_.push_back(
      world_.transport().all_gather(group_,
                                    span_of(own_),
                                    span_of(whole_),
                                    TESSERA_HERE(fmt::format("gather weights of {}", name_))));
}

void WholeWeights::wait() {
  post();
  for (const comm::WorkPtr& work : works_)
    work->wait();
}

void WholeWeights::begin_write() {
  for (const comm::WorkPtr& work : works_) {
    work->wait();
    work->wait_reusable();
  }
  works_.clear();
  gathered_ = false;
}

TESSERA_WEIGHTS("whole", WholeWeights);

}  // namespace
}  // namespace tessera::parallel
