// SPDX-License-Identifier: Apache-2.0
#include "tessera/checkpoint/geometry.h"

#include <numeric>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera::checkpoint {
namespace {

using mesh::Box;
using mesh::Piece;

/// Maximum number of boxes of one tensor. Comparing more would take minutes, and no mesh creates
/// them.
constexpr std::size_t kMaxBoxes = 16384;

std::int64_t extent(const Box& box, std::size_t dim) {
  return box.end[dim] - box.begin[dim];
}

std::int64_t inner_numel(const Box& box, std::size_t dim) {
  std::int64_t numel = 1;
  for (std::size_t d = dim + 1; d < box.begin.size(); ++d)
    numel *= extent(box, d);
  return numel;
}

/// Splits elements [begin, end) of `box`, counted from dim `dim` on (earlier dims have extent one),
/// into boxes: a partial first row, whole rows, a partial last row.
void cut(Box box, std::size_t dim, std::int64_t begin, std::int64_t end, std::vector<Box>& out) {
  if (begin >= end) return;
  if (dim == box.begin.size()) {
    out.push_back(std::move(box));
    return;
  }
  const std::int64_t row = inner_numel(box, dim), origin = box.begin[dim];
  const auto rows = [&](std::int64_t first, std::int64_t last) {
    Box part = box;
    part.begin[dim] = origin + first;
    part.end[dim] = origin + last;
    return part;
  };
  const std::int64_t first_whole = (begin + row - 1) / row, last_whole = end / row;
  if (first_whole > last_whole) {
    cut(rows(last_whole, last_whole + 1),
        dim + 1,
        begin - last_whole * row,
        end - last_whole * row,
        out);
    return;
  }
  if (begin < first_whole * row) {
    cut(rows(first_whole - 1, first_whole), dim + 1, begin - (first_whole - 1) * row, row, out);
  }
  if (first_whole < last_whole) out.push_back(rows(first_whole, last_whole));
  cut(rows(last_whole, last_whole + 1), dim + 1, 0, end - last_whole * row, out);
}

bool disjoint(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    if (a.end[d] <= b.begin[d] || b.end[d] <= a.begin[d]) return true;
  }
  return false;
}

/// Returns a description of two boxes that share elements. The boxes are sorted by their first dim,
/// so that only neighbours are compared.
std::optional<std::string> overlap(std::vector<Box>& boxes) {
  const auto first = [](const Box& box) { return box.begin.empty() ? 0 : box.begin[0]; };
  std::sort(
      boxes.begin(), boxes.end(), [&](const Box& a, const Box& b) { return first(a) < first(b); });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      if (!boxes[i].begin.empty() && boxes[j].begin[0] >= boxes[i].end[0]) break;
      if (!disjoint(boxes[i], boxes[j])) {
        return fmt::format(
            "boxes {} and {} share elements", box_text(boxes[i]), box_text(boxes[j]));
      }
    }
  }
  return std::nullopt;
}

auto box_key(const Piece& piece) {
  return std::tie(piece.box.begin, piece.box.end);
}

/// Joins neighbouring ranges of the same box and splits the remaining partial ones into boxes.
std::optional<std::string> as_boxes(std::span<const Piece> pieces, std::vector<Box>& boxes) {
  std::vector<const Piece*> sorted;
  for (const auto& piece : pieces)
    sorted.push_back(&piece);
  std::sort(sorted.begin(), sorted.end(), [](const Piece* a, const Piece* b) {
    return std::tuple_cat(box_key(*a), std::tie(a->begin)) <
           std::tuple_cat(box_key(*b), std::tie(b->begin));
  });
  for (std::size_t i = 0; i < sorted.size();) {
    const Piece& first = *sorted[i];
    std::int64_t end = first.end;
    for (++i; i < sorted.size() && box_key(*sorted[i]) == box_key(first) && sorted[i]->begin <= end;
         ++i) {
      if (sorted[i]->begin < end) {
        return fmt::format("elements {} to {} of box {} appear twice",
                           sorted[i]->begin,
                           std::min(end, sorted[i]->end) - 1,
                           box_text(first.box));
      }
      end = sorted[i]->end;
    }
    cut(first.box, 0, first.begin, end, boxes);
    if (boxes.size() > kMaxBoxes)
      return fmt::format("its pieces lie in more than {} boxes", kMaxBoxes);
  }
  return std::nullopt;
}

std::int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// Returns the result of repeated(); if that is nothing, also the boxes of the pieces.
std::optional<std::string> disjoint(std::span<const Piece> pieces, std::vector<Box>& boxes) {
  if (auto twice = as_boxes(pieces, boxes)) return twice;
  return overlap(boxes);
}

}  // namespace

std::string box_text(const Box& box) {
  std::vector<std::string> dims;
  for (std::size_t d = 0; d < box.begin.size(); ++d)
    dims.push_back(fmt::format("{}:{}", box.begin[d], box.end[d]));
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::optional<std::string> misplaced(const Shape& shape, const Piece& piece) {
  const auto& [begin, end] = piece.box;
  if (begin.size() != shape.size() || end.size() != shape.size()) {
    return fmt::format("a box of {} dims in a tensor of {}", begin.size(), shape.size());
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (begin[d] < 0 || begin[d] >= end[d] || end[d] > shape[d]) {
      return fmt::format(
          "box {} is empty or outside of shape [{}]", box_text(piece.box), fmt::join(shape, ", "));
    }
  }
  if (piece.begin < 0 || piece.begin >= piece.end || piece.end > piece.box.numel()) {
    return fmt::format("range [{}, {}) is empty or outside of the {} elements of box {}",
                       piece.begin,
                       piece.end,
                       piece.box.numel(),
                       box_text(piece.box));
  }
  return std::nullopt;
}

std::optional<std::string> uncovered(const Shape& shape, std::span<const Piece> pieces) {
  std::vector<Box> boxes;
  if (auto wrong = disjoint(pieces, boxes)) return wrong;
  // The boxes are disjoint and inside the tensor, so their sum cannot overflow.
  std::int64_t held = 0;
  for (const auto& box : boxes)
    held += box.numel();
  if (held == product(shape)) return std::nullopt;
  return fmt::format("its pieces hold {} of {} elements", held, product(shape));
}

std::optional<std::string> repeated(std::span<const Piece> pieces) {
  std::vector<Box> boxes;
  return disjoint(pieces, boxes);
}

std::int64_t first_index(const Shape& shape, const Piece& piece) {
  std::int64_t index = 0, rest = piece.begin;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t row = inner_numel(piece.box, d);
    index = index * shape[d] + piece.box.begin[d] + rest / row;
    rest %= row;
  }
  return index;
}

SharedRuns::SharedRuns(const Piece& a, const Piece& b)
    : begin_a_(a.begin), end_a_(a.end), begin_b_(b.begin), end_b_(b.end) {
  std::int64_t stride_a = 1, stride_b = 1;
  // A row extends from the last dim outwards as long as both boxes hold the same indices of the
  // inner dims.
  length_ = 1;
  rows_ = 1;
  bool growing = true;
  for (std::size_t d = a.box.begin.size(); d-- > 0;) {
    const std::int64_t low = std::max(a.box.begin[d], b.box.begin[d]);
    const std::int64_t size = std::min(a.box.end[d], b.box.end[d]) - low;
    if (size <= 0) {
      rows_ = 0;
      return;
    }
    base_a_ += (low - a.box.begin[d]) * stride_a;
    base_b_ += (low - b.box.begin[d]) * stride_b;
    if (growing) {
      length_ *= size;
      growing = size == extent(a.box, d) && size == extent(b.box, d);
    } else {
      outer_.push_back({size, stride_a, stride_b});
      rows_ *= size;
    }
    stride_a *= extent(a.box, d);
    stride_b *= extent(b.box, d);
  }
  std::reverse(outer_.begin(), outer_.end());
  skip_to_first();
}

SharedRuns::Run SharedRuns::row(std::int64_t index) const {
  Run run{base_a_, base_b_, length_};
  for (std::size_t d = outer_.size(); d-- > 0;) {
    run.a += index % outer_[d].size * outer_[d].stride_a;
    run.b += index % outer_[d].size * outer_[d].stride_b;
    index /= outer_[d].size;
  }
  return run;
}

/// Offsets ascend with the row in both boxes, so the first row that reaches both ranges is found by
/// bisection.
void SharedRuns::skip_to_first() {
  std::int64_t low = 0, high = rows_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const Run run = row(middle);
    const bool reaches = run.a + length_ > begin_a_ && run.b + length_ > begin_b_;
    (reaches ? high : low) = reaches ? middle : middle + 1;
  }
  at_ = low;
}

std::optional<SharedRuns::Run> SharedRuns::next() {
  if (at_ >= rows_) return std::nullopt;
  const Run run = row(at_++);
  const std::int64_t skip = std::max({begin_a_ - run.a, begin_b_ - run.b, std::int64_t{0}});
  const std::int64_t stop = std::min({end_a_ - run.a, end_b_ - run.b, length_});
  if (skip >= stop) {
    // Within one row the ranges may not overlap; later rows are further on in both.
    at_ = run.a >= end_a_ || run.b >= end_b_ ? rows_ : at_;
    return next();
  }
  return Run{run.a + skip - begin_a_, run.b + skip - begin_b_, stop - skip};
}

}  // namespace tessera::checkpoint
