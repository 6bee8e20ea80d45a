// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/gguf/layout.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;

/// A cache of rows of the transposed matrix, which are columns of the source and are computed
/// together.
class Band {
 public:
  explicit Band(StreamedTensor source)
      : source_(std::move(source)),
        width_(size_of(source_.dtype)),
        rows_(source_.shape[1]),
        columns_(source_.shape[0]) {}

  void read(std::int64_t begin, std::int64_t end, std::byte* out) {
    const std::lock_guard lock(mutex_);
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = i / columns_, count = std::min(end, (row + 1) * columns_) - i;
      make(row / kRows * kRows);
      const std::int64_t at = (row - first_) * columns_ + i % columns_;
      std::memcpy(out, band_.data() + bytes(at), bytes(count));
      out += bytes(count);
      i += count;
    }
    if (end == rows_ * columns_) {
      std::vector<std::byte>().swap(band_);
      first_ = -1;
    }
  }

 private:
  static constexpr std::int64_t kRows = 64;

  [[nodiscard]] std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * width_;
  }
  void make(std::int64_t first) {
    if (first == first_) return;
    first_ = -1;  // invalid until all of it is read
    const std::int64_t count = std::min(kRows, rows_ - first);
    band_.resize(bytes(count * columns_));
    std::vector<std::byte> line(bytes(count));
    for (std::int64_t c = 0; c < columns_; ++c) {
      source_.read(c * rows_ + first, c * rows_ + first + count, line.data());
      for (std::int64_t r = 0; r < count; ++r)
        std::memcpy(band_.data() + bytes(r * columns_ + c), line.data() + bytes(r), width_);
    }
    first_ = first;
  }

  StreamedTensor source_;
  std::size_t width_;
  std::int64_t rows_, columns_;  // of the result
  std::mutex mutex_;
  std::int64_t first_ = -1;  // first row of the result in the band
  std::vector<std::byte> band_;
};

/// Row r of the result is row source_row(r) of the tensor.
template <class SourceRow>
StreamedTensor with_rows(const StreamedTensor& tensor, SourceRow source_row) {
  std::int64_t length = 1;
  for (std::size_t d = 1; d < tensor.shape.size(); ++d)
    length *= tensor.shape[d];
  const auto read = [=](std::int64_t begin, std::int64_t end, std::byte* out) {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = i / length, count = std::min(end, (row + 1) * length) - i;
      const std::int64_t at = source_row(row) * length + i % length;
      tensor.read(at, at + count, out);
      out += static_cast<std::size_t>(count) * size_of(tensor.dtype);
      i += count;
    }
  };
  return {tensor.name, tensor.dtype, tensor.shape, read, tensor.aliases, tensor.release};
}

}  // namespace

StreamedTensor rotary_rows(const StreamedTensor& tensor, std::int64_t heads, RotaryRows to) {
  const std::int64_t rows = tensor.shape.front(), channels = rows / heads, half = channels / 2;
  TESSERA_ASSERT(heads > 0 && half > 0 && heads * half * 2 == rows);
  return with_rows(tensor, [=](std::int64_t row) {
    const std::int64_t head = row / channels * channels, i = row % channels;
    if (to == RotaryRows::Halves) return head + 2 * (i % half) + i / half;
    return head + i % 2 * half + i / 2;
  });
}

StreamedTensor qkv_rows(const StreamedTensor& tensor, std::int64_t heads, QkvRows to) {
  const std::int64_t channels = tensor.shape.front() / (3 * heads);
  TESSERA_ASSERT(heads > 0 && channels > 0 && channels * 3 * heads == tensor.shape.front());
  return with_rows(tensor, [=](std::int64_t row) {
    const std::int64_t k = row % channels, outer = row / channels;
    if (to == QkvRows::ByHead) return (outer % 3 * heads + outer / 3) * channels + k;
    return (outer % heads * 3 + outer / heads) * channels + k;
  });
}

StreamedTensor shifted(const StreamedTensor& tensor, float by) {
  const auto read = [tensor, by](std::int64_t begin, std::int64_t end, std::byte* out) {
    const auto count = static_cast<std::size_t>(end - begin);
    std::vector<std::byte> stored(count * size_of(tensor.dtype));
    std::vector<float> numbers(count);
    tensor.read(begin, end, stored.data());
    checkpoint::convert(tensor.dtype,
                        stored.data(),
                        DType::F32,
                        reinterpret_cast<std::byte*>(numbers.data()),
                        end - begin);
    for (float& number : numbers)
      number += by;
    std::memcpy(out, numbers.data(), count * sizeof(float));
  };
  return {tensor.name, DType::F32, tensor.shape, read, tensor.aliases, tensor.release};
}

StreamedTensor expert_of(const StreamedTensor& stack, std::int64_t expert) {
  const std::vector<std::int64_t> shape(stack.shape.begin() + 1, stack.shape.end());
  std::int64_t each = 1;
  for (const std::int64_t size : shape)
    each *= size;
  const auto read = [stack, first = expert * each](
                        std::int64_t begin, std::int64_t end, std::byte* out) {
    stack.read(first + begin, first + end, out);
  };
  return {stack.name, stack.dtype, shape, read, {}, stack.release};
}

StreamedTensor stacked(std::string name, std::vector<StreamedTensor> experts) {
  TESSERA_ASSERT(!experts.empty());
  std::vector<std::int64_t> shape = experts.front().shape;
  std::int64_t each = 1;
  for (const std::int64_t size : shape)
    each *= size;
  shape.insert(shape.begin(), std::ssize(experts));
  const DType dtype = experts.front().dtype;
  const auto all = std::make_shared<const std::vector<StreamedTensor>>(std::move(experts));
  const auto read = [all, each, dtype](std::int64_t begin, std::int64_t end, std::byte* out) {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t expert = i / each, stop = std::min(end, (expert + 1) * each);
      (*all)[static_cast<std::size_t>(expert)].read(i - expert * each, stop - expert * each, out);
      out += static_cast<std::size_t>(stop - i) * size_of(dtype);
      i = stop;
    }
  };
  const auto release = [all] {
    for (const StreamedTensor& one : *all) {
      if (one.release) one.release();
    }
  };
  return {std::move(name), dtype, shape, read, {}, release};
}

StreamedTensor exchanged(const StreamedTensor& matrix) {
  TESSERA_ASSERT(matrix.shape.size() == 2);
  const auto band = std::make_shared<Band>(matrix);
  const auto read = [band](std::int64_t begin, std::int64_t end, std::byte* out) {
    band->read(begin, end, out);
  };
  return {matrix.name,
          matrix.dtype,
          {matrix.shape[1], matrix.shape[0]},
          read,
          matrix.aliases,
          matrix.release};
}

}  // namespace tessera::interop
