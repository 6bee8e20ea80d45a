// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/record_formats/blocks.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

[[noreturn]] void refuse_block(const std::string& place) {
  throw Error(Error::Kind::Data,
              fmt::format("{}: a compressed block is damaged", place),
              "the file is damaged: fetch it again");
}

constexpr std::size_t kRoom = std::size_t{1} << 20;

/// Reads bytes from front to back.
class Bytes {
 public:
  Bytes(std::string_view bytes, const std::string& place) : bytes_(bytes), place_(place) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) refuse_block(place_);
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }
  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1).front()); }
  std::uint64_t little(std::size_t count) {
    std::uint64_t out = 0;
    const std::string_view some = take(count);
    for (std::size_t i = 0; i < count; ++i)
      out |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(some[i])) << (8 * i);
    return out;
  }

 private:
  std::string_view bytes_;
  const std::string& place_;
};

/// The output; never longer than `size`.
class Made {
 public:
  Made(std::size_t size, const std::string& place) : size_(size), place_(place) {}
  void literal(std::string_view bytes) {
    if (bytes.size() > size_ - out_.size()) refuse_block(place_);
    out_ += bytes;
  }
  /// Copies bytes from `distance` before the end; the range may overlap with the copy.
  void again(std::size_t distance, std::size_t count, std::size_t floor) {
    if (distance == 0 || distance > out_.size() - floor || count > size_ - out_.size())
      refuse_block(place_);
    for (std::size_t i = 0; i < count; ++i)
      out_ += out_[out_.size() - distance];
  }
  [[nodiscard]] std::size_t size() const { return out_.size(); }
  std::string finish() && {
    if (out_.size() != size_) refuse_block(place_);
    return std::move(out_);
  }

 private:
  std::string out_;
  std::size_t size_;
  const std::string& place_;
};

/// Reads a length of four bits that may continue in bytes.
std::size_t lz4_length(std::size_t nibble, Bytes& in) {
  std::size_t out = nibble;
  if (nibble != 15) return out;
  for (std::uint8_t more = 255; more == 255;) {
    more = in.byte();
    out += more;
  }
  return out;
}

/// Source: the LZ4 block format. `floor`: position before which matches must not reach.
void decode_lz4(std::string_view bytes, const std::string& place, std::size_t floor, Made& out) {
  constexpr std::size_t kShortestMatch = 4;
  Bytes in(bytes, place);
  while (!in.empty()) {
    const std::uint8_t token = in.byte();
    out.literal(in.take(lz4_length(token >> 4, in)));
    if (in.empty()) return;  // the last sequence has no match
    const auto distance = static_cast<std::size_t>(in.little(2));
    out.again(distance, lz4_length(token & 15U, in) + kShortestMatch, floor);
  }
}

}  // namespace

std::string lz4_block(std::string_view bytes, std::size_t size, const std::string& place) {
  Made out(size, place);
  decode_lz4(bytes, place, 0, out);
  return std::move(out).finish();
}

// Source: the LZ4 frame format, 1.6. Checksums are skipped.
std::string lz4_frame(std::string_view bytes, std::size_t size, const std::string& place) {
  constexpr std::uint64_t kMagic = 0x184D2204;
  constexpr std::uint32_t kPlain = 0x80000000U;
  Bytes in(bytes, place);
  Made out(size, place);
  if (in.little(4) != kMagic) refuse_block(place);
  const std::uint8_t flags = in.byte();
  const bool apart = (flags & 0x20U) != 0, sums = (flags & 0x10U) != 0;
  // Dictionaries are not supported.
  if (flags >> 6 != 1 || (flags & 0x01U) != 0) refuse_block(place);
  in.take(1 + ((flags & 0x08U) != 0 ? 8 : 0) + 1);
  for (auto header = static_cast<std::uint32_t>(in.little(4)); header != 0;
       header = static_cast<std::uint32_t>(in.little(4))) {
    const std::string_view block = in.take(header & ~kPlain);
    if ((header & kPlain) != 0) {
      out.literal(block);
    } else {
      decode_lz4(block, place, apart ? out.size() : 0, out);
    }
    if (sums) in.take(4);
  }
  return std::move(out).finish();
}

// Source: the Snappy format description.
std::string snappy_block(std::string_view bytes, std::size_t size, const std::string& place) {
  Bytes in(bytes, place);
  std::uint64_t said = 0;
  for (unsigned shift = 0;; shift += 7) {
    if (shift > 28) refuse_block(place);
    const std::uint8_t byte = in.byte();
    said |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if ((byte & 0x80U) == 0) break;
  }
  if (said != size) refuse_block(place);
  Made out(size, place);
  while (!in.empty()) {
    const std::uint8_t tag = in.byte();
    const std::size_t upper = tag >> 2;
    switch (tag & 3U) {
      case 0: {
        const std::size_t length =
            upper < 60 ? upper : static_cast<std::size_t>(in.little(upper - 59));
        out.literal(in.take(length + 1));
        break;
      }
      case 1:
        out.again((upper >> 3) << 8 | in.byte(), (upper & 7U) + 4, 0);
        break;
      case 2:
        out.again(static_cast<std::size_t>(in.little(2)), upper + 1, 0);
        break;
      default:
        out.again(static_cast<std::size_t>(in.little(4)), upper + 1, 0);
    }
  }
  return std::move(out).finish();
}

// The output grows as it is written: a claimed size allocates nothing.

std::string zstd_block(std::string_view bytes, std::size_t size, const std::string& place) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                             ZSTD_freeDStream);
  ZSTD_inBuffer in = {bytes.data(), bytes.size(), 0};
  std::string out;
  std::size_t wanted = 1;
  while (wanted != 0) {
    const std::size_t made = out.size(), room = std::min(kRoom, size - made);
    out.resize(made + room);
    ZSTD_outBuffer to = {out.data() + made, room, 0};
    wanted = ZSTD_decompressStream(stream.get(), &to, &in);
    out.resize(made + to.pos);
    if (ZSTD_isError(wanted) != 0) refuse_block(place);
    // There is no further input, or no room for output.
    if (wanted != 0 && to.pos == 0 && (in.pos == in.size || room == 0)) refuse_block(place);
  }
  if (out.size() != size) refuse_block(place);
  return out;
}

std::string gzip_block(std::string_view bytes, std::size_t size, const std::string& place) {
  constexpr int kGzipOrZlib = 15 + 32;
  if (bytes.size() > UINT32_MAX) refuse_block(place);
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) refuse_block(place);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int ended = Z_OK;
  while (ended == Z_OK) {
    const std::size_t made = out.size(), room = std::min(kRoom, size - made);
    out.resize(made + room);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream.avail_out = static_cast<uInt>(room);
    ended = inflate(&stream, Z_NO_FLUSH);
    out.resize(made + room - stream.avail_out);
  }
  inflateEnd(&stream);
  if (ended != Z_STREAM_END || out.size() != size) refuse_block(place);
  return out;
}

}  // namespace tessera::data
