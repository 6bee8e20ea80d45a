// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/cost.h"

#include "tessera/ops/cost.h"

namespace tessera::parallel {

PassCost& PassCost::operator+=(const PassCost& other) {
  seconds += other.seconds;
  flops += other.flops;
  bytes += other.bytes;
  sent += other.sent;
  return *this;
}

PassCost cost(const PassWork& work, const Machine& machine) {
  PassCost out;
  out.seconds = ops::seconds(work.operations, machine);
  for (const ops::OpRow& row : work.operations) {
    out.flops += row.flops;
    out.bytes += row.bytes;
  }
  for (const comm::Posted& posted : work.posted)
    out.sent += comm::sent(posted, machine.host_ranks);
  out.seconds += comm::seconds(out.sent, machine);
  return out;
}

PassTimes pass_times(std::span<const BlockWork> blocks, const Machine& machine) {
  PassTimes out{0, 0, 0};
  for (const BlockWork& block : blocks) {
    for (const auto& [kind, work] : block) {
      const double seconds = cost(work, machine).seconds;
      // A backward pass in one piece counts as one of inputs: simulate() adds both.
      (kind == ActionKind::Forward           ? out.forward
       : kind == ActionKind::BackwardWeights ? out.weights
                                             : out.inputs) += seconds;
    }
  }
  return out;
}

comm::Sent reduction_cost(const ReductionOptions& options,
                          std::int64_t numel,
                          int micros,
                          comm::GroupPlace fold) {
  const int times = options.locally() ? 1 : micros;
  const auto of = [&](comm::Kind kind, DType dtype, comm::Write write) {
    const std::int64_t count = options.narrow() ? options.sent(numel) : numel;
    const double bytes = static_cast<double>(count) * static_cast<double>(size_of(dtype));
    return comm::sent(kind, bytes, dtype, fold, write);
  };
  if (options.narrow())
    return of(comm::Kind::AllToAll, options.comm_dtype, comm::Write::Store) * times;
  const auto reduce = [&](comm::Write write) {
    return of(comm::Kind::ReduceScatter, options.accumulate, write);
  };
  if (options.mode == Reduction::Once) return reduce(comm::Write::Store) * times;
  comm::Sent out = reduce(comm::Write::Store);
  out += reduce(comm::Write::Accumulate) * (times - 1);
  return out;
}

int gathers_of(bool sharded, int block, int num_blocks, int micros) {
  if (!sharded) return 1;
  return 2 * micros - (block + 1 == num_blocks ? micros : 0) - (block == 0 ? micros - 1 : 0);
}

comm::Sent gather_cost(int stage,
                       std::int64_t numel,
                       DType working,
                       DType sums,
                       int gathers,
                       comm::GroupPlace shards) {
  const DType dtype = stage == 0 ? sums : working;
  const double bytes = static_cast<double>(numel) * static_cast<double>(size_of(dtype));
  return comm::sent(comm::Kind::AllGather, bytes, dtype, shards) * gathers;
}

double update_seconds(std::int64_t numel, int states, DType working, const Machine& machine) {
  const double written = working == DType::F32 ? 0.0 : static_cast<double>(size_of(working));
  const ops::OpRow row{.calls = 1,
                       .bytes = static_cast<double>(numel) * (8.0 * (1 + states) + 4.0 + written),
                       .shape_class = ShapeClass::Update};
  return ops::seconds(row, machine);
}

}  // namespace tessera::parallel
