// SPDX-License-Identifier: Apache-2.0
// Keeps the folders of a program of tests in memory where there is room, unless TMPDIR says where
// they are: a disk takes milliseconds to make each file of a checkpoint permanent, of which these
// tests write thousands. Tests of saving itself (tests/checkpoint/) use the disk.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <unistd.h>

namespace tessera::test {
namespace {

[[maybe_unused]] const bool kInMemory = [] {
  constexpr std::uintmax_t kRoom = std::uintmax_t{4} << 30;
  std::error_code absent;
  const std::filesystem::space_info shm = std::filesystem::space("/dev/shm", absent);
  const bool use = !absent && shm.available >= kRoom && ::access("/dev/shm", W_OK | X_OK) == 0;
  return use && ::setenv("TMPDIR", "/dev/shm", /*overwrite=*/0) == 0;
}();

}  // namespace
}  // namespace tessera::test
