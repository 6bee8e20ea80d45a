// SPDX-License-Identifier: Apache-2.0
// Sharded weights whose parts rest in a tier, also on a single rank. A part is read ahead of its
// use; the gather itself takes place when the weights are waited for. Memory: none, except for the
// buffers of RestingPlace, which are in the memory of the host, and numel elements while gathered.
// For a device, a part is copied up through pinned memory.
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include "tessera/base/error.h"
#include "tessera/parallel/side_stream.h"
#include "tessera/parallel/weights/coming.h"
#include "tessera/tensor/span.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

const WeightPlace& require_one_copy(const WeightPlace& place) {
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
      : ComingWeights(require_one_copy(place).world, place.layout.numel(), place.dtype),
        name_(place.layout.name()),
        world_(place.world),
        ranks_(*place.ranks.inner),
        uploads_(whole_.is_cpu() ? nullptr : place.uploads) {
    own_ = hollow(place.layout.shard_numel(), dtype_, at::kCPU);
    part_ = std::make_unique<RestingPart>(place.resting, own_, "weights of " + name_);
  }

  /// The buffers are counted for all weights of a rank together (weight_bytes.h).
  static std::int64_t bytes(const WeightSizes& /*sizes*/) { return 0; }
  [[nodiscard]] RestingPart* resting() const override { return part_.get(); }

  void wait() override {
    post();
    if (complete_) return;
    part_->hold();
    if (uploads_ != nullptr) return upload();
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
    // The memory of whole() belongs to the stream of the computation. The copy to it need not wait
    // for what is computed between now and wait().
    if (uploads_ != nullptr) uploads_->stream.follow_current();
  }

  /// Sends the part to the device, behind what start() has seen of the computation, and gathers.
  void upload() {
    const at::Tensor room =
        uploads_->room(static_cast<std::int64_t>(own_.nbytes())).view(own_.scalar_type());
    std::memcpy(room.mutable_data_ptr(), own_.const_data_ptr(), own_.nbytes());
    part_->let_go(/*changed=*/false);
    SideStream& stream = uploads_->stream;
    comm::WorkPtr gather;
    {
      const c10::StreamGuard guard(stream.stream());
      // Autograd must not see that the memory of weights that it saved is written again.
      const at::Tensor mine =
          tensor_of(span_of(whole_)).narrow(0, ranks_.index * own_.numel(), own_.numel());
      mine.copy_(room, /*non_blocking=*/true);
      uploads_->reads_room(stream.mark());
      if (ranks_.size() > 1) {
        gather =
            world_.transport().all_gather(ranks_,
                                          span_of(mine),
                                          span_of(whole_),
                                          TESSERA_HERE(fmt::format("gather weights of {}", name_)));
      }
    }
    stream.lead_current(stream.mark());
    if (gather) {
      gather->wait();
      gather->wait_reusable();
    }
    complete_ = true;
  }

  std::string name_;
  comm::World& world_;
  const comm::Group& ranks_;
  std::shared_ptr<Uploads> uploads_;  ///< nullptr: the computation is on the host
  std::unique_ptr<RestingPart> part_;
  bool complete_ = false;  ///< if gathered: whole() has all values
};

TESSERA_WEIGHTS("resting", RestingWeights);

}  // namespace
}  // namespace tessera::parallel
