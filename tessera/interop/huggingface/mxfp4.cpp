// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/mxfp4.h"
#include "tessera/checkpoint/convert.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;

constexpr std::string_view kBlocks = "_blocks";
constexpr std::int64_t kElements = 32, kBytes = 16;

/// A column of blocks of one expert: 32 inputs and all outputs, which are decoded together because
/// the result has the outputs next to each other.
class Column {
 public:
  Column(Weight blocks, Weight scales)
      : blocks_(std::move(blocks)),
        scales_(std::move(scales)),
        outputs_(blocks_.shape[1]),
        groups_(blocks_.shape[2]) {}

  void read(std::int64_t begin, std::int64_t end, std::byte* out) {
    const std::lock_guard lock(mutex_);
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t line = i / outputs_, count = std::min(end, (line + 1) * outputs_) - i;
      decode(line / kElements);
      const float* const from = values_.data() + line % kElements * outputs_ + i % outputs_;
      checkpoint::convert(
          DType::F32, reinterpret_cast<const std::byte*>(from), DType::BF16, out, count);
      out += static_cast<std::size_t>(count) * size_of(DType::BF16);
      i += count;
    }
    if (end == blocks_.shape[0] * groups_ * kElements * outputs_) {
      std::vector<float>().swap(values_);
      decoded_ = -1;
    }
  }
  void release() const {
    blocks_.release();
    scales_.release();
  }

 private:
  /// Decodes column `column`, which counts the groups of all experts.
  void decode(std::int64_t column) {
    if (column == decoded_) return;
    decoded_ = -1;  // invalid until all of it is read
    values_.resize(static_cast<std::size_t>(kElements * outputs_));
    const std::int64_t expert = column / groups_, group = column % groups_;
    for (std::int64_t o = 0; o < outputs_; ++o) {
      const std::int64_t block = (expert * outputs_ + o) * groups_ + group;
      std::array<std::uint8_t, kBytes> bytes{};
      std::uint8_t scale = 0;
      blocks_.copy(
          block * kBytes, (block + 1) * kBytes, reinterpret_cast<std::byte*>(bytes.data()));
      scales_.copy(block, block + 1, reinterpret_cast<std::byte*>(&scale));
      for (std::int64_t j = 0; j < kBytes; ++j) {
        const unsigned byte = bytes[static_cast<std::size_t>(j)];
        const auto value = [&](unsigned code) {
          return std::ldexp(kMxfp4Values[code], static_cast<int>(scale) - kMxfp4Bias);
        };
        values_[static_cast<std::size_t>(2 * j * outputs_ + o)] = value(byte & 15U);
        values_[static_cast<std::size_t>((2 * j + 1) * outputs_ + o)] = value(byte >> 4);
      }
    }
    decoded_ = column;
  }

  Weight blocks_, scales_;
  std::int64_t outputs_, groups_;
  std::mutex mutex_;
  std::int64_t decoded_ = -1;  ///< the column in `values_`
  std::vector<float> values_;  ///< [32, outputs]
};

[[noreturn]] void refuse(const Weight& weight, const std::string& why) {
  throw Error(Error::Kind::Format,
              fmt::format("{}: {}: {}", weight.file.string(), weight.name, why),
              "fetch the file again, or take the model's weights in 16 bits");
}

}  // namespace

std::optional<std::string> name_of_mxfp4(std::string_view blocks) {
  if (!blocks.ends_with(kBlocks)) return std::nullopt;
  return std::string(blocks.substr(0, blocks.size() - kBlocks.size()));
}

StreamedTensor decoded_mxfp4(const Weight& blocks, const Weight& scales) {
  const auto& shape = blocks.shape;
  if (blocks.dtype != DType::U8 || shape.size() != 4 || shape[3] != kBytes || !blocks.contiguous())
    refuse(blocks, "is not a tensor of bytes [experts, outputs, groups, 16]");
  const std::vector<std::int64_t> expected(shape.begin(), shape.end() - 1);
  if (scales.dtype != DType::U8 || scales.shape != expected || !scales.contiguous())
    refuse(scales, "is not one byte for each block");
  if (blocks.numel() == 0) refuse(blocks, "has no elements");
  const auto column = std::make_shared<Column>(blocks, scales);
  return {*name_of_mxfp4(blocks.name),
          DType::BF16,
          {shape[0], kElements * shape[2], shape[1]},
          [column](std::int64_t begin, std::int64_t end, std::byte* out) {
            column->read(begin, end, out);
          },
          {},
          [column] { column->release(); }};
}

}  // namespace tessera::interop
