// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/token_ids.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/tasks/answer_ends.h"
#include "tessera/tasks/conversation.h"
#include "tessera/text/chat/chat_template.h"
#include "tessera/text/small_file.h"

namespace tessera::interop {

namespace fs = std::filesystem;

json::Value token_ids_in(const fs::path& folder) {
  json::Value ids = json::Value::object();
  const fs::path path = folder / "config.json";
  if (!fs::is_regular_file(path)) return ids;
  const json::Value config = json::parse_strict(text::read_small_file(path), path.string());
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const json::Value* id = config.is_object() ? config.find(key) : nullptr;
    if (id != nullptr) ids[key] = *id;
  }
  return ids;
}

namespace {

/// The token with which texts begin: what the tokenizer puts before them, or else the folders'
/// bos_token.
std::optional<std::int32_t> beginning_of(const text::Tokenizer& tokenizer,
                                         const std::vector<fs::path>& folders) {
  const std::vector<std::int32_t> beginning = tokenizer.beginning();
  if (beginning.size() == 1) return beginning.front();
  for (const fs::path& folder : folders) {
    const json::Value tokens = text::chat::special_tokens_in(folder);
    const json::Value* const token = tokens.find("bos_token");
    if (token == nullptr) continue;
    std::vector<std::int32_t> ids;
    tokenizer.encode(token->as_string(), ids);
    if (ids.size() == 1) return ids.front();
  }
  return std::nullopt;
}

}  // namespace

json::Value token_ids_of(const models::ModelSource& source) {
  const text::TokenizerPtr tokenizer = models::source_tokenizer(source);
  std::vector<fs::path> folders = {source.folder};
  if (!source.tokenizer.vocab.empty())
    folders.push_back(fs::path(source.tokenizer.vocab).parent_path());
  const auto chat = tasks::open_chat_template(source.chat_template, folders, *tokenizer);
  const std::vector<std::int32_t> ends =
      tasks::answer_ends(*tokenizer, chat ? &*chat : nullptr).ids;
  json::Value all = json::Value::array();
  for (const std::int32_t end : ends)
    all.push_back(json::Value::integer(end));
  const std::int32_t begin = beginning_of(*tokenizer, folders).value_or(ends.front());
  return json::Value::object({{"bos_token_id", json::Value::integer(begin)},
                              {"eos_token_id", ends.size() == 1 ? all.items().front() : all}});
}

}  // namespace tessera::interop
