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

/// The position of a parameter, or of the box of it that this rank holds, in the buffer; of a
/// stacked parameter, that of one of its matrices. `begin` is a multiple of kChunk and depends
/// neither on the number of data-parallel ranks nor on the box.
struct Segment {
  std::shared_ptr<const ParamInfo> info;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::int64_t matrix = -1;  ///< of a stacked parameter: the number of the matrix among all of them
  [[nodiscard]] std::int64_t end() const { return begin + numel; }
  /// The elements of the parameter that the segment holds, in row-major order.
  [[nodiscard]] mesh::Box box() const;
  /// The name of the parameter, or "<name>[17]" for one of its matrices.
  [[nodiscard]] std::string name() const;
  /// Returns the part of the segment inside [first, last) of the buffer; empty if they do not
  /// overlap.
  [[nodiscard]] Segment within(std::int64_t first, std::int64_t last) const {
    const std::int64_t from = std::max(begin, first), to = std::min(end(), last);
    return {info, from, std::max<std::int64_t>(0, to - from), matrix};
  }
};

/// A parameter in a buffer: one segment, or, if it is stacked, one for each of its matrices that
/// this rank holds, in order and at equal distances.
struct FlatParam {
  std::shared_ptr<const ParamInfo> info;
  std::size_t first = 0;    ///< index of its first segment
  std::size_t count = 1;    ///< number of its segments
  std::int64_t begin = 0;   ///< of its first segment
  std::int64_t stride = 0;  ///< elements from the begin of a segment to that of the next
};

/// The offsets of a list of parameters and the range of each shard. Pure arithmetic.
class FlatLayout {
 public:
  FlatLayout(std::string name,
             const std::vector<std::shared_ptr<const ParamInfo>>& params,
             int shards);
  [[nodiscard]] const std::string& name() const { return name_; }
  /// The segments in the order of the buffer.
  [[nodiscard]] std::span<const Segment> segments() const { return segments_; }
  /// The parameters in the order in which they were given.
  [[nodiscard]] std::span<const FlatParam> params() const { return params_; }
  [[nodiscard]] std::span<const Segment> segments_of(const FlatParam& param) const {
    return segments().subspan(param.first, param.count);
  }
  /// Replaces the info of a parameter (an index of params()) by one that differs only in what the
  /// layout does not depend on.
  void replace_info(std::size_t param, std::shared_ptr<const ParamInfo> info);
  [[nodiscard]] std::int64_t numel() const {
    return numel_;
  }  ///< padded: a multiple of kChunk * shards
  [[nodiscard]] int shards() const { return shards_; }
  [[nodiscard]] std::int64_t shard_numel() const { return numel_ / shards_; }
  [[nodiscard]] std::int64_t shard_begin(int shard) const { return shard * shard_numel(); }

 private:
  std::string name_;
  std::vector<Segment> segments_;
  std::vector<FlatParam> params_;
  std::int64_t numel_ = 0;
  int shards_ = 1;
};

/// Returns a 1-d tensor over the memory of `region`; it keeps the region alive.
at::Tensor tensor_over(const comm::RegionPtr& region, std::int64_t numel, DType dtype);
/// Returns the view of a parameter in a flat tensor, in the shape of the part of it that this rank
/// holds. The matrices of a stacked parameter are contiguous, and there may be gaps between them.
at::Tensor view_of(const at::Tensor& flat, const FlatParam& param);

}  // namespace tessera
