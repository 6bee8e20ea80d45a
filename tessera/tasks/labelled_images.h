// SPDX-License-Identifier: Apache-2.0
// Labelled images: one folder per class, or records that name the images.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/images/preprocess.h"
#include "tessera/tasks/labels.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The fields of a record with an image's path and its label. An empty label field means unlabelled
/// images, which may be anywhere in a folder.
struct ImageFields {
  std::string image = "image", label = "label";
};

/// The path of an image, and its label.
struct ImageRecord {
  std::string path, place;  ///< `place`: where the image is listed, for messages
  Label label;
};

/// The images for `names`. A folder contains one folder per class, whose name is the label of all
/// .png, .jpg and .jpeg files in it and its subfolders; their order mixes the classes and depends
/// only on their names. A record in a file has a path, relative to the file's folder, and a label.
/// Throws Error{Data} for a folder without classes or images.
std::vector<ImageRecord> list_images(const std::vector<std::string>& names,
                                     const data::RecordOptions& how,
                                     const ImageFields& fields);
/// `named` are the labels that the configuration names (see LabelCollector).
Labels labels_of_images(const std::vector<ImageRecord>& records,
                        const std::vector<std::string>& named);

/// The file of Hugging Face's folders that specifies how images become numbers.
inline constexpr const char* kPreprocessorFile = "preprocessor_config.json";
/// The preprocessing that task.params.preprocessor names: "default", a file, or a folder with
/// kPreprocessorFile. `side`: the side length of the model's images. Throws Error{Data} for a
/// missing file, and as read_preprocessing() does.
data::images::Preprocessing preprocessing_of(const std::string& name, std::int64_t side);
/// The name of the preprocessing in the configuration of a run of the task image_classify, and
/// "default" if it names none; nothing for runs of other tasks.
std::optional<std::string> preprocessing_name_of(const json::Value& config);

/// Samples have "pixel_values" [3, height, width], fp32, and "label" [], int64, unless images are
/// unlabelled. An image is read and decoded each time its sample is read. Const methods can be
/// called from any thread.
class LabelledImages final : public RecordDataset {
 public:
  /// `size`: the common size of all pixel_values.
  LabelledImages(data::images::Preprocessing how, data::images::ImageSize size, Labels labels);

  /// Adds images and reads each file's header. Calls `poll` now and then. Throws Error{Data} for a
  /// file that is missing or not an image, for an unknown label, and for an image that would have
  /// another size.
  void add(const std::vector<ImageRecord>& records, const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;
  [[nodiscard]] LabelsOfSamples strata() const override;
  void reorder(const std::vector<std::int64_t>& order) override;

  [[nodiscard]] std::string name() const override { return "labelled images"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;

  [[nodiscard]] const Labels& labels() const { return labels_; }
  /// The number of samples, because an image counts as one token.
  [[nodiscard]] std::int64_t tokens() const override { return size(); }
  [[nodiscard]] ClassCounts class_counts() const override;
  /// A hash of paths, file sizes, labels and preprocessing.
  [[nodiscard]] std::string fingerprint() const override;
  [[nodiscard]] std::vector<std::filesystem::path> files() const override;

 private:
  struct Sample {
    std::string path;
    std::int64_t bytes = 0, label = 0;
  };
  data::images::Preprocessing how_;
  data::images::ImageSize size_;
  Labels labels_;
  std::vector<Sample> samples_;
};

}  // namespace tessera::tasks
