// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/python_text.h"
#include "tessera/text/chat/syntax.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/settings.h"

namespace tessera::text::chat {
namespace {

namespace fs = std::filesystem;

/// Marks the end of the final message while rendering a conversation whose last message continues.
/// The space at its end shows whether the template strips white space there.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the mark to the text of the last message, and returns the original text.
std::string mark_final_message(json::Value& messages) {
  constexpr const char* kFix = "give a conversation whose last message has text to continue";
  TESSERA_REQUIRE(messages.is_array() && !messages.items().empty(),
                  Data,
                  "there is no final message to continue",
                  kFix);
  json::Value* content = messages.items().back().find("content");
  if (content != nullptr && content->is_array()) {
    json::Value* last = nullptr;
    for (json::Value& part : content->items()) {
      if (part.is_object() && part.find("text") != nullptr) last = part.find("text");
    }
    content = last;
  }
  TESSERA_REQUIRE(content != nullptr && content->is_string(),
                  Data,
                  "the final message, which is to be continued, has no text",
                  kFix);
  std::string before = content->as_string();
  *content = json::Value::string(before + std::string(kMark));
  return before;
}

/// Truncates the text at the end of the final message.
void cut_at_mark(Rendered& rendered, const std::string& final_message) {
  const std::string_view mark = kMark.substr(0, kMark.size() - 1);
  const std::string_view stripped = strip_right(strip_left(final_message));
  const std::size_t at = rendered.text.rfind(mark);
  TESSERA_REQUIRE(at != std::string::npos && rendered.text.find(stripped) != std::string::npos,
                  Data,
                  "the final message does not appear in the chat after applying the chat template",
                  "do not continue the final message with this template");
  const bool keeps_space = rendered.text.compare(at, kMark.size(), kMark) == 0;
  rendered.text.resize(at);
  if (!keeps_space) rendered.text.resize(strip_right(rendered.text).size());
  for (auto& [begin, end] : rendered.generated) {
    begin = std::min(begin, rendered.text.size());
    end = std::min(end, rendered.text.size());
  }
}

/// Messages as transformers gives them to templates: without members that are null, and with an
/// answer's thoughts under the names that templates know.
void normalize_messages(json::Value& messages) {
  if (!messages.is_array()) return;
  for (json::Value& message : messages.items()) {
    if (!message.is_object()) continue;
    std::erase_if(message.members(), [](const auto& member) { return member.second.is_null(); });
    const json::Value* thoughts = nullptr;
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (thoughts == nullptr) thoughts = message.find(name);
    }
    if (thoughts == nullptr) continue;
    const json::Value copy = *thoughts;
    message["reasoning_content"] = copy;
    if (message.find("thinking") == nullptr) message["thinking"] = copy;
  }
}

bool has_generation(const Body& body) {
  return std::any_of(body.begin(), body.end(), [](const auto& statement) {
    return statement->kind == Statement::Kind::Generation || has_generation(statement->body) ||
           has_generation(statement->otherwise);
  });
}

using Named = std::vector<std::pair<std::string, std::string>>;

Named templates_in(const json::Value& config, const std::string& path) {
  Named out;
  const json::Value* found = config.find("chat_template");
  if (found == nullptr || found->is_null()) return out;
  if (found->is_string()) return {{"default", found->as_string()}};
  TESSERA_REQUIRE(found->is_array(),
                  Format,
                  path + ": chat_template is " + std::string(found->type_name()),
                  "expected a template, or a list of {\"name\", \"template\"}");
  for (const json::Value& entry : found->items()) {
    const json::Value* name = entry.is_object() ? entry.find("name") : nullptr;
    const json::Value* source = entry.is_object() ? entry.find("template") : nullptr;
    TESSERA_REQUIRE(
        name != nullptr && source != nullptr && name->is_string() && source->is_string(),
        Format,
        path + ": an entry of chat_template has no name or no template",
        "expected {\"name\": ..., \"template\": ...}");
    out.emplace_back(name->as_string(), source->as_string());
  }
  return out;
}

const std::string& choose(const Named& all, const std::string& name, bool with_tools) {
  std::vector<std::string> names;
  const std::string wanted = name.empty() ? "default" : name;
  const std::string* found = nullptr;
  for (const auto& [known, source] : all) {
    names.push_back(known);
    if (known == wanted && found == nullptr) found = &source;
    if (name.empty() && with_tools && known == "tool_use") found = &source;
  }
  if (found == nullptr && name.empty() && all.size() == 1) found = &all.front().second;
  TESSERA_REQUIRE(found != nullptr,
                  Config,
                  "no chat template is named \"" + wanted + "\"",
                  text::suggestion(wanted, names));
  return *found;
}

}  // namespace

struct ChatTemplate::Parts {
  Body body;
  json::Value special_tokens;
};

ChatTemplate::ChatTemplate(std::string_view source, json::Value special_tokens)
    : parts_(std::make_unique<Parts>(Parts{parse_template(source), std::move(special_tokens)})) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::marks_assistant() const {
  return has_generation(parts_->body);
}
const json::Value& ChatTemplate::special_tokens() const {
  return parts_->special_tokens;
}

Conversation ChatTemplate::render(const json::Value& messages, const RenderOptions& options) const {
  TESSERA_REQUIRE(!options.continue_final_message || !options.add_generation_prompt,
                  Config,
                  "continue_final_message and add_generation_prompt exclude each other",
                  "ask for a new turn of the assistant, or continue the last message");
  json::Value given = messages;
  normalize_messages(given);
  std::string final_message;
  if (options.continue_final_message) final_message = mark_final_message(given);
  Budget budget(options.limits);
  std::vector<std::pair<std::string, Value>> variables;
  const auto set = [&](const std::string& name, Value value) {
    for (auto& [known, old] : variables) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  };
  set("messages", Value::from_json(given, budget));
  set("tools", Value::from_json(options.tools, budget));
  set("documents", Value::from_json(options.documents, budget));
  set("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  for (const json::Value* names :
       std::initializer_list<const json::Value*>{&parts_->special_tokens, &options.variables}) {
    if (!names->is_object()) continue;
    for (const auto& [name, value] : names->members())
      set(name, Value::from_json(value, budget));
  }
  Interpreter interpreter(budget, options.now.value_or(std::time(nullptr)));
  Rendered rendered = interpreter.render(parts_->body, variables);
  if (options.continue_final_message) cut_at_mark(rendered, final_message);
  return {std::move(rendered.text), std::move(rendered.generated)};
}

json::Value special_tokens_in(const fs::path& folder) {
  static constexpr std::array kRoles = {
      "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
  const tokenizers::Settings settings(folder);
  json::Value out = json::Value::object();
  for (const char* role : kRoles) {
    if (const auto token = settings.token(role)) out[role] = json::Value::string(*token);
  }
  return out;
}

std::optional<ChatTemplate> find_chat_template(const fs::path& folder,
                                               const std::string& name,
                                               bool with_tools) {
  const fs::path config_path = folder / "tokenizer_config.json";
  json::Value config = json::Value::object();
  std::error_code ignored;
  if (fs::is_regular_file(config_path, ignored)) {
    config = json::parse_strict(read_small_file(config_path), config_path.string());
    TESSERA_REQUIRE(config.is_object(),
                    Format,
                    config_path.string() + " holds " + std::string(config.type_name()),
                    "expected an object");
  }
  Named all;
  if (fs::is_regular_file(folder / "chat_template.jinja", ignored)) {
    all.emplace_back("default", read_small_file(folder / "chat_template.jinja"));
    const fs::path more = folder / "additional_chat_templates";
    if (fs::is_directory(more, ignored)) {
      for (const auto& entry : fs::directory_iterator(more)) {
        if (entry.path().extension() == ".jinja")
          all.emplace_back(entry.path().stem().string(), read_small_file(entry.path()));
      }
    }
  } else {
    all = templates_in(config, config_path.string());
  }
  if (all.empty()) return std::nullopt;
  return ChatTemplate(choose(all, name, with_tools), special_tokens_in(folder));
}

std::vector<int> assistant_mask(const Conversation& conversation,
                                const std::vector<std::pair<std::size_t, std::size_t>>& offsets) {
  std::vector<int> mask(offsets.size(), 0);
  for (const auto& [begin, end] : conversation.assistant) {
    for (std::size_t i = 0; i < offsets.size(); ++i) {
      if (offsets[i].first < end && offsets[i].second > begin) mask[i] = 1;
    }
  }
  return mask;
}

}  // namespace tessera::text::chat
