// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/llmc_tokens.h"

#include <array>
#include <cstring>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::int64_t kPollTokens = std::int64_t{1} << 24;

/// GPT-2's files have two bytes per token, Llama 3's four.
struct Kind {
  std::int32_t magic, version;
  std::int64_t width;
};
constexpr std::array<Kind, 2> kKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

class LlmcTokens final : public TokenFile {
 public:
  explicit LlmcTokens(const fs::path& path) : path_(path), file_(path) {
    std::array<std::int32_t, 256> header{};
    if (file_.bytes().size() < kHeaderBytes) refuse("is shorter than its header");
    std::memcpy(header.data(), file_.bytes().data(), kHeaderBytes);
    for (const Kind& kind : kKinds) {
      if (kind.magic != header[0]) continue;
      if (kind.version != header[1])
        refuse(fmt::format("is of version {}, and {} is read", header[1], kind.version));
      width_ = kind.width;
    }
    tokens_ = header[2];
    const std::uint64_t held = file_.bytes().size() - kHeaderBytes;
    if (width_ == 0 || tokens_ < 0 || static_cast<std::uint64_t>(tokens_ * width_) != held) {
      refuse(fmt::format("claims {} tokens, and {} bytes follow its header", tokens_, held));
    }
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
      if (id(i) >= vocab) {
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

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Data,
                fmt::format("{}: {}", path_.string(), what),
                "the file is damaged or was cut short: fetch it again");
  }
  [[nodiscard]] std::int64_t id(std::int64_t index) const {
    std::uint32_t value = 0;
    std::memcpy(&value,
                file_.bytes().data() + kHeaderBytes + static_cast<std::size_t>(index * width_),
                static_cast<std::size_t>(width_));
    return value;
  }

  fs::path path_;
  files::Mapped file_;
  std::int64_t width_ = 0, tokens_ = 0;
};

}  // namespace

bool is_llmc_tokens(const fs::path& path) {
  std::error_code failed;
  if (path.extension() != ".bin" || !fs::is_regular_file(path, failed)) return false;
  std::ifstream in(path, std::ios::binary);
  std::int32_t magic = 0;
  if (!in.read(reinterpret_cast<char*>(&magic), sizeof(magic)).good()) return false;
  fs::path index = path;
  return (magic == kKinds[0].magic || magic == kKinds[1].magic) &&
         !fs::exists(index.replace_extension(".idx"), failed);
}

std::shared_ptr<const TokenFile> open_llmc_tokens(const fs::path& path) {
  return std::make_shared<const LlmcTokens>(path);
}

}  // namespace tessera::data
