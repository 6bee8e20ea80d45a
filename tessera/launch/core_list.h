// SPDX-License-Identifier: Apache-2.0
// Lists of processors as DeepSpeed's --bind_core_list and taskset write them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::launch {

/// Reads `0,3-5,7`. Throws Error{Config} naming `flag` for another form, a processor named twice,
/// or one above 1,048,575.
std::vector<int> parse_core_list(std::string_view list, const std::string& flag);

/// Returns the part of `cores` for one local rank: an equal share for each, in order; cores left
/// over are not used. Throws Error{Config} if there are fewer cores than ranks.
std::vector<int> equal_share(const std::vector<int>& cores, int local_rank, int local_ranks);

}  // namespace tessera::launch
