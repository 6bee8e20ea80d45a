// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/tokenizer_use.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/terminal.h"
#include "tessera/cli/text_lines.h"
#include "tessera/config/json.h"
#include "tessera/engine/open_model.h"
#include "tessera/text/tokenizer.h"

namespace tessera::cli {
namespace {

constexpr std::array<std::string_view, 3> kActions = {"encode", "decode", "describe"};

struct TokenizerUseFlags {
  std::string action, path, file, field, out;
  bool prompt = false, keep_special = false, last = false;
  Common common;
};

bool parse(TokenizerUseFlags& words, const std::vector<std::string>& line) {
  Arguments arguments("tokenizer",
                      "Uses the tokenizer of a model: encode writes the ids of each line of a "
                      "file, decode the text of each line of ids, describe what it is.",
                      {"tessera tokenizer encode runs/my texts.jsonl --out ids.jsonl",
                       "tessera tokenizer decode runs/my ids.jsonl",
                       "tessera tokenizer describe runs/my"});
  arguments.positional("ACTION", &words.action, "encode, decode or describe");
  arguments.positional("MODEL", &words.path, "A run, a checkpoint, a Hugging Face folder or name");
  arguments.positional("FILE",
                       &words.file,
                       "encode: a .jsonl, or a file with one text a line; decode: a .jsonl with "
                       "{\"ids\": [...]} on each line",
                       /*required=*/false);
  arguments.option("--field", &words.field, "Field of a .jsonl line that contains the text [text]");
  arguments.option("--out", &words.out, "File for the lines [standard output]");
  arguments.flag("--prompt",
                 words.prompt,
                 "encode: add the ids with which the model's texts begin, as for generate");
  arguments.flag("--keep-special,--keep_special",
                 words.keep_special,
                 "decode: write special tokens such as <|endoftext|>, too");
  add_last(arguments, &words.last);
  arguments.common(words.common);
  return arguments.parse(line);
}

json::Value described(const text::Tokenizer& tokenizer) {
  json::Value ends = json::Value::array();
  for (const std::int32_t id : tokenizer.ends())
    ends.push_back(json::Value::integer(id));
  return json::Value::object({{"name", json::Value::string(tokenizer.name())},
                              {"size", json::Value::integer(tokenizer.size())},
                              {"end_of_text", json::Value::integer(tokenizer.end_of_text())},
                              {"ends", std::move(ends)},
                              {"padding", json::Value::integer(tokenizer.padding())}});
}

json::Value encoded(const text::Tokenizer& tokenizer, const std::string& text, bool prompt) {
  std::vector<std::int32_t> ids;
  if (prompt) {
    ids = tokenizer.encode_prompt(text);
  } else {
    tokenizer.encode(text, ids);
  }
  json::Value out = json::Value::array();
  for (const std::int32_t id : ids)
    out.push_back(json::Value::integer(id));
  return json::Value::object({{"ids", std::move(out)}});
}

/// The ids of one line; throws Error{Data} naming the line.
std::vector<std::int32_t> ids_of(const std::string& line,
                                 const std::string& place,
                                 const text::Tokenizer& tokenizer) {
  const json::Value value = json::parse_strict(line, place);
  const json::Value* const found = value.is_object() ? value.find("ids") : nullptr;
  TESSERA_REQUIRE(found != nullptr && found->is_array(),
                  Data,
                  place + ": expected {\"ids\": [...]}",
                  "write one object a line, as `tessera tokenizer encode` does");
  std::vector<std::int32_t> out;
  for (const json::Value& item : found->items()) {
    const auto id = item.is_number() ? item.as_integer() : std::nullopt;
    TESSERA_REQUIRE(id && *id >= 0 && *id < tokenizer.size(),
                    Data,
                    fmt::format("{}: {} is not an id of a tokenizer with {} tokens",
                                place,
                                item.dump(),
                                tokenizer.size()),
                    "ids are whole numbers from 0");
    out.push_back(static_cast<std::int32_t>(*id));
  }
  return out;
}

json::Value decoded(const text::Tokenizer& tokenizer, std::vector<std::int32_t> ids, bool special) {
  if (!special) std::erase_if(ids, [&](std::int32_t id) { return tokenizer.is_special(id); });
  return json::Value::object(
      {{"text", json::Value::string(text::replace_invalid_utf8(tokenizer.decode(ids)))}});
}

std::vector<json::Value> lines_of(const TokenizerUseFlags& words,
                                  const text::Tokenizer& tokenizer) {
  std::vector<json::Value> out;
  if (words.action == "describe") {
    out.push_back(described(tokenizer));
  } else if (words.action == "encode") {
    const std::string field = words.field.empty() ? "text" : words.field;
    for (const std::string& text : read_text_lines(words.file, field))
      out.push_back(encoded(tokenizer, text, words.prompt));
  } else {
    std::ifstream file(words.file);
    TESSERA_REQUIRE(file.good(), Data, "cannot read " + words.file, "name another file");
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      if (line.empty()) continue;
      const std::string place = fmt::format("{}:{}", words.file, number);
      out.push_back(decoded(tokenizer, ids_of(line, place, tokenizer), words.keep_special));
    }
  }
  return out;
}

void check(const TokenizerUseFlags& words) {
  const bool describes = words.action == "describe";
  TESSERA_REQUIRE(
      describes == words.file.empty(),
      Config,
      fmt::format("tessera tokenizer {}: {}",
                  words.action,
                  describes ? "it reads no FILE" : "FILE is missing"),
      fmt::format("tessera tokenizer {} MODEL{}", words.action, describes ? "" : " FILE"));
  const auto belongs = [&](bool given, const char* flag, std::string_view action) {
    TESSERA_REQUIRE(!given || words.action == action,
                    Config,
                    fmt::format("{} has no effect with tessera tokenizer {}", flag, words.action),
                    "remove it");
  };
  belongs(!words.field.empty(), "--field", "encode");
  belongs(words.prompt, "--prompt", "encode");
  belongs(words.keep_special, "--keep-special", "decode");
}

}  // namespace

bool uses_tokenizer(const std::vector<std::string>& line) {
  return !line.empty() && std::ranges::find(kActions, line.front()) != kActions.end();
}

int use_tokenizer(const std::vector<std::string>& line) {
  TokenizerUseFlags words;
  if (!parse(words, line)) return kExitOk;
  check(words);
  const std::unique_ptr<engine::OpenModel> model =
      engine::find_model(model_at(words.path, words.last, words.common));
  TESSERA_REQUIRE(model->tokenizer != nullptr,
                  Config,
                  words.path + " has no tokenizer",
                  "name a model that reads text");
  std::string text;
  for (const json::Value& value : lines_of(words, *model->tokenizer))
    text += value.dump() + "\n";
  if (words.out.empty()) {
    if (!text.empty()) text.pop_back();
    Terminal().data(text);
  } else {
    files::write_atomic(words.out, text);
  }
  return kExitOk;
}

}  // namespace tessera::cli
