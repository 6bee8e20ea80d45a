// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/choices.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/document.h"
#include "tessera/config/fields.h"

namespace tessera::config {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

enum class Shape : std::uint8_t { Round, Flat, Odd };
constexpr auto kShapes = std::to_array<Named<Shape>>(
    {{Shape::Round, "round"}, {Shape::Flat, "flat"}, {Shape::Odd, "odd"}});

struct Options {
  Shape shape = Shape::Flat;
  std::optional<Shape> other;
  void describe(Fields& f) {
    f.choice("shape", shape, kShapes, {.text = "The shape."});
    f.choice("other", other, kShapes, {.text = "Another shape.", .default_text = "none"});
  }
};

Options read_text(const std::string& text) {
  Options out;
  Problems problems;
  Origins origins;
  read(json::parse(text, "c.json"), out, problems, origins);
  problems.raise();
  return out;
}

TEST(Choices, AreReadByTheirNamesAndKeptWhereAbsent) {
  const Options given = read_text(R"({"shape": "odd", "other": "round"})");
  EXPECT_EQ(given.shape, Shape::Odd);
  EXPECT_EQ(given.other, Shape::Round);

  const Options absent = read_text(R"({"other": null})");
  EXPECT_EQ(absent.shape, Shape::Flat);
  EXPECT_EQ(absent.other, std::nullopt);
}

TEST(Choices, RefuseOtherWordsWithTheNearestName) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      read_text(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Config);
      return error.text();
    }
    return "";
  };
  EXPECT_THAT(message(R"({"shape": "rond"})"),
              AllOf(HasSubstr("c.json:1:11: shape: unknown value \"rond\""), HasSubstr("round")));
  EXPECT_THAT(
      message(R"({"other": 3})"),
      AllOf(HasSubstr("other: expected a string"), HasSubstr("\"round\", \"flat\", \"odd\"")));
}

TEST(Choices, AreWrittenAsTheyAreRead) {
  Options options{.shape = Shape::Round, .other = Shape::Odd};
  EXPECT_EQ(write(options).dump(), R"({"shape":"round","other":"odd"})");
  options.other = std::nullopt;
  EXPECT_EQ(write(options).dump(), R"({"shape":"round"})");
}

TEST(Choices, AreDocumentedWithTheirNames) {
  Options options;
  const std::vector<KeyDoc> keys = document(options);
  ASSERT_EQ(keys.size(), 2U);
  EXPECT_EQ(keys[0].type, "string");
  EXPECT_EQ(keys[0].initial, "\"flat\"");
  EXPECT_EQ(keys[0].range, "round, flat, odd");
  EXPECT_EQ(keys[1].initial, "none");
  EXPECT_EQ(keys[1].range, "round, flat, odd");
}

// A list of words that is written out in a field's description belongs into an enumeration, so that
// code compares enumerators. Names of registries are not written out.
TEST(Choices, AreEnumerationsWhereTrainingIsConfigured) {
  std::vector<std::string> found;
  for (const char* folder : {"optim", "parallel", "nn", "planner", "report", "engine"}) {
    const fs::path root = test::source_dir() / "tessera" / folder;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
      std::ifstream in(entry.path());
      std::string line;
      for (int number = 1; std::getline(in, line); ++number) {
        // A JSON value of several types lists its forms in their quotes.
        const bool forms = line.find(".choices = {\"\\\"") != std::string::npos;
        if (line.find(".choices = {\"") != std::string::npos && !forms)
          found.push_back(entry.path().string() + ":" + std::to_string(number) + ": " + line);
      }
    }
  }
  EXPECT_THAT(found, IsEmpty());
}

}  // namespace
}  // namespace tessera::config
