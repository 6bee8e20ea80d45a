// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/streamed_records.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/data/sample_order.h"

namespace tessera::tasks {

StreamedRecords::StreamedRecords(std::vector<std::string> files, OpenFile open, StreamOrder order)
    : open_(std::move(open)), order_(order) {
  TESSERA_ASSERT(order_.window > 0);
  for (const std::string& path : files)
    take_counts(path, *open_(path));
}

void StreamedRecords::take_counts(const std::string& path, const RecordDataset& samples) {
  TESSERA_REQUIRE(!samples.made_by_model(),
                  Unsupported,
                  "data.streaming is not built for samples of which a model computes a part",
                  "remove it");
  count_in(samples);
  files_.push_back({path, samples.fingerprint(), samples.size()});
  tokens_ += samples.tokens();
  if (samples.size() == 0) return;
  if (size_ == 0) {
    name_ = samples.name();
    tensors_ = samples.tensors();
    length_ = samples.sequence_length();
    class_counts_ = samples.class_counts();
  } else {
    TESSERA_REQUIRE(
        samples.tensors() == tensors_,
        Data,
        fmt::format(
            "the records of {} become other tensors than those of {}", path, files_.front().path),
        "give all files the same fields");
    const ClassCounts own = samples.class_counts();
    TESSERA_ASSERT(own.size() == class_counts_.size());
    for (std::size_t c = 0; c < own.size(); ++c)
      class_counts_[c].second += own[c].second;
  }
  size_ += samples.size();
}

StreamedRecords::Epoch StreamedRecords::epoch(std::int64_t number) const {
  const std::scoped_lock lock(mutex_);
  if (epoch_.number == number) return epoch_;
  Epoch out{.number = number};
  const data::SampleOrder order(std::ssize(files_), order_.shuffle, mix64(order_.seed, 0));
  std::int64_t begin = 0;
  for (std::int64_t slot = 0; slot < std::ssize(files_); ++slot) {
    out.files.push_back(order(number, slot));
    out.begins.push_back(begin);
    begin += files_[static_cast<std::size_t>(out.files.back())].size;
  }
  out.begins.push_back(begin);
  epoch_ = out;
  return out;
}

StreamedRecords::Place StreamedRecords::place_of(std::int64_t number, std::int64_t position) const {
  TESSERA_ASSERT(position >= 0 && position < size_);
  const Epoch order = epoch(number);
  // The last slot that begins there is the one that has samples.
  const auto slot_of = [&](std::int64_t at) {
    return std::upper_bound(order.begins.begin(), order.begins.end(), at) - order.begins.begin() -
           1;
  };
  const auto begin_of = [&](std::int64_t slot) {
    return order.begins[static_cast<std::size_t>(slot)];
  };
  const std::int64_t window = slot_of(position) / order_.window,
                     begin = begin_of(window * order_.window),
                     end =
                         begin_of(std::min((window + 1) * order_.window, std::ssize(order.files)));
  const data::SampleOrder shuffled(
      end - begin, order_.shuffle, mix64(order_.seed, static_cast<std::uint64_t>(window) + 1));
  const std::int64_t at = begin + shuffled(number, position - begin), slot = slot_of(at);
  return {order.files[static_cast<std::size_t>(slot)], at - begin_of(slot)};
}

std::shared_ptr<const RecordDataset> StreamedRecords::opened(std::int64_t file) const {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(held_, file, [](const auto& held) { return held.first; });
  if (found != held_.end()) {
    held_.splice(held_.begin(), held_, found);
    return held_.front().second;
  }
  // Samples of the window and of the next one are read at the same time where both meet.
  while (std::ssize(held_) >= 2 * order_.window)
    held_.pop_back();
  const File& known = files_[static_cast<std::size_t>(file)];
  std::shared_ptr<const RecordDataset> samples = open_(known.path);
  TESSERA_REQUIRE(samples->size() == known.size && samples->fingerprint() == known.fingerprint,
                  Data,
                  fmt::format("{} has changed since the training began to read it", known.path),
                  "start again with data that stays as it is");
  held_.emplace_front(file, std::move(samples));
  return held_.front().second;
}

void StreamedRecords::read(std::int64_t index, data::SampleWriter& out) const {
  read_in_epoch(out.number() / size_, index, out);
}

void StreamedRecords::read_in_epoch(std::int64_t epoch,
                                    std::int64_t position,
                                    data::SampleWriter& out) const {
  const Place place = place_of(epoch, position);
  opened(place.file)->read(place.sample, out);
}

std::string StreamedRecords::fingerprint() const {
  Fingerprint out;
  out.add("streamed");
  out.add(order_.window);
  for (const File& file : files_)
    out.add(file.fingerprint);
  return out.text();
}

std::unique_ptr<RecordDataset> StreamedRecords::split_off(std::int64_t /*count*/) {
  throw Error(Error::Kind::Bug,
              "a part of streamed records is held out after their files were counted",
              "hold it out where files are opened");
}

}  // namespace tessera::tasks
