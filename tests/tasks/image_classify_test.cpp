// SPDX-License-Identifier: Apache-2.0
// Images in folders or named by records, as samples for a model of images.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/tasks/data_survey.h"
#include "tessera/tasks/labelled_images.h"
#include "tessera/tasks/record_dataset.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::task_of;
using test::values;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

/// A PNG of 7 x 5 pixels, whose first pixel has red 0, green 101 and blue 202.
/// One of the pictures of the reference.
std::string png(std::size_t index = 0) {
  const fs::path path = tessera::test::source_dir() / "tests/data/reference_pillow.json";
  const json::Value reference = json::parse_strict(files::read(path), path.string());
  const std::string hex = reference.find("files")->items().at(index).find("file")->as_string();
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

class ImageClassification : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& content) const {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
  }
  [[nodiscard]] std::string at(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  /// Writes five images of two classes, and two files that are not images.
  void write_classes() const {
    for (const char* name :
         {"cats/a.png", "cats/b.PNG", "cats/deep/c.png", "dogs/d.png", "dogs/e.png"})
      write(std::string("set/") + name, png());
    write("set/cats/notes.txt", "no picture");
    write("set/cats/._a.png", "no picture");  // as macOS leaves them
    write("set/.thumbnails/a.png", png());
    write("set/readme.md", "no class");
  }
  [[nodiscard]] data::Datasets open(const std::vector<std::string>& train,
                                    const std::string& params = "{}",
                                    double validation = 0.0,
                                    std::int64_t side = 4,
                                    const fs::path& from = {}) const {
    data::DataOptions options;
    options.train = train;
    options.validation_fraction = validation;
    const json::Value model =
        json::parse(R"({"num_channels": 3, "image_size": )" + std::to_string(side) + "}", "model");
    return task_of("image_classify", params)
        ->open({.options = options,
                .tokenizer = test::byte(),
                .vocab_size = 256,
                .sequence_length = 1,
                .min_samples = 1,
                .how = {},
                .model = &model,
                .model_folder = from});
  }
  [[nodiscard]] std::string refusal(const std::vector<std::string>& train,
                                    const std::string& params = "{}") const {
    const Error error = error_of([&] { (void)open(train, params); });
    return error.text();
  }
  files::TempDir folder_;
};

TEST_F(ImageClassification, ReadsAFolderForEachClass) {
  write_classes();

  const data::Datasets opened = open({at("set")});

  ASSERT_EQ(opened.train->size(), 5);
  EXPECT_EQ(opened.train_tokens, 5);
  EXPECT_EQ(opened.train->sequence_length(), std::nullopt);
  Ids labels;
  for (std::int64_t i = 0; i < 5; ++i)
    labels.push_back(values(*opened.train, i, "label").front());
  std::ranges::sort(labels);
  EXPECT_EQ(labels, (Ids{0, 0, 0, 1, 1}));
  data::Sample sample(*opened.train, 0);
  EXPECT_EQ(sample.values<float>("pixel_values").size(), 3U * 4 * 4);
  for (const float value : sample.values<float>("pixel_values"))
    EXPECT_LE(std::abs(value), 1.0F);
}

TEST_F(ImageClassification, HoldsOutTheShareOfEveryClass) {
  std::string records;  // sorted by class
  for (int i = 0; i < 12; ++i) {
    const std::string name = std::to_string(i) + ".png";
    write(name, png());
    records += R"({"image": ")" + name + R"(", "label": ")" + (i < 8 ? "cat" : "dog") + "\"}\n";
  }
  write("pictures.jsonl", records);

  const data::Datasets opened = open({at("pictures.jsonl")}, "{}", 0.25);

  ASSERT_EQ(opened.validation->size(), 3);
  int dogs = 0;
  for (std::int64_t i = 0; i < 3; ++i)
    dogs += static_cast<int>(values(*opened.validation, i, "label").front());
  EXPECT_EQ(dogs, 1);
}

TEST_F(ImageClassification, CountsClassesAndPicturesThatAreTheSame) {
  write_classes();
  write("set/dogs/other.png", png(1));
  write("held/cats/a.png", png());
  write("held/dogs/other.png", png(2));
  data::DataOptions options;
  options.train = {at("set")};
  options.validation = {at("held")};
  const auto task = task_of("image_classify");
  const json::Value model = json::parse(R"({"num_channels": 3, "image_size": 4})", "model");
  const data::TokenizeOptions how;
  const DataRequest request = {.options = options,
                               .tokenizer = test::byte(),
                               .vocab_size = 256,
                               .sequence_length = 1,
                               .how = how,
                               .model = &model};
  const data::Datasets opened = task->open(request);

  const DataSurvey survey = DataSurveyor(*task, request, opened, {}).survey();

  const RecordDataset::ClassCounts expected = {{"cats", 3}, {"dogs", 3}};
  EXPECT_EQ(class_counts_of(*opened.train), expected);
  EXPECT_EQ(survey.classes, expected);
  EXPECT_EQ(survey.samples, 6);
  EXPECT_EQ(survey.duplicates, 4) << "five of six are the same picture";
  EXPECT_EQ(survey.leaked, 1) << "one of the two validation pictures is that one";
}

TEST_F(ImageClassification, GivesItsObjectiveTheNamesOfTheClasses) {
  write_classes();
  data::DataOptions data;
  data.train = {at("set")};

  const auto task = task_of("image_classify");

  EXPECT_EQ(task->objective(), "image_classification");
  EXPECT_EQ(task->objective_options(data).dump(), R"({"num_labels":2,"labels":["cats","dogs"]})");
}

// The order does not depend on the path of the folder, and classes are mixed.
TEST_F(ImageClassification, MixesTheClassesInAnOrderOfTheirOwn) {
  for (int i = 0; i < 40; ++i) {
    for (const char* where : {"one/", "another/place/"})
      write(where + std::string(i % 2 == 0 ? "a/" : "b/") + std::to_string(i) + ".png", png());
  }
  const auto labels_of = [&](const std::string& name) {
    const data::Datasets opened = open({at(name)}, "{}", 0.25);
    EXPECT_EQ(opened.train->size(), 30);
    std::set<std::int64_t> held_out;
    for (std::int64_t i = 0; i < opened.validation->size(); ++i)
      held_out.insert(values(*opened.validation, i, "label").front());
    EXPECT_EQ(held_out.size(), 2U);
    Ids out;
    for (std::int64_t i = 0; i < 30; ++i)
      out.push_back(values(*opened.train, i, "label").front());
    return out;
  };

  EXPECT_EQ(labels_of("one"), labels_of("another/place"));
}

TEST_F(ImageClassification, ReadsRecordsThatNamePictures) {
  write("pictures/a.png", png());
  write("train.jsonl",
        "{\"image\": \"pictures/a.png\", \"label\": \"old\"}\n"
        "{\"image\": \"" +
            at("pictures/a.png") + "\", \"label\": \"new\"}\n");

  const data::Datasets opened = open({at("train.jsonl")});

  ASSERT_EQ(opened.train->size(), 2);
  EXPECT_EQ(values(*opened.train, 0, "label"), Ids{1});
  EXPECT_EQ(values(*opened.train, 1, "label"), Ids{0});
}

TEST_F(ImageClassification, ReadsPicturesWithoutLabelsToPredict) {
  write_classes();
  write("list.jsonl", "{\"image\": \"set/dogs/d.png\"}\n");
  const data::DataOptions options;
  const json::Value model = json::parse(R"({"num_channels": 3, "image_size": 4})", "model");
  const auto read = [&](const std::string& name) {
    return task_of("image_classify")
        ->open_to_predict({.options = options,
                           .tokenizer = test::byte(),
                           .vocab_size = 256,
                           .sequence_length = 1,
                           .how = {},
                           .model = &model,
                           .predict = true},
                          {at(name)});
  };

  EXPECT_EQ(read("set")->size(), 5) << "whatever the names of the folders";
  EXPECT_EQ(read("set/cats")->size(), 3);
  const auto listed = read("list.jsonl");
  EXPECT_EQ(listed->size(), 1);
  EXPECT_EQ(listed->tensors().size(), 1U) << "pictures alone";
}

TEST_F(ImageClassification, PreprocessesAsAFileSays) {
  write("train.jsonl", "{\"image\": \"a.png\", \"label\": 0}\n");
  write("a.png", png());
  write("model/preprocessor_config.json",
        R"({"do_resize": false, "do_center_crop": true, "crop_size": 5, "do_normalize": false})");

  const data::Datasets opened =
      open({at("train.jsonl")}, R"({"preprocessor": ")" + at("model") + "\"}", 0.0, 5);

  // The crop begins one pixel further to the right: 37 of red there, 138 of green, 239 of blue.
  data::Sample sample(*opened.train, 0);
  const auto pixels = sample.values<float>("pixel_values");
  EXPECT_FLOAT_EQ(pixels[0], 37.F / 255);
  EXPECT_FLOAT_EQ(pixels[25], 138.F / 255);
  EXPECT_FLOAT_EQ(pixels[50], 239.F / 255);
}

// The preprocessing that a model was trained with must not be left out silently.
TEST_F(ImageClassification, TakesThePreprocessingOfTheModelUnlessOneIsNamed) {
  write_classes();
  write("model/preprocessor_config.json", R"({"size": 4, "image_mean": 0.25, "image_std": 1.0})");
  const auto first_pixel = [&](const std::string& params) {
    const data::Datasets opened = open({at("set")}, params, 0.0, 4, folder_.path() / "model");
    return data::Sample(*opened.train, 0).values<float>("pixel_values").front();
  };

  const float plain = first_pixel(R"({"preprocessor": "default"})");

  // (p - 0.5) / 0.5 becomes p - 0.25.
  EXPECT_FLOAT_EQ(first_pixel("{}"), (plain * 0.5F + 0.5F) - 0.25F);
  // A run keeps the name of the file, because its checkpoints are not beside it.
  json::Value config = json::parse(
      R"({"task": "image_classify", "model": {"from": ")" + at("model") + R"("}})", "c.json");
  spell_out_task(config);
  EXPECT_EQ(preprocessing_name_of(config), at("model/preprocessor_config.json"));
}

TEST_F(ImageClassification, NamesWhatItCannotRead) {
  write_classes();
  write("empty/cats/notes.txt", "no picture");
  EXPECT_THAT(refusal({at("empty")}), HasSubstr("has no folders with .png"));

  write("broken/cats/a.png", png().substr(0, 20));
  EXPECT_THAT(refusal({at("broken")}), HasSubstr("a.png: the file ends early"));

  write("lines.jsonl", "{\"image\": \"nothing.png\", \"label\": 0}\n");
  EXPECT_THAT(refusal({at("lines.jsonl")}), HasSubstr("nothing.png"));
  write("lines.jsonl", "{\"image\": 3, \"label\": 0}\n");
  EXPECT_THAT(refusal({at("lines.jsonl")}), HasSubstr("lines.jsonl:1: \"image\" is a number"));

  EXPECT_THAT(refusal({at("set")}, R"({"labels": ["cats", "mice"]})"),
              HasSubstr("the label \"dogs\""));
  EXPECT_THAT(refusal({at("set")}, R"({"labels": ["cats", "cats"]})"), HasSubstr("named twice"));
  write("small.json", R"({"size": 3})");
  EXPECT_THAT(refusal({at("set")}, R"({"preprocessor": ")" + at("small.json") + "\"}"),
              HasSubstr("would be 3 x 3 pixels, and the model reads 4 x 4"));
}

TEST_F(ImageClassification, NeedsAModelThatReadsPictures) {
  write_classes();
  data::DataOptions options;
  options.train = {at("set")};
  const Error error = error_of([&] { (void)test::open(*task_of("image_classify"), options, 4); });

  EXPECT_THAT(error.text(), HasSubstr("model.family"));
}

TEST_F(ImageClassification, HasAnotherFingerprintWhereAPictureOrItsPreprocessingChanges) {
  write_classes();
  const std::string before = open({at("set")}).fingerprint;
  EXPECT_EQ(open({at("set")}).fingerprint, before);
  EXPECT_NE(open({at("set")}, "{}", 0.0, 8).fingerprint, before);

  write("set/cats/a.png", png() + "more");
  EXPECT_NE(open({at("set")}).fingerprint, before);
}

}  // namespace
}  // namespace tessera::tasks
