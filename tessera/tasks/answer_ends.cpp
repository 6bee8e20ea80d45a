// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/answer_ends.h"

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

json::Value message_of(const char* role, const char* content) {
  return json::Value::object(
      {{"role", json::Value::string(role)}, {"content", json::Value::string(content)}});
}

/// The text that the template writes after an assistant's turn that ends a conversation; nothing if
/// it refuses every short one.
std::optional<std::string> after_an_answer(const text::chat::ChatTemplate& chat) {
  constexpr const char* kAnswer = "4f1c9a";  // a word that no template contains
  const json::Value user = message_of("user", "a"), assistant = message_of("assistant", kAnswer);
  for (const json::Value& messages :
       {json::Value::array({user, assistant}),
        json::Value::array({message_of("system", "a"), user, assistant})}) {
    try {
      const std::string text = chat.render(messages).text;
      const std::size_t at = text.rfind(kAnswer);
      if (at != std::string::npos) return text.substr(at + std::string_view(kAnswer).size());
    } catch (const Error&) {
      continue;
    }
  }
  return std::nullopt;
}

void add_end(AnswerEnds& ends, std::int32_t id) {
  if (std::ranges::find(ends.ids, id) == ends.ids.end()) ends.ids.push_back(id);
}

/// Adds the last special token of a text; if it has none, the text itself.
void add_text(AnswerEnds& ends, const text::Tokenizer& tokenizer, std::string_view text) {
  const std::string_view trimmed = text::trim(text);
  if (trimmed.empty()) return;
  std::vector<std::int32_t> ids;
  tokenizer.encode(trimmed, ids);
  const auto special = std::find_if(
      ids.rbegin(), ids.rend(), [&](std::int32_t id) { return tokenizer.is_special(id); });
  if (special != ids.rend()) {
    add_end(ends, *special);
  } else if (ids.size() == 1) {
    add_end(ends, ids.front());
  } else if (std::ranges::find(ends.texts, trimmed) == ends.texts.end()) {
    ends.texts.emplace_back(trimmed);
  }
}

}  // namespace

std::string end_of_turn(const text::Tokenizer& tokenizer, const text::chat::ChatTemplate& chat) {
  const std::string after = after_an_answer(chat).value_or("");
  std::vector<std::int32_t> ids;
  tokenizer.encode(after, ids);
  const auto special =
      std::ranges::find_if(ids, [&](std::int32_t id) { return tokenizer.is_special(id); });
  std::size_t end = std::string::npos;
  for (auto id = special; id != ids.end() && tokenizer.is_special(*id); ++id) {
    const std::string_view token = tokenizer.bytes_of(*id);
    const std::size_t at = id == special ? after.find(token) : end;
    if (at == std::string::npos || after.compare(at, token.size(), token) != 0) break;
    end = at + token.size();
  }
  if (end != std::string::npos) return after.substr(0, end);
  const std::size_t words = after.find_first_not_of(" \n");
  if (words == std::string::npos) return {};
  std::string out = after.substr(0, after.find('\n', words));
  out.resize(out.find_last_not_of(' ') + 1);
  return out;
}

AnswerEnds answer_ends(const text::Tokenizer& tokenizer, const text::chat::ChatTemplate* chat) {
  AnswerEnds out;
  for (const std::int32_t id : tokenizer.ends())
    add_end(out, id);
  if (chat == nullptr) return out;
  add_text(out, tokenizer, end_of_turn(tokenizer, *chat));
  const json::Value& tokens = chat->special_tokens();
  const json::Value* const end = tokens.is_object() ? tokens.find("eos_token") : nullptr;
  if (end != nullptr && end->is_string()) add_text(out, tokenizer, end->as_string());
  return out;
}

}  // namespace tessera::tasks
