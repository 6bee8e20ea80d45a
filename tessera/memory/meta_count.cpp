// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/meta_count.h"

#include <algorithm>
#include <utility>

#include <c10/core/Allocator.h>

#include "tessera/base/error.h"

namespace tessera::memory {

struct MetaCount::State {
  std::int64_t current = 0, peak = 0;
};

namespace {

thread_local std::shared_ptr<MetaCount::State> this_count;

struct Counted {
  std::shared_ptr<MetaCount::State> state;
  std::int64_t bytes;
};

void release(void* counted) {
  const std::unique_ptr<Counted> mine(static_cast<Counted*>(counted));
  mine->state->current -= mine->bytes;
}

/// Replaces libtorch's allocator for the meta device, which does not allocate memory either.
class CountingAllocator final : public c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (this_count == nullptr || bytes == 0) return {nullptr, c10::Device(c10::DeviceType::Meta)};
    auto counted = std::make_unique<Counted>(Counted{this_count, static_cast<std::int64_t>(bytes)});
    MetaCount::State& state = *counted->state;
    state.current += counted->bytes;
    state.peak = std::max(state.peak, state.current);
    return {nullptr, counted.release(), &release, c10::Device(c10::DeviceType::Meta)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}
};

void install() {
  static const bool installed = [] {
    static CountingAllocator allocator;
    c10::SetAllocator(c10::DeviceType::Meta, &allocator, /*priority=*/1);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

MetaCount::MetaCount() : state_(std::make_shared<State>()) {
  install();
  TESSERA_ASSERT(this_count == nullptr);
  this_count = state_;
}
MetaCount::~MetaCount() {
  this_count = nullptr;
}

std::int64_t MetaCount::current() const {
  return state_->current;
}
std::int64_t MetaCount::peak() const {
  return state_->peak;
}
void MetaCount::reset_peak() {
  state_->peak = state_->current;
}

NotCounted::NotCounted() : before_(std::exchange(this_count, nullptr)) {}
NotCounted::~NotCounted() {
  this_count = std::move(before_);
}

}  // namespace tessera::memory
