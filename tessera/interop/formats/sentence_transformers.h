// SPDX-License-Identifier: Apache-2.0
// What a folder of sentence-transformers says of how embeddings are made: modules.json, and the
// files that it names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera::interop {

struct SentenceModel {
  std::filesystem::path folder;  ///< of the transformer: the same, or one inside of it
  std::string pooling;           ///< "cls", "mean" or "last"
  bool normalize = false;
  std::optional<std::int64_t> max_tokens;  ///< special ones among them; longer texts are cut
  bool lower_case = false;                 ///< texts are lowered first
  std::string prompt;                      ///< stands before every text
};

/// Nothing where the folder has no modules.json. Error{Format} for files that do not hold together,
/// Error{Unsupported} for a module or a way of pooling that is not built.
std::optional<SentenceModel> sentence_model_of(const std::filesystem::path& folder);

/// `model_max_length` of a Hugging Face folder's tokenizer_config.json; nothing where it is absent
/// or beyond any text, as transformers writes it where there is no limit.
std::optional<std::int64_t> tokenizer_limit_of(const std::filesystem::path& folder);

}  // namespace tessera::interop
