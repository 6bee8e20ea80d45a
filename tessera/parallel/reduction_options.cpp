// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/reduction_options.h"

namespace tessera::parallel {
namespace {

/// The number of uses of one size from which a second buffer pays off: one block's gradient is
/// reduced while the next one's is computed.
constexpr int kUsesForTwo = 3;

}  // namespace

std::int64_t InFlight::bytes(const ReductionOptions& options,
                             int ranks,
                             std::int64_t numel,
                             int slices) const {
  const auto values = static_cast<std::int64_t>(size_of(type)) * options.sent(numel) * slices;
  const auto shard = static_cast<std::int64_t>(size_of(options.accumulate)) * numel / ranks;
  const std::int64_t each = values + (reduced ? shard : 0) + (received ? values : 0);
  return buffers * each + (staging ? 4 * numel * slices : 0);
}

InFlight in_flight(
    const ReductionOptions& options, int ranks, std::int64_t numel, int uses, int slices) {
  const int inputs = ranks * slices;
  const bool several = inputs > 1, local = options.locally();
  InFlight out;
  out.staging = options.accumulate != DType::F32 || (options.narrow() && !local);
  const bool passes = local ? options.narrow() && several
                            : several || options.max_micros > 1 || !options.direct(inputs, 0);
  if (!passes) return out;
  out.buffers = uses >= kUsesForTwo && numel <= options.bucket / 2 ? 2 : 1;
  out.type = options.narrow() ? options.comm_dtype : options.accumulate;
  out.reduced = options.mode == Reduction::Once && options.max_micros > 1 && !local;
  out.received = ranks > 1 && (options.narrow() || slices > 1);
  return out;
}

std::int64_t sum_bytes(const ReductionOptions& options, int ranks, std::int64_t numel, int slices) {
  const auto whole = static_cast<std::int64_t>(size_of(options.accumulate)) * numel;
  if (!options.locally() || ranks * slices == 1) return whole / ranks;
  if (slices == 1) return whole;
  // The sums of each source, the parts that are received of them, and the shard.
  const bool received = ranks > 1 && !options.narrow();
  return whole * slices * (received ? 2 : 1) + whole / ranks;
}

}  // namespace tessera::parallel
