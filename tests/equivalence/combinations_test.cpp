// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 900
// A selection of the combinations that contains every pair of values, and a check of the page that
// shows a larger selection. combinations_table_test.cpp makes that page,
// combinations_whole_test.cpp runs all combinations.
#include "equivalence/combinations_table.h"
#include "support/source_dir.h"

#include "tessera/base/files.h"

namespace tessera::test {
namespace {

const std::vector<Combination>& cells_of_page() {
  static const std::vector<Combination> cells = selection(kTableStrength);
  return cells;
}

TEST(Combinations, OfEveryPairOfValuesEqualOneRankOrAreRefused) {
  const std::vector<Combination> cells = selection(2);
  // At least as many cells as there are pairs of the two largest dimensions that train: grids of 8
  // ranks leave no rank for a pipeline.
  ASSERT_GE(cells.size(), (Combination::kSchedules.size() - 1) * (Combination::kTensor.size() - 2));

  train_all(cells);
}

// The selections cover what they claim to cover.
TEST(Combinations, OfASelectionHaveAllThatTheWholeHas) {
  const auto [trained, refused] = trained_and_refused();
  const auto trained_of = [](std::vector<Combination> chosen) {
    std::erase_if(chosen, [](const Combination& cell) { return cell.is_refused(); });
    return chosen;
  };
  const std::vector<Combination> pairs = trained_of(selection(2)),
                                 table = trained_of(cells_of_page());

  EXPECT_GT(trained.size(), 10000U);
  EXPECT_LT(pairs.size(), 60U);
  EXPECT_GT(cells_of_page().size(), 300U);
  EXPECT_EQ(left_out(trained, pairs, 2), 0U);
  EXPECT_EQ(left_out(trained, table, kTableStrength), 0U);
  EXPECT_EQ(left_out(refused, selection(2), 2), 0U);
  EXPECT_EQ(left_out(refused, cells_of_page(), kTableStrength), 0U);
  EXPECT_GT(left_out(trained, pairs, 3), 0U);
}

struct Small {
  static constexpr std::size_t kDimensions = 3;
  std::array<std::size_t, kDimensions> index{};
};

// Checks left_out(), which the test above uses, by hand: the two cells have three pairs each, one
// of them in common.
TEST(Covering, NamesWhatIsLeftOut) {
  const std::vector<Small> all = {{{0, 0, 0}}, {{0, 0, 1}}}, one = {all[0]};

  EXPECT_EQ(left_out(all, one, 1), 1U);
  EXPECT_EQ(left_out(all, one, 2), 2U);
  EXPECT_EQ(left_out(all, one, 3), 1U);
  EXPECT_EQ(covering(all, 2).size(), 2U);
  EXPECT_EQ(covering(std::vector<Small>{all[0], all[0]}, 2).size(), 1U);
}

constexpr const char* kRemedy = "make it again: tools/equivalence_table.sh combinations";

TEST(CombinationsPage, HasTheCombinationsThatThereAre) {
  const std::string page =
      files::read(test::source_dir().string() + "/docs/tables/combinations.md");
  std::vector<std::string> expected, shown;
  int refused = 0;
  for (const Combination& cell : cells_of_page()) {
    if (cell.is_refused()) {
      ++refused;
    } else {
      expected.push_back(cell.text());
    }
  }
  for (const auto& [cell, outcome] : read_cells(page))
    shown.push_back(cell);

  EXPECT_EQ(count_refusals(page), refused) << kRemedy;
  ASSERT_EQ(shown.size(), expected.size()) << kRemedy;
  for (std::size_t c = 0; c < shown.size(); ++c)
    ASSERT_EQ(shown[c], expected[c]) << kRemedy;
}

TEST(CombinationsPage, ListsResultAndCommitOfEach) {
  const std::string page =
      files::read(test::source_dir().string() + "/docs/tables/combinations.md");

  for (const auto& [cell, outcome] : read_cells(page))
    EXPECT_TRUE(outcome.starts_with("equals one rank"))
        << cell << ": " << outcome << "; " << kRemedy;
  const std::string words = "at commit ";
  const std::size_t at = page.find(words);
  ASSERT_NE(at, std::string::npos) << kRemedy;
  const std::size_t begin = at + words.size(),
                    end = page.find_first_not_of("0123456789abcdef", begin);
  EXPECT_GE(end - begin, 7U) << kRemedy;
}

}  // namespace
}  // namespace tessera::test
