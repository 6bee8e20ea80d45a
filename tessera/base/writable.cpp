// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/writable.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

namespace tessera::files {
namespace {

namespace fs = std::filesystem;

/// True for file systems that show the kernel. The superuser may write into their folders by the
/// permissions, and still cannot create anything.
bool shows_the_kernel(const fs::path& folder) {
  constexpr std::array<unsigned long, 6> kKinds = {PROC_SUPER_MAGIC,
                                                   SYSFS_MAGIC,
                                                   CGROUP_SUPER_MAGIC,
                                                   CGROUP2_SUPER_MAGIC,
                                                   DEVPTS_SUPER_MAGIC,
                                                   SECURITYFS_MAGIC};
  struct statfs facts {};
  if (::statfs(folder.c_str(), &facts) != 0) return false;
  return std::ranges::find(kKinds, static_cast<unsigned long>(facts.f_type)) != kKinds.end();
}

}  // namespace

std::optional<std::string> obstacle_to_files_in(const fs::path& folder) {
  std::error_code failure;
  if (!fs::is_directory(folder, failure)) return "not a folder";
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
    return std::strerror(errno);
  if (shows_the_kernel(folder)) return "a file system of the kernel, in which nobody creates files";
  return std::nullopt;
}

fs::path nearest_existing(const fs::path& path) {
  std::error_code failure;
  fs::path place = fs::absolute(path, failure);
  while (!fs::exists(fs::symlink_status(place, failure)) && place.has_relative_path())
    place = place.parent_path();
  return place;
}

}  // namespace tessera::files
