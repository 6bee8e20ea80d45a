// SPDX-License-Identifier: Apache-2.0
// Chat templates as published models carry them: messages to the text that a model reads.
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
#include "tessera/data/chat/value.h"

namespace tessera::data::chat {

/// The variables that a chat template reads beside the list of messages.
struct RenderOptions {
  json::Value tools, documents;        ///< null: none
  bool add_generation_prompt = false;  ///< end with the beginning of the assistant's turn
  /// End inside the last message, so that a model goes on with it.
  bool continue_final_message = false;
  json::Value variables;  ///< an object: further names, such as enable_thinking; null: none
  /// The date that strftime_now() formats. Without a value it formats the current time, so that the
  /// prompt depends on the day.
  std::optional<std::time_t> now;
  Limits limits;
};

struct Conversation {
  std::string text;
  /// Bytes of `text` inside of {% generation %}: begin and end of each, in order.
  std::vector<std::pair<std::size_t, std::size_t>> assistant;
};

/// A template in Jinja, with the special tokens that it names. Threads: const methods from any
/// thread.
class ChatTemplate {
 public:
  /// `special_tokens`: an object such as {"bos_token": "<s>"}. Error{Format} for a template that is
  /// not well formed.
  explicit ChatTemplate(std::string_view source, json::Value special_tokens = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// `messages`: an array of objects with "role" and "content", as the template expects them.
  /// Rendering takes bounded time and memory. Error{Data}: what the template refuses, with its own
  /// message, or cannot do with these messages.
  [[nodiscard]] Conversation render(const json::Value& messages,
                                    const RenderOptions& options = {}) const;
  [[nodiscard]] bool marks_assistant() const;  ///< it has {% generation %}
  [[nodiscard]] const json::Value& special_tokens() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The template of a Hugging Face folder: chat_template.jinja (additional ones in
/// additional_chat_templates), else `chat_template` of tokenizer_config.json, which is one text or
/// a list of names and texts. `name`: which of several; empty: "default", or "tool_use" where
/// `with_tools` and there is one. Nothing where the folder has none. Error{Format} for damaged
/// files, Error{Config} for an unknown name.
std::optional<ChatTemplate> find_chat_template(const std::filesystem::path& folder,
                                               const std::string& name = {},
                                               bool with_tools = false);

/// Which tokens lie inside of the assistant's text: 1 for a token that covers a byte of a span, as
/// transformers marks them. `offsets`: first byte and end of each token.
std::vector<int> assistant_mask(const Conversation& conversation,
                                const std::vector<std::pair<std::size_t, std::size_t>>& offsets);

}  // namespace tessera::data::chat
