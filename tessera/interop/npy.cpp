// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/npy.h"

#include <bit>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::interop {

// Values are written in memory order, and the header says "<f4".
static_assert(std::endian::native == std::endian::little);

NpyWriter::NpyWriter(const std::filesystem::path& path, std::int64_t rows, std::int64_t columns)
    : rows_(rows), columns_(columns) {
  file_.open(path);
  constexpr std::size_t kMagic = 10, kAlignment = 64;
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  while ((kMagic + header.size() + 1) % kAlignment != 0)
    header += ' ';
  header += '\n';
  const auto size = static_cast<unsigned>(header.size());
  header_.assign("\x93NUMPY\x01\x00", 8);
  header_ += static_cast<char>(size & 0xFFU);
  header_ += static_cast<char>(size >> 8U);
  header_ += header;
}

void NpyWriter::add(std::span<const float> row) {
  TESSERA_ASSERT(static_cast<std::int64_t>(row.size()) == columns_ && written_ < rows_);
  file_.write(std::exchange(header_, {}));
  file_.write({reinterpret_cast<const char*>(row.data()), row.size_bytes()});
  ++written_;
}

void NpyWriter::close() {
  TESSERA_ASSERT(written_ == rows_);
  file_.write(std::exchange(header_, {}));
  file_.close();
}

}  // namespace tessera::interop
