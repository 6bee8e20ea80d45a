// SPDX-License-Identifier: Apache-2.0
// A byte-level BPE tokenizer in the one file that others read.
#pragma once

#include <string>

namespace tessera::data {

/// tokenizer.json of what a vocab.json and a merges.txt (their texts, as read_bpe() accepts them)
/// make up: the parts and their values as GPT-2's published one has them, tokens by id, merges as
/// "a b", which every version of the tokenizers library reads. Error{Format} for a vocabulary that
/// is no object or lacks "<|endoftext|>".
std::string gpt2_tokenizer_json(const std::string& vocab, const std::string& merges);

}  // namespace tessera::data
