// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/token_writer.h"

#include <cerrno>
#include <cstring>
#include <limits>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/data/token_format.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

template <class T>
void put(OutputFile& file, const T& value) {
  file.write(std::as_bytes(std::span(&value, 1)));
}

fs::path with_suffix(const fs::path& prefix, const char* suffix) {
  return fs::path(prefix.string() + suffix);
}

}  // namespace

TokenWidth token_width(std::int64_t vocabulary) {
  constexpr std::int64_t kMegatronLimit = 65500;
  return vocabulary < kMegatronLimit ? TokenWidth::U16 : TokenWidth::I32;
}

void append_tokens(std::span<const std::int32_t> ids,
                   TokenWidth width,
                   std::vector<std::byte>& out) {
  const std::size_t at = out.size();
  out.resize(at + ids.size() * static_cast<std::size_t>(width));
  std::byte* const to = out.data() + at;
  if (width == TokenWidth::I32) {
    if (!ids.empty()) std::memcpy(to, ids.data(), ids.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<std::uint16_t>(ids[i]);
    std::memcpy(to + i * sizeof id, &id, sizeof id);
  }
}

OutputFile::OutputFile(fs::path path)
    : path_(std::move(path)), temporary_(fmt::format("{}.tmp-{}", path_.string(), ::getpid())) {
  buffer_.reserve(kBufferBytes);
  files::remove_stale_drafts(path_);
  fd_ = files::create_own(temporary_);
  // For writers that cannot see this process. Best effort: not every file system has locks.
  static_cast<void>(::flock(fd_, LOCK_EX | LOCK_NB));
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* operation, int reason) const {
  std::string fix = "check that the folder exists and that you may write to it";
  if (reason == ENOSPC || reason == EDQUOT || reason == EFBIG) {
    fix = "free some space, or choose a place on another disk (TESSERA_CACHE for the cache)";
  }
  throw Error(Error::Kind::Io,
              fmt::format("cannot {} {}: {}", operation, path_.string(), std::strerror(reason)),
              fix);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush();
}

void OutputFile::flush() {
  for (std::size_t done = 0; done < buffer_.size();) {
    const ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write", errno);
    done += static_cast<std::size_t>(n);
  }
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  if (::fsync(fd_) != 0) fail("sync", errno);
}

void OutputFile::commit() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename a temporary file to", errno);
  ::close(fd_);
  fd_ = -1;
  files::sync(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
}

TokenWriter::TokenWriter(const fs::path& prefix, TokenWidth width)
    : width_(width), bin_(with_suffix(prefix, ".bin")), idx_(with_suffix(prefix, ".idx")) {}

void TokenWriter::write(std::span<const std::byte> tokens) {
  bin_.write(tokens);
}

void TokenWriter::add_to_document(std::int64_t tokens) {
  const std::int64_t length = lengths_.back() + tokens;
  TESSERA_REQUIRE(
      length <= std::numeric_limits<std::int32_t>::max(),
      Data,
      fmt::format("document {} has more than 2^31 - 1 tokens, which the index cannot say",
                  documents()),
      "split it into several files, or make it a .jsonl with one document a line");
  lengths_.back() = static_cast<std::int32_t>(length);
}

void TokenWriter::write_index() {
  const format::Code code = width_ == TokenWidth::U16 ? format::Code::U16 : format::Code::I32;
  const std::uint64_t sequences = lengths_.size(), documents = lengths_.size() + 1;
  put(idx_, format::kMagic);
  put(idx_, format::kVersion);
  put(idx_, code);
  put(idx_, sequences);
  put(idx_, documents);
  idx_.write(std::as_bytes(std::span(lengths_)));
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    put(idx_, pointer);
    pointer += std::int64_t{length} * static_cast<std::int64_t>(width_);
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(documents); ++i)
    put(idx_, i);
}

void TokenWriter::finish() {
  write_index();
  bin_.sync();
  idx_.sync();
  bin_.commit();
  idx_.commit();
}

}  // namespace tessera::data
