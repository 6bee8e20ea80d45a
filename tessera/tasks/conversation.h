// SPDX-License-Identifier: Apache-2.0
// Converts records of instructions and conversations, in several common formats, to tokens and
// marks those that are learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/json.h"
#include "tessera/data/records.h"
#include "tessera/tasks/turns.h"
#include "tessera/text/chat/chat_template.h"
#include "tessera/text/tokenizer.h"

namespace tessera::tasks {

/// The formats of records.
enum class Form : std::uint8_t {
  Text,              ///< text
  Messages,          ///< messages: [{role, content}]
  ShareGpt,          ///< conversations: [{from, value}], system
  Alpaca,            ///< instruction, input, output, system, history: [[question, answer]]
  PromptCompletion,  ///< prompt, completion: strings, or lists of messages
};
constexpr auto kForms =
    std::to_array<config::Named<Form>>({{Form::Text, "text"},
                                        {Form::Messages, "messages"},
                                        {Form::ShareGpt, "sharegpt"},
                                        {Form::Alpaca, "alpaca"},
                                        {Form::PromptCompletion, "prompt_completion"}});

/// The tokens that are learned.
enum class LossOn : std::uint8_t {
  Auto,           ///< answers if a record has any, else all tokens
  All,            ///< all tokens
  Assistant,      ///< the assistant's turns
  LastAssistant,  ///< the assistant's last turn
  Completion,     ///< the text after the prompt
};
constexpr auto kLossOn =
    std::to_array<config::Named<LossOn>>({{LossOn::Auto, "auto"},
                                          {LossOn::All, "all"},
                                          {LossOn::Assistant, "assistant"},
                                          {LossOn::LastAssistant, "last_assistant"},
                                          {LossOn::Completion, "completion"}});

/// Token ids, and for each whether it is learned: 1 or 0.
struct LearnedTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;
  [[nodiscard]] bool any() const;
};

/// Detects the format of a record by its fields. Throws Error{Data} if they match no format.
/// `text_field`: the field of Form::Text.
Form form_of(const data::Record& record, const std::string& text_field);
/// Converts a record of the formats ShareGpt and Alpaca to messages [{role, content}]; a role is
/// "user", "assistant", "system" or "tool".
json::Value messages_of(const data::Record& record, Form form);
/// The record without the system text with which its conversation begins.
data::Record without_system(const data::Record& record, Form form);
/// The messages of a record of the format Alpaca before its answer.
json::Value alpaca_prompt_of(const data::Record& record);
/// Converts a list of messages, or of turns {from, value}, to messages. Throws Error{Data} for any
/// other value, which the message calls `field`.
json::Value conversation_of(const data::Record& record,
                            const json::Value& value,
                            const char* field);

/// The chat template for records: a file, "chatml", or, if `name` is empty, the template of the
/// first folder that has one; nothing if none has. A named template has the special tokens of the
/// first folder that names some. Throws Error{Config} for a missing file.
std::optional<text::chat::ChatTemplate> open_chat_template(
    const std::string& name,
    const std::vector<std::filesystem::path>& folders,
    const text::Tokenizer& tokenizer);

/// The text of the template in a file, or of "chatml". Throws Error{Config} for a missing file.
std::string chat_template_text(const std::string& name);
/// The chat template that a run's configuration sets for its task; empty if none.
std::string chat_template_of(const json::Value& config);

/// Tokenizes records. Const methods can be called from any thread.
class ConversationTokenizer {
 public:
  /// Both arguments must outlive this; without a template, conversations are refused. All texts
  /// have the date of the call.
  ConversationTokenizer(const text::Tokenizer& tokenizer, const text::chat::ChatTemplate* chat);

  /// The tokens of a record. Throws Error{Data} for a record that lacks fields of the format, that
  /// the template rejects, or in whose rendered text the assistant's turns are not found.
  [[nodiscard]] LearnedTokens read(const data::Record& record,
                                   Form form,
                                   LossOn loss_on,
                                   const std::string& text_field) const;
  /// Tokenizes a text with its beginning and end tokens.
  [[nodiscard]] LearnedTokens text(const std::string& text) const;
  /// Tokenizes the answer to a prompt: both are tokenized together, and the tokens that do not
  /// belong to the prompt's tokenization form the completion.
  [[nodiscard]] LearnedTokens completion(const std::string& prompt,
                                         const std::string& completion,
                                         LossOn loss_on) const;
  /// Tokenizes `messages`; if `prompt` is not 0, the first `prompt` messages are the prompt of the
  /// others. Tools and variables of the template come from the record.
  [[nodiscard]] LearnedTokens conversation(const data::Record& record,
                                           const json::Value& messages,
                                           std::size_t prompt,
                                           LossOn loss_on) const;
  /// Tokenizes the answer to the messages of a prompt. Without a template, the only message and a
  /// line end are the prompt.
  [[nodiscard]] LearnedTokens answer(const data::Record& record,
                                     const json::Value& prompt,
                                     const std::string& answer,
                                     LossOn loss_on) const;
  /// Renders messages with the template.
  [[nodiscard]] std::string render(const data::Record& record,
                                   const json::Value& messages,
                                   bool add_generation_prompt) const;

 private:
  [[nodiscard]] text::chat::Conversation rendered(const data::Record& record,
                                                  const json::Value& messages,
                                                  bool add_generation_prompt) const;
  [[nodiscard]] Spans turns_of(const data::Record& record,
                               const json::Value& messages,
                               const std::string& whole) const;
  [[nodiscard]] std::vector<std::int32_t> with_end(std::vector<std::int32_t> ids) const;

  const text::Tokenizer& tokenizer_;
  const text::chat::ChatTemplate* chat_;
  std::time_t now_;
  std::shared_ptr<const Turns> turns_;  ///< of a template that does not mark the assistant's text
};

}  // namespace tessera::tasks
