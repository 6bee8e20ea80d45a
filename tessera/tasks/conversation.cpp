// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/conversation.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/tasks/record_dataset.h"

namespace tessera::tasks {
namespace {

// ChatML, the conversation format of most recent models. Calls of tools are written as in Qwen2.5's
// template; a turn with calls may have no content.
constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}"
    "{% if message['tool_calls'] %}"
    "{% if message['content'] %}{{ message['content'] + '\\n' }}{% endif %}"
    "{% for call in message['tool_calls'] %}"
    "{% set called = call['function'] if call['function'] is defined else call %}"
    "{% set arguments = called['arguments'] %}"
    "{{ '' if loop.first else '\\n' }}"
    "{{ '<tool_call>\\n{\"name\": ' + (called['name'] | tojson) + ', \"arguments\": ' }}"
    "{{ arguments if arguments is string else (arguments | tojson) }}"
    "{{ '}\\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>' }}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{% endgeneration %}{{ '\\n' }}{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

struct RoleName {
  std::string_view from, role;
};
constexpr std::array kRoles = {RoleName{"human", "user"},
                               RoleName{"user", "user"},
                               RoleName{"gpt", "assistant"},
                               RoleName{"assistant", "assistant"},
                               RoleName{"model", "assistant"},
                               RoleName{"bot", "assistant"},
                               RoleName{"chatgpt", "assistant"},
                               RoleName{"function_call", "assistant"},
                               RoleName{"system", "system"},
                               RoleName{"observation", "tool"},
                               RoleName{"tool", "tool"}};

json::Value message(std::string_view role, const std::string& content) {
  json::Value out = json::Value::object();
  out["role"] = json::Value::string(std::string(role));
  out["content"] = json::Value::string(content);
  return out;
}

/// A string field that may be absent or empty.
std::string optional_text(const data::Record& record, const char* field) {
  const json::Value* const found = record.value.find(field);
  if (found == nullptr || found->is_null()) return {};
  if (found->is_string()) return found->as_string();
  if (record.row) return found->dump();
  record.refuse(fmt::format("\"{}\" is {}", field, found->type_name()), "give a text");
}

const std::string& text_in(const data::Record& record,
                           const json::Value& item,
                           const char* field,
                           const char* list) {
  const json::Value* const found = item.is_object() ? item.find(field) : nullptr;
  if (found == nullptr || !found->is_string()) {
    record.refuse(fmt::format("an entry of \"{}\" has no text \"{}\"", list, field),
                  fmt::format("write [{{\"{}\": \"...\", ...}}]", field));
  }
  return found->as_string();
}

/// Converts a turn of either format to a message. `list`: the field that contains it.
json::Value of_turn(const data::Record& record, const json::Value& turn, const char* list) {
  // Some files contain messages with the keys of one format under the field name of the other.
  const bool named = turn.is_object() && turn.find("from") == nullptr;
  const std::string& from = text_in(record, turn, named ? "role" : "from", list);
  const std::string& value = text_in(record, turn, named ? "content" : "value", list);
  const auto role = std::ranges::find(kRoles, from, &RoleName::from);
  if (role == kRoles.end()) {
    record.refuse(fmt::format("nobody is called \"{}\" in a conversation", from),
                  "call the turns human, gpt, system, observation or function_call");
  }
  return message(role->role, value);
}

json::Value of_sharegpt(const data::Record& record) {
  const json::Value& list = field_of(record, "conversations", nullptr);
  if (!list.is_array() || list.items().empty())
    record.refuse("\"conversations\" is not a list of turns",
                  "write [{\"from\": \"human\", \"value\": \"...\"}, ...]");
  json::Value out = json::Value::array();
  const std::string system = optional_text(record, "system");
  if (!system.empty()) out.push_back(message("system", system));
  for (const json::Value& turn : list.items())
    out.push_back(of_turn(record, turn, "conversations"));
  return out;
}

json::Value prompt_of_alpaca(const data::Record& record) {
  json::Value out = json::Value::array();
  const std::string system = optional_text(record, "system");
  if (!system.empty()) out.push_back(message("system", system));
  if (const json::Value* const history = record.value.find("history");
      history != nullptr && !history->is_null()) {
    if (!history->is_array())
      record.refuse("\"history\" is not a list", "write [[\"...\", \"...\"]]");
    for (const json::Value& round : history->items()) {
      const bool pair = round.is_array() && round.items().size() == 2 &&
                        round.items()[0].is_string() && round.items()[1].is_string();
      if (!pair)
        record.refuse("an entry of \"history\" is not a pair of texts", "write [\"...\", \"...\"]");
      out.push_back(message("user", round.items()[0].as_string()));
      out.push_back(message("assistant", round.items()[1].as_string()));
    }
  }
  std::string prompt = text_of(record, "instruction", nullptr);
  const std::string input = optional_text(record, "input");
  if (!input.empty()) prompt += "\n" + input;
  out.push_back(message("user", prompt));
  return out;
}

void check_messages(const data::Record& record, const json::Value& messages, const char* field) {
  const bool list = messages.is_array() && !messages.items().empty() &&
                    std::ranges::all_of(messages.items(), [](const json::Value& item) {
                      const json::Value* const role =
                          item.is_object() ? item.find("role") : nullptr;
                      return role != nullptr && role->is_string();
                    });
  if (!list) {
    record.refuse(fmt::format("\"{}\" is not a list of messages", field),
                  "write [{\"role\": \"user\", \"content\": \"...\"}, ...]");
  }
}

bool is_assistant(const json::Value& message) {
  return message.find("role")->as_string() == "assistant";
}
/// True if the record excludes a turn from the loss: "train": false, or "weight": 0.
bool left_out(const json::Value& message) {
  const json::Value* const train = message.find("train");
  const json::Value* const weight = message.find("weight");
  return (train != nullptr && train->is_bool() && !train->as_bool()) ||
         (weight != nullptr && weight->is_number() && weight->as_double() == 0.0);
}

/// True if a content is a list of nothing but texts.
bool is_text_parts(const json::Value& content) {
  return content.is_array() && !content.items().empty() &&
         std::ranges::all_of(content.items(), [](const json::Value& part) {
           const json::Value* const text = part.is_object() ? part.find("text") : nullptr;
           return text != nullptr && text->is_string();
         });
}

/// True if a template has written a list of parts as Python shows it.
bool shows_parts(const std::string& text) {
  return text.find("[{'type': 'text', 'text': ") != std::string::npos ||
         text.find("[{'text': ") != std::string::npos;
}

/// The arguments of a message's calls of tools that are texts with JSON.
std::vector<json::Value*> written_arguments(json::Value& message) {
  std::vector<json::Value*> out;
  json::Value* const calls = message.find("tool_calls");
  if (calls == nullptr || !calls->is_array()) return out;
  for (json::Value& call : calls->items()) {
    json::Value* const function = call.is_object() ? call.find("function") : nullptr;
    json::Value& of = function != nullptr && function->is_object() ? *function : call;
    json::Value* const arguments = of.is_object() ? of.find("arguments") : nullptr;
    if (arguments != nullptr && arguments->is_string()) out.push_back(arguments);
  }
  return out;
}

bool has_other_forms(const json::Value& messages) {
  json::Value copy = messages;
  return std::ranges::any_of(copy.items(), [](json::Value& message) {
    const json::Value* const content = message.find("content");
    return (content != nullptr && is_text_parts(*content)) || !written_arguments(message).empty();
  });
}

/// The same messages with texts instead of lists of texts, and objects as arguments of tools.
json::Value in_plain_form(const json::Value& messages) {
  json::Value out = messages;
  for (json::Value& message : out.items()) {
    json::Value* const content = message.find("content");
    if (content != nullptr && is_text_parts(*content)) {
      std::string joined;
      for (const json::Value& part : content->items())
        joined += part.find("text")->as_string();
      *content = json::Value::string(std::move(joined));
    }
    for (json::Value* const arguments : written_arguments(message)) {
      try {
        *arguments = json::parse_strict(arguments->as_string(), "arguments");
      } catch (const Error&) {
        continue;  // the template gets the text
      }
    }
  }
  return out;
}

std::size_t common_size(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

json::Value first_of(const json::Value& messages, std::size_t count) {
  return json::Value::array(
      {messages.items().begin(), messages.items().begin() + static_cast<std::ptrdiff_t>(count)});
}

}  // namespace

bool LearnedTokens::any() const {
  return std::ranges::any_of(learned, [](std::uint8_t one) { return one != 0; });
}

namespace {

/// The field of what follows a prompt; of a preference it is the answer that was chosen.
const char* completion_field(const data::Record& record) {
  const bool chosen =
      record.value.find("completion") == nullptr && record.value.find("chosen") != nullptr;
  return chosen ? "chosen" : "completion";
}

}  // namespace

Form form_of(const data::Record& record, const std::string& text_field) {
  const auto has = [&](std::string_view name) { return record.value.find(name) != nullptr; };
  if (has("messages")) return Form::Messages;
  if (has("conversations")) return Form::ShareGpt;
  if (has("instruction") && has("output")) return Form::Alpaca;
  if (has("prompt") && has(completion_field(record))) return Form::PromptCompletion;
  if (has(text_field)) return Form::Text;
  std::vector<std::string> names;
  for (const auto& [name, value] : record.value.members())
    names.push_back(name);
  record.refuse(
      "the record has none of messages, conversations, instruction and output, prompt and "
      "completion, " +
          text_field,
      fmt::format("its fields are {}: name those that are meant in data.map, such as "
                  "{{\"prompt\": \"question\", \"completion\": \"answer\"}}",
                  names.empty() ? "none" : text::join(names, ", ")));
}

json::Value messages_of(const data::Record& record, Form form) {
  TESSERA_ASSERT(form == Form::ShareGpt || form == Form::Alpaca);
  if (form == Form::ShareGpt) return of_sharegpt(record);
  json::Value out = prompt_of_alpaca(record);
  out.push_back(message("assistant", text_of(record, "output", nullptr)));
  return out;
}

data::Record without_system(const data::Record& record, Form form) {
  data::Record out = record;
  const auto drop_first = [&](const char* field, const char* role) {
    const json::Value* const list = record.value.find(field);
    if (list == nullptr || !list->is_array() || list->items().empty()) return;
    const json::Value& first = list->items().front();
    const json::Value* const name = first.is_object() ? first.find(role) : nullptr;
    if (name == nullptr || !name->is_string() || name->as_string() != "system") return;
    json::Value rest = json::Value::array();
    for (std::size_t i = 1; i < list->items().size(); ++i)
      rest.push_back(list->items()[i]);
    out.value[field] = std::move(rest);
  };
  if (form == Form::Messages) drop_first("messages", "role");
  if (form == Form::PromptCompletion) drop_first("prompt", "role");
  if (form == Form::ShareGpt) drop_first("conversations", "from");
  if ((form == Form::ShareGpt || form == Form::Alpaca) && record.value.find("system") != nullptr)
    out.value["system"] = json::Value::string("");
  return out;
}

json::Value alpaca_prompt_of(const data::Record& record) {
  return prompt_of_alpaca(record);
}

json::Value conversation_of(const data::Record& record,
                            const json::Value& value,
                            const char* field) {
  const bool turns = value.is_array() && !value.items().empty() &&
                     std::ranges::all_of(value.items(), [](const json::Value& item) {
                       return item.is_object() && item.find("from") != nullptr;
                     });
  if (!turns) {
    check_messages(record, value, field);
    return value;
  }
  json::Value out = json::Value::array();
  for (const json::Value& turn : value.items())
    out.push_back(of_turn(record, turn, field));
  return out;
}

std::string chat_template_text(const std::string& name) {
  if (name == "chatml") return std::string(kChatMl);
  std::error_code ignored;
  TESSERA_REQUIRE(std::filesystem::is_regular_file(name, ignored),
                  Config,
                  fmt::format("there is no chat template {}", name),
                  "give a file with a template in Jinja, or \"chatml\"");
  return files::read_within(name);
}

std::optional<text::chat::ChatTemplate> open_chat_template(
    const std::string& name,
    const std::vector<std::filesystem::path>& folders,
    const text::Tokenizer& tokenizer) {
  std::optional<text::chat::ChatTemplate> own;
  json::Value tokens = json::Value::object();
  for (const std::filesystem::path& folder : folders) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) continue;
    if (!own && name.empty()) own = text::chat::find_chat_template(folder);
    if (tokens.members().empty()) tokens = text::chat::special_tokens_in(folder);
  }
  if (name.empty()) return own;
  if (tokens.members().empty()) {
    const std::string_view end = tokenizer.bytes_of(tokenizer.end_of_text());
    tokens = json::Value::object({{"eos_token", json::Value::string(std::string(end))}});
  }
  // The token that ends a turn ends an answer.
  if (name == "chatml") tokens["eos_token"] = json::Value::string("<|im_end|>");
  return text::chat::ChatTemplate(chat_template_text(name), tokens);
}

std::string chat_template_of(const json::Value& config) {
  const auto member = [](const json::Value* value, std::string_view name) {
    return value != nullptr && value->is_object() ? value->find(name) : nullptr;
  };
  const json::Value* const found =
      member(member(member(&config, "task"), "params"), "chat_template");
  return found != nullptr && found->is_string() ? found->as_string() : std::string();
}

ConversationTokenizer::ConversationTokenizer(const text::Tokenizer& tokenizer,
                                             const text::chat::ChatTemplate* chat)
    : tokenizer_(tokenizer), chat_(chat), now_(std::time(nullptr)) {
  if (chat != nullptr && !chat->marks_assistant())
    turns_ = std::make_shared<const Turns>(*chat, tokenizer);
}

std::vector<std::int32_t> ConversationTokenizer::with_end(std::vector<std::int32_t> ids) const {
  if (ids.empty() || ids.back() != tokenizer_.end_of_text())
    ids.push_back(tokenizer_.end_of_text());
  return ids;
}

LearnedTokens ConversationTokenizer::text(const std::string& text) const {
  LearnedTokens out{with_end(tokenizer_.encode_prompt(text)), {}};
  out.learned.assign(out.ids.size(), 1);
  return out;
}

LearnedTokens ConversationTokenizer::completion(const std::string& prompt,
                                                const std::string& completion,
                                                LossOn loss_on) const {
  LearnedTokens out{with_end(tokenizer_.encode_prompt(prompt + completion)), {}};
  out.learned.assign(out.ids.size(), 1);
  if (loss_on != LossOn::All)
    std::fill_n(out.learned.begin(), common_size(out.ids, tokenizer_.encode_prompt(prompt)), 0);
  return out;
}

LearnedTokens ConversationTokenizer::answer(const data::Record& record,
                                            const json::Value& prompt,
                                            const std::string& answer,
                                            LossOn loss_on) const {
  const std::size_t count = prompt.items().size();
  if (chat_ != nullptr) {
    json::Value messages = prompt;
    messages.push_back(message("assistant", answer));
    return conversation(record, messages, count, loss_on);
  }
  if (count > 1) {
    record.refuse("the record has a system text or a history, and the model no chat template",
                  "set task.params.chat_template to \"chatml\" or to a file");
  }
  return completion(prompt.items()[0].find("content")->as_string() + "\n", answer, loss_on);
}

text::chat::Conversation ConversationTokenizer::rendered(const data::Record& record,
                                                         const json::Value& messages,
                                                         bool add_generation_prompt) const {
  if (chat_ == nullptr) {
    record.refuse("the model has no chat template, which turns messages into text",
                  "set task.params.chat_template to \"chatml\" or to a file, or train on a model "
                  "whose folder has one");
  }
  text::chat::RenderOptions options;
  options.add_generation_prompt = add_generation_prompt;
  options.now = now_;
  if (const json::Value* const tools = record.value.find("tools"); tools != nullptr) {
    // Tables store lists as strings.
    options.tools = tools->is_string() && !tools->as_string().empty()
                        ? json::parse_strict(tools->as_string(), record.place)
                        : *tools;
    if (options.tools.is_string()) options.tools = {};
  }
  if (const json::Value* const variables = record.value.find("chat_template_kwargs"))
    options.variables = *variables;
  try {
    try {
      text::chat::Conversation out = chat_->render(messages, options);
      if (!shows_parts(out.text)) return out;
    } catch (const Error&) {
      // Some templates read neither lists of parts nor arguments of tools as texts.
      if (!has_other_forms(messages)) throw;
    }
    return chat_->render(in_plain_form(messages), options);
  } catch (const Error& error) {
    record.refuse(error.what(), error.fix());
  }
}

std::string ConversationTokenizer::render(const data::Record& record,
                                          const json::Value& messages,
                                          bool add_generation_prompt) const {
  return rendered(record, messages, add_generation_prompt).text;
}

Spans ConversationTokenizer::turns_of(const data::Record& record,
                                      const json::Value& messages,
                                      const std::string& whole) const {
  const auto found =
      turns_->find(messages, whole, [&](const json::Value& some, bool add_generation_prompt) {
        return render(record, some, add_generation_prompt);
      });
  if (found) return *found;
  record.refuse(
      "the assistant's turns are not found in the text that the chat template renders, because it "
      "changes the messages or their order",
      "use a template that marks the assistant's text with {% generation %}, or set "
      "task.params.loss_on to \"all\"");
}

LearnedTokens ConversationTokenizer::conversation(const data::Record& record,
                                                  const json::Value& messages,
                                                  std::size_t prompt,
                                                  LossOn loss_on) const {
  text::chat::Conversation all = rendered(record, messages, false);
  LearnedTokens out;
  const auto tokens = tokenizer_.encode_spans(all.text, out.ids);
  out.learned.assign(out.ids.size(), 1);
  if (loss_on == LossOn::All) return out;
  if (prompt > 0 && loss_on != LossOn::Assistant && loss_on != LossOn::LastAssistant) {
    const bool answer = !is_assistant(messages.items()[prompt - 1]);
    std::vector<std::int32_t> before;
    tokenizer_.encode(render(record, first_of(messages, prompt), answer), before);
    std::fill_n(out.learned.begin(), common_size(out.ids, before), 0);
    return out;
  }
  // The completion of a conversation without a prompt is its last answer.
  if (loss_on == LossOn::Completion) loss_on = LossOn::LastAssistant;
  if (!chat_->marks_assistant()) all.assistant = turns_of(record, messages, all.text);
  std::vector<bool> kept;
  for (const json::Value& one : messages.items()) {
    if (is_assistant(one)) kept.push_back(!left_out(one));
  }
  if (std::ranges::find(kept, false) != kept.end()) {
    if (kept.size() != all.assistant.size()) {
      record.refuse("turns are left out of the loss, and the chat template does not mark each turn",
                    "remove \"train\" and \"weight\" from the messages");
    }
    Spans some;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i]) some.push_back(all.assistant[i]);
    }
    all.assistant = std::move(some);
  }
  if (loss_on == LossOn::LastAssistant && all.assistant.size() > 1)
    all.assistant = {all.assistant.back()};
  const std::vector<int> mask = text::chat::assistant_mask(all, tokens);
  std::ranges::copy(mask, out.learned.begin());
  return out;
}

LearnedTokens ConversationTokenizer::read(const data::Record& record,
                                          Form form,
                                          LossOn loss_on,
                                          const std::string& text_field) const {
  switch (form) {
    case Form::Text:
      return text(text_of(record, text_field, "text_field"));
    case Form::Messages: {
      const json::Value& messages = field_of(record, "messages", nullptr);
      check_messages(record, messages, "messages");
      return conversation(record, messages, 0, loss_on);
    }
    case Form::ShareGpt:
      return conversation(record, messages_of(record, form), 0, loss_on);
    case Form::Alpaca:
      if (chat_ != nullptr) return conversation(record, messages_of(record, form), 0, loss_on);
      return answer(record, prompt_of_alpaca(record), text_of(record, "output", nullptr), loss_on);
    case Form::PromptCompletion:
      break;
  }
  const json::Value& prompt = field_of(record, "prompt", nullptr);
  const char* const field = completion_field(record);
  if (!prompt.is_array()) {
    return completion(text_of(record, "prompt", nullptr), text_of(record, field, nullptr), loss_on);
  }
  const json::Value& answer = field_of(record, field, nullptr);
  check_messages(record, prompt, "prompt");
  check_messages(record, answer, field);
  json::Value messages = prompt;
  for (const json::Value& item : answer.items())
    messages.push_back(item);
  return conversation(record, messages, prompt.items().size(), loss_on);
}

}  // namespace tessera::tasks
