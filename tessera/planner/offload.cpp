// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/offload.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/memory/tiers/tier.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/zero_options.h"
#include "tessera/planner/memory.h"

namespace tessera::planner {
namespace {

// The values that rest in a folder.
struct Resting {
  const char* key;
  const char* what;
  std::string folder;
  std::int64_t bytes = 0;  // of a rank
  bool saved = true;       // checkpoints contain it
};

std::vector<Resting> resting(const Plan& plan) {
  const OffloadBytes bytes = offload_bytes(plan);
  std::vector<Resting> out;
  if (!bytes.states_folder.empty()) {
    out.push_back({"zero_optimization.offload_optimizer.nvme_path",
                   "masters and states",
                   bytes.states_folder,
                   bytes.states});
  }
  if (!bytes.weights_folder.empty()) {
    out.push_back({"zero_optimization.offload_param.nvme_path",
                   "weights",
                   bytes.weights_folder,
                   bytes.weights});
  }
  if (!bytes.activations_folder.empty()) {
    out.push_back({"activation_checkpointing.offload.nvme_path",
                   "activations",
                   bytes.activations_folder,
                   bytes.activations,
                   /*saved=*/false});
  }
  return out;
}

// A number for the disk of a folder.
std::uint64_t disk_of(const std::string& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? status.st_dev : 0;
}

// The type of the file system of a folder, as in linux/magic.h; 0 if it is not known.
long type_of(const std::string& folder) {
  struct statfs status {};
  return ::statfs(folder.c_str(), &status) == 0 ? static_cast<long>(status.f_type) : 0;
}

// True if the hosts of a job may share the folder: NFS, SMB, CIFS, Lustre, Ceph, GPFS, BeeGFS.
bool is_shared(const std::string& folder) {
  constexpr auto kNetwork = std::to_array<long>(
      {0x6969, 0x517B, 0xFE534D42, 0xFF534D42, 0x0BD00BD0, 0x00C36400, 0x47504653, 0x19830326});
  const long type = type_of(folder) & 0xFFFFFFFFL;
  return std::ranges::find(kNetwork, type) != kNetwork.end();
}

}  // namespace

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

parallel::WeightOffload weight_offload_of(const parallel::ParamOffloadKeys& keys) {
  parallel::WeightOffload out{.folder = std::filesystem::absolute(keys.nvme_path).string()};
  out.buffers = static_cast<int>(keys.buffer_count.value_or(out.buffers));
  out.in_memory = keys.max_in_cpu.value_or(0);
  return out;
}

void check_offload_folder(const Plan& plan, std::vector<std::string>& notes) {
  for (const auto& [key, what, folder, bytes, saved] : resting(plan)) {
    require_disk_folder(key, folder);
    if (is_shared(folder)) {
      notes.push_back(fmt::format(
          "{}: {} is on another machine, and all bytes of a step go over the network; a "
          "disk of each host is faster",
          key,
          folder));
    }
    constexpr long kInMemory = 0x01021994;  // TMPFS_MAGIC
    if (type_of(folder) == kInMemory) {
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
  const std::vector<Resting> all = resting(plan);
  const bool twice = copies_while_training(plan);
  for (const Resting& one : all) {
    std::int64_t bytes = 0;
    bool copied = false;
    std::vector<std::string> what;
    for (const Resting& other : all) {
      if (disk_of(other.folder) != disk_of(one.folder)) continue;
      bytes += other.bytes * (other.saved && twice ? 2 : 1);
      copied = copied || (other.saved && twice);
      what.emplace_back(other.what);
    }
    const auto need =
        static_cast<std::uint64_t>(bytes * (is_shared(one.folder) ? plan.ranks() : ranks));
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
