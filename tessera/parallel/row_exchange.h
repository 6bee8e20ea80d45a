// SPDX-License-Identifier: Apache-2.0
// Gradients that touch few rows of a table, folded as (row, values) pairs: what nobody touched does
// not travel. Source: the sparse all-reduce of DeepSpeed's `sparse_gradients`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"

namespace tessera::parallel {

/// Elements [begin, end) of a flat buffer.
struct Touched {
  std::int64_t begin = 0, end = 0;
};

/// Memory: kShare of the largest buffer, to send and to receive. Threads: the rank's own. fold() is
/// collective.
class RowExchange {
 public:
  /// It pays where no more than one in so many elements would travel.
  static constexpr std::int64_t kShare = 4;

  /// For buffers of up to `numel` elements.
  RowExchange(comm::World& world, const comm::Group& group, std::int64_t numel);
  ~RowExchange();

  enum class Outcome : std::uint8_t { Done, TooMany, Dense };
  /// What Transport::reduce_scatter(flat, out, Sum, fold) leaves in `out`, to the bit. `touched`:
  /// what may differ from zero in this rank's `flat`; nothing if that is all of it. Without
  /// Outcome::Done nothing was done: too many rows for it to pay, or some rank's gradient is dense.
  /// The outcome is the same on every rank.
  Outcome fold(const at::Tensor& flat,
               const std::optional<std::vector<Touched>>& touched,
               const at::Tensor& out,
               comm::Fold fold,
               const std::string& what);

 private:
  void pack(const at::Tensor& flat,
            std::span<const Touched> touched,
            std::int64_t shard,
            std::int64_t part);
  void unpack(std::int64_t part, const at::Tensor& out, comm::Fold fold) const;

  comm::World& world_;
  const comm::Group& group_;
  comm::RegionPtr send_, receive_;
  comm::WorkPtr work_;
};

}  // namespace tessera::parallel
