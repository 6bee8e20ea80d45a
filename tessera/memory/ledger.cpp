// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/ledger.h"

#include <atomic>

namespace tessera::memory {

struct Ledger::State {
  struct Counter {
    std::atomic<std::int64_t> current{0};
    std::atomic<std::int64_t> peak{0};

    void add(std::int64_t bytes) noexcept {
      const std::int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
      std::int64_t seen = peak.load(std::memory_order_relaxed);
      while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
      }
    }
    void reset_peak() noexcept { peak.store(current.load(std::memory_order_relaxed)); }
  };

  std::array<Counter, kNumTags> tags;
  Counter total;
  std::atomic<std::int64_t> owners{1};  // the Ledger itself and every open charge

  void add(Tag tag, std::int64_t bytes) noexcept {
    tags[static_cast<std::size_t>(tag)].add(bytes);
    total.add(bytes);
  }
  void drop() noexcept {
    if (owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

namespace {

// Never destroyed: destructors of other static objects free blocks too.
Ledger& process_ledger() {
  static auto* const ledger = new Ledger;
  return *ledger;
}

thread_local Ledger* this_ledger = nullptr;
thread_local Tag this_tag = Tag::Activations;

}  // namespace

std::string_view name(Tag tag) noexcept {
  static constexpr std::array<std::string_view, kNumTags> kNames = {"parameters",
                                                                    "gradients",
                                                                    "gradients in flight",
                                                                    "optimizer",
                                                                    "activations",
                                                                    "communication",
                                                                    "other"};
  return kNames[static_cast<std::size_t>(tag)];
}

Ledger::Ledger() : state_(new State) {}
Ledger::~Ledger() {
  state_->drop();
}

void Ledger::add(Tag tag, std::int64_t bytes) noexcept {
  state_->add(tag, bytes);
}

Usage Ledger::usage() const noexcept {
  Usage usage;
  for (std::size_t i = 0; i < kNumTags; ++i) {
    usage.current[i] = state_->tags[i].current.load(std::memory_order_relaxed);
    usage.peak[i] = state_->tags[i].peak.load(std::memory_order_relaxed);
  }
  usage.total = state_->total.current.load(std::memory_order_relaxed);
  usage.total_peak = state_->total.peak.load(std::memory_order_relaxed);
  return usage;
}

void Ledger::reset_peak() noexcept {
  for (auto& counter : state_->tags)
    counter.reset_peak();
  state_->total.reset_peak();
}

Charge Charge::open(std::int64_t bytes, Tag tag) noexcept {
  Ledger::State* const state = current_ledger().state_;
  state->owners.fetch_add(1, std::memory_order_relaxed);
  state->add(tag, bytes);
  return {state, bytes, tag};
}

void Charge::release() noexcept {
  if (ledger == nullptr) return;
  ledger->add(tag, -bytes);
  ledger->drop();
  ledger = nullptr;
}

Ledger& current_ledger() noexcept {
  return this_ledger != nullptr ? *this_ledger : process_ledger();
}
ScopedLedger::ScopedLedger(Ledger& ledger) noexcept : before_(this_ledger) {
  this_ledger = &ledger;
}
ScopedLedger::~ScopedLedger() {
  this_ledger = before_;
}

ScopedTag::ScopedTag(Tag tag) noexcept : before_(this_tag) {
  this_tag = tag;
}
ScopedTag::~ScopedTag() {
  this_tag = before_;
}
Tag current_tag() noexcept {
  return this_tag;
}

}  // namespace tessera::memory
