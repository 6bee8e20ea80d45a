// SPDX-License-Identifier: Apache-2.0
// The inputs of recomputed blocks in pinned memory of a device's host. Source: Rajbhandari et al.
// 2020, "ZeRO" (offload of activation checkpoints to the CPU).
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include "tessera/base/error.h"
#include "tessera/parallel/activation_store.h"
#include "tessera/parallel/side_stream.h"

namespace tessera::parallel {
namespace {

/// The memory of the device belongs to the stream of the computation, which waits for a copy before
/// it frees what was copied, so that the memory can be used again at once. Copies down and up have
/// a stream each: a pipeline has both at a time, and GPUs have an engine for each direction.
class HostStore final : public ActivationStore {
 public:
  HostStore(c10::Device device, int buffers, std::unique_ptr<ActivationStore> beyond)
      : down_(device),
        up_(device),
        buffers_(static_cast<std::size_t>(buffers)),
        beyond_(std::move(beyond)) {
    TESSERA_ASSERT(buffers >= 1 && !device.is_cpu());
  }
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;
  ~HostStore() override {
    // After an error tensors may be on their way, and their memory is freed.
    try {
      for (const Leaving& one : leaving_)
        down_.lead_current(one.copied);
      for (const auto& [number, kept] : kept_)
        up_.lead_current(kept.returned);
    } catch (const std::exception&) {
      // The device has failed, which its rank reports.
    }
  }

  Number put(const at::Tensor& tensor) override {
    make_way();
    Kept kept{.form = Form(tensor), .room = room(tensor.nbytes())};
    const at::Tensor values = tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
    down_.follow_current();
    {
      const c10::StreamGuard guard(down_.stream());
      in_room(kept).copy_(values, /*non_blocking=*/true);
    }
    kept.copied = down_.mark();
    leaving_.push_back({next_, values, kept.copied});
    kept_.emplace(next_, std::move(kept));
    return next_++;
  }

  void fetch(Number number) override {
    Kept& kept = kept_.at(number);
    if (!kept.back.defined()) make_way();  // which may hand this tensor on
    if (kept.beyond) return beyond_->fetch(*kept.beyond);
    send_back(kept);
  }

  at::Tensor take(Number number) override {
    const auto found = kept_.find(number);
    TESSERA_ASSERT(found != kept_.end());
    Kept& kept = found->second;
    if (!kept.back.defined()) make_way();
    if (kept.beyond) {
      const at::Tensor there = beyond_->take(*kept.beyond);
      kept.room = room(there.nbytes());
      in_room(kept).copy_(there);
    }
    send_back(kept);
    up_.lead_current(kept.returned);
    at::Tensor out = std::move(kept.back);
    give_back(std::move(kept.room), kept.returned);
    kept_.erase(found);
    return out;
  }

 private:
  /// All of a tensor but its values.
  struct Form {
    std::vector<std::int64_t> sizes, strides;
    at::TensorOptions options;
    std::int64_t numel = 0;
    explicit Form(const at::Tensor& tensor)
        : sizes(tensor.sizes().vec()),
          strides(tensor.strides().vec()),
          options(at::device(tensor.device()).dtype(tensor.scalar_type())),
          numel(tensor.numel()) {}
  };
  struct Kept {
    Form form;
    at::Tensor room;               ///< pinned bytes; undefined while the values are beyond
    StreamMark copied = nullptr;   ///< to `room`; null: the host has written it
    std::optional<Number> beyond;  ///< number in the store beyond the host
    at::Tensor back;               ///< on the device again
    StreamMark returned = nullptr;
  };
  /// A tensor whose copy may not be complete.
  struct Leaving {
    Number number = 0;
    at::Tensor values;
    StreamMark copied;
  };
  struct Free {
    at::Tensor room;
    StreamMark read;  ///< the copy that read it last
  };

  static at::Tensor in_room(const Kept& kept) {
    const auto bytes =
        kept.form.numel * static_cast<std::int64_t>(kept.form.options.dtype().itemsize());
    return kept.room.narrow(0, 0, bytes).view(kept.form.options.dtype().toScalarType());
  }

  /// Pinned memory, all of one size, that copies down may write after the work of down_. If values
  /// come from beyond, the host writes it.
  at::Tensor room(std::size_t bytes) {
    const auto size = static_cast<std::int64_t>(bytes);
    if (size > size_) {
      size_ = size;
      free_.clear();
    }
    if (free_.empty()) return at::empty({size_}, at::dtype(at::kByte).pinned_memory(true));
    const Free out = std::move(free_.front());
    free_.pop_front();
    if (beyond_ != nullptr) {
      SideStream::finish(out.read);
    } else {
      down_.follow(out.read);
    }
    return out.room;
  }

  /// Rooms that are too small by now are not used again; libtorch frees them after their copies.
  void give_back(at::Tensor room, StreamMark read) {
    if (room.numel() == size_) free_.push_back({std::move(room), std::move(read)});
  }

  /// Lets one more tensor be on its way.
  void make_way() {
    while (leaving_.size() >= buffers_)
      let_go();
  }

  /// Frees the memory on the device of the tensor that left first.
  void let_go() {
    const Leaving one = std::move(leaving_.front());
    leaving_.pop_front();
    down_.lead_current(one.copied);
    const auto found = kept_.find(one.number);
    if (beyond_ == nullptr || found == kept_.end() || found->second.back.defined()) return;
    Kept& kept = found->second;
    SideStream::finish(kept.copied);
    kept.beyond = beyond_->put(in_room(kept));
    kept.copied = nullptr;
    give_back(std::move(kept.room), nullptr);
  }

  /// Starts the copy to the device, unless that was done.
  void send_back(Kept& kept) {
    if (kept.back.defined()) return;
    kept.back = at::empty_strided(kept.form.sizes, kept.form.strides, kept.form.options);
    up_.follow_current();
    up_.follow(kept.copied);
    {
      const c10::StreamGuard guard(up_.stream());
      kept.back.as_strided({kept.form.numel}, {1}).copy_(in_room(kept), /*non_blocking=*/true);
    }
    kept.returned = up_.mark();
  }

  SideStream down_, up_;
  std::size_t buffers_;
  std::unique_ptr<ActivationStore> beyond_;
  std::int64_t size_ = 0;  ///< bytes of a room
  std::deque<Leaving> leaving_;
  std::deque<Free> free_;
  std::map<Number, Kept> kept_;
  Number next_ = 0;
};

}  // namespace

std::unique_ptr<ActivationStore> activations_on_host(c10::Device device,
                                                     int buffers,
                                                     std::unique_ptr<ActivationStore> beyond) {
  return std::make_unique<HostStore>(device, buffers, std::move(beyond));
}

}  // namespace tessera::parallel
