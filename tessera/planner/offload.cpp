// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/offload.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/memory/tiers/folder.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/zero_options.h"
#include "tessera/planner/memory.h"

namespace tessera::planner {

std::vector<DiskNeed> disk_needs(const Plan& plan) {
  const OffloadBytes bytes = offload_bytes(plan);
  std::vector<DiskNeed> out;
  if (!bytes.states_folder.empty()) {
    out.push_back({.key = "zero_optimization.offload_optimizer.nvme_path",
                   .what = "masters and states",
                   .folder = bytes.states_folder,
                   .bytes = bytes.states});
  }
  if (bytes.gradients > 0) {
    out.push_back({.key = "zero_optimization.offload_optimizer.nvme_path",
                   .what = "gradients",
                   .folder = bytes.states_folder,
                   .bytes = bytes.gradients,
                   .saved = false});
  }
  if (!bytes.weights_folder.empty()) {
    out.push_back({.key = "zero_optimization.offload_param.nvme_path",
                   .what = "weights",
                   .folder = bytes.weights_folder,
                   .bytes = bytes.weights});
  }
  if (!bytes.activations_folder.empty()) {
    out.push_back({.key = "activation_checkpointing.offload.nvme_path",
                   .what = "activations",
                   .folder = bytes.activations_folder,
                   .bytes = bytes.activations,
                   .saved = false});
  }
  return out;
}

void require_disk_folder(const std::string& key, const std::string& folder) {
  std::error_code ignored;
  TESSERA_REQUIRE(
      std::filesystem::is_directory(folder, ignored) && ::access(folder.c_str(), W_OK | X_OK) == 0,
      Io,
      fmt::format("{}: {} is not a folder in which files can be made", key, folder),
      "create the folder on each host, or name another one");
  // Permissions do not say whether the file system has files that a tier can use.
  (void)memory::tiers().get("disk")({.folder = folder, .transfers = 1})->open(key, 1 << 20);
}

void check_offload_folder(const Plan& plan, std::vector<std::string>& notes) {
  std::string last;
  for (const auto& [key, what, folder, bytes, saved, ranks] : disk_needs(plan)) {
    if (std::exchange(last, key) == key) continue;
    require_disk_folder(key, folder);
    if (memory::is_on_network(folder)) {
      notes.push_back(fmt::format(
          "{}: {} is on another machine, and all bytes of a step go over the network; a "
          "disk of each host is faster",
          key,
          folder));
    }
    if (memory::is_in_memory(folder)) {
      notes.push_back(
          fmt::format("{}: {} is in memory (tmpfs), so that nothing is gained there; a folder on a "
                      "disk saves memory",
                      key,
                      folder));
    }
  }
  note_what_stays(plan, notes);
}

void check_offload_space(const Plan& plan, int ranks) {
  std::vector<DiskNeed> all = disk_needs(plan);
  const std::vector<DiskNeed>& others = plan.needs().disk;
  all.insert(all.end(), others.begin(), others.end());
  const bool twice = copies_while_training(plan);
  for (const DiskNeed& one : all) {
    const int sharing = memory::is_on_network(one.folder) ? plan.ranks() : ranks;
    std::int64_t bytes = 0;
    bool copied = false;
    std::vector<std::string> what;
    for (const DiskNeed& other : all) {
      if (memory::disk_of(other.folder) != memory::disk_of(one.folder)) continue;
      const int holders = other.ranks > 0 ? std::min(other.ranks, sharing) : sharing;
      bytes += other.bytes * holders * (other.saved && twice ? 2 : 1);
      copied = copied || (other.saved && twice);
      what.push_back(other.what);
    }
    const auto need = static_cast<std::uint64_t>(bytes);
    const std::uint64_t free = files::free_bytes(one.folder);
    TESSERA_REQUIRE(
        need <= free,
        Io,
        fmt::format("{}: {} has {} free, and {} need {}{}",
                    one.key,
                    one.folder,
                    text::bytes(free),
                    text::join(what, " and "),
                    text::bytes(need),
                    copied ? ", of which up to half while a checkpoint is written" : ""),
        fmt::format("free space there, name a folder on another disk{}",
                    copied ? ", or set checkpoint.async to false" : ""));
  }
}

}  // namespace tessera::planner
