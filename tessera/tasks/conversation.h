// SPDX-License-Identifier: Apache-2.0
// Records of instructions and conversations, in the forms in which people keep them, as tokens of
// which some are learned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/json.h"
#include "tessera/data/chat/chat_template.h"
#include "tessera/data/records.h"
#include "tessera/data/tokenizer.h"

namespace tessera::tasks {

/// The forms of records.
enum class Form : std::uint8_t {
  Text,              ///< text
  Messages,          ///< messages: [{role, content}]
  ShareGpt,          ///< conversations: [{from, value}], system
  Alpaca,            ///< instruction, input, output, system, history: [[question, answer]]
  PromptCompletion,  ///< prompt, completion: texts, or lists of messages
};
constexpr auto kForms =
    std::to_array<config::Named<Form>>({{Form::Text, "text"},
                                        {Form::Messages, "messages"},
                                        {Form::ShareGpt, "sharegpt"},
                                        {Form::Alpaca, "alpaca"},
                                        {Form::PromptCompletion, "prompt_completion"}});

/// Which tokens are learned.
enum class LossOn : std::uint8_t {
  Auto,           ///< answers where a record has some, else all
  All,            ///< all
  Assistant,      ///< the assistant's turns
  LastAssistant,  ///< the assistant's last turn
  Completion,     ///< what follows the prompt
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

/// The form of a record by its fields. Error{Data} where it has those of none. `text_field`: of
/// Form::Text.
Form form_of(const data::Record& record, const std::string& text_field);
/// The messages [{role, content}] of a record of the forms ShareGpt and Alpaca; a role is "user",
/// "assistant", "system" or "tool".
json::Value messages_of(const data::Record& record, Form form);

/// The chat template that records are rendered with: a file, "chatml", or where `name` is empty the
/// one of the first of the folders that has one; nothing where none has. Error{Config} for a file
/// that is not there.
std::optional<data::chat::ChatTemplate> open_chat_template(
    const std::string& name,
    const std::vector<std::filesystem::path>& folders,
    const data::Tokenizer& tokenizer);

/// The template of a file, or "chatml". Error{Config} for a file that is not there.
std::string chat_template_text(const std::string& name);
/// What a run's configuration says as the chat template of its task; empty where it says nothing.
std::string chat_template_of(const json::Value& config);

/// Makes tokens of records. Threads: const methods from any thread.
class ConversationTokenizer {
 public:
  /// Both outlive this; without a template, conversations are refused.
  ConversationTokenizer(const data::Tokenizer& tokenizer, const data::chat::ChatTemplate* chat)
      : tokenizer_(tokenizer), chat_(chat) {}

  /// The tokens of a record. Error{Data} for a record that has not the fields of the form, that the
  /// template refuses, or whose turns it renders otherwise than one after the other.
  [[nodiscard]] LearnedTokens read(const data::Record& record,
                                   Form form,
                                   LossOn loss_on,
                                   const std::string& text_field) const;
  /// A text with the tokens that begin and end one.
  [[nodiscard]] LearnedTokens text(const std::string& text) const;
  /// The answer to a prompt: both are tokenized at once, and what the prompt alone does not begin
  /// with is the completion.
  [[nodiscard]] LearnedTokens completion(const std::string& prompt,
                                         const std::string& completion,
                                         LossOn loss_on) const;
  /// `messages`, and where `prompt` is not 0 the first `prompt` of them as the prompt of the
  /// others. Tools and variables of the template are those of the record.
  [[nodiscard]] LearnedTokens conversation(const data::Record& record,
                                           const json::Value& messages,
                                           std::size_t prompt,
                                           LossOn loss_on) const;
  /// The text of messages as the template renders them.
  [[nodiscard]] std::string render(const data::Record& record,
                                   const json::Value& messages,
                                   bool add_generation_prompt) const;

 private:
  using Spans = std::vector<std::pair<std::size_t, std::size_t>>;
  [[nodiscard]] data::chat::Conversation rendered(const data::Record& record,
                                                  const json::Value& messages,
                                                  bool add_generation_prompt) const;
  [[nodiscard]] Spans turns_of(const data::Record& record,
                               const json::Value& messages,
                               const std::string& whole) const;
  [[nodiscard]] std::vector<std::int32_t> with_end(std::vector<std::int32_t> ids) const;

  const data::Tokenizer& tokenizer_;
  const data::chat::ChatTemplate* chat_;
};

}  // namespace tessera::tasks
