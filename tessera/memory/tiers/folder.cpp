// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/tiers/folder.h"

#include <algorithm>
#include <array>

#include <sys/stat.h>
#include <sys/vfs.h>

namespace tessera::memory {
namespace {

// The type of the file system of a folder, as in linux/magic.h; 0 if it is not known.
long type_of(const std::string& folder) {
  struct statfs status {};
  return ::statfs(folder.c_str(), &status) == 0 ? static_cast<long>(status.f_type) : 0;
}

}  // namespace

std::uint64_t disk_of(const std::string& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 ? status.st_dev : 0;
}

bool is_on_network(const std::string& folder) {
  constexpr auto kNetwork = std::to_array<long>(
      {0x6969, 0x517B, 0xFE534D42, 0xFF534D42, 0x0BD00BD0, 0x00C36400, 0x47504653, 0x19830326});
  const long type = type_of(folder) & 0xFFFFFFFFL;
  return std::ranges::find(kNetwork, type) != kNetwork.end();
}

bool is_in_memory(const std::string& folder) {
  constexpr long kTmpfsMagic = 0x01021994;
  return type_of(folder) == kTmpfsMagic;
}

}  // namespace tessera::memory
