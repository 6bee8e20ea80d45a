// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/streamed_records.h"

#include <algorithm>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::tasks {

StreamedRecords::StreamedRecords(std::vector<std::string> files, OpenFile open, std::int64_t window)
    : open_(std::move(open)), window_(window) {
  TESSERA_ASSERT(window_ > 0);
  for (const std::string& path : files)
    take_counts(path, *open_(path));
}

void StreamedRecords::take_counts(const std::string& path, const RecordDataset& samples) {
  count_in(samples);
  files_.push_back({path, samples.fingerprint()});
  const std::vector<std::filesystem::path> later = samples.files();
  read_later_.insert(read_later_.end(), later.begin(), later.end());
  begins_.push_back(size() + samples.size());
  tokens_ += samples.tokens();
  if (samples.size() == 0) return;
  if (size() == samples.size()) {  // the first file that has samples
    name_ = samples.name();
    tensors_ = samples.tensors();
    made_by_model_ = samples.made_by_model();
    length_ = samples.sequence_length();
    class_counts_ = samples.class_counts();
    return;
  }
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

std::vector<std::int64_t> StreamedRecords::file_sizes() const {
  std::vector<std::int64_t> out;
  for (std::size_t f = 0; f < files_.size(); ++f)
    out.push_back(begins_[f + 1] - begins_[f]);
  return out;
}

std::shared_ptr<const RecordDataset> StreamedRecords::opened(std::size_t file) const {
  // Samples of the window and of the next one are read at the same time where both meet.
  return held_.get(file, static_cast<std::size_t>(2 * window_), [&] {
    const File& known = files_[file];
    std::shared_ptr<const RecordDataset> samples = open_(known.path);
    TESSERA_REQUIRE(samples->size() == begins_[file + 1] - begins_[file] &&
                        samples->fingerprint() == known.fingerprint,
                    Data,
                    fmt::format("{} has changed since the training began to read it", known.path),
                    "restart, and do not change the file during training");
    return samples;
  });
}

void StreamedRecords::read(std::int64_t index, data::SampleWriter& out) const {
  TESSERA_ASSERT(index >= 0 && index < size());
  // The last file that begins there is the one that has samples.
  const auto file =
      static_cast<std::size_t>(std::ranges::upper_bound(begins_, index) - begins_.begin() - 1);
  opened(file)->read(index - begins_[file], out);
}

std::string StreamedRecords::fingerprint() const {
  Fingerprint out;
  out.add("streamed");
  out.add(window_);
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
