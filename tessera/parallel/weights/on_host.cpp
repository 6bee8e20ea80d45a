// SPDX-License-Identifier: Apache-2.0
// Sharded weights of ranks on a device, whose parts are in pinned memory of the host, also on a
// single rank. A part is copied up on a stream of its own when the gather is posted, and gathered
// behind the copy, so that the computation waits for neither until the weights are used. Memory of
// the device: numel elements while gathered. Source: Rajbhandari et al. 2021, "ZeRO-Infinity".
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/side_stream.h"
#include "tessera/parallel/weights/coming.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"
#include "tessera/tensor/upload.h"

namespace tessera::parallel {
namespace {

class HostWeights final : public ComingWeights {
 public:
  explicit HostWeights(const WeightPlace& place)
      : ComingWeights(place.world, place.layout.numel(), place.dtype),
        name_(place.layout.name()),
        world_(place.world),
        ranks_(*place.ranks.inner),
        uploads_(place.uploads) {
    TESSERA_ASSERT(uploads_ != nullptr && place.ranks.copies->size() == 1);
    const memory::ScopedTag tag(memory::Tag::Parameters);
    own_ = at::zeros({place.layout.shard_numel()}, at::dtype(to_torch(dtype_)).pinned_memory(true));
  }

  /// The bytes of the device are none; weight_bytes() counts those of the host.
  static std::int64_t bytes(const WeightSizes& /*sizes*/) { return 0; }

  void wait() override {
    post();
    if (complete_) return;
    uploads_->stream.lead_current(used_);
    if (gather_) {
      gather_->wait();
      gather_->wait_reusable();
      gather_.reset();
    }
    complete_ = true;
  }
  void begin_write() override {
    release();
    SideStream::finish(std::exchange(used_, nullptr));
  }
  void written() override { used_ = uploads_->stream.mark_current(); }
  void settle() override {}
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override {
    return std::unique_ptr<WorkingWeights>(new HostWeights(*this));
  }

 private:
  HostWeights(const HostWeights& lender)
      : ComingWeights(lender),
        name_(lender.name_),
        world_(lender.world_),
        ranks_(lender.ranks_),
        uploads_(lender.uploads_) {}

  void start() override {
    complete_ = false;
    // The memory of whole() belongs to the stream of the computation, and an update of the device
    // writes own() on it.
    uploads_->stream.follow_current();
    const c10::StreamGuard guard(uploads_->stream.stream());
    // Autograd must not see that the memory of weights that it saved is written again.
    const at::Tensor mine =
        tensor_of(span_of(whole_)).narrow(0, ranks_.index * own_.numel(), own_.numel());
    mine.copy_(own_, /*non_blocking=*/true);
    used_ = uploads_->stream.mark();
    if (ranks_.size() == 1) return;
    gather_ =
        world_.transport().all_gather(ranks_,
                                      span_of(mine),
                                      span_of(whole_),
                                      TESSERA_HERE(fmt::format("gather weights of {}", name_)));
  }

  std::string name_;
  comm::World& world_;
  const comm::Group& ranks_;
  std::shared_ptr<Uploads> uploads_;
  StreamMark used_;  ///< the device reads own(), or an update of the device writes it, until then
  comm::WorkPtr gather_;
  bool complete_ = false;  ///< if gathered: the current stream has waited
};

TESSERA_WEIGHTS("on_host", HostWeights);

}  // namespace
}  // namespace tessera::parallel
