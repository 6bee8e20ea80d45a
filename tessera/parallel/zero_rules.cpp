// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/zero_rules.h"

#include <utility>

#include <fmt/format.h>

#include "tessera/config/json.h"
#include "tessera/optim/make_rule.h"

namespace tessera::parallel {
namespace {

// The possible group sizes next to `size`: "2 or 4".
std::string nearest_groups(std::int64_t size, int ranks) {
  int below = 1, above = ranks;
  for (int k = 1; k <= ranks; ++k) {
    if (ranks % k != 0) continue;
    if (k <= size) below = k;
    if (k >= size && above == ranks) above = k;
  }
  return below == above ? std::to_string(below) : fmt::format("{} or {}", below, above);
}

}  // namespace

void check_shard_group(const ZeroOptions& zero,
                       int ranks,
                       config::Problems& problems,
                       const config::Origins& origins) {
  const auto size = zero.group();
  if (!size || ranks <= 1 || ranks % *size == 0) return;
  const char* const key =
      zero.mics_shard_size.value_or(-1) > 0 ? "mics_shard_size" : "zero_hpz_partition_size";
  const std::string path = json::join_path("zero_optimization", key);
  problems.add(origins.place(path),
               path,
               fmt::format("{} ranks cannot be cut into groups of {}", ranks, *size),
               fmt::format("set it to {}, or use -n {}",
                           nearest_groups(*size, ranks),
                           (ranks + *size - 1) / *size * *size));
}

void check_feedback(const ParallelOptions& parallel,
                    const optim::OptimizerOptions& optimizer,
                    std::string_view wide,
                    config::Problems& problems,
                    const config::Origins& origins) {
  const char* const key = "zero_optimization.zeropp_loco_param";
  const auto add = [&](std::string what, std::string fix) {
    problems.add(origins.place(key), key, std::move(what), std::move(fix));
  };
  if (!wide.empty()) {
    add(fmt::format("is for gradients that travel in 8 bits, and they travel in {}", wide),
        "set communication_data_type to \"int8\", or remove the key");
  }
  const bool tensor = parallel.tensor.size > 1;
  if (tensor || parallel.context.size > 1) {
    add(fmt::format("does not go with {}: what a rank of it keeps would not be in checkpoints",
                    tensor ? "parallel.tensor" : "parallel.context"),
        fmt::format("remove the key, or set parallel.{}.size to 1", tensor ? "tensor" : "context"));
  }
  if (optim::exchange_needs(optimizer).compressed) {
    add(fmt::format("does not go with {}, which has error feedback of its own", optimizer.type),
        "remove the key, or use AdamW");
  }
}

std::optional<FeedbackOptions> complete_feedback(ZeroOptions& options) {
  FeedbackKeys& keys = options.zeropp_loco_param;
  if (!keys.on()) return std::nullopt;
  FeedbackOptions out;
  keys.err_beta = out.beta = keys.err_beta.value_or(out.beta);
  keys.reset_T = out.reset = keys.reset_T.value_or(out.reset);
  return out;
}

}  // namespace tessera::parallel
