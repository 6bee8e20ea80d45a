// SPDX-License-Identifier: Apache-2.0
// Flat buffers: parameters side by side in one piece of memory, in chunks of 1024 elements, sharded
// evenly over data-parallel ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/comm/transport.h"
#include "tessera/tensor/param.h"

namespace tessera {

/// Elements of a chunk. A shard boundary never splits a chunk of a parameter, so sums over chunks
/// do not depend on the layout.
inline constexpr std::int64_t kChunk = 1024;
/// Returns the number of chunks of `numel` elements; the last may be partial.
inline constexpr std::int64_t chunks_of(std::int64_t numel) {
  return (numel + kChunk - 1) / kChunk;
}

/// The position of a parameter, or of the box of it that this rank holds, in the buffer. `begin` is
/// a multiple of kChunk and depends neither on the number of data-parallel ranks nor on the box.
struct Segment {
  std::shared_ptr<const ParamInfo> info;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  [[nodiscard]] std::int64_t end() const { return begin + numel; }
  /// Returns the part of the segment inside [first, last) of the buffer; empty if they do not
  /// overlap.
  [[nodiscard]] Segment within(std::int64_t first, std::int64_t last) const {
    const std::int64_t from = std::max(begin, first), to = std::min(end(), last);
    return {info, from, std::max<std::int64_t>(0, to - from)};
  }
};

/// The offsets of a list of parameters and the range of each shard. Pure arithmetic.
class FlatLayout {
 public:
  FlatLayout(std::string name,
             const std::vector<std::shared_ptr<const ParamInfo>>& params,
             int shards);
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const Segment> segments() const { return segments_; }
  /// Replaces the info of a segment by one that differs only in what the layout does not depend on.
  void replace_info(std::size_t segment, std::shared_ptr<const ParamInfo> info) {
    segments_[segment].info = std::move(info);
  }
  [[nodiscard]] std::int64_t numel() const {
    return numel_;
  }  ///< padded: a multiple of kChunk * shards
  [[nodiscard]] int shards() const { return shards_; }
  [[nodiscard]] std::int64_t shard_numel() const { return numel_ / shards_; }
  [[nodiscard]] std::int64_t shard_begin(int shard) const { return shard * shard_numel(); }

 private:
  std::string name_;
  std::vector<Segment> segments_;
  std::int64_t numel_ = 0;
  int shards_ = 1;
};

/// Returns a 1-d tensor over the memory of `region`; it keeps the region alive.
at::Tensor tensor_over(const comm::RegionPtr& region, std::int64_t numel, DType dtype);
/// Returns the view of a segment in a flat tensor, in the shape of the part of the parameter that
/// this rank holds.
at::Tensor view_of(const at::Tensor& flat, const Segment& segment);

}  // namespace tessera
