// SPDX-License-Identifier: Apache-2.0
#include "tessera/launch/core_list.h"

#include <charconv>
#include <set>

#include <fmt/core.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::launch {
namespace {

constexpr int kMostCores = 1 << 20;

}  // namespace

std::vector<int> parse_core_list(std::string_view list, const std::string& flag) {
  std::vector<int> cores;
  std::set<int> seen;
  const auto refuse = [&](const std::string& why) {
    throw Error(Error::Kind::Config,
                fmt::format("{} {}: {}", flag, list.substr(0, 200), why),
                "expected a list like 0,3-5,7");
  };
  const auto core_in = [&](std::string_view word) {
    int core = -1;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), core);
    if (error != std::errc() || stop != word.data() + word.size() || core < 0 || core >= kMostCores)
      refuse(fmt::format("\"{}\" is not a processor", word));
    return core;
  };
  for (const std::string& range : text::split(list, ',')) {
    const std::size_t dash = range.find('-');
    const int first = core_in(std::string_view(range).substr(0, dash));
    const int last =
        dash == std::string::npos ? first : core_in(std::string_view(range).substr(dash + 1));
    if (last < first) refuse(fmt::format("the range {} is empty", range));
    for (int core = first; core <= last; ++core) {
      if (!seen.insert(core).second) refuse(fmt::format("processor {} appears twice", core));
      cores.push_back(core);
    }
  }
  return cores;
}

std::vector<int> equal_share(const std::vector<int>& cores, int local_rank, int local_ranks) {
  const int each = static_cast<int>(cores.size()) / local_ranks;
  TESSERA_REQUIRE(each >= 1,
                  Config,
                  fmt::format("{} processors for {} ranks of this host", cores.size(), local_ranks),
                  "start fewer ranks on this host, or name more processors in --bind_core_list");
  const auto first = cores.begin() + static_cast<std::ptrdiff_t>(each) * local_rank;
  return {first, first + each};
}

}  // namespace tessera::launch
