// SPDX-License-Identifier: Apache-2.0
// The ends of an answer: the one set of tokens that training checks, generation stops at and
// exports keep.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/text/chat/chat_template.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

struct AnswerEnds {
  /// Tokenizer::ends(), then the last token with which the chat template ends an assistant's turn.
  std::vector<std::int32_t> ids;
  /// The texts that the template writes there, if the tokenizer has no token for them.
  std::vector<std::string> texts;
};

/// The text that the template writes after an answer that ends a conversation, up to its first
/// special token and those directly behind it, or else the end of its first line; empty if it
/// writes nothing, or refuses short conversations.
std::string end_of_turn(const text::Tokenizer& tokenizer, const text::chat::ChatTemplate& chat);

/// `chat`: nullptr if there is none.
AnswerEnds answer_ends(const text::Tokenizer& tokenizer, const text::chat::ChatTemplate* chat);

}  // namespace tessera::tasks
