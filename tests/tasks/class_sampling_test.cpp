// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/class_sampling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tasks/tasks_support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tasks/task.h"

namespace tessera::tasks {
namespace {

using test::open;
using test::task_of;
using test::values;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::int64_t> kLabels = {0, 0, 1, 0, 0, 2, 0, 1, 0, 0};  // 7, 2 and 1

/// How often each class is among the samples.
std::map<std::int64_t, std::int64_t> counts_in(const std::vector<std::int64_t>& labels,
                                               const std::vector<std::int64_t>& samples) {
  std::map<std::int64_t, std::int64_t> out;
  for (const std::int64_t index : samples)
    ++out[labels[static_cast<std::size_t>(index)]];
  return out;
}

TEST(StratifiedSamples, HaveTheShareOfEveryClassInAnyOrderOfTheFile) {
  std::vector<std::int64_t> sorted;
  for (const auto& [label, count] : {std::pair{0, 600}, {1, 300}, {2, 97}, {3, 3}})
    sorted.insert(sorted.end(), static_cast<std::size_t>(count), label);
  std::vector<std::int64_t> mixed;
  for (std::size_t i = 0; i < sorted.size(); ++i)
    mixed.push_back(sorted[i * 7 % sorted.size()]);
  for (const auto& labels : {sorted, mixed}) {
    for (const std::int64_t count : {0, 1, 10, 99, 250, 999, 1000}) {
      const auto held = stratified_samples(labels, count, 5);

      EXPECT_EQ(std::ssize(held), count);
      EXPECT_TRUE(std::ranges::is_sorted(held));
      EXPECT_EQ(std::ranges::adjacent_find(held), held.end());
      const auto whole = counts_in(labels, stratified_samples(labels, 1000, 5));
      for (const auto& [label, n] : counts_in(labels, held)) {
        const double share = static_cast<double>(whole.at(label) * count) / 1000;
        EXPECT_LT(std::abs(static_cast<double>(n) - share), 1) << label << " of " << count;
      }
    }
  }
  EXPECT_EQ(stratified_samples(sorted, 100, 5), stratified_samples(sorted, 100, 5));
  EXPECT_NE(stratified_samples(sorted, 100, 5), stratified_samples(sorted, 100, 6));
}

TEST(StratifiedParts, HaveTheShareOfEveryClassInEveryFold) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t all = 50 + static_cast<std::int64_t>(random() % 200), folds = 2 + round % 6;
    LabelsOfSamples labels;
    for (std::int64_t i = 0; i < all; ++i)
      labels.push_back({static_cast<std::int64_t>(std::min(random() % 5, random() % 9))});
    std::vector<std::int64_t> sizes;
    for (std::int64_t fold = 0; fold < folds; ++fold)
      sizes.push_back(all / folds + (fold < all % folds ? 1 : 0));

    const auto parts = stratified_parts(labels, sizes, 3);

    std::map<std::pair<std::int64_t, std::int64_t>, int> found;  // (part, class)
    std::map<std::int64_t, int> whole;
    std::vector<std::int64_t> counts(sizes.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ++counts[static_cast<std::size_t>(parts[i])];
      ++found[{parts[i], labels[i].front()}];
      ++whole[labels[i].front()];
    }
    EXPECT_EQ(counts, sizes);
    for (const auto& [label, count] : whole) {
      for (std::int64_t fold = 0; fold < folds; ++fold) {
        const double share = count * static_cast<double>(sizes[static_cast<std::size_t>(fold)]) /
                             static_cast<double>(all);
        EXPECT_LT(std::abs(found[std::pair(fold, label)] - share), 2) << label << " of " << count;
      }
    }
    EXPECT_EQ(parts, stratified_parts(labels, sizes, 3));
    EXPECT_NE(parts, stratified_parts(labels, sizes, 4));
  }
}

TEST(StratifiedParts, ShareOutRareTagsOfSamplesWithSeveral) {
  LabelsOfSamples labels;  // 200 samples: all have 0, one in four has 1, and eight have 2
  for (std::int64_t i = 0; i < 200; ++i) {
    labels.push_back({0});
    if (i < 50) labels.back().push_back(1);
    if (i < 8) labels.back().push_back(2);
  }

  const auto parts = stratified_parts(labels, {150, 50}, 1);

  std::map<std::int64_t, int> held;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] != 1) continue;
    for (const std::int64_t label : labels[i])
      ++held[label];
  }
  EXPECT_EQ(held[0], 50);
  EXPECT_NEAR(held[1], 12.5, 0.5);
  EXPECT_EQ(held[2], 2);
}

TEST(StratifiedParts, DivideSamplesWithoutLabelsByTheirSizes) {
  const auto parts = stratified_parts(LabelsOfSamples(10), {3, 3, 4}, 1);

  EXPECT_EQ(std::ranges::count(parts, 0), 3);
  EXPECT_EQ(std::ranges::count(parts, 2), 4);
  EXPECT_FALSE(std::ranges::is_sorted(parts));
}

TEST(BalancedSamples, LoseThoseThatAreTooMany) {
  const auto samples = balanced_samples(kLabels, ClassSampling::Down);
  ASSERT_EQ(samples.size(), 3U);
  std::map<std::int64_t, int> counts;
  for (const std::int64_t index : samples)
    ++counts[kLabels[static_cast<std::size_t>(index)]];
  EXPECT_EQ(counts, (std::map<std::int64_t, int>{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_TRUE(std::ranges::is_sorted(samples));
}

TEST(BalancedSamples, RepeatThoseThatAreTooFew) {
  const auto samples = balanced_samples(kLabels, ClassSampling::Over);
  std::map<std::int64_t, int> times;
  for (const std::int64_t index : samples)
    ++times[index];
  for (std::size_t i = 0; i < kLabels.size(); ++i) {
    const int count = times[static_cast<std::int64_t>(i)];
    if (kLabels[i] == 0) {
      EXPECT_EQ(count, 1);
    }
    if (kLabels[i] == 1) {
      EXPECT_THAT(count, testing::AnyOf(3, 4));
    }
    if (kLabels[i] == 2) {
      EXPECT_EQ(count, 7);
    }
  }
  EXPECT_EQ(times[2] + times[7], 7);
  // The first round is the data itself.
  EXPECT_THAT(std::vector(samples.begin(), samples.begin() + 10),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(BalancedSamples, AreChosenWithoutRegardToTheirPlace) {
  std::vector<std::int64_t> labels(20'000, 0);
  std::fill_n(labels.begin(), 5'000, 1);
  const auto samples = balanced_samples(labels, ClassSampling::Down);
  ASSERT_EQ(samples.size(), 10'000U);
  // 5,000 of 15,000 are drawn; of these 2,500 should be in the first half of the class, with a
  // standard deviation of 29.
  const auto early = std::ranges::count_if(
      samples, [](std::int64_t index) { return index >= 5'000 && index < 12'500; });
  EXPECT_NEAR(static_cast<double>(early), 2'500.0, 4 * 29.0);
  EXPECT_EQ(balanced_samples(kLabels, ClassSampling::None).size(), kLabels.size());
  EXPECT_TRUE(balanced_samples({}, ClassSampling::Over).empty());
}

TEST(BalancedClassify, BalancesWhatIsTrainedOnAlone) {
  const test::Folder folder;
  std::string lines;
  for (const std::int64_t label : kLabels)
    lines += R"({"text": "x", "label": )" + std::to_string(label) + "}\n";
  data::DataOptions data;
  data.train = {folder.write("train.jsonl", lines)};
  data.validation = {folder.write("valid.jsonl", lines)};
  const auto labels_of = [](const data::Dataset& dataset) {
    std::map<std::int64_t, int> out;
    for (std::int64_t i = 0; i < dataset.size(); ++i)
      ++out[values(dataset, i, "label").front()];
    return out;
  };
  using Counts = std::map<std::int64_t, int>;

  const data::Datasets over = open(*task_of("classify", R"({"balance": "over"})"), data, 4);
  const data::Datasets down = open(*task_of("classify", R"({"balance": "down"})"), data, 4);

  EXPECT_EQ(labels_of(*over.train), (Counts{{0, 7}, {1, 7}, {2, 7}}));
  EXPECT_EQ(over.train_tokens, 21);
  EXPECT_EQ(labels_of(*down.train), (Counts{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(labels_of(*over.validation), (Counts{{0, 7}, {1, 2}, {2, 1}}));
  EXPECT_NE(over.fingerprint, down.fingerprint);

  data.validation.clear();
  data.validation_fraction = 0.5;  // of seven, two and one
  const data::Datasets split = open(*task_of("classify", R"({"balance": "over"})"), data, 4);
  EXPECT_EQ(labels_of(*split.validation), (Counts{{0, 4}, {1, 1}}));
  EXPECT_EQ(labels_of(*split.train), (Counts{{0, 3}, {1, 3}, {2, 3}}));
  const Error error =
      test::error_of([] { task_of("classify", R"({"balance": "over", "multi_label": true})"); });
  EXPECT_THAT(error.what(), HasSubstr("balance"));
}

}  // namespace
}  // namespace tessera::tasks
