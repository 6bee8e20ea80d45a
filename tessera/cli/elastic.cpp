// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/elastic.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/config/overrides.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_options.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"

namespace tessera::cli {
namespace {

constexpr double kSecondsPerMinute = 60.0;

/// The batch of `first` on `data_ranks` ranks, as words of a command line. The micro-batch stays
/// the same if it can, because the losses then have the same bits.
std::optional<std::vector<std::string>> same_batch(const planner::Plan& first,
                                                   std::int64_t data_ranks) {
  if (first.recipe().global_batch % data_ranks != 0) return std::nullopt;
  const std::int64_t share = first.recipe().global_batch / data_ranks;
  std::int64_t micro = std::min(planner::micro_batch_of(first), share);
  while (share % micro != 0)
    --micro;
  return std::vector<std::string>{"--set",
                                  fmt::format("train_batch_size={}", first.recipe().global_batch),
                                  "--set",
                                  fmt::format("train_micro_batch_size_per_gpu={}", micro),
                                  "--set",
                                  fmt::format("gradient_accumulation_steps={}", share / micro)};
}

/// The words by which `ranks` ranks train the batch of `first`, which is the plan of `source`.
std::optional<std::vector<std::string>> words_for(const planner::Plan& first,
                                                  const json::Value& source,
                                                  const std::string& name,
                                                  int ranks) {
  const int per_model = first.ranks() / planner::data_ranks_of(first);
  if (ranks % per_model != 0) return std::nullopt;
  std::vector<std::string> words;
  if (!first.run().elasticity.enabled) {
    auto batch = same_batch(first, ranks / per_model);
    if (!batch) return std::nullopt;
    words = std::move(*batch);
  }
  json::Value changed = source;
  for (std::size_t i = 1; i < words.size(); i += 2)
    config::apply_override(changed, words[i]);
  try {
    if (planner::make_plan(changed, ranks, name).recipe().global_batch ==
        first.recipe().global_batch)
      return words;
  } catch (const Error&) {
  }
  return std::nullopt;
}

}  // namespace

void apply_elastic_flags(const HostFlags& flags, json::Value& source) {
  if (!flags.elastic) return;
  const std::string why = "--elastic_training";
  const int least = std::max(1, flags.min_elastic_nodes.value_or(1));
  config::set_key(source, "run.min_hosts", json::Value::integer(least), why);
  if (flags.max_elastic_nodes && *flags.max_elastic_nodes > 0) {
    config::set_key(source, "run.max_hosts", json::Value::integer(*flags.max_elastic_nodes), why);
  }
}

bool is_elastic(const json::Value& source) {
  if (!source.is_object()) return false;
  const json::Value* const run = source.find("run");
  const json::Value* const least =
      run != nullptr && run->is_object() ? run->find("min_hosts") : nullptr;
  return least != nullptr && !least->is_null();
}

planner::Plan plan_of_most_ranks(const json::Value& source, int ranks, const std::string& name) {
  std::exception_ptr failure;
  for (int fewer = ranks; fewer >= 1; --fewer) {
    try {
      return planner::make_plan(source, fewer, name);
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
    }
  }
  std::rethrow_exception(failure);
}

std::optional<hosts::ElasticOptions> elastic_options(const planner::Plan& first,
                                                     const json::Value& source,
                                                     const std::string& name,
                                                     int hosts) {
  const planner::RunOptions& run = first.run().options;
  if (run.most_restarts() == 0) return std::nullopt;
  const std::int64_t least = run.min_hosts.value_or(hosts), most = run.max_hosts.value_or(hosts);
  TESSERA_REQUIRE(least <= hosts,
                  Config,
                  fmt::format("run.min_hosts is {}, and there are {} hosts", least, hosts),
                  "lower it, or add hosts to the hostfile");
  TESSERA_REQUIRE(least <= most,
                  Config,
                  fmt::format("run.min_hosts {} is larger than run.max_hosts {}", least, most),
                  "lower run.min_hosts");
  hosts::ElasticOptions out;
  out.min_hosts = static_cast<int>(least);
  out.max_hosts = static_cast<int>(most);
  out.restarts = run.most_restarts();
  out.peer_copies = first.run().checkpoint.peer_copies > 0;
  if (first.run().elasticity.enabled) {
    out.min_time_s = kSecondsPerMinute * static_cast<double>(first.run().elasticity.min_time);
  }
  out.words = [=](int ranks) { return words_for(first, source, name, ranks); };
  return out;
}

}  // namespace tessera::cli
