// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/output_file.h"

#include <system_error>

#include "tessera/base/error.h"

namespace tessera {

namespace fs = std::filesystem;

void OutputFile::open(const fs::path& path, std::uintmax_t kept) {
  path_ = path;
  kept_ = kept;
  replaced_ = false;
  file_.open(path, std::ios::binary | std::ios::app);
  TESSERA_REQUIRE(
      file_.good(), Io, "cannot write " + path.string(), "choose another place, such as --out");
}

void OutputFile::write(std::string_view bytes) {
  replace();
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  check();
}

void OutputFile::flush() {
  file_.flush();
  check();
}

void OutputFile::close() {
  replace();
  file_.close();
  check();
}

/// Devices and pipes have no former contents.
void OutputFile::replace() {
  if (replaced_) return;
  replaced_ = true;
  std::error_code failed;
  if (!fs::is_regular_file(path_, failed) || fs::file_size(path_, failed) <= kept_) return;
  fs::resize_file(path_, kept_, failed);
  TESSERA_REQUIRE(!failed,
                  Io,
                  "cannot write " + path_.string() + ": " + failed.message(),
                  "choose another place, such as --out");
}

void OutputFile::check() {
  TESSERA_REQUIRE(file_.good(), Io, "cannot write " + path_.string(), "is the disk full?");
}

}  // namespace tessera
