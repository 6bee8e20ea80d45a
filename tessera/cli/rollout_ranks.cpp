// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/rollout_ranks.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/cli/elastic.h"
#include "tessera/config/overrides.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/tasks/rl/rl.h"

namespace tessera::cli {

int ranks_that_learn(json::Value& source, int ranks, int local_ranks) {
  const std::int64_t writers = tasks::rollout_ranks_of(source);
  if (writers == 0) return ranks;
  TESSERA_REQUIRE(!is_elastic(source),
                  Unsupported,
                  "not built yet: rl.overlap with run.min_hosts, because a lost host may have all "
                  "ranks that write",
                  "remove run.min_hosts, or set rl.overlap to 0");
  TESSERA_REQUIRE(writers < ranks,
                  Config,
                  fmt::format("rl.rollout_ranks is {} with {} {} (-n): none is left to learn",
                              writers,
                              ranks,
                              ranks == 1 ? "rank" : "ranks"),
                  fmt::format("-n {} or more", writers + 1));
  const json::Value* const run = source.find("run");
  if (run == nullptr || !run->is_object() || run->find("threads_per_rank") == nullptr) {
    config::set_key(source,
                    "run.threads_per_rank",
                    json::Value::integer(hosts::threads_per_rank(local_ranks)),
                    "rl.overlap");
  }
  return ranks - static_cast<int>(writers);
}

}  // namespace tessera::cli
