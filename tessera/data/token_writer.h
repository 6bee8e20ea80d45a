// SPDX-License-Identifier: Apache-2.0
// Writes a .bin/.idx pair under temporary names; no files remain unless finish() completed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

/// Bytes per token on disk: u16 for vocabularies below 65500 (as Megatron chooses), else i32.
enum class TokenWidth : std::uint8_t { U16 = 2, I32 = 4 };
TokenWidth token_width(std::int64_t vocabulary);
/// Appends `ids` in the file format. The ids must fit into `width`.
void append_tokens(std::span<const std::int32_t> ids,
                   TokenWidth width,
                   std::vector<std::byte>& out);

/// A file under construction: `<path>.tmp-<process>`, removed by the destructor unless committed.
/// Temporary files of killed writers of `path` are deleted first. Throws Error{Io}.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte> bytes);
  void sync();    ///< flushes and fsyncs; reports a full disk at the latest here
  void commit();  ///< renames into place and syncs the folder; call after sync()

 private:
  void flush();
  [[noreturn]] void fail(const char* operation, int reason) const;
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  std::vector<std::byte> buffer_;
};

/// The receiver of tokenized documents, which arrive in order.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  /// Takes tokens of the current document, in the file format.
  virtual void write(std::span<const std::byte> tokens) = 0;
  virtual void begin_document() = 0;
  virtual void add_to_document(std::int64_t tokens) = 0;
  [[nodiscard]] virtual std::int64_t documents() const = 0;
};

/// Writes the pair. Documents are counted in order; throws Error{Data} for a document of more than
/// 2^31 - 1 tokens.
class TokenWriter final : public TokenSink {
 public:
  TokenWriter(const std::filesystem::path& prefix, TokenWidth width);
  void write(std::span<const std::byte> tokens) override;
  void begin_document() override { lengths_.push_back(0); }
  void add_to_document(std::int64_t tokens) override;
  [[nodiscard]] std::int64_t documents() const override {
    return static_cast<std::int64_t>(lengths_.size());
  }
  /// Writes the index, syncs both and renames them into place, the index last.
  void finish();

 private:
  void write_index();
  TokenWidth width_;
  OutputFile bin_, idx_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace tessera::data
