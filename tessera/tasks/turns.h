// SPDX-License-Identifier: Apache-2.0
// Finds the assistant's turns in a conversation that a chat template rendered without marking them.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/text/chat/chat_template.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// Begin and end of parts of a text, in bytes.
using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

struct TurnPart;

/// Const methods can be called from any thread.
class Turns {
 public:
  /// Renders messages, and the beginning of an answer if the second argument is true.
  using Render =
      std::function<std::string(const json::Value& messages, bool add_generation_prompt)>;

  /// Renders short conversations to see how the template begins and ends an answer.
  Turns(const text::chat::ChatTemplate& chat, const text::Tokenizer& tokenizer);

  /// The span of each assistant message in `whole`, the rendering of `messages`: from the end of
  /// what the template writes when an answer is to begin to the token that ends the turn. The
  /// contents are found in a second rendering, in which marks replace them, so that the template
  /// may render earlier turns otherwise than the last one. A message that the template leaves out
  /// has an empty span. Nothing if the contents are not found.
  [[nodiscard]] std::optional<Spans> find(const json::Value& messages,
                                          const std::string& whole,
                                          const Render& render) const;

 private:
  [[nodiscard]] std::optional<std::size_t> begin_of(const TurnPart& part,
                                                    const std::string& text,
                                                    const json::Value& before,
                                                    const Render& render) const;
  [[nodiscard]] std::optional<std::size_t> end_of(const TurnPart& part,
                                                  std::size_t begin,
                                                  const std::string& text,
                                                  const json::Value& through,
                                                  const Render& render) const;

  std::string begin_;              ///< what the template writes before an answer; may be empty
  std::vector<std::string> ends_;  ///< what it writes after the last one, or after others
};

}  // namespace tessera::tasks
