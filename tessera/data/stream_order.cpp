// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/stream_order.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/data/sample_order.h"

namespace tessera::data {

StreamOrder::StreamOrder(const std::vector<std::int64_t>& sizes, StreamOptions options)
    : options_(options) {
  TESSERA_ASSERT(options_.window > 0);
  for (const std::int64_t size : sizes)
    begins_.push_back(begins_.back() + size);
}

std::shared_ptr<const StreamOrder::Epoch> StreamOrder::epoch(std::int64_t number) const {
  const std::scoped_lock lock(mutex_);
  if (epoch_ != nullptr && epoch_->number == number) return epoch_;
  auto out = std::make_shared<Epoch>();
  out->number = number;
  const std::int64_t files = std::ssize(begins_) - 1;
  const SampleOrder order(files, options_.shuffle, mix64(options_.seed, 0));
  std::int64_t begin = 0;
  for (std::int64_t slot = 0; slot < files; ++slot) {
    const std::int64_t file = order(number, slot);
    out->files.push_back(file);
    out->begins.push_back(begin);
    begin += begins_[static_cast<std::size_t>(file) + 1] - begins_[static_cast<std::size_t>(file)];
  }
  out->begins.push_back(begin);
  epoch_ = std::move(out);
  return epoch_;
}

std::int64_t StreamOrder::at(std::int64_t number, std::int64_t position) const {
  TESSERA_ASSERT(position >= 0 && position < size());
  const std::shared_ptr<const Epoch> order = epoch(number);
  // The last slot that begins there is the one that has samples.
  const auto slot_of = [&](std::int64_t at) {
    return std::ranges::upper_bound(order->begins, at) - order->begins.begin() - 1;
  };
  const auto begin_of = [&](std::int64_t slot) {
    return order->begins[static_cast<std::size_t>(slot)];
  };
  const std::int64_t window = slot_of(position) / options_.window,
                     begin = begin_of(window * options_.window),
                     end = begin_of(
                         std::min((window + 1) * options_.window, std::ssize(order->files)));
  const SampleOrder shuffled(
      end - begin, options_.shuffle, mix64(options_.seed, static_cast<std::uint64_t>(window) + 1));
  const std::int64_t at = begin + shuffled(number, position - begin), slot = slot_of(at);
  const auto file = static_cast<std::size_t>(order->files[static_cast<std::size_t>(slot)]);
  return begins_[file] + at - begin_of(slot);
}

StreamedSamples::StreamedSamples(std::unique_ptr<Dataset> samples,
                                 Mixture mixture,
                                 std::vector<std::unique_ptr<StreamOrder>> orders)
    : samples_(std::move(samples)), mixture_(std::move(mixture)), orders_(std::move(orders)) {
  std::int64_t begin = 0;
  for (const auto& order : orders_) {
    begins_.push_back(begin);
    begin += order->size();
  }
  TESSERA_ASSERT(begin == samples_->size());
}

std::int64_t StreamedSamples::fixed_index(std::int64_t index, std::int64_t number) const {
  const Mixture::Place place = mixture_.at(index);
  const auto source = static_cast<std::size_t>(place.source);
  const StreamOrder& order = *orders_[source];
  const std::int64_t before = mixture_.read_before(number / size(), place);
  return begins_[source] + order.at(before / order.size(), before % order.size());
}

void StreamedSamples::read(std::int64_t index, SampleWriter& out) const {
  samples_->read(fixed_index(index, out.number()), out);
}

}  // namespace tessera::data
