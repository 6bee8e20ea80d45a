// SPDX-License-Identifier: Apache-2.0
// Reads how a sentence-transformers folder computes embeddings: modules.json, and the files that it
// names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera::interop {

struct SentenceModel {
  std::filesystem::path folder;  ///< folder of the transformer: the same, or a subfolder
  std::string pooling;           ///< "cls", "mean" or "last"
  bool normalize = false;
  std::optional<std::int64_t> max_tokens;  ///< including special tokens; longer texts are truncated
  bool lower_case = false;                 ///< texts are lowercased first
  std::string prompt;                      ///< prefix of every text
};

/// Returns nothing if the folder has no modules.json. Throws Error{Format} for inconsistent files
/// and Error{Unsupported} for a module or pooling mode that is not implemented.
std::optional<SentenceModel> sentence_model_of(const std::filesystem::path& folder);

/// `model_max_length` of a Hugging Face folder's tokenizer_config.json; nothing if it is absent, or
/// so large that it means no limit, as transformers writes it.
std::optional<std::int64_t> tokenizer_limit_of(const std::filesystem::path& folder);

}  // namespace tessera::interop
