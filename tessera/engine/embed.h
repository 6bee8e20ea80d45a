// SPDX-License-Identifier: Apache-2.0
// Embeddings of texts by a model whose objective is embedding.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

struct EmbedOptions {
  std::int64_t max_tokens = 0;  ///< of a text, special ones among them; 0: the model's positions
  std::int64_t batch_tokens = 8192;  ///< of a batch, padding among them; one text may have more
};

/// What was read.
struct EmbedStats {
  std::int64_t texts = 0, tokens = 0, padding = 0;
  std::int64_t cut = 0;  ///< texts that lost their end
};

/// The ids of a text as the tokenizer's post-processor gives them, of at most `most`: what is
/// beyond is cut off before the tokens that end a text.
std::vector<std::int32_t> encode_whole(const data::Tokenizer& tokenizer,
                                       const std::string& text,
                                       std::int64_t most,
                                       bool& cut);

/// Calls sink(i, embedding) for each text, in order; `done` is told now and then how many texts
/// there are so far. Some thousand texts at a time are sorted by length, put into batches and
/// padded, which changes no embedding but by rounding. Memory: the activations of a batch, and the
/// embeddings of these texts. Error{Data} for a text without tokens, and for ids beyond the
/// vocabulary. Collective where the model is shared by ranks.
EmbedStats embed(parallel::Executor& executor,
                 const data::Tokenizer& tokenizer,
                 const models::Resolved& model,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options,
                 const std::function<void(std::int64_t text, std::span<const float>)>& sink,
                 const std::function<void(std::int64_t texts)>& done = {});

}  // namespace tessera::engine
