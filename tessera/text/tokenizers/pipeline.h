// SPDX-License-Identifier: Apache-2.0
// A whole tokenizer.json: converts text to tokens and back, as the tokenizers library defines it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/text/tokenizers/added_tokens.h"
#include "tessera/text/tokenizers/decoders.h"
#include "tessera/text/tokenizers/limits.h"
#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/normalizers.h"
#include "tessera/text/tokenizers/post_processors.h"
#include "tessera/text/tokenizers/pre_tokenizers.h"

namespace tessera::text::tokenizers {

/// The parts of a tokenizer, independent of its files. Null parts do nothing; there is always a
/// model.
struct PipelineParts {
  NormalizerPtr normalizer;
  PreTokenizerPtr pre_tokenizer;
  ModelPtr model;
  PostProcessorPtr post_processor;
  DecoderPtr decoder;
  std::vector<AddedToken> added_tokens;
  Limits limits = {};
  std::string outside = {};  ///< identifies what ids depend on besides the tokenizer's own files
};
/// The parts of a tokenizer.json; `root` is the parsed file. Throws Error{Format} for an
/// inconsistent file and Error{Unsupported} for parts that are not implemented; both messages name
/// the part after `where`.
PipelineParts read_parts(const json& root, const std::string& where);

/// Normalizer, pre-tokenizer, model, post-processor, decoder and added tokens of one file. The
/// sections `truncation` and `padding` are applied only by encode_limited(), because they depend on
/// the use of a text, as in transformers. Const methods can be called from any thread.
class Pipeline {
 public:
  /// Throws Error{Format} with `where` for two added tokens with the same id.
  Pipeline(PipelineParts parts, const std::string& where);
  /// Uses read_parts().
  Pipeline(const json& root, const std::string& where);

  /// The tokens of a text with offsets in code points (of the text with U+FFFD for invalid UTF-8).
  /// `special` adds the post-processor's tokens.
  [[nodiscard]] Encoding encode(std::string_view text, bool special = true) const;
  [[nodiscard]] Encoding encode_pair(std::string_view first,
                                     std::string_view second,
                                     bool special = true) const;
  /// The same as encode(), with the sections `truncation` and `padding` applied as in the
  /// tokenizers library's encode() of one text or one pair. Throws Error{Data} if the text to
  /// truncate is too short.
  struct Limited {
    Encoding encoding;
    std::vector<std::uint8_t> attention_mask;  ///< 0 at padding
  };
  [[nodiscard]] Limited encode_limited(std::string_view text, bool special = true) const;
  [[nodiscard]] Limited encode_pair_limited(std::string_view first,
                                            std::string_view second,
                                            bool special = true) const;
  /// Appends the ids from the model and the added tokens, without the post-processor's. Special
  /// tokens in the text are ordinary text unless `special`. Fast: words are looked up in a cache of
  /// the calling thread (2 MiB), and no offsets are kept.
  void encode_ids(std::string_view text, std::vector<std::int32_t>& out, bool special) const;
  /// Skips ids without a token, and special tokens if `skip_special`.
  [[nodiscard]] std::string decode(const std::vector<std::int32_t>& ids,
                                   bool skip_special = false) const;

  [[nodiscard]] std::int64_t size() const { return size_; }  ///< ids are 0 .. size - 1
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const;
  [[nodiscard]] const std::string& token_of(std::int32_t id) const;  ///< empty: none
  [[nodiscard]] bool is_special(std::int32_t id) const;
  /// The ids that the post-processor puts before and after a text.
  [[nodiscard]] const std::vector<std::int32_t>& prefix() const { return prefix_; }
  [[nodiscard]] const std::vector<std::int32_t>& suffix() const { return suffix_; }
  /// The ids that the post-processor adds to a pair of texts, each with its type; kFirst and
  /// kSecond stand for the texts.
  static constexpr std::int32_t kFirst = -1, kSecond = -2;
  using PairFrame = std::vector<std::pair<std::int32_t, std::int32_t>>;
  [[nodiscard]] const PairFrame& pair_frame() const { return pair_frame_; }

 private:
  struct Piece {
    AlignedText text;
    std::int32_t id;  // of an added token; -1: none
  };
  struct Finders {
    AddedTokenFinder raw, normalized;
  };
  void add_finders(const AddedToken& token);
  void find_surroundings();
  [[nodiscard]] std::vector<Piece> pieces_of(std::string_view text,
                                             bool tracked,
                                             bool special) const;
  [[nodiscard]] Encoding encode_one(std::string_view text) const;
  [[nodiscard]] Encoding finish(std::vector<Encoding> encodings, bool special) const;
  [[nodiscard]] Limited finish_limited(std::vector<Encoding> encodings, bool special) const;

  PipelineParts parts_;
  std::unordered_map<std::int32_t, AddedToken> added_;
  std::unordered_map<std::string, std::int32_t> added_ids_;
  Finders all_, ordinary_;  // ordinary: without special tokens
  std::int64_t size_ = 0;
  std::vector<std::int32_t> prefix_, suffix_;
  PairFrame pair_frame_ = {{kFirst, 0}, {kSecond, 1}};
  std::uint64_t instance_;  // identifies the tokenizer whose words are in a thread's cache
};

}  // namespace tessera::text::tokenizers
