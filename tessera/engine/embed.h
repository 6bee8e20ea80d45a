// SPDX-License-Identifier: Apache-2.0
// Embeddings of texts by a model whose objective is embedding.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {

struct EmbedOptions {
  std::int64_t max_tokens = 0;       ///< of a text, with special tokens; 0: the model's positions
  std::int64_t batch_tokens = 8192;  ///< of a batch, with padding; a single text may have more
  std::string file;  ///< for messages: the file whose line i + 1 is text i; empty: there is none
};

/// Counts of what was read.
struct EmbedStats {
  std::int64_t texts = 0, tokens = 0, padding = 0;
  std::int64_t cut = 0;  ///< truncated texts
};

/// Throws Error{Data} with the place of the first text without tokens, of those that are shorter
/// than 64 bytes; longer ones seldom have none, and are refused by embed().
void require_tokens(const text::Tokenizer& tokenizer,
                    const std::vector<std::string>& texts,
                    const EmbedOptions& options);
/// Throws Error{Data} for an id that the vocabulary of the model does not have.
void require_known_ids(const std::vector<std::int32_t>& ids, const models::Resolved& model);
/// Encodes a text with the tokenizer's post-processor to at most `most` ids; the excess is removed
/// before the tokens that end a text.
std::vector<std::int32_t> encode_whole(const text::Tokenizer& tokenizer,
                                       const std::string& text,
                                       std::int64_t most,
                                       bool& cut);

/// Calls sink(i, embedding) for each text, in order; calls `done` now and then with the number of
/// texts so far. Some thousand texts at a time are sorted by length, batched and padded, which
/// changes an embedding only by rounding. Memory: the activations of a batch, and the embeddings of
/// these texts. Throws Error{Data} for a text without tokens and for ids beyond the vocabulary.
/// Collective if ranks share the model.
EmbedStats embed(parallel::Executor& executor,
                 const text::Tokenizer& tokenizer,
                 const models::Resolved& model,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options,
                 const std::function<void(std::int64_t text, std::span<const float>)>& sink,
                 const std::function<void(std::int64_t texts)>& done = {});

}  // namespace tessera::engine
