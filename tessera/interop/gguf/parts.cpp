// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/parts.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/json_cursor.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;
using Parts = models::GgufNames::Parts;
using PartRows = models::GgufNames::PartRows;

/// Rows first + i * step of Hugging Face's matrix.
struct Rows {
  std::int64_t first = 0, step = 1, count = 0;
  bool transposed = false;  ///< the file's matrices are [columns, rows]
};

/// The position of an element in the storage of a matrix [rows, columns], or of its transpose.
struct Place {
  std::int64_t rows = 0, columns = 0;
  bool transposed = false;
  [[nodiscard]] std::size_t of(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(transposed ? column * rows + row : row * columns + column);
  }
  [[nodiscard]] std::int64_t elements() const { return rows * columns; }
};

[[noreturn]] void misfit(const StreamedTensor& tensor, const std::string& what) {
  throw Error(Error::Kind::Format,
              fmt::format("tensor {} [{}] {}",
                          checkpoint::JsonCursor::shown(tensor.name),
                          fmt::join(tensor.shape, ", "),
                          what),
              "the sizes of the model and its weights are not of one model: fetch both again");
}

/// Copies the elements of the rows between the matrix of Hugging Face and that of the file.
template <class Copy>
void for_rows(const Rows& rows, const Place& theirs, const Place& its, const Copy& copy) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t c = 0; c < theirs.columns; ++c)
      copy(theirs.of(rows.first + i * rows.step, c), its.of(i, c));
  }
}

/// A tensor that is computed matrix by matrix; the last one is kept until release or the end.
class ByMatrix {
 public:
  using Make = std::function<void(std::int64_t matrix, std::byte* out)>;
  ByMatrix(std::int64_t count, std::int64_t each, std::size_t width, Make make)
      : count_(count), each_(each), width_(width), make_(std::move(make)) {}

  void read(std::int64_t begin, std::int64_t end, std::byte* out) {
    const std::lock_guard lock(mutex_);
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t matrix = i / each_, stop = std::min(end, (matrix + 1) * each_);
      if (matrix != made_) {
        made_ = -1;  // invalid until all of it is computed
        bytes_.resize(bytes(each_));
        make_(matrix, bytes_.data());
        made_ = matrix;
      }
      std::memcpy(out, bytes_.data() + bytes(i - matrix * each_), bytes(stop - i));
      out += bytes(stop - i);
      i = stop;
    }
    if (end == count_ * each_) {
      std::vector<std::byte>().swap(bytes_);
      made_ = -1;
    }
  }

 private:
  [[nodiscard]] std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * width_;
  }
  std::int64_t count_, each_;
  std::size_t width_;
  Make make_;
  std::mutex mutex_;
  std::int64_t made_ = -1;
  std::vector<std::byte> bytes_;
};

StreamedTensor by_matrix(std::string name,
                         DType dtype,
                         std::vector<std::int64_t> shape,
                         std::int64_t count,
                         std::int64_t each,
                         ByMatrix::Make make,
                         std::function<void()> release) {
  const auto made = std::make_shared<ByMatrix>(count, each, size_of(dtype), std::move(make));
  const auto read = [made](std::int64_t begin, std::int64_t end, std::byte* out) {
    made->read(begin, end, out);
  };
  return {std::move(name), dtype, std::move(shape), read, {}, std::move(release)};
}

StreamedTensor as_fp32(const StreamedTensor& tensor) {
  if (tensor.dtype == DType::F32) return tensor;
  const auto read = [tensor](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::vector<std::byte> stored(static_cast<std::size_t>(end - begin) * size_of(tensor.dtype));
    tensor.read(begin, end, stored.data());
    checkpoint::convert(tensor.dtype, stored.data(), DType::F32, out, end - begin);
  };
  return {tensor.name, DType::F32, tensor.shape, read, tensor.aliases, tensor.release};
}

/// The rows of every part if the parts have these numbers of rows.
std::vector<Rows> divided(const Parts& parts, const std::vector<std::int64_t>& sizes) {
  std::vector<Rows> out;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool turns = parts.rows == PartRows::Turns;
    out.push_back({turns ? static_cast<std::int64_t>(i) : first,
                   turns ? std::ssize(sizes) : 1,
                   sizes[i],
                   parts.rows == PartRows::OfHead && i == 0});
    first += sizes[i];
  }
  return out;
}

}  // namespace

std::vector<StreamedTensor> parts_of(const StreamedTensor& whole,
                                     const Parts& parts,
                                     const std::vector<std::string>& names,
                                     std::int64_t count,
                                     const json::Value& config) {
  const std::vector<std::int64_t>& shape = whole.shape;
  const bool vectors = !parts.flat && shape.size() == 2;
  if (shape.size() != (parts.flat || vectors ? 2U : 3U) || count < 1 ||
      (parts.flat ? shape[0] % count != 0 : shape[0] != count))
    misfit(whole, fmt::format("does not hold {} matrices", count));
  Place theirs;
  theirs.transposed = parts.transposed && !vectors;
  if (parts.flat) {
    theirs.rows = parts.transposed ? shape[1] : shape[0] / count;
    theirs.columns = parts.transposed ? shape[0] / count : shape[1];
  } else {
    theirs.rows = shape[theirs.transposed ? 2 : 1];
    theirs.columns = vectors ? 1 : shape[theirs.transposed ? 1 : 2];
  }
  std::vector<std::int64_t> sizes;
  if (parts.sizes != nullptr) {
    sizes = parts.sizes(config);
  } else {
    sizes.assign(names.size(), theirs.rows / std::ssize(names));
  }
  std::int64_t all = 0;
  for (const std::int64_t size : sizes)
    all += size;
  if (all != theirs.rows || sizes.size() != names.size() || std::ranges::min(sizes) < 1)
    misfit(whole, fmt::format("has matrices of {} rows instead of {}", theirs.rows, all));

  const std::vector<Rows> rows = divided(parts, sizes);
  std::vector<StreamedTensor> out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Place its{rows[i].count, theirs.columns, rows[i].transposed};
    std::vector<std::int64_t> own = {count, its.rows};
    if (!vectors) own.push_back(its.columns);
    if (its.transposed) std::swap(own[1], own[2]);
    const auto make = [whole, theirs, its, some = rows[i]](std::int64_t matrix, std::byte* to) {
      const std::size_t width = size_of(whole.dtype);
      std::vector<std::byte> from(static_cast<std::size_t>(theirs.elements()) * width);
      whole.read(matrix * theirs.elements(), (matrix + 1) * theirs.elements(), from.data());
      for_rows(some, theirs, its, [&](std::size_t source, std::size_t target) {
        std::memcpy(to + target * width, from.data() + source * width, width);
      });
    };
    out.push_back(
        by_matrix(names[i], whole.dtype, own, count, its.elements(), make, whole.release));
  }
  return out;
}

StreamedTensor whole_of(std::vector<StreamedTensor> tensors,
                        const Parts& parts,
                        const std::string& name,
                        std::int64_t count) {
  const bool vectors = tensors.front().shape.size() == 2 && !parts.flat;
  std::vector<Place> places;
  std::vector<std::int64_t> sizes;
  for (const StreamedTensor& tensor : tensors) {
    const std::vector<std::int64_t>& shape = tensor.shape;
    if (shape.size() != (vectors ? 2U : 3U) || shape[0] != count || count < 1)
      misfit(tensor, fmt::format("is not a stack of {} matrices", count));
    const bool exchanged = parts.rows == PartRows::OfHead && places.empty();
    places.push_back({shape[exchanged ? 2 : 1], vectors ? 1 : shape[exchanged ? 1 : 2], exchanged});
    sizes.push_back(places.back().rows);
    const bool fits = places.back().columns == places.front().columns &&
                      (parts.rows == PartRows::OfHead || sizes.back() == sizes.front());
    if (!fits) misfit(tensor, fmt::format("does not fit {}", tensors.front().name));
  }
  const bool mixed = std::ranges::any_of(
      tensors, [&](const auto& tensor) { return tensor.dtype != tensors.front().dtype; });
  if (mixed) std::ranges::transform(tensors, tensors.begin(), as_fp32);

  Place theirs{0, places.front().columns, parts.transposed && !vectors};
  for (const std::int64_t size : sizes)
    theirs.rows += size;
  std::vector<std::int64_t> shape = {count, theirs.rows};
  if (!vectors) shape.push_back(theirs.columns);
  if (theirs.transposed) std::swap(shape[1], shape[2]);
  if (parts.flat) shape = {count * shape[1], shape[2]};

  const DType dtype = tensors.front().dtype;
  const auto all = std::make_shared<const std::vector<StreamedTensor>>(std::move(tensors));
  const auto make = [all, theirs, places, rows = divided(parts, sizes), width = size_of(dtype)](
                        std::int64_t matrix, std::byte* to) {
    std::vector<std::byte> from;
    for (std::size_t i = 0; i < all->size(); ++i) {
      const std::int64_t each = places[i].elements();
      from.resize(static_cast<std::size_t>(each) * width);
      (*all)[i].read(matrix * each, (matrix + 1) * each, from.data());
      for_rows(rows[i], theirs, places[i], [&](std::size_t target, std::size_t source) {
        std::memcpy(to + target * width, from.data() + source * width, width);
      });
    }
  };
  const auto release = [all] {
    for (const StreamedTensor& one : *all) {
      if (one.release) one.release();
    }
  };
  return by_matrix(name, dtype, shape, count, theirs.elements(), make, release);
}

}  // namespace tessera::interop
