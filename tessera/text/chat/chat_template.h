// SPDX-License-Identifier: Apache-2.0
// Chat templates as published with models: they convert messages to the text that a model reads.
#pragma once

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/text/chat/value.h"

namespace tessera::text::chat {

/// The variables of a chat template other than the list of messages.
struct RenderOptions {
  json::Value tools, documents;        ///< null: none
  bool add_generation_prompt = false;  ///< end with the beginning of the assistant's turn
  /// End inside the last message, so that the model continues it.
  bool continue_final_message = false;
  json::Value variables;  ///< an object with further variables, such as enable_thinking; null: none
  /// The date that strftime_now() formats. Without a value it formats the current time, so that the
  /// prompt depends on the day.
  std::optional<std::time_t> now;
  Limits limits;
};

struct Conversation {
  std::string text;
  /// Begin and end in `text` of each {% generation %} span, in bytes and in order.
  std::vector<std::pair<std::size_t, std::size_t>> assistant;
};

/// A Jinja template with the special tokens that it uses. Const methods can be called from any
/// thread.
class ChatTemplate {
 public:
  /// `special_tokens`: an object such as {"bos_token": "<s>"}. Throws Error{Format} for a malformed
  /// template.
  explicit ChatTemplate(std::string_view source, json::Value special_tokens = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// `messages`: an array of objects with "role" and "content", as the template expects them.
  /// Members that are null are left out, and an answer's thoughts have the names that transformers
  /// gives them too: "reasoning_content" and "thinking".
  /// Rendering takes bounded time and memory. Throws Error{Data} with the template's own message if
  /// it rejects the messages, or if it cannot process them.
  [[nodiscard]] Conversation render(const json::Value& messages,
                                    const RenderOptions& options = {}) const;
  [[nodiscard]] bool marks_assistant() const;  ///< the template contains {% generation %}
  [[nodiscard]] const json::Value& special_tokens() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The special tokens that the files of a Hugging Face folder name, with or without a template:
/// {"bos_token": "<s>", ...}. Throws Error{Format} for files that are not JSON objects.
json::Value special_tokens_in(const std::filesystem::path& folder);

/// Finds the template of a Hugging Face folder: chat_template.jinja (additional ones in
/// additional_chat_templates), else `chat_template` of tokenizer_config.json, which is one text or
/// a list of names and texts. `name` selects one of several; if empty, "default", or "tool_use" if
/// `with_tools` and it exists. Returns nothing if the folder has no template. Throws Error{Format}
/// for damaged files and Error{Config} for an unknown name.
std::optional<ChatTemplate> find_chat_template(const std::filesystem::path& folder,
                                               const std::string& name = {},
                                               bool with_tools = false);

/// Marks the tokens inside the assistant's text: 1 for a token that covers a byte of a span, as
/// transformers does. `offsets`: first byte and end of each token.
std::vector<int> assistant_mask(const Conversation& conversation,
                                const std::vector<std::pair<std::size_t, std::size_t>>& offsets);

}  // namespace tessera::text::chat
