// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::data {

/// `tokenizer` of the configuration.
struct TokenizerOptions {
  std::string type = "byte";
  std::string vocab;   ///< of "file": that file; of "gpt2" empty: the shipped one
  std::string merges;  ///< empty with a vocab: that is a tokenizer.json
  void describe(config::Fields& fields);
};

/// Two texts that a model reads as one.
struct JoinedIds {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> types;  ///< 0 or 1 for each: which text it belongs to
};

/// Threads: const methods from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string name() const = 0;   ///< "byte", "gpt2", "file"
  [[nodiscard]] virtual std::int64_t size() const = 0;  ///< ids are 0 .. size - 1
  [[nodiscard]] virtual std::int32_t end_of_text() const = 0;
  /// What fills the places behind a text that is shorter than others of its batch.
  [[nodiscard]] virtual std::int32_t padding() const { return end_of_text(); }
  /// Appends the ids of `text`. Special tokens in the text ("<|endoftext|>") are recognised if
  /// `special`.
  virtual void encode(std::string_view text,
                      std::vector<std::int32_t>& out,
                      bool special = true) const = 0;
  /// The bytes of one id; may be part of a character. Empty for ids that are none of ours.
  [[nodiscard]] virtual std::string_view bytes_of(std::int32_t id) const = 0;
  /// Changes when the result of encode could: part of the token cache's key and of the checkpoint.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// The first place at or after `from` where `text` may be cut in two and encoded apart without
  /// changing an id, so that threads can share one long text; the size of the text where there is
  /// none.
  [[nodiscard]] virtual std::size_t cut(std::string_view text, std::size_t /*from*/) const {
    return text.size();
  }
  [[nodiscard]] virtual std::string decode(const std::vector<std::int32_t>& ids) const;
  /// The ids that stand before every text, such as that of a token that begins texts.
  [[nodiscard]] virtual std::vector<std::int32_t> beginning() const { return {}; }
  /// The ids that stand behind a text that a model reads as a whole, such as that of [SEP].
  [[nodiscard]] virtual std::vector<std::int32_t> ending() const { return {}; }
  /// Two texts as one, with the ids that the model expects around and between them.
  [[nodiscard]] virtual JoinedIds join(const std::vector<std::int32_t>& first,
                                       const std::vector<std::int32_t>& second) const;
  /// The ids of a text as encode() gives them, and for each its bytes [begin, end) in `text`.
  [[nodiscard]] virtual std::vector<std::pair<std::size_t, std::size_t>> encode_spans(
      std::string_view text, std::vector<std::int32_t>& out) const;
  /// The ids of a text that a model is to go on with: beginning() and encode(), whose result may
  /// have the former already.
  [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::string_view text) const;
};
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

/// By options.type; the files of `gpt2` default to the shipped ones. Error{Config} for unknown
/// types, Error{Format} for bad files, Error{Unsupported} for parts of a file that are not built.
TokenizerPtr make_tokenizer(const TokenizerOptions& options);
/// The files of a byte-level BPE in the folder, none of which is read: vocab.json with merges.txt,
/// or tokenizer.json alone.
std::optional<TokenizerOptions> find_bpe(const std::filesystem::path& folder);
/// What names a Hugging Face folder's tokenizer: "byte" or "gpt2" where its files do what these do,
/// else "file" with the first that is there of tokenizers::find_tokenizer_file(). Error{Format}
/// where it has none. Beside a vocab.json alone, added tokens other than "<|endoftext|>" are
/// Error{Unsupported}.
TokenizerOptions tokenizer_options_of(const std::filesystem::path& folder);
/// By tokenizer_options_of(). Error{Unsupported} for parts of a tokenizer.json that are not built.
TokenizerPtr tokenizer_from_folder(const std::filesystem::path& folder);
/// The byte tokenizer as a tokenizer.json: byte-level BPE without merges, each byte its own id.
std::string byte_tokenizer_json();
/// Folder of files that ship with tessera: share/tessera beside the program's or the library's
/// folder, or share/ of the source tree. Error{Environment} names the places.
std::filesystem::path share_dir();

}  // namespace tessera::data
