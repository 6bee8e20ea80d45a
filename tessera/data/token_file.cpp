// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_file.h"

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/llmc_tokens.h"
#include "tessera/data/token_format.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
using format::Code;

constexpr std::int64_t kPollTokens = std::int64_t{1} << 24;
constexpr const char* kFix =
    "make the pair again with `tessera tokenize`, or copy both files again";

[[noreturn]] void refuse(const fs::path& path,
                         const std::string& what,
                         const std::string& fix = kFix) {
  throw Error(Error::Kind::Data, path.string() + ": " + what, fix);
}

// The array follows a 34-byte header, so nothing in it is aligned.
template <class T>
T load(const std::byte* base, std::uint64_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof value);
  return value;
}

// An i8 is a number here and keeps its sign.
template <class T>
std::int64_t id_of(T token) {
  return token;  // NOLINT(bugprone-signed-char-misuse)
}

std::int64_t bytes_per_token(Code code, const fs::path& path) {
  switch (code) {
    case Code::U8:
    case Code::I8:
      return 1;
    case Code::I16:
    case Code::U16:
      return 2;
    case Code::I32:
      return 4;
    case Code::I64:
      return 8;
    case Code::F64:
    case Code::F32:
      refuse(path, "holds floating point numbers, not token ids");
  }
  refuse(path, fmt::format("unknown token type code {} (expected 1 to 8)", static_cast<int>(code)));
}

// Calls `visit` with a zero of the file's type.
template <class F>
auto typed(Code code, F visit) {
  switch (code) {
    case Code::U8:
      return visit(std::uint8_t{});
    case Code::I8:
      return visit(std::int8_t{});
    case Code::I16:
      return visit(std::int16_t{});
    case Code::U16:
      return visit(std::uint16_t{});
    case Code::I64:
      return visit(std::int64_t{});
    default:
      return visit(std::int32_t{});
  }
}

std::unique_ptr<files::Mapped> map(const fs::path& path) {
  try {
    return std::make_unique<files::Mapped>(path);
  } catch (const Error& e) {
    throw Error(Error::Kind::Data,
                e.what(),
                "a token file is a pair PREFIX.bin and PREFIX.idx: name either, or the prefix");
  }
}

fs::path prefix_of(const fs::path& path) {
  const auto extension = path.extension();
  if (extension != ".bin" && extension != ".idx") return path;
  fs::path prefix = path;
  return prefix.replace_extension();
}

class MappedTokenFile final : public TokenFile {
 public:
  explicit MappedTokenFile(const fs::path& prefix)
      : bin_path_(prefix.string() + ".bin"),
        idx_path_(prefix.string() + ".idx"),
        bin_(map(bin_path_)),
        idx_(map(idx_path_)) {
    read_header();
    check_sequences();
    check_documents();
  }
  /// The blocks of the .bin are verified as they are read.
  MappedTokenFile(const fs::path& prefix, BlockSums sums, const std::string& fix)
      : MappedTokenFile(prefix) {
    verified_ = std::make_unique<VerifiedBytes>(bin_->bytes(), std::move(sums), bin_path_, fix);
  }

  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t sequences() const override { return sequences_; }
  [[nodiscard]] std::int64_t sequence_begin(std::int64_t index) const override {
    require_sequence(index);
    return load<std::int64_t>(pointers_, static_cast<std::uint64_t>(index)) / width_;
  }
  [[nodiscard]] std::int64_t sequence_length(std::int64_t index) const override {
    require_sequence(index);
    return load<std::int32_t>(lengths_, static_cast<std::uint64_t>(index));
  }
  [[nodiscard]] std::int64_t documents() const override { return documents_ - 1; }
  [[nodiscard]] std::int64_t document_begin(std::int64_t index) const override {
    TESSERA_ASSERT(index >= 0 && index < documents_);
    return load<std::int64_t>(marks_, static_cast<std::uint64_t>(index));
  }
  void read(std::int64_t begin, std::int64_t count, std::int64_t* out) const override {
    TESSERA_ASSERT(begin >= 0 && count >= 0 && begin <= tokens_ && count <= tokens_ - begin);
    if (verified_) {
      verified_->verify(static_cast<std::size_t>(begin * width_),
                        static_cast<std::size_t>(count * width_));
    }
    const std::byte* const data = bin_->bytes().data();
    typed(code_, [&](auto zero) {
      using T = decltype(zero);
      for (std::int64_t i = 0; i < count; ++i) {
        out[i] = id_of(load<T>(data, static_cast<std::uint64_t>(begin + i)));
      }
    });
  }
  [[nodiscard]] std::int64_t largest_id() const override {
    return typed(code_, [](auto zero) {
      return static_cast<std::int64_t>(std::numeric_limits<decltype(zero)>::max());
    });
  }
  void check_ids(std::int64_t vocab, const std::function<void()>& poll) const override {
    const std::byte* const data = bin_->bytes().data();
    const auto first_beyond = typed(code_, [&](auto zero) -> std::int64_t {
      using T = decltype(zero);
      constexpr bool kSmall = std::is_unsigned_v<T> && sizeof(T) < sizeof(std::int64_t);
      if (kSmall && vocab > std::int64_t{std::numeric_limits<T>::max()}) return -1;
      for (std::int64_t i = 0; i < tokens_; ++i) {
        if (poll && i % kPollTokens == 0) poll();
        const std::int64_t id = id_of(load<T>(data, static_cast<std::uint64_t>(i)));
        if (id < 0 || id >= vocab) return i;
      }
      return -1;
    });
    if (first_beyond < 0) return;
    std::int64_t id = 0;
    read(first_beyond, 1, &id);
    refuse(
        bin_path_,
        fmt::format("token {} has the id {}, but the vocabulary has ids 0 to {}",
                    first_beyond,
                    id,
                    vocab - 1),
        "choose the tokenizer that made the file (tokenizer.type), or a larger model.vocab_size");
  }

 private:
  void require_sequence(std::int64_t index) const {
    TESSERA_ASSERT(index >= 0 && index < sequences_);
  }

  void read_header() {
    const auto bytes = idx_->bytes();
    if (bytes.size() < format::kHeaderBytes) {
      refuse(idx_path_,
             fmt::format("truncated: {} bytes, but the header alone has {}",
                         bytes.size(),
                         format::kHeaderBytes));
    }
    const std::byte* p = bytes.data();
    if (std::memcmp(p, format::kMagic.data(), format::kMagic.size()) != 0) {
      refuse(idx_path_, "is not a Megatron index: it does not begin with MMIDIDX");
    }
    p += format::kMagic.size();
    const auto version = load<std::uint64_t>(p, 0);
    if (version != format::kVersion)
      refuse(idx_path_, fmt::format("index version {} (expected 1)", version));
    p += sizeof version;
    code_ = static_cast<Code>(load<std::uint8_t>(p, 0));
    width_ = bytes_per_token(code_, idx_path_);
    p += 1;
    const auto sequences = load<std::uint64_t>(p, 0), documents = load<std::uint64_t>(p, 1);
    place_arrays(sequences, documents);
  }

  void place_arrays(std::uint64_t sequences, std::uint64_t documents) {
    const std::uint64_t size = idx_->bytes().size();
    const std::uint64_t room = size - format::kHeaderBytes;
    // Bounded before they are multiplied, so no product below can overflow.
    const bool bounded = sequences <= room / 12 && documents <= room / 8;
    const std::uint64_t expected = bounded ? sequences * 12 + documents * 8 : 0;
    // Multimodal indexes have one additional byte per sequence at the end.
    if (!bounded || (room != expected && room != expected + sequences)) {
      refuse(idx_path_,
             fmt::format("the header says {} sequences and {} document marks, which does not fit a "
                         "file of {} bytes",
                         sequences,
                         documents,
                         size));
    }
    sequences_ = static_cast<std::int64_t>(sequences);
    documents_ = static_cast<std::int64_t>(documents);
    lengths_ = idx_->bytes().data() + format::kHeaderBytes;
    pointers_ = lengths_ + sequences * sizeof(std::int32_t);
    marks_ = pointers_ + sequences * sizeof(std::int64_t);
  }

  // Checks that sequences are contiguous from 0 to the end of the .bin, because a run's stream is
  // the file itself.
  void check_sequences() {
    const std::uint64_t bin_bytes = bin_->bytes().size();
    std::uint64_t expected = 0;
    for (std::int64_t i = 0; i < sequences_; ++i) {
      const auto length = load<std::int32_t>(lengths_, static_cast<std::uint64_t>(i));
      const auto pointer = load<std::int64_t>(pointers_, static_cast<std::uint64_t>(i));
      if (length < 0) refuse(idx_path_, fmt::format("sequence {} has the length {}", i, length));
      if (pointer < 0 || static_cast<std::uint64_t>(pointer) != expected) {
        refuse(idx_path_,
               fmt::format("sequence {} begins at byte {}, expected {}", i, pointer, expected));
      }
      // Adds at most 2^31 * 8 and is checked against the file at once, so it cannot overflow.
      expected += static_cast<std::uint64_t>(length) * static_cast<std::uint64_t>(width_);
      if (expected > bin_bytes) {
        refuse(bin_path_,
               fmt::format(
                   "truncated: {} bytes, but sequence {} ends at byte {}", bin_bytes, i, expected));
      }
    }
    if (expected != bin_bytes) {
      refuse(bin_path_, fmt::format("{} bytes, but the index describes {}", bin_bytes, expected));
    }
    tokens_ = static_cast<std::int64_t>(expected) / width_;
  }

  void check_documents() {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < documents_; ++i) {
      const auto mark = load<std::int64_t>(marks_, static_cast<std::uint64_t>(i));
      const bool good = i == 0 ? mark == 0 : mark >= before && mark <= sequences_;
      if (!good)
        refuse(
            idx_path_,
            fmt::format(
                "document mark {} is {} (after {}, of {} sequences)", i, mark, before, sequences_));
      before = mark;
    }
    if (documents_ == 0 || before != sequences_) {
      refuse(idx_path_,
             fmt::format("the document marks end at {}, expected {} (the number of sequences)",
                         before,
                         sequences_));
    }
  }

  fs::path bin_path_, idx_path_;
  std::unique_ptr<files::Mapped> bin_, idx_;
  std::unique_ptr<const VerifiedBytes> verified_;  // null: there are no checksums
  Code code_ = Code::U16;
  std::int64_t width_ = 2, sequences_ = 0, documents_ = 0, tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* marks_ = nullptr;
};

}  // namespace

std::shared_ptr<const TokenFile> TokenFile::open(const fs::path& path) {
  if (is_llmc_tokens(path)) return open_llmc_tokens(path);
  if (is_bare_tokens(path)) return open_bare_tokens(path);
  return std::make_shared<MappedTokenFile>(prefix_of(path));
}

std::shared_ptr<const TokenFile> TokenFile::open_verified(const fs::path& prefix,
                                                          BlockSums sums,
                                                          const std::string& fix) {
  return std::make_shared<MappedTokenFile>(prefix, std::move(sums), fix);
}

}  // namespace tessera::data
