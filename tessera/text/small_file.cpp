// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/small_file.h"

#include <cstdint>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;
constexpr const char* kFetch = "fetch it again";

}  // namespace

std::string read_small_file(const fs::path& path) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  // If the file is missing or inaccessible, the read below reports it.
  TESSERA_REQUIRE(!fs::exists(status) || fs::is_regular_file(status),
                  Format,
                  path.string() + " is not a plain file",
                  kFetch);
  const std::uintmax_t size = fs::file_size(path, failed);
  TESSERA_REQUIRE(failed || size <= kMostBytes,
                  Format,
                  fmt::format("{} has {}, more than the {} of such a file",
                              path.string(),
                              text::bytes(size),
                              text::bytes(kMostBytes)),
                  kFetch);
  return files::read(path);
}

}  // namespace tessera::text
