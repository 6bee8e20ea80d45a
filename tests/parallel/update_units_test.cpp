// SPDX-License-Identifier: Apache-2.0
// labels: fast
// How a rank's part is cut into units, and in which order they travel and are updated.
#include "tessera/parallel/update_units.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {
namespace {

using Kind = UpdateActionKind;

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  std::int64_t below(std::int64_t limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_);
  }

 private:
  std::mt19937 random_;
};

/// A rank's part: parameters that begin at chunks, a gap after some of them, and padding.
struct Part {
  std::vector<UnitParam> params;
  std::int64_t numel = 0;
};
Part random_part(Random& random) {
  Part out;
  for (std::int64_t i = random.below(6); i >= 0; --i) {
    out.params.push_back({out.numel, 1 + random.below(9 * kChunk), random.below(4) == 0});
    out.numel += (chunks_of(out.params.back().numel) + random.below(2)) * kChunk;
  }
  return out;
}

TEST(CutUnits, CoverThePartInOrderInUnitsOfTheSizeThatIsAllowed) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Part part = random_part(random);
    const std::int64_t most = kChunk + random.below(6 * kChunk);

    const std::vector<Unit> units = cut_units(7, part.numel, part.params, most);

    std::int64_t at = 0;
    for (const Unit& unit : units) {
      EXPECT_EQ(unit.group, 7U);
      EXPECT_EQ(unit.begin, at);
      EXPECT_EQ(unit.begin % kChunk, 0);
      EXPECT_GT(unit.numel, 0);
      at += unit.numel;
      if (unit.numel <= most) continue;
      // Only a parameter that may not be divided makes a unit larger, and it is alone there.
      const auto larger = std::ranges::count_if(part.params, [&](const UnitParam& param) {
        return param.whole && param.begin == unit.begin && param.numel > unit.numel - kChunk;
      });
      EXPECT_EQ(larger, 1) << unit.numel;
    }
    EXPECT_EQ(at, part.numel);
    for (const UnitParam& param : part.params) {
      const auto holds = std::ranges::count_if(units, [&](const Unit& unit) {
        return unit.begin < param.begin + param.numel && param.begin < unit.begin + unit.numel;
      });
      EXPECT_TRUE(!param.whole || holds == 1) << param.begin;
    }
  }
}

TEST(CutUnits, AreOneForABufferWithoutALimit) {
  Random random(1);
  const Part part = random_part(random);
  const std::vector<Unit> units = cut_units(0, part.numel, part.params);

  ASSERT_EQ(units.size(), 1U);
  EXPECT_EQ(units[0].numel, part.numel);
}

std::vector<Unit> random_units(Random& random) {
  std::vector<Unit> out;
  for (std::size_t group = 0; group < 5; ++group) {
    const bool trained = random.below(4) > 0;
    for (std::int64_t i = random.below(4); i >= 0; --i) {
      out.push_back({.group = group,
                     .begin = kChunk * random.below(100),
                     .numel = kChunk,
                     .trained = trained,
                     .travels = random.below(3) > 0});
    }
  }
  return out;
}

TEST(UpdateActions, UpdateEveryTrainedUnitOnceInOrderBetweenTheStepsOfItsBuffer) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const std::vector<Unit> units = random_units(random);
    std::vector<UpdateAction> wanted;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (!units[u].trained) continue;
      const std::size_t group = units[u].group;
      if (u == 0 || units[u - 1].group != group) wanted.push_back({Kind::BeginWrite, group});
      wanted.push_back({Kind::Update, u});
      if (u + 1 == units.size() || units[u + 1].group != group)
        wanted.push_back({Kind::Publish, group});
    }

    std::vector<UpdateAction> actions = update_actions(units, 1 + static_cast<int>(seed % 5));

    std::erase_if(actions, [](const UpdateAction& action) {
      return action.kind == Kind::Fetch || action.kind == Kind::WriteBack ||
             action.kind == Kind::Settle;
    });
    EXPECT_TRUE(actions == wanted);
  }
}

TEST(UpdateActions, FetchWriteAndSettleEachTravellingUnitOnceWithinTheBuffers) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const int buffers = 1 + static_cast<int>(seed % 5);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", buffers " + std::to_string(buffers));
    Random random(seed);
    const std::vector<Unit> units = random_units(random);
    // The kinds that a unit has been through.
    std::vector<std::vector<Kind>> seen(units.size());
    std::set<std::size_t> held;

    for (const auto& [kind, index] : update_actions(units, buffers)) {
      if (kind == Kind::BeginWrite || kind == Kind::Publish) continue;
      seen.at(index).push_back(kind);
      if (kind == Kind::Fetch) held.insert(index);
      if (kind == Kind::Settle) held.erase(index);
      EXPECT_LE(std::ssize(held), buffers);
    }

    EXPECT_TRUE(held.empty());
    for (std::size_t u = 0; u < units.size(); ++u) {
      std::vector<Kind> wanted;
      if (units[u].trained) wanted = {Kind::Update};
      if (units[u].trained && units[u].travels)
        wanted = {Kind::Fetch, Kind::Update, Kind::WriteBack, Kind::Settle};
      EXPECT_TRUE(seen[u] == wanted) << "unit " << u;
    }
  }
}

TEST(UpdateActions, ReadOneUnitAndWriteAnotherWhileOneIsUpdated) {
  const std::vector<Unit> units(6, Unit{.numel = kChunk, .travels = true});
  std::set<std::size_t> reading, writing;
  for (const auto& [kind, u] : update_actions(units, 3)) {
    if (kind == Kind::Fetch) reading.insert(u);
    if (kind == Kind::WriteBack) writing.insert(u);
    if (kind == Kind::Settle) writing.erase(u);
    if (kind != Kind::Update) continue;
    reading.erase(u);
    EXPECT_EQ(reading.contains(u + 1), u + 1 < units.size());
    EXPECT_EQ(writing.contains(u - 1), u > 0);
  }
}

TEST(UpdateActions, WithTwoBuffersReadTheNextUnitMeanwhile) {
  const std::vector<Unit> units(6, Unit{.numel = kChunk, .travels = true});
  std::set<std::size_t> fetched;
  for (const auto& [kind, u] : update_actions(units, 2)) {
    if (kind == Kind::Fetch) fetched.insert(u);
    if (kind != Kind::Update) continue;
    EXPECT_EQ(fetched.contains(u + 1), u + 1 < units.size()) << u;
  }
}

}  // namespace
}  // namespace tessera::parallel
