// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/mixed_records.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::tasks {

MixedRecords::MixedRecords(std::vector<std::unique_ptr<RecordDataset>> parts, data::Mixture mixture)
    : parts_(std::move(parts)), mixture_(std::move(mixture)) {
  TESSERA_ASSERT(!parts_.empty());
  for (const auto& part : parts_) {
    TESSERA_REQUIRE(part->tensors() == parts_.front()->tensors(),
                    Data,
                    "the sources of data.sources make samples of other tensors, such as pairs of "
                    "texts together with single texts",
                    "mix sources of one kind");
    count_in(*part);
  }
}

void MixedRecords::read(std::int64_t index, data::SampleWriter& out) const {
  const data::Mixture::Place place = mixture_.at(index);
  parts_[static_cast<std::size_t>(place.source)]->read(place.index, out);
}

std::int64_t MixedRecords::tokens() const {
  std::int64_t tokens = 0;
  for (const auto& part : parts_)
    tokens += part->tokens();
  return tokens;
}

RecordDataset::ClassCounts MixedRecords::class_counts() const {
  ClassCounts out;
  for (const auto& part : parts_) {
    for (const auto& [name, count] : part->class_counts()) {
      const auto known = std::ranges::find(out, name, &ClassCounts::value_type::first);
      if (known == out.end()) {
        out.emplace_back(name, count);
      } else {
        known->second += count;
      }
    }
  }
  return out;
}

std::vector<std::filesystem::path> MixedRecords::files() const {
  std::vector<std::filesystem::path> out;
  for (const auto& part : parts_) {
    const std::vector<std::filesystem::path> more = part->files();
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

std::string MixedRecords::fingerprint() const {
  Fingerprint out;
  for (std::size_t s = 0; s < parts_.size(); ++s) {
    out.add(parts_[s]->fingerprint());
    out.add(mixture_.count(static_cast<std::int64_t>(s)));
  }
  return out.text();
}

std::unique_ptr<RecordDataset> MixedRecords::split_off(std::int64_t /*count*/) {
  TESSERA_ASSERT(false);
  return nullptr;
}

}  // namespace tessera::tasks
