// SPDX-License-Identifier: Apache-2.0
// Classification of images: one folder per class, or an image's path and label per line of a
// .jsonl.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/tasks/labelled_images.h"
#include "tessera/tasks/model_classes.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/record_task.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;
namespace images = data::images;

constexpr const char* kImages = "images";

struct ImageClassifyOptions {
  std::string image_field = "image", label_field = "label";
  std::vector<std::string> labels;
  ClassLossOptions loss;
  std::string preprocessor;
  void describe(config::Fields& fields) {
    fields.field("image_field",
                 image_field,
                 {.text = "Field of a record that contains the path of its image, relative to the "
                          "file's folder."});
    fields.field(
        "label_field",
        label_field,
        {.text = "Field of a record that contains its label: a name or an integer from 0."});
    fields.field("labels",
                 labels,
                 {.text = "Names of the labels in the order of their ids.",
                  .default_text = "those of data.train, sorted"});
    fields.field(
        "preprocessor",
        preprocessor,
        {.text = "Hugging Face's preprocessor_config.json, or a folder with one, which defines how "
                 "images are resized and normalized; \"default\": to the model's size by bilinear "
                 "interpolation, and to values from -1 to 1.",
         .default_text = "the file in model.from, or else default"});
    loss.describe(fields);
  }
};

/// The side length of the images that the model reads.
std::int64_t side_of(const DataRequest& request) {
  const auto number = [&](const char* key) {
    const json::Value* value = request.model == nullptr ? nullptr : request.model->find(key);
    return value != nullptr && value->is_number() ? value->as_integer().value_or(0) : 0;
  };
  TESSERA_REQUIRE(number("image_size") > 0 && number("num_channels") == 3,
                  Config,
                  "the task image_classify needs a model that reads pictures of three colours",
                  "choose such a family in model.family, with model.num_channels 3");
  return number("image_size");
}

class ImageClassify final : public RecordTask {
 public:
  explicit ImageClassify(ImageClassifyOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::string objective() const override { return "image_classification"; }
  [[nodiscard]] json::Value objective_options(const data::DataOptions& data) const override {
    const Labels labels = labels_of(data);
    json::Value out = options_of_labels(labels);
    options_.loss.add_to(out, labels);
    return out;
  }

  /// Unknown before the data is opened, because the image size is in the model's description.
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t) const override { return {}; }
  [[nodiscard]] bool has_metrics() const override { return true; }
  [[nodiscard]] json::Value prediction(const Predictions& rows,
                                       const std::vector<std::string>& names) const override {
    return class_prediction(rows, names);
  }
  [[nodiscard]] std::vector<NamedValue> metrics(const Predictions& predictions) const override {
    return class_metrics(predictions);
  }

 private:
  [[nodiscard]] std::vector<ImageRecord> list(const data::DataOptions& data,
                                              const std::vector<std::string>& names,
                                              bool predict = false) const {
    return list_images(
        names,
        record_options(data,
                       fmt::format("{{\"{}\": \"cat.jpg\", \"{}\": \"cat\"}}",
                                   options_.image_field,
                                   options_.label_field)),
        {.image = options_.image_field, .label = predict ? std::string() : options_.label_field});
  }
  [[nodiscard]] Labels labels_of(const data::DataOptions& data) const {
    const bool count = options_.loss.balance != ClassBalance::None;
    if (!options_.labels.empty() && !count) return Labels::named(options_.labels);
    Labels found = labels_of_images(list(data, data.train), options_.labels);
    return options_.labels.empty() ? found : counted(options_.labels, found);
  }
  [[nodiscard]] images::Preprocessing preprocessing_of(const DataRequest& request,
                                                       std::int64_t side) const {
    std::string name = options_.preprocessor;
    std::error_code ignored;
    const fs::path own = request.model_folder / kPreprocessorFile;
    if (name.empty() && !request.model_folder.empty() && fs::exists(own, ignored))
      name = own.string();
    return tasks::preprocessing_of(name.empty() ? "default" : name, side);
  }
  [[nodiscard]] const char* noun() const override { return kImages; }
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override {
    return [this, &request, labels = request.predict ? Labels() : labels_of(request.options)](
               const std::vector<std::string>& names, data::Split /*split*/) {
      const std::int64_t side = side_of(request);
      auto out = std::make_unique<LabelledImages>(
          preprocessing_of(request, side), images::ImageSize{side, side}, labels);
      out->add(list(request.options, names, request.predict), request.how.poll);
      return out;
    };
  }

  ImageClassifyOptions options_;
};

std::unique_ptr<Task> make_image_classify(const json::Value& params,
                                          config::Problems& problems,
                                          config::Origins& origins) {
  ImageClassifyOptions options;
  config::read(with_label_names(params), options, problems, origins);
  check_label_names(options.labels, problems, origins);
  options.loss.check(problems, origins);
  return std::make_unique<ImageClassify>(std::move(options));
}

TaskOptions task_of_image_classifier(const json::Value& options, bool labelled) {
  TaskOptions out{.type = "image_classify", .params = json::Value::object()};
  out.params["preprocessor"] = json::Value::string("default");
  if (labelled) out.params["labels"] = names_of_classes(options);
  return out;
}

TESSERA_TASK("image_classify", make_image_classify);
TESSERA_TASK_OF_CLASSES("image_classify", image_classify, nullptr);
TESSERA_TASK_OF_OBJECTIVE("image_classification",
                          image_classify,
                          {.of_model = task_of_image_classifier,
                           .trains = "image_classify",
                           .example = R"({"labels": ["a", "b"]})"});

}  // namespace
}  // namespace tessera::tasks
