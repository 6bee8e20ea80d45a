// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a file: a tokenizer.json, whatever its parts, or a vocab.txt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizers/pipeline.h"
#include "tessera/data/tokenizers/tokenizer_file.h"

namespace tessera::data {

/// Threads: const methods from any thread.
class FileTokenizer final : public Tokenizer {
 public:
  /// Reads the file by read_tokenizer_file(), and the end of a text from the files beside it:
  /// eos_token or sep_token of tokenizer_config.json or special_tokens_map.json, else eos_token_id
  /// of generation_config.json or config.json, else a token that usually is it. Error{Format} for a
  /// bad file and where no end is known, Error{Unsupported} for parts that are not built.
  explicit FileTokenizer(const std::filesystem::path& path);

  [[nodiscard]] std::string name() const override { return "file"; }
  [[nodiscard]] std::int64_t size() const override { return pipeline_.size(); }
  [[nodiscard]] std::int32_t end_of_text() const override { return end_; }
  /// `pad_token` of the files beside it, else the end of a text.
  [[nodiscard]] std::int32_t padding() const override { return padding_; }
  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override;
  /// Text that the token adds inside of a text; a piece that begins a word brings its space.
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const override;
  [[nodiscard]] std::string fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::string decode(const std::vector<std::int32_t>& ids) const override;
  [[nodiscard]] std::vector<std::int32_t> beginning() const override;
  [[nodiscard]] std::vector<std::int32_t> ending() const override;
  [[nodiscard]] JoinedIds join(const std::vector<std::int32_t>& first,
                               const std::vector<std::int32_t>& second) const override;
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> encode_spans(
      std::string_view text, std::vector<std::int32_t>& out) const override;

 private:
  FileTokenizer(const std::filesystem::path& path, tokenizers::TokenizerFile file);

  tokenizers::Pipeline pipeline_;
  std::int32_t end_ = 0, padding_ = 0;
  std::vector<std::string> bytes_;  // by id
  std::string fingerprint_;
};

}  // namespace tessera::data
