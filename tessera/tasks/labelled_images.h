// SPDX-License-Identifier: Apache-2.0
// Pictures with a label each: a folder for each class, or records that name them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/images/preprocess.h"
#include "tessera/tasks/labels.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {

/// The fields of a record that hold the path of a picture and its label. Without a label: pictures
/// of which nothing is known, which lie anywhere in a folder.
struct ImageFields {
  std::string image = "image", label = "label";
};

/// A picture that is named, and its label.
struct ImageRecord {
  std::string path, place;  ///< `place`: where it is named, in messages
  Label label;
};

/// The pictures that `names` stand for. A folder holds one folder for each class, whose name is the
/// label of the .png, .jpg and .jpeg files anywhere in it; they come in an order that mixes the
/// classes and depends on their names alone. A record of a file has a path, from the file's own
/// folder on, and a label. Error{Data} for a folder without classes or pictures.
std::vector<ImageRecord> list_images(const std::vector<std::string>& names,
                                     const data::RecordOptions& how,
                                     const ImageFields& fields);
Labels labels_of_images(const std::vector<ImageRecord>& records);

/// "pixel_values" [3, height, width], fp32, and "label" [], int64, unless there are no labels. A
/// picture is read and decoded each time that its sample is. Threads: const methods from any
/// thread.
class LabelledImages final : public RecordDataset {
 public:
  /// All of one size: that of pixel_values.
  LabelledImages(data::images::Preprocessing how, data::images::ImageSize size, Labels labels);

  /// Looks at the head of each file. `poll` is called now and then. Error{Data} for a file that is
  /// not there or no picture, for an unknown label, and for one that would be of another size.
  void add(const std::vector<ImageRecord>& records, const std::function<void()>& poll);
  [[nodiscard]] std::unique_ptr<RecordDataset> split_off(std::int64_t count) override;

  [[nodiscard]] std::string name() const override { return "labelled images"; }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(samples_.size());
  }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override;
  void read(std::int64_t index, data::SampleWriter& out) const override;

  [[nodiscard]] const Labels& labels() const { return labels_; }
  /// Samples: a picture counts as one token.
  [[nodiscard]] std::int64_t tokens() const override { return size(); }
  /// Of paths, sizes of the files, labels and preprocessing.
  [[nodiscard]] std::string fingerprint() const override;

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
