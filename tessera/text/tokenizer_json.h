// SPDX-License-Identifier: Apache-2.0
// Writes a byte-level BPE tokenizer as a single tokenizer.json.
#pragma once

#include <string>

namespace tessera::text {

/// Returns the tokenizer.json for the texts of a vocab.json and a merges.txt (as read_bpe() accepts
/// them): parts and values as in GPT-2's published file, tokens by id, merges as "a b", which every
/// version of the tokenizers library reads. Throws Error{Format} for a vocabulary that is not an
/// object or lacks "<|endoftext|>".
std::string gpt2_tokenizer_json(const std::string& vocab, const std::string& merges);

}  // namespace tessera::text
