// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/llmc_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::size_t kHeadBytes = 65536;
constexpr std::int64_t kPollTokens = std::int64_t{1} << 24;

/// GPT-2's files have two bytes per token, Llama 3's four.
struct Kind {
  std::int32_t magic, version;
  std::int64_t width;
};
constexpr std::array<Kind, 2> kKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

/// The width in bytes of ids below 2^20 that begin with `head`. Of ids that are wider than 16 bits
/// every second half is small or 0, which no 16-bit text is, unless all its ids are small.
std::int64_t width_of_ids(std::string_view head) {
  constexpr std::uint16_t kSmallHalf = 15, kSmallId = 255;
  constexpr std::size_t kFewest = 2, kFewestWithHalves = 16;
  const std::size_t numbers = head.size() / 4;
  std::uint16_t most_low = 0, most_high = 0;
  bool wider = numbers > kFewest;
  for (std::size_t i = 0; i < numbers; ++i) {
    std::array<std::uint16_t, 2> halves{};
    std::memcpy(halves.data(), head.data() + 4 * i, sizeof halves);
    most_low = std::max(most_low, halves[0]);
    most_high = std::max(most_high, halves[1]);
    wider = wider && (i % 2 == 0 || (halves[0] == 0 && halves[1] == 0));
  }
  const bool halves = most_high == 0 || (numbers >= kFewestWithHalves && most_high <= kSmallHalf &&
                                         most_low > kSmallId);
  if (numbers < kFewest || !halves) return 2;
  return wider ? 8 : 4;
}

/// The first bytes of a file; empty if it cannot be read.
std::string beginning_of(const fs::path& path) {
  std::string out(kHeadBytes, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return out;
}

/// A file whose tokens have one width and follow each other from an offset to the end of the file.
class BareTokens : public TokenFile {
 public:
  /// Tokens from the beginning on. Throws Error{Data} if a byte is left over.
  explicit BareTokens(const fs::path& path) : path_(path), file_(path) {
    const auto size = static_cast<std::int64_t>(file_.bytes().size());
    width_ = width_of_ids(beginning_of(path));
    if (size % 2 != 0) refuse("has an odd number of bytes, and a token has two");
    if (size % width_ != 0) {
      refuse(
          fmt::format("begins with ids of {} bits, and its {} bytes do not hold a whole number "
                      "of them",
                      8 * width_,
                      size));
    }
    tokens_ = size / width_;
  }
  [[nodiscard]] std::int64_t largest_id() const override {
    return width_ == 2 ? std::numeric_limits<std::uint16_t>::max()
                       : std::numeric_limits<std::int32_t>::max();
  }

  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t sequences() const override { return 1; }
  [[nodiscard]] std::int64_t sequence_begin(std::int64_t) const override { return 0; }
  [[nodiscard]] std::int64_t sequence_length(std::int64_t) const override { return tokens_; }
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const override {
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = id(begin + i);
  }
  void check_ids(std::int64_t vocab, const std::function<void()>& poll) const override {
    for (std::int64_t i = 0; i < tokens_; ++i) {
      if (poll && i % kPollTokens == 0) poll();
      if (id(i) < 0 || id(i) >= vocab) {
        throw Error(Error::Kind::Data,
                    fmt::format("{}: token {} is id {}, and the vocabulary has {}",
                                path_.string(),
                                i,
                                id(i),
                                vocab),
                    "train with the tokenizer that made the file");
      }
    }
  }

 protected:
  /// For derived classes, which set the offset and the width of the tokens.
  BareTokens(const fs::path& path, std::size_t begin) : path_(path), file_(path), begin_(begin) {}
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Data,
                fmt::format("{}: {}", path_.string(), what),
                "the file is damaged or was cut short: fetch it again");
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return file_.bytes(); }
  void place(std::int64_t tokens, std::int64_t width) {
    tokens_ = tokens;
    width_ = width;
  }

 private:
  [[nodiscard]] std::int64_t id(std::int64_t index) const {
    std::int64_t value = 0;
    std::memcpy(&value,
                file_.bytes().data() + begin_ + static_cast<std::size_t>(index * width_),
                static_cast<std::size_t>(width_));
    return value;
  }

  fs::path path_;
  files::Mapped file_;
  std::size_t begin_ = 0;  ///< bytes before the first token
  std::int64_t width_ = 2, tokens_ = 0;
};

class LlmcTokens final : public BareTokens {
 public:
  explicit LlmcTokens(const fs::path& path) : BareTokens(path, kHeaderBytes) {
    std::array<std::int32_t, 256> header{};
    if (bytes().size() < kHeaderBytes) refuse("is shorter than its header");
    std::memcpy(header.data(), bytes().data(), kHeaderBytes);
    std::int64_t width = 0;
    for (const Kind& kind : kKinds) {
      if (kind.magic != header[0]) continue;
      if (kind.version != header[1])
        refuse(fmt::format("is of version {}, and {} is read", header[1], kind.version));
      width = kind.width;
    }
    const std::int64_t tokens = header[2];
    const std::uint64_t held = bytes().size() - kHeaderBytes;
    if (width == 0 || tokens < 0 || static_cast<std::uint64_t>(tokens * width) != held) {
      refuse(fmt::format("claims {} tokens, and {} bytes follow its header", tokens, held));
    }
    place(tokens, width);
  }
};

/// True if there is no index next to the file.
bool stands_alone(const fs::path& path) {
  std::error_code failed;
  fs::path index = path;
  return path.extension() == ".bin" && fs::is_regular_file(path, failed) &&
         !fs::exists(index.replace_extension(".idx"), failed);
}

}  // namespace

bool is_llmc_tokens(const fs::path& path) {
  if (!stands_alone(path)) return false;
  const std::string head = beginning_of(path);
  std::int32_t magic = 0;
  if (head.size() < sizeof(magic)) return false;
  std::memcpy(&magic, head.data(), sizeof(magic));
  return magic == kKinds[0].magic || magic == kKinds[1].magic;
}

bool is_bare_tokens(const fs::path& path) {
  if (!stands_alone(path) || is_llmc_tokens(path)) return false;
  const std::string head = beginning_of(path);
  // Files of torch are archives or pickles.
  const bool torch = head.starts_with("PK\x03\x04") || head.starts_with("\x80\x02\x8a\x0a");
  if (head.size() < 2 || torch) return false;
  return head.find('\0') != std::string::npos;  // text has no byte 0
}

std::shared_ptr<const TokenFile> open_llmc_tokens(const fs::path& path) {
  return std::make_shared<const LlmcTokens>(path);
}

std::shared_ptr<const TokenFile> open_bare_tokens(const fs::path& path) {
  return std::make_shared<const BareTokens>(path);
}

}  // namespace tessera::data
