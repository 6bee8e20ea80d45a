// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/labelled_images.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/slices.h"
#include "tessera/data/sources.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;
namespace images = data::images;

std::uint64_t hash_of(const std::string& text) {
  return files::xxh3(std::as_bytes(std::span(text)));
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed))
    out.push_back(at->path());
  TESSERA_REQUIRE(!failed,
                  Data,
                  fmt::format("cannot read {}: {}", folder.string(), failed.message()),
                  "name a folder that can be read");
  std::ranges::sort(out);
  return out;
}

/// The images in a class's folder and its subfolders; links to folders are not followed.
void append_class(const fs::path& root, const fs::path& folder, std::vector<ImageRecord>& out) {
  std::error_code failed;
  for (fs::recursive_directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().filename().string().starts_with('.')) {  // such as ._a.jpg of macOS
      at.disable_recursion_pending();
      continue;
    }
    if (!images::is_image_name(at->path())) continue;
    data::refuse_dangling(at->path());
    if (!at->is_regular_file()) continue;
    const std::string path = at->path().string();
    out.push_back(
        {.path = path, .place = path, .label = {.name = folder.filename().string(), .id = {}}});
  }
  TESSERA_REQUIRE(!failed,
                  Data,
                  fmt::format("cannot read {}: {}", folder.string(), failed.message()),
                  "name a folder that can be read");
  (void)root;
}

/// Reads one folder per class.
std::vector<ImageRecord> in_classes(const fs::path& root) {
  std::vector<ImageRecord> out;
  for (const fs::path& entry : sorted_entries(root)) {
    const bool hidden = entry.filename().string().starts_with('.');  // such as .ipynb_checkpoints
    if (fs::is_directory(entry) && !hidden) append_class(root, entry, out);
  }
  TESSERA_REQUIRE(!out.empty(),
                  Data,
                  fmt::format("{} has no folders with .png, .jpg or .jpeg files", root.string()),
                  "put the pictures of each class into a folder of its own, named by the class");
  // Ordered by the name relative to the root, so that a folder may be moved.
  const std::size_t skipped = root.string().size();
  std::vector<std::pair<std::uint64_t, ImageRecord>> keyed;
  keyed.reserve(out.size());
  for (ImageRecord& record : out) {
    const std::uint64_t key = hash_of(record.path.substr(skipped));
    keyed.emplace_back(key, std::move(record));
  }
  std::ranges::sort(
      keyed, {}, [](const auto& item) { return std::tie(item.first, item.second.path); });
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = std::move(keyed[i].second);
  return out;
}

std::vector<ImageRecord> in_records(const std::string& name,
                                    const data::RecordOptions& how,
                                    const ImageFields& fields) {
  std::vector<ImageRecord> out;
  for_each_record({name}, how, [&](const data::Record& record) {
    const std::string image = text_of(record, fields.image, "image_field");
    out.push_back(
        {.path = (fs::path(name).parent_path() / image).string(),
         .place = record.place,
         .label =
             fields.label.empty()
                 ? Label()
                 : label_of(record, field_of(record, fields.label, "label_field"), fields.label)});
  });
  return out;
}

}  // namespace

std::vector<ImageRecord> list_images(const std::vector<std::string>& names,
                                     const data::RecordOptions& how,
                                     const ImageFields& fields) {
  std::vector<ImageRecord> out;
  for (const std::string& name : names) {
    std::vector<ImageRecord> more;
    if (!fs::is_directory(name)) {
      const data::SlicedName sliced = data::cut_slice(name);
      TESSERA_REQUIRE(
          !sliced.slice || !fs::is_directory(sliced.name),
          Data,
          fmt::format("a slice of the folder {} is not read: its pictures have no order",
                      sliced.name),
          "list its pictures in a file of records, of which a slice is read");
      more = in_records(name, how, fields);
    } else if (!fields.label.empty()) {
      more = in_classes(name);
    } else {
      append_class(name, name, more);
      std::ranges::sort(more, {}, &ImageRecord::path);
    }
    out.insert(
        out.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return out;
}

Labels labels_of_images(const std::vector<ImageRecord>& records,
                        const std::vector<std::string>& named) {
  LabelCollector found(named);
  for (const ImageRecord& record : records)
    found.add({.value = {}, .place = record.place}, record.label);
  return found.labels();
}

data::images::Preprocessing preprocessing_of(const std::string& name, std::int64_t side) {
  if (name == "default") return data::images::default_preprocessing(side);
  std::filesystem::path path = name;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) path /= kPreprocessorFile;
  return data::images::read_preprocessing(path);
}

std::optional<std::string> preprocessing_name_of(const json::Value& config) {
  const json::Value* const task = config.find("task");
  const json::Value* const type =
      task != nullptr && task->is_object() ? task->find("type") : nullptr;
  if (type == nullptr || !type->is_string() || type->as_string() != "image_classify")
    return std::nullopt;
  const json::Value* const params = task->find("params");
  const json::Value* const named =
      params != nullptr && params->is_object() ? params->find("preprocessor") : nullptr;
  return named != nullptr && named->is_string() ? named->as_string() : "default";
}

LabelledImages::LabelledImages(images::Preprocessing how, images::ImageSize size, Labels labels)
    : how_(std::move(how)), size_(size), labels_(std::move(labels)) {}

void LabelledImages::add(const std::vector<ImageRecord>& records,
                         const std::function<void()>& poll) {
  constexpr std::int64_t kPollEvery = 256;
  for (const ImageRecord& record : records) {
    if (poll && stats_.documents % kPollEvery == 0) poll();
    const auto file = data::map_source(record.path);
    const images::ImageSize made =
        preprocessed_size(how_, images::read_image_size(file->bytes(), record.path));
    TESSERA_REQUIRE(made == size_,
                    Config,
                    fmt::format("{} would be {} x {} pixels, and the model reads {} x {}",
                                record.path,
                                made.width,
                                made.height,
                                size_.width,
                                size_.height),
                    "choose a preprocessing with that size, or another model.image_size");
    samples_.push_back(
        {.path = record.path,
         .bytes = std::ssize(file->bytes()),
         // Without labels pictures are there to predict.
         .label = labels_.size() == 0
                      ? 0
                      : id_in({.value = {}, .place = record.place}, record.label, labels_)});
    ++stats_.documents;
    stats_.bytes += std::ssize(file->bytes());
  }
  stats_.tokens = size();
}

std::unique_ptr<RecordDataset> LabelledImages::split_off(std::int64_t count) {
  auto tail = std::make_unique<LabelledImages>(how_, size_, labels_);
  tail->samples_ = take_tail(samples_, count);
  return tail;
}

LabelsOfSamples LabelledImages::strata() const {
  LabelsOfSamples out;
  for (const Sample& sample : samples_)
    out.push_back({sample.label});
  return out;
}

void LabelledImages::reorder(const std::vector<std::int64_t>& order) {
  samples_ = reordered(samples_, order);
}

std::vector<data::TensorSpec> LabelledImages::tensors() const {
  std::vector<data::TensorSpec> out = {
      {.name = "pixel_values", .dtype = DType::F32, .shape = {3, size_.height, size_.width}}};
  if (labels_.size() > 0) out.push_back({.name = "label", .dtype = DType::I64});
  return out;
}

void LabelledImages::read(std::int64_t index, data::SampleWriter& out) const {
  const Sample& sample = samples_.at(static_cast<std::size_t>(index));
  const auto file = data::map_source(sample.path);
  const images::Image image = images::decode_image(file->bytes(), sample.path);
  const bool same = preprocessed_size(how_, image.size) == size_;
  TESSERA_REQUIRE(same,
                  Data,
                  sample.path + " has changed since the run began",
                  "start again, or put the file back");
  preprocess(image, how_, sample.path, out.tensor<float>("pixel_values"));
  if (labels_.size() > 0) out.set("label", sample.label);
}

LabelledImages::ClassCounts LabelledImages::class_counts() const {
  ClassCounts out;
  for (const std::string& name : labels_.names())
    out.emplace_back(name, 0);
  for (const Sample& sample : samples_) {
    if (!out.empty()) ++out.at(static_cast<std::size_t>(sample.label)).second;
  }
  return out;
}

std::vector<std::filesystem::path> LabelledImages::files() const {
  std::vector<std::filesystem::path> out;
  out.reserve(samples_.size());
  for (const Sample& sample : samples_)
    out.emplace_back(sample.path);
  return out;
}

std::string LabelledImages::fingerprint() const {
  std::string all = text_of(how_);
  for (const std::string& name : labels_.names())
    all += fmt::format("|{}:{}", name.size(), name);
  for (const Sample& sample : samples_)
    all += fmt::format("|{}:{} {} {}", sample.path.size(), sample.path, sample.bytes, sample.label);
  return files::hex64(hash_of(all));
}

}  // namespace tessera::tasks
