// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/relative_position.h"

#include <cmath>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/op_trace.h"

namespace tessera::ops {

std::int64_t least_buckets(bool bidirectional) {
  return bidirectional ? 4 : 2;
}

at::Tensor relative_buckets(const RelativeBuckets& rule, std::int64_t first, std::int64_t number) {
  const std::int64_t one_side = rule.bidirectional ? rule.count / 2 : rule.count;
  // Half of the buckets have a single distance each.
  const std::int64_t exact = one_side / 2;
  TESSERA_REQUIRE(
      rule.count >= least_buckets(rule.bidirectional) && rule.max_distance > exact,
      Config,
      fmt::format(
          "{} buckets of relative positions up to a distance of {}", rule.count, rule.max_distance),
      fmt::format("give at least {} buckets, and a distance above {}",
                  least_buckets(rule.bidirectional),
                  exact));
  const at::Tensor relative = at::arange(first, first + number, at::kLong);
  const at::Tensor distance = rule.bidirectional ? relative.abs() : relative.neg().clamp_min(0);
  // In fp32, as in published models: the boundary of a bucket may depend on rounding.
  const at::Tensor share =
      at::log(distance.clamp_min(exact).to(at::kFloat) / exact) /
      std::log(static_cast<double>(rule.max_distance) / static_cast<double>(exact));
  const at::Tensor far =
      ((share * (one_side - exact)).to(at::kLong) + exact).clamp_max(one_side - 1);
  at::Tensor buckets = at::where(distance.lt(exact), distance, far);
  if (rule.bidirectional) buckets = buckets + relative.gt(0).to(at::kLong) * one_side;
  trace_call("tessera::relative_buckets",
             [&] {
               return std::vector<c10::IValue>{
                   rule.count, rule.max_distance, rule.bidirectional, first, number};
             },
             {buckets});
  return buckets;
}

}  // namespace tessera::ops
