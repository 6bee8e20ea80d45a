// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back.
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

namespace tessera::text {

/// `tokenizer` of the configuration.
struct TokenizerOptions {
  std::string type = "byte";
  std::string vocab;   ///< for "file": that file; for "gpt2", empty: the shipped one
  std::string merges;  ///< empty with a vocab: the vocab is a tokenizer.json
  void describe(config::Fields& fields);
};

/// Two texts encoded as one sequence.
struct JoinedIds {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> types;  ///< 0 or 1 for each id: the text to which it belongs
};

/// Const methods can be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::string name() const = 0;   ///< "byte", "gpt2", "file"
  [[nodiscard]] virtual std::int64_t size() const = 0;  ///< ids are 0 .. size - 1
  [[nodiscard]] virtual std::int32_t end_of_text() const = 0;
  /// The ids that end a generated text: end_of_text() and the others that a model's files name.
  [[nodiscard]] virtual std::vector<std::int32_t> ends() const { return {end_of_text()}; }
  /// The id for positions after a text that is shorter than others in its batch.
  [[nodiscard]] virtual std::int32_t padding() const { return end_of_text(); }
  /// Appends the ids of `text`. Special tokens in the text ("<|endoftext|>") are recognised if
  /// `special`.
  virtual void encode(std::string_view text,
                      std::vector<std::int32_t>& out,
                      bool special = true) const = 0;
  /// The bytes of one id; they may be part of a character. Empty for an id outside the vocabulary.
  [[nodiscard]] virtual std::string_view bytes_of(std::int32_t id) const = 0;
  /// Returns true if the id is a special token, such as one that ends a turn. Generated text omits
  /// special tokens by default.
  [[nodiscard]] virtual bool is_special(std::int32_t /*id*/) const { return false; }
  /// Changes whenever the result of encode could change; it is part of the token cache's key and of
  /// the checkpoint.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// The first position at or after `from` where `text` may be split into two parts that are
  /// encoded separately with the same ids, so that threads can share one long text; the size of the
  /// text if there is none.
  [[nodiscard]] virtual std::size_t cut(std::string_view text, std::size_t /*from*/) const {
    return text.size();
  }
  [[nodiscard]] virtual std::string decode(const std::vector<std::int32_t>& ids) const;
  /// The ids before every text, such as a beginning-of-text token.
  [[nodiscard]] virtual std::vector<std::int32_t> beginning() const { return {}; }
  /// The ids after a text that a model reads as a whole, such as [SEP].
  [[nodiscard]] virtual std::vector<std::int32_t> ending() const { return {}; }
  /// Joins two texts to one sequence, with the ids that the model expects around and between them.
  [[nodiscard]] virtual JoinedIds join(const std::vector<std::int32_t>& first,
                                       const std::vector<std::int32_t>& second) const;
  /// Appends the ids of a text as encode() does, and returns the bytes [begin, end) of each id in
  /// `text`.
  [[nodiscard]] virtual std::vector<std::pair<std::size_t, std::size_t>> encode_spans(
      std::string_view text, std::vector<std::int32_t>& out) const;
  /// The ids of a text that a model is to continue: beginning() and encode(), unless the latter
  /// already includes the former.
  [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::string_view text) const;
};
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

/// Returns the tokenizer of options.type, which callers with the same files share; those of `gpt2`
/// default to the shipped ones. Can be called from any thread. Throws Error{Config} for an unknown
/// type, Error{Format} for bad files and Error{Unsupported} for unimplemented parts of a file.
TokenizerPtr make_tokenizer(const TokenizerOptions& options);
/// The files of a byte-level BPE in the folder, without reading them: vocab.json with merges.txt,
/// or tokenizer.json alone.
std::optional<TokenizerOptions> find_bpe(const std::filesystem::path& folder);
/// The options for a Hugging Face folder's tokenizer: "byte" or "gpt2" if its files do the same,
/// else "file" with the first existing file of tokenizers::find_tokenizer_file(). Throws
/// Error{Format} if there is none. Next to a vocab.json alone, added tokens other than
/// "<|endoftext|>" throw Error{Unsupported}.
TokenizerOptions tokenizer_options_of(const std::filesystem::path& folder);
/// Creates the tokenizer of tokenizer_options_of(). Throws Error{Unsupported} for parts of a
/// tokenizer.json that are not implemented.
TokenizerPtr tokenizer_from_folder(const std::filesystem::path& folder);
/// The byte tokenizer as a tokenizer.json: byte-level BPE without merges, one id per byte.
std::string byte_tokenizer_json();
/// The folder of the files that ship with tessera: share/tessera next to the program's or the
/// library's folder, or share/ of the source tree. Throws Error{Environment} with the searched
/// places.
std::filesystem::path share_dir();

}  // namespace tessera::text
