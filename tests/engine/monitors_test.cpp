// SPDX-License-Identifier: Apache-2.0
// Files that a training writes for other programs.
#include "tessera/engine/hooks/monitors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/on_engines.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/trainer.h"

namespace tessera::engine {
namespace {

using tessera::test::on_engines;
using tessera::test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

namespace fs = std::filesystem;

std::int64_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

std::string only_file_in(const fs::path& folder) {
  std::string out;
  for (const auto& entry : fs::directory_iterator(folder))
    out += files::read(entry.path());
  return out;
}

TEST(Monitors, ShowEveryStepOnTheAxisOfSamples) {
  TinyRun run;
  run.set("trainer.max_steps", "3").set("csv_monitor", R"({"enabled": true})");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);

  on_engines(run, {.ranks = 2}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });

  const std::string csv = files::read(folder / "csv_monitor/Train_Samples_train_loss.csv");
  EXPECT_THAT(csv, StartsWith("step,train_loss\r\n4,"));
  EXPECT_THAT(csv, HasSubstr("\n12,"));
  EXPECT_EQ(lines_of(csv), 4);
}

TEST(Monitors, HaveEvaluationsAndSampleTexts) {
  TinyRun run;
  run.set("trainer.max_steps", "2")
      .set("data.validation_fraction", "0.5")
      .set("eval", R"({"every": 2, "batches": 1, "prompt": "a", "max_new_tokens": 2})")
      .set("tensorboard", R"({"enabled": true, "tags": "huggingface"})");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);

  on_engines(run, {}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });

  EXPECT_THAT(only_file_in(folder / "tensorboard"),
              AllOf(HasSubstr("train/learning_rate"),
                    HasSubstr("eval/loss"),
                    HasSubstr("sample/text_summary"),
                    HasSubstr("_hparams_/session_start_info")));
  const std::string samples = files::read(folder / "samples.jsonl");
  EXPECT_THAT(samples, StartsWith(R"({"step":2,"prompt":"a","text":"a)"));
}

/// A message of protobuf's wire format, as field numbers and values; numbers are bytes as well.
std::vector<std::pair<int, std::string>> fields_of(const std::string& message) {
  std::vector<std::pair<int, std::string>> out;
  std::size_t at = 0;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0; at < message.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message[at++]);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (at < message.size()) {
    const std::uint64_t key = varint();
    std::size_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : 0;
    if (key % 8 == 0) {
      out.emplace_back(key / 8, std::to_string(varint()));
      continue;
    }
    if (key % 8 == 2) size = varint();
    out.emplace_back(key / 8, message.substr(at, size));
    at += size;
  }
  return out;
}

std::vector<double> doubles_of(const std::string& bytes) {
  std::vector<double> out(bytes.size() / sizeof(double));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(double));
  return out;
}

/// Fields 1 to 7 of tensorflow.HistogramProto: min, max, num, sum, sum of squares, limits, counts.
using ReadHistogram = std::map<int, std::vector<double>>;

/// The histograms of the event files in `folder` by step and tag.
std::map<std::pair<std::string, std::string>, ReadHistogram> histograms_in(const fs::path& folder) {
  std::map<std::pair<std::string, std::string>, ReadHistogram> out;
  const std::string bytes = only_file_in(folder);
  for (std::size_t at = 0; at + 12 <= bytes.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    std::string step = "0";
    for (const auto& [number, event] : fields_of(bytes.substr(at + 12, size))) {
      if (number == 2) step = event;
      if (number != 5) continue;  // a summary
      for (const auto& [one, value] : fields_of(event)) {
        std::string tag;
        for (const auto& [field, content] : fields_of(value)) {
          if (field == 1) tag = content;
          if (field != 5) continue;
          for (const auto& [part, numbers] : fields_of(content))
            out[{step, tag}][part] = doubles_of(numbers);
        }
      }
    }
    at += size + 16;
  }
  return out;
}

auto histograms_of(TinyRun& run, const tessera::test::Layout& layout) {
  const fs::path folder = run.folder() / ("run" + std::to_string(layout.ranks));
  fs::remove_all(folder);
  fs::create_directories(folder);
  on_engines(run, layout, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), 0);
  });
  return histograms_in(folder / "tensorboard");
}

TEST(Monitors, ShowDistributionsOfWeightsAndGradientsWhenAsked) {
  TinyRun run;
  // The first moment after one update is then the gradient itself.
  run.set("trainer.max_steps", "2")
      .set("gradient_clipping", "0")
      .set("optimizer.params.betas", "[0.0, 0.99]")
      .set("tensorboard", R"({"enabled": true, "tags": "huggingface", "histograms": 2})");
  const auto gradients = run.first_gradient({});
  ASSERT_GT(gradients.size(), 10U);

  TinyRun first = run;
  first.set("trainer.max_steps", "1").set("tensorboard.histograms", "1");
  const auto alone = histograms_of(first, {});

  for (const auto& [name, values] : gradients) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(alone.contains({"1", "gradients/" + name}));
    const ReadHistogram& found = alone.at({"1", "gradients/" + name});
    EXPECT_EQ(found.at(3)[0], static_cast<double>(values.size()));
    EXPECT_EQ(found.at(1)[0], *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(found.at(2)[0], *std::max_element(values.begin(), values.end()));
    double in_buckets = 0;
    for (const double count : found.at(7))
      in_buckets += count;
    EXPECT_EQ(in_buckets, found.at(3)[0]);
    EXPECT_EQ(alone.at({"1", "weights/" + name}).at(3)[0], static_cast<double>(values.size()));
  }
  // Only every second step of this one.
  for (const auto& [where, histogram] : histograms_of(run, {}))
    EXPECT_EQ(where.first, "2") << where.second;
}

TEST(Monitors, ShowTheSameDistributionsOnEveryLayout) {
  TinyRun run;
  run.set("trainer.max_steps", "1")
      .set("tensorboard", R"({"enabled": true, "tags": "huggingface", "histograms": 1})");
  const auto alone = histograms_of(run, {.accumulation = 4});
  ASSERT_FALSE(alone.empty());

  const std::vector<tessera::test::Layout> layouts = {
      {.ranks = 2, .accumulation = 2, .stage = 0},
      {.ranks = 4, .stage = 3},
      {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"}};
  for (const tessera::test::Layout& layout : layouts) {
    SCOPED_TRACE(layout.ranks);
    const auto shared = histograms_of(run, layout);
    ASSERT_EQ(shared.size(), alone.size());
    for (const auto& [where, histogram] : alone) {
      for (const int part : {1, 2, 3, 6, 7})
        EXPECT_EQ(shared.at(where).at(part), histogram.at(part)) << where.second << " " << part;
    }
  }
}

// A tile is a place of its own with the name of its parameter.
TEST(Monitors, ShowOneDistributionOfAllTilesOfAParameter) {
  TinyRun run;
  run.set("trainer.max_steps", "1")
      .set("tensorboard", R"({"enabled": true, "tags": "huggingface", "histograms": 1})");
  TinyRun tiled = run;
  tiled.set("tiling", R"({"wte": [1, 4]})")
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  const auto whole = histograms_of(run, {.accumulation = 4}),
             alone = histograms_of(tiled, {.accumulation = 4});
  ASSERT_EQ(whole.size(), alone.size());
  for (const auto& [where, histogram] : whole)
    EXPECT_EQ(alone.at(where).at(3), histogram.at(3)) << where.second;  // numbers of values

  for (const tessera::test::Layout& layout : std::vector<tessera::test::Layout>{
           {.ranks = 2, .accumulation = 2, .stage = 1}, {.ranks = 4, .stage = 3}}) {
    SCOPED_TRACE(layout.ranks);
    const auto shared = histograms_of(tiled, layout);
    ASSERT_EQ(shared.size(), alone.size());
    for (const auto& [where, histogram] : alone) {
      for (const int part : {1, 2, 3, 6, 7})
        EXPECT_EQ(shared.at(where).at(part), histogram.at(part)) << where.second << " " << part;
    }
  }
}

// A monitor must not end a training.
TEST(Monitors, ThatCannotWriteEndAloneAndAreReported) {
  TinyRun run;
  run.set("trainer.max_steps", "2");
  const fs::path folder = run.folder() / "run";
  fs::create_directories(folder);
  files::write_atomic(folder / "taken", "a file");
  run.set("csv_monitor",
          R"({"enabled": true, "output_path": ")" + (folder / "taken").string() + R"("})");

  on_engines(run, {}, [&](Engine& engine) {
    Trainer trainer(engine, nullptr, folder);
    attach_defaults(trainer);
    EXPECT_EQ(trainer.fit(), kExitIncomplete);
    EXPECT_EQ(engine.step(), 2);
    ASSERT_EQ(trainer.incomplete().size(), 1U);
    EXPECT_THAT(trainer.incomplete().front(), HasSubstr("csv_monitor"));
  });
}

}  // namespace
}  // namespace tessera::engine
