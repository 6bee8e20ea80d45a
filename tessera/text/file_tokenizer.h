// SPDX-License-Identifier: Apache-2.0
// A tokenizer that is read from a file: a tokenizer.json with any parts, or a vocab.txt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/text/tokenizer.h"
#include "tessera/text/tokenizers/pipeline.h"
#include "tessera/text/tokenizers/tokenizer_file.h"

namespace tessera::text {

/// Const methods can be called from any thread.
class FileTokenizer final : public Tokenizer {
 public:
  /// Reads the file with read_tokenizer_file(). The end of a text is taken from the files next to
  /// it: eos_token or sep_token of tokenizer_config.json or special_tokens_map.json, else
  /// eos_token_id of generation_config.json or config.json, else a usual token for it. Throws
  /// Error{Format} for a bad file or if no end is found, and Error{Unsupported} for parts that are
  /// not implemented.
  explicit FileTokenizer(const std::filesystem::path& path);

  [[nodiscard]] std::string name() const override { return "file"; }
  [[nodiscard]] std::int64_t size() const override { return pipeline_.size(); }
  [[nodiscard]] std::int32_t end_of_text() const override { return end_; }
  /// The end of a text, then eos_token_id of generation_config.json and of config.json.
  [[nodiscard]] std::vector<std::int32_t> ends() const override { return ends_; }
  /// `pad_token` of the files next to it, else the end of a text.
  [[nodiscard]] std::int32_t padding() const override { return padding_; }
  void encode(std::string_view text, std::vector<std::int32_t>& out, bool special) const override;
  /// The text that the token contributes inside a text; a piece that begins a word includes its
  /// space.
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const override;
  /// Returns true for added tokens that are marked as special, which transformers' decode() skips
  /// with skip_special_tokens.
  [[nodiscard]] bool is_special(std::int32_t id) const override;
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
  std::vector<std::int32_t> ends_;
  std::vector<std::string> bytes_;  // by id
  std::string fingerprint_;
};

}  // namespace tessera::text
