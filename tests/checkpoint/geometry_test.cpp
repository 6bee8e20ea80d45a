// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/geometry.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace tessera::checkpoint {
namespace {

using mesh::Box;
using mesh::Piece;
using Random = std::mt19937;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

Shape random_shape(Random& random) {
  Shape shape(static_cast<std::size_t>(pick(random, 0, 4)));
  for (auto& size : shape)
    size = pick(random, 1, 5);
  return shape;
}

Piece random_piece(Random& random, const Shape& shape) {
  Piece piece;
  for (const std::int64_t size : shape) {
    piece.box.begin.push_back(pick(random, 0, size - 1));
    piece.box.end.push_back(pick(random, piece.box.begin.back() + 1, size));
  }
  const std::int64_t count = piece.box.numel();
  piece.begin = pick(random, 0, count - 1);
  piece.end = pick(random, piece.begin + 1, count);
  return piece;
}

/// Maps global index to offset in the piece, element by element.
std::map<std::int64_t, std::int64_t> elements(const Shape& shape, const Piece& piece) {
  std::map<std::int64_t, std::int64_t> out;
  for (std::int64_t i = piece.begin; i < piece.end; ++i) {
    std::int64_t rest = i, index = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::int64_t size = piece.box.end[d] - piece.box.begin[d];
      index += (piece.box.begin[d] + rest % size) * stride;
      rest /= size;
      stride *= shape[d];
    }
    out[index] = i - piece.begin;
  }
  return out;
}

TEST(SharedRuns, VisitExactlyTheCommonElements) {
  Random random(1);
  for (int round = 0; round < 5000; ++round) {
    const Shape shape = random_shape(random);
    const Piece a = random_piece(random, shape), b = random_piece(random, shape);
    std::map<std::int64_t, std::int64_t> wanted, got;
    const auto in_a = elements(shape, a), in_b = elements(shape, b);
    for (const auto& [index, offset] : in_a) {
      if (in_b.count(index) > 0) wanted[offset] = in_b.at(index);
    }

    SharedRuns runs(a, b);
    while (const auto run = runs.next()) {
      for (std::int64_t i = 0; i < run->count; ++i)
        got[run->a + i] = run->b + i;
    }

    ASSERT_EQ(got, wanted) << box_text(a.box) << " " << box_text(b.box);
    ASSERT_EQ(touch(a, b), !wanted.empty());
  }
}

TEST(SharedRuns, AContiguousOverlapIsOneRun) {
  const Shape shape = {1000, 64};
  const Piece stored{mesh::whole(shape), 100, 50000}, wanted{mesh::whole(shape), 40000, 64000};

  SharedRuns runs(stored, wanted);
  const auto first = runs.next();

  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->count, 10000);
  EXPECT_FALSE(runs.next().has_value());
}

TEST(FirstIndex, IsTheSmallestElement) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(random);
    const Piece piece = random_piece(random, shape);

    EXPECT_EQ(first_index(shape, piece), elements(shape, piece).begin()->first);
  }
}

/// Splits a piece at random until there are `pieces`: a tiling of the whole tensor by boxes and
/// ranges.
std::vector<Piece> random_tiling(Random& random, const Shape& shape, int pieces) {
  std::vector<Piece> out = {{mesh::whole(shape), 0, mesh::whole(shape).numel()}};
  for (int i = 0; i < pieces; ++i) {
    const auto chosen =
        static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(out.size()) - 1));
    Piece& piece = out[chosen];
    Piece rest = piece;
    const bool full = piece.begin == 0 && piece.end == piece.box.numel();
    if (full && !shape.empty() && pick(random, 0, 1) == 0) {
      const auto dim =
          static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(shape.size()) - 1));
      if (piece.box.end[dim] - piece.box.begin[dim] < 2) continue;
      const std::int64_t at = pick(random, piece.box.begin[dim] + 1, piece.box.end[dim] - 1);
      piece.box.end[dim] = rest.box.begin[dim] = at;
      piece.end = piece.box.numel();
      rest.end = rest.box.numel();
    } else {
      if (piece.end - piece.begin < 2) continue;
      piece.end = rest.begin = pick(random, piece.begin + 1, piece.end - 1);
    }
    out.push_back(rest);
  }
  return out;
}

TEST(Cover, AcceptsEveryTiling) {
  Random random(3);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(random);
    auto tiling = random_tiling(random, shape, 8);
    std::shuffle(tiling.begin(), tiling.end(), random);

    EXPECT_EQ(uncovered(shape, tiling), std::nullopt);
  }
}

TEST(Cover, RefusesAMissingPieceAndADoubledOne) {
  Random random(4);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(random);
    auto tiling = random_tiling(random, shape, 8);
    auto doubled = tiling;
    doubled.push_back(random_piece(random, shape));
    tiling.pop_back();

    EXPECT_NE(uncovered(shape, tiling), std::nullopt);
    EXPECT_NE(uncovered(shape, doubled), std::nullopt);
  }
}

TEST(Cover, RefusesAnOverlapThatKeepsTheCount) {
  const Shape shape = {4, 4};
  const std::vector<Piece> pieces = {{{{0, 0}, {4, 2}}, 0, 8}, {{{0, 1}, {4, 3}}, 0, 8}};

  const auto wrong = uncovered(shape, pieces);

  ASSERT_TRUE(wrong.has_value());
  EXPECT_NE(wrong->find("share"), std::string::npos) << *wrong;
}

TEST(Misplaced, NamesWhatLiesOutside) {
  const Shape shape = {4, 4};

  EXPECT_EQ(misplaced(shape, {mesh::whole(shape), 0, 16}), std::nullopt);
  EXPECT_NE(misplaced(shape, {mesh::whole(shape), 0, 17}), std::nullopt);
  EXPECT_NE(misplaced(shape, {mesh::whole(shape), 5, 5}), std::nullopt);
  EXPECT_NE(misplaced(shape, {{{0, 0}, {5, 4}}, 0, 4}), std::nullopt);
  EXPECT_NE(misplaced(shape, {{{2, 0}, {2, 4}}, 0, 1}), std::nullopt);
  EXPECT_NE(misplaced(shape, {{{0}, {4}}, 0, 4}), std::nullopt);
}

}  // namespace
}  // namespace tessera::checkpoint
