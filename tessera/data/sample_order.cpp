// SPDX-License-Identifier: Apache-2.0
// The order of samples and the division into batches: arithmetic on (seed, epoch, position).
#include "tessera/data/sample_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"

namespace tessera::data {
namespace {

// Four rounds give a pseudo-random permutation (Luby and Rackoff 1988); narrow halves need a few
// more.
constexpr int kRounds = 8;

/// A permutation of [0, 2^(2 half)).
std::uint64_t feistel(std::uint64_t x, int half, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t left = x >> half, right = x & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = mix64(right, mix64(key, round)) >> (64 - half);
    const std::uint64_t next = left ^ mixed;
    left = right;
    right = next;
  }
  return left << half | right;
}

}  // namespace

std::int64_t SampleOrder::operator()(std::int64_t epoch, std::int64_t position) const {
  TESSERA_ASSERT(position >= 0 && position < size_);
  if (!shuffle_ || size_ == 1) return position;
  const auto size = static_cast<std::uint64_t>(size_);
  const int half = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  const std::uint64_t key = mix64(seed_, static_cast<std::uint64_t>(epoch));
  // The domain is at most four times too large: follow the cycle until it is back inside.
  auto x = static_cast<std::uint64_t>(position);
  do {
    x = feistel(x, half, key);
  } while (x >= size);
  return static_cast<std::int64_t>(x);
}

BatchPlan::BatchPlan(std::int64_t dataset_size,
                     std::int64_t global_batch,
                     bool drop_last,
                     std::function<std::int64_t(std::int64_t)> size_at)
    : size_(dataset_size),
      batch_(global_batch),
      drop_last_(drop_last),
      size_at_(std::move(size_at)) {
  TESSERA_ASSERT(dataset_size > 0 && global_batch > 0);
  TESSERA_REQUIRE(
      !drop_last || global_batch <= dataset_size,
      Data,
      fmt::format("{} samples are less than one global batch of {}", dataset_size, global_batch),
      fmt::format("use more data, a train_batch_size of at most {}, or data.drop_last false",
                  dataset_size));
}

GlobalBatch BatchPlan::at(std::int64_t consumed) const {
  TESSERA_ASSERT(consumed >= 0);
  const std::int64_t wanted = batch_at(consumed);
  GlobalBatch batch{.epoch = consumed / size_, .first = consumed % size_};
  // Another batch size before a resume may have left less than a whole batch here.
  if (drop_last_ && size_ - batch.first < wanted) batch = {.epoch = batch.epoch + 1, .first = 0};
  batch.size = std::min(wanted, size_ - batch.first);
  batch.consumed_before = batch.epoch * size_ + batch.first;
  const std::int64_t left = size_ - batch.first - batch.size,
                     next = batch_at(batch.consumed_before + batch.size);
  batch.consumed_after =
      batch.consumed_before + batch.size + (drop_last_ && left < next ? left : 0);
  return batch;
}

std::int64_t BatchPlan::steps_per_epoch() const {
  return drop_last_ ? size_ / batch_ : (size_ + batch_ - 1) / batch_;
}

double BatchPlan::steps_in(double epochs, std::int64_t consumed) const {
  const double samples = epochs * static_cast<double>(size_),
               all = std::ceil(epochs * static_cast<double>(steps_per_epoch()));
  double steps = 0;
  while (true) {
    // Counts from here on as if all batches had this size, which gives the same result from every
    // such step.
    const std::int64_t whole = consumed / size_, here = consumed % size_, batches = here / batch_;
    if (here % batch_ == 0 && batch_at(consumed) == batch_) {
      const double made = static_cast<double>(whole) * static_cast<double>(steps_per_epoch()) +
                          static_cast<double>(batches);
      return steps + std::max(0.0, all - made);
    }
    if (static_cast<double>(consumed) >= samples) return steps;
    consumed = at(consumed).consumed_after;
    ++steps;
  }
}

}  // namespace tessera::data
