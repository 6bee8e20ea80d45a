// SPDX-License-Identifier: Apache-2.0
// Decompresses gzip and zstd files.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/data/records.h"

namespace tessera::data {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

[[noreturn]] void damaged(const std::string& name, const char* why) {
  throw Error(Error::Kind::Data,
              fmt::format("{} cannot be decompressed: {}", name, why),
              "fetch the file again");
}

/// Grows `out` by another block. `stored`: the bytes of the compressed file.
char* grow(std::string& out, std::size_t used, std::size_t stored, const std::string& name) {
  budget::require_bytes(used,
                        budget::inflated(stored),
                        name,
                        fmt::format("{} become a text", text::bytes(stored)),
                        "if the file is what it should be, decompress it with gzip or zstd first");
  out.resize(used + kPiece);
  return out.data() + used;
}

void inflate_gzip(std::string_view bytes, const std::string& name, std::string& out) {
  z_stream stream{};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) damaged(name, "zlib has no memory");
  const auto closer = [](z_stream* s) { inflateEnd(s); };
  const std::unique_ptr<z_stream, decltype(closer)> closing(&stream, closer);
  std::size_t used = 0, taken = 0;
  while (true) {
    if (stream.avail_in == 0 && taken < bytes.size()) {
      const std::size_t some = std::min(bytes.size() - taken, std::size_t{1} << 30);
      // zlib does not write to its input.
      stream.next_in =
          const_cast<Bytef*>(reinterpret_cast<const Bytef*>(bytes.data() + taken));  // NOLINT
      stream.avail_in = static_cast<uInt>(some);
      taken += some;
    }
    stream.next_out = reinterpret_cast<Bytef*>(grow(out, used, bytes.size(), name));
    stream.avail_out = kPiece;
    const int state = inflate(&stream, Z_NO_FLUSH);
    used += kPiece - stream.avail_out;
    if (state == Z_STREAM_END) {
      if (stream.avail_in == 0 && taken == bytes.size()) break;
      if (inflateReset(&stream) != Z_OK) damaged(name, "zlib failed");  // the next member
    } else if (state != Z_OK) {
      damaged(name, state == Z_BUF_ERROR ? "it ends too early" : "its data is damaged");
    }
  }
  out.resize(used);
}

void inflate_zstd(std::string_view bytes, const std::string& name, std::string& out) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          &ZSTD_freeDStream);
  if (!stream) damaged(name, "zstd has no memory");
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::size_t used = 0, left = 1;
  while (in.pos < in.size || left != 0) {
    ZSTD_outBuffer made{grow(out, used, bytes.size(), name), kPiece, 0};
    const std::size_t before = in.pos;
    left = ZSTD_decompressStream(stream.get(), &made, &in);
    if (ZSTD_isError(left) != 0) damaged(name, ZSTD_getErrorName(left));
    used += made.pos;
    if (made.pos == 0 && in.pos == before) {
      if (left != 0) damaged(name, "it ends too early");
      break;
    }
  }
  out.resize(used);
}

}  // namespace

std::string_view decompressed(std::string_view bytes, const std::string& name, std::string& kept) {
  if (bytes.starts_with("\x1f\x8b")) {
    inflate_gzip(bytes, name, kept);
    return kept;
  }
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) {
    inflate_zstd(bytes, name, kept);
    return kept;
  }
  return bytes;
}

}  // namespace tessera::data
