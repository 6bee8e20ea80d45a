// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/weight_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

std::int64_t numel_of(const Shape& shape) {
  return std::accumulate(
      shape.begin(), shape.end(), std::int64_t{1}, [](auto a, auto b) { return a * b; });
}

Shape row_major(const Shape& shape) {
  Shape out(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;)
    out[d - 1] = out[d] * shape[d];
  return out;
}

/// The first multiple of `stride` that is at least `value`, over `stride`; 0 for a negative value.
std::int64_t steps_to(std::int64_t value, std::int64_t stride) {
  return value <= 0 ? 0 : (value + stride - 1) / stride;
}

/// Drops dims with one element, sorts by descending stride in the destination and merges adjacent
/// dims.
StridedCopy normalized(StridedCopy copy) {
  std::erase_if(copy.dims, [](const auto& dim) { return dim.size == 1; });
  std::stable_sort(
      copy.dims.begin(), copy.dims.end(), [](const auto& a, const auto& b) { return a.to > b.to; });
  std::vector<StridedCopy::Dim> merged;
  for (const StridedCopy::Dim& inner : copy.dims) {
    if (!merged.empty()) {
      StridedCopy::Dim& outer = merged.back();
      if (outer.to == inner.size * inner.to && outer.from == inner.size * inner.from) {
        outer = {outer.size * inner.size, inner.to, inner.from};
        continue;
      }
    }
    merged.push_back(inner);
  }
  // The innermost dim is consecutive in the destination; it may have a single element.
  if (merged.empty() || merged.back().to != 1) merged.push_back({1, 1, 1});
  copy.dims = std::move(merged);
  return copy;
}

/// copy_range() for one range: recurses through the dims and skips what is outside.
class RangeCopier {
 public:
  RangeCopier(const StridedCopy& copy,
              std::int64_t begin,
              std::int64_t end,
              const ReadFloats& read,
              float* out)
      : begin_(begin), end_(end), read_(read), out_(out), row_(copy.dims.back()) {
    const std::size_t rows = copy.dims.size() - 1;
    for (std::size_t d = 0; d < rows && row_.from != 1; ++d) {
      if (copy.dims[d].from == 1 && !column_) {
        column_ = copy.dims[d];
      } else {
        outer_.push_back(copy.dims[d]);
      }
    }
    if (row_.from == 1) outer_.assign(copy.dims.begin(), copy.dims.end() - 1);
    // spans_[k]: elements of the destination from the first to the last of dims outer_[k + 1...].
    std::int64_t span = row_.size + (column_ ? (column_->size - 1) * column_->to : 0);
    spans_.resize(outer_.size());
    for (std::size_t k = outer_.size(); k-- > 0;) {
      spans_[k] = span;
      span += (outer_[k].size - 1) * outer_[k].to;
    }
  }

  void run(std::size_t k, std::int64_t to, std::int64_t from) {
    if (k == outer_.size()) return column_ ? columns(to, from) : row(to, from);
    const StridedCopy::Dim& dim = outer_[k];
    const std::int64_t first = steps_to(begin_ - to - (spans_[k] - 1), dim.to);
    const std::int64_t last = std::min(dim.size, steps_to(end_ - to, dim.to));
    for (std::int64_t i = first; i < last; ++i)
      run(k + 1, to + i * dim.to, from + i * dim.from);
  }

 private:
  void row(std::int64_t to, std::int64_t from) {
    const std::int64_t first = std::max<std::int64_t>(0, begin_ - to);
    const std::int64_t last = std::min(row_.size, end_ - to);
    if (first >= last) return;
    float* const out = out_ + (to + first - begin_);
    if (row_.from == 1) return read_(from + first, from + last, out);
    for (std::int64_t j = first; j < last; ++j) {
      const std::int64_t at = from + j * row_.from;
      read_(at, at + 1, out + (j - first));
    }
  }

  /// A transposed matrix: a line of the source is a column of the destination. Several lines are
  /// read before they are written, so that whole cache lines are written.
  void columns(std::int64_t to, std::int64_t from) {
    constexpr std::int64_t kLines = 16;
    const std::int64_t first = steps_to(begin_ - to - (row_.size - 1), column_->to);
    const std::int64_t last = std::min(column_->size, steps_to(end_ - to, column_->to));
    if (first >= last) return;
    const std::int64_t width = last - first;
    // A range within one row needs only some of its columns.
    const std::int64_t in_row = to + first * column_->to;
    const std::int64_t j_begin = width == 1 ? std::max<std::int64_t>(0, begin_ - in_row) : 0;
    const std::int64_t j_end = width == 1 ? std::min(row_.size, end_ - in_row) : row_.size;
    lines_.resize(static_cast<std::size_t>(
        std::max<std::int64_t>(0, std::min(kLines, j_end - j_begin)) * width));
    for (std::int64_t j = j_begin; j < j_end; j += kLines) {
      const std::int64_t count = std::min(kLines, j_end - j);
      for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t line = from + (j + k) * row_.from;
        read_(line + first, line + last, lines_.data() + k * width);
      }
      for (std::int64_t r = first; r < last; ++r) {
        for (std::int64_t k = 0; k < count; ++k) {
          const std::int64_t i = to + r * column_->to + j + k;
          if (i >= begin_ && i < end_)
            out_[i - begin_] = lines_[static_cast<std::size_t>(k * width + r - first)];
        }
      }
    }
  }

  std::int64_t begin_, end_;
  const ReadFloats& read_;
  float* out_;
  StridedCopy::Dim row_;
  std::optional<StridedCopy::Dim> column_;  // for a transposed matrix: consecutive in the source
  std::vector<StridedCopy::Dim> outer_;
  std::vector<std::int64_t> spans_;
  std::vector<float> lines_;
};

}  // namespace

std::int64_t StridedCopy::numel() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, [](auto n, const Dim& dim) {
    return n * dim.size;
  });
}

bool StridedCopy::meets(std::int64_t begin, std::int64_t end) const {
  std::int64_t last = to;
  for (const Dim& dim : dims)
    last += (dim.size - 1) * dim.to;
  return begin <= last && to < end;
}

bool StridedCopy::in_order() const {
  return dims.back().from == 1;
}

StridedCopy StridedCopy::reversed() const {
  StridedCopy out{from, to, {}};
  for (const Dim& dim : dims)
    out.dims.push_back({dim.size, dim.from, dim.to});
  return normalized(std::move(out));
}

void copy_range(const StridedCopy& copy,
                std::int64_t begin,
                std::int64_t end,
                const ReadFloats& read,
                float* out) {
  RangeCopier(copy, begin, end, read, out).run(0, copy.to, copy.from);
}

Composition Composition::of(std::string name, Shape shape) {
  Composition out;
  out.parts_.push_back(
      {std::move(name), shape, Shape(shape.size(), 0), shape, 0, row_major(shape)});
  out.shape_ = std::move(shape);
  return out;
}

Composition Composition::concat(const std::vector<Composition>& arrays, std::size_t dim) {
  TESSERA_ASSERT(!arrays.empty());
  Composition out;
  out.shape_ = arrays.front().shape_;
  TESSERA_ASSERT(dim < out.shape_.size());
  out.shape_[dim] = 0;
  for (const Composition& array : arrays) {
    TESSERA_ASSERT(array.shape_.size() == out.shape_.size());
    for (std::size_t d = 0; d < out.shape_.size(); ++d)
      TESSERA_ASSERT(d == dim || array.shape_[d] == out.shape_[d]);
    for (Part part : array.parts_) {
      part.begin[dim] += out.shape_[dim];
      out.parts_.push_back(std::move(part));
    }
    out.shape_[dim] += array.shape_[dim];
  }
  return out;
}

Composition Composition::slice(std::size_t dim, std::int64_t begin, std::int64_t end) const {
  TESSERA_ASSERT(dim < shape_.size() && begin >= 0 && begin < end && end <= shape_[dim]);
  Composition out;
  out.shape_ = shape_;
  out.shape_[dim] = end - begin;
  for (Part part : parts_) {
    const std::int64_t first = std::max(begin, part.begin[dim]);
    const std::int64_t last = std::min(end, part.begin[dim] + part.sizes[dim]);
    if (first >= last) continue;
    part.offset += (first - part.begin[dim]) * part.strides[dim];
    part.begin[dim] = first - begin;
    part.sizes[dim] = last - first;
    out.parts_.push_back(std::move(part));
  }
  return out;
}

Composition Composition::permuted(const std::vector<std::size_t>& dims) const {
  TESSERA_ASSERT(dims.size() == shape_.size());
  const auto permute = [&](const Shape& values) {
    Shape out;
    for (const std::size_t d : dims)
      out.push_back(values.at(d));
    return out;
  };
  Composition out = *this;
  out.shape_ = permute(shape_);
  for (Part& part : out.parts_) {
    part.begin = permute(part.begin);
    part.sizes = permute(part.sizes);
    part.strides = permute(part.strides);
  }
  return out;
}

/// Merges dims `dim` and `dim + 1`. A part whose rows are not consecutive becomes one part per row.
Composition Composition::merged(std::size_t dim) const {
  const std::int64_t inner = shape_[dim + 1];
  const auto drop = [&](Shape& values) {
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
  };
  Composition out;
  out.shape_ = shape_;
  out.shape_[dim] *= inner;
  drop(out.shape_);
  for (const Part& part : parts_) {
    const bool whole_rows =
        part.sizes[dim + 1] == inner && part.strides[dim] == inner * part.strides[dim + 1];
    const std::int64_t rows = whole_rows ? 1 : part.sizes[dim];
    for (std::int64_t row = 0; row < rows; ++row) {
      Part piece = part;
      piece.offset += row * part.strides[dim];
      piece.begin[dim] = (part.begin[dim] + row) * inner + part.begin[dim + 1];
      piece.sizes[dim] = (whole_rows ? part.sizes[dim] : 1) * part.sizes[dim + 1];
      piece.strides[dim] = part.strides[dim + 1];
      for (Shape* values : {&piece.begin, &piece.sizes, &piece.strides})
        drop(*values);
      out.parts_.push_back(std::move(piece));
    }
  }
  return out;
}

/// Splits dim `dim` into two, the second with `inner` indices. A part that does not consist of
/// whole rows becomes up to three parts.
Composition Composition::split(std::size_t dim, std::int64_t inner) const {
  TESSERA_ASSERT(inner > 0 && shape_[dim] % inner == 0);
  const auto at = static_cast<std::ptrdiff_t>(dim) + 1;
  Composition out;
  out.shape_ = shape_;
  out.shape_[dim] /= inner;
  out.shape_.insert(out.shape_.begin() + at, inner);
  for (const Part& part : parts_) {
    const std::int64_t end = part.begin[dim] + part.sizes[dim];
    for (std::int64_t i = part.begin[dim]; i < end;) {
      const std::int64_t in_row = i % inner;
      const bool whole_rows = in_row == 0 && end - i >= inner;
      const std::int64_t count =
          whole_rows ? (end - i) / inner * inner : std::min(inner - in_row, end - i);
      const std::int64_t rows = whole_rows ? count / inner : 1;
      Part piece = part;
      piece.offset += (i - part.begin[dim]) * part.strides[dim];
      piece.begin[dim] = i / inner;
      piece.sizes[dim] = rows;
      piece.strides[dim] = part.strides[dim] * inner;
      piece.begin.insert(piece.begin.begin() + at, in_row);
      piece.sizes.insert(piece.sizes.begin() + at, count / rows);
      piece.strides.insert(piece.strides.begin() + at, part.strides[dim]);
      out.parts_.push_back(std::move(piece));
      i += count;
    }
  }
  return out;
}

Composition Composition::viewed(const Shape& shape) const {
  TESSERA_ASSERT(numel_of(shape) == numel_of(shape_) && numel_of(shape) > 0);
  Composition out = *this;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    // Finds the destination's dims that form dim d and, if there are more, the dims after it.
    if (d == out.shape_.size()) {
      out.shape_.push_back(1);
      for (Part& part : out.parts_) {
        part.begin.push_back(0);
        part.sizes.push_back(1);
        part.strides.push_back(1);
      }
    }
    while (out.shape_[d] % shape[d] != 0) {
      TESSERA_ASSERT(d + 1 < out.shape_.size());
      out = out.merged(d);
    }
    if (out.shape_[d] != shape[d]) out = out.split(d, out.shape_[d] / shape[d]);
  }
  while (out.shape_.size() > shape.size())
    out = out.merged(shape.size() - 1);
  return out;
}

StridedCopy Composition::copy_of(const Part& part) const {
  const Shape ours = row_major(shape_);
  StridedCopy out;
  out.from = part.offset;
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    out.to += part.begin[d] * ours[d];
    out.dims.push_back({part.sizes[d], ours[d], part.strides[d]});
  }
  return normalized(std::move(out));
}

std::string WeightMap::without_base(const std::string& name) const {
  return name.starts_with(base) ? name.substr(base.size()) : name;
}

std::vector<Tie> ties_of(const WeightMap& map, const Parameters& parameters) {
  std::set<std::string> own;
  for (const auto& info : parameters) {
    const Composition composition = map.compose(*info);
    for (const Composition::Part& part : composition.parts())
      own.insert(part.tensor);
  }
  std::vector<Tie> out;
  for (const Tie& tie : map.ties) {
    if (own.count(tie.alias) > 0 || (tie.unused && own.count(tie.of) == 0)) continue;
    if (tie.with.empty() || own.count(tie.with) > 0) out.push_back(tie);
  }
  return out;
}

std::vector<TheirTensor> their_tensors(const WeightMap& map, const Parameters& parameters) {
  std::vector<TheirTensor> out;
  std::map<std::string, std::size_t> places;
  for (const auto& info : parameters) {
    const Composition composition = map.compose(*info);
    TESSERA_ASSERT(composition.shape() == info->shape);
    for (const Composition::Part& part : composition.parts()) {
      const auto [place, added] = places.emplace(part.tensor, out.size());
      if (added) out.push_back({part.tensor, part.tensor_shape, {}, {}});
      out[place->second].parts.push_back({info, composition.copy_of(part).reversed()});
    }
  }
  std::erase_if(out, [](const TheirTensor& tensor) {
    std::int64_t covered = 0;
    for (const TheirTensor::Part& part : tensor.parts)
      covered += part.copy.numel();
    return covered != numel_of(tensor.shape);
  });
  for (const Tie& tie : ties_of(map, parameters)) {
    for (TheirTensor& tensor : out) {
      if (tensor.name == tie.of && !tie.unused) tensor.aliases.push_back(tie.alias);
    }
  }
  return out;
}

}  // namespace tessera::models
