// SPDX-License-Identifier: Apache-2.0
// Weights of which a rank keeps its part, and has all parts only while they are used (ZeRO stage
// 3). If several ranks hold the same parts, a rank keeps its own part and those of the ranks that
// it represents in its group, so that gathers stay inside the group. Source: Wang et al. 2023,
// "ZeRO++" (hpZ); Zhang et al. 2022, "MiCS".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/parallel/weights/coming.h"

namespace tessera::parallel {

/// Sends the values themselves. Memory: numel / ranks of `inner` elements that peers read, and
/// numel more in private memory while gathered.
class ShardedWeights : public ComingWeights {
 public:
  explicit ShardedWeights(const WeightPlace& place);
  static std::int64_t bytes(const WeightSizes& sizes);

  void wait() override;
  void begin_write() override;
  void written() override;
  void settle() override;
  [[nodiscard]] std::unique_ptr<WorkingWeights> borrowed() const override;

 protected:
  /// For strategies that keep the parts in another form: own() is memory of this rank alone, and
  /// peers read `kept`, one entry per copy, each `part` elements.
  ShardedWeights(const WeightPlace& place, std::int64_t part, DType kept_dtype);
  ShardedWeights(const ShardedWeights& lender);

  void start() override;
  /// Starts the gather of all kept parts into `all`.
  void gather(const at::Tensor& all);
  /// The entry of this rank among the kept parts.
  [[nodiscard]] at::Tensor mine() const { return kept_.narrow(0, copies_.index * part_, part_); }
  /// Starts to send `mine()` to the ranks that hold the same parts.
  void spread();

 private:
  std::string name_;
  comm::World& world_;
  const comm::Group& inner_;
  const comm::Group& copies_;
  comm::RegionPtr region_;
  std::int64_t part_;                  ///< elements of one entry of kept_
  at::Tensor kept_;                    ///< one part per copy, which peers read
  std::vector<comm::WorkPtr> works_;   ///< the gather's operations, one per kept part
  std::vector<comm::WorkPtr> spread_;  ///< send mine() to the copies
};

}  // namespace tessera::parallel
