// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/activation_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/parallel/unit_buffers.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {
namespace {

/// All of a tensor but its values.
struct Form {
  std::vector<std::int64_t> sizes, strides;
  at::TensorOptions options;
  explicit Form(const at::Tensor& tensor)
      : sizes(tensor.sizes().vec()), strides(tensor.strides().vec()), options(tensor.options()) {}
  [[nodiscard]] at::Tensor make() const { return at::empty_strided(sizes, strides, options); }
};

/// The values of a dense tensor in the order of memory.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

class TierStore final : public ActivationStore {
 public:
  TierStore(memory::Tier& tier, int buffers) : tier_(tier), most_(buffers) {}

  Number put(const at::Tensor& tensor) override {
    const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
    const std::size_t unit = free_unit(bytes);
    std::memcpy(buffers_->replace(unit).data(), tensor.const_data_ptr(), tensor.nbytes());
    buffers_->release(unit, /*changed=*/true);
    kept_.emplace(next_, Kept{unit, slot_, Form(tensor)});
    return next_++;
  }
  void fetch(Number number) override { buffers_->fetch(kept_.at(number).unit); }
  at::Tensor take(Number number) override {
    const auto found = kept_.find(number);
    TESSERA_ASSERT(found != kept_.end());
    const auto& [unit, slot, form] = found->second;
    at::Tensor out = form.make();
    std::memcpy(out.mutable_data_ptr(), buffers_->acquire(unit).data(), out.nbytes());
    buffers_->release(unit, /*changed=*/false);
    if (slot == slot_) free_.push_back(unit);
    kept_.erase(found);
    return out;
  }

 private:
  struct Kept {
    std::size_t unit = 0;
    std::int64_t slot = 0;
    Form form;
  };

  /// A unit with room for a tensor. Units that are too small are not used any more, and are removed
  /// with their files when nothing rests.
  std::size_t free_unit(std::int64_t bytes) {
    const std::int64_t blocks = (bytes + tier_.block() - 1) / tier_.block() * tier_.block();
    if (blocks > slot_) {
      slot_ = blocks;
      free_.clear();
      outgrown_ = true;
    }
    if (kept_.empty() && outgrown_) {
      buffers_.emplace(tier_, most_, memory::Tag::Activations);
      units_ = 0;
      free_.clear();
      outgrown_ = false;
    }
    if (free_.empty()) {
      std::array<std::int64_t, kActivationSlots> sizes{};
      sizes.fill(slot_);
      buffers_->set_units(units_, sizes, "activations");
      for (std::size_t i = sizes.size(); i > 0; --i)
        free_.push_back(units_ + i - 1);
      units_ += sizes.size();
    }
    const std::size_t unit = free_.back();
    free_.pop_back();
    return unit;
  }

  memory::Tier& tier_;
  int most_;  ///< buffers
  std::optional<UnitBuffers> buffers_;
  std::int64_t slot_ = 0;  ///< bytes of a unit
  bool outgrown_ = false;  ///< there may be units that are too small
  std::size_t units_ = 0;
  std::vector<std::size_t> free_;
  std::map<Number, Kept> kept_;
  Number next_ = 0;
};

class MemoryStore final : public ActivationStore {
 public:
  Number put(const at::Tensor& tensor) override {
    kept_.emplace(next_, tensor.clone());
    return next_++;
  }
  void fetch(Number) override {}
  at::Tensor take(Number number) override {
    at::Tensor out = std::move(kept_.at(number));
    kept_.erase(number);
    return out;
  }

 private:
  std::map<Number, at::Tensor> kept_;
  Number next_ = 0;
};

class Partitioned final : public ActivationStore {
 public:
  Partitioned(comm::World& world, const comm::Group& group, std::unique_ptr<ActivationStore> inner)
      : world_(world), group_(group), inner_(std::move(inner)) {
    if (inner_ == nullptr) inner_ = std::make_unique<MemoryStore>();
  }

  Number put(const at::Tensor& tensor) override {
    const std::int64_t ranks = group_.size();
    const bool whole = tensor.numel() % ranks != 0;
    const std::int64_t part = tensor.numel() / ranks;
    const Number number =
        inner_->put(whole ? tensor : flat(tensor).narrow(0, group_.index * part, part));
    if (!whole) forms_.emplace(number, Form(tensor));
    return number;
  }
  void fetch(Number number) override { inner_->fetch(number); }
  at::Tensor take(Number number) override {
    const auto form = forms_.find(number);
    at::Tensor part = inner_->take(number);
    if (form == forms_.end()) return part;
    at::Tensor out = form->second.make();
    forms_.erase(form);
    const comm::WorkPtr gather = world_.transport().all_gather(
        group_, span_of(part), span_of(flat(out)), TESSERA_HERE("input of a recomputed block"));
    gather->wait();
    gather->wait_reusable();
    return out;
  }

 private:
  comm::World& world_;
  const comm::Group& group_;
  std::unique_ptr<ActivationStore> inner_;
  std::map<Number, Form> forms_;  ///< of tensors that were divided
};

}  // namespace

std::unique_ptr<ActivationStore> activations_in(memory::Tier& tier, int buffers) {
  return std::make_unique<TierStore>(tier, buffers);
}

std::unique_ptr<ActivationStore> partitioned_activations(comm::World& world,
                                                         const comm::Group& group,
                                                         std::unique_ptr<ActivationStore> inner) {
  return std::make_unique<Partitioned>(world, group, std::move(inner));
}

}  // namespace tessera::parallel
